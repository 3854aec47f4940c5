"""GRU step by step.

z, r = f(X_t W_zr^T + h R_zr^T + b)               (Equations of the ONNX operator)
n = g(X_t W_n^T + (r * h) R_n^T + b)              linear_before_reset = 0
n = g(X_t W_n^T + b_w + r * (h R_n^T + b_r))      linear_before_reset = 1
h' = (1 - z) * n + z * h  =  n + z * (h - n)
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from .batch_first import batch_first
from .recurrent import recurrent, unroll
from .recurrent_layer import Direction, Recurrent, Step
from .registry import rewrites


@rewrites("GRU")
def gru(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the steps."""
    steps_first = batch_first(node, graph, states=[5])
    if steps_first is not None:
        return steps_first
    layer = recurrent(node, graph, gates=3, activations=["Sigmoid", "Tanh"])
    return unroll(layer, states=[5], cell=_cell)


def _cell(layer: Recurrent, side: Direction) -> Step:
    build, size = layer.build, layer.hidden
    recurrences = build.split(side.recurrence, [2 * size, size], axis=1)
    biases = ["", ""]
    if side.recurrence_bias:
        biases = build.split(side.recurrence_bias, [2 * size, size], axis=0)

    def through(value: str, piece: int) -> str:
        product = build.add("MatMul", value, recurrences[piece])
        return build.add("Add", product, biases[piece]) if biases[piece] else product

    def step(part: str, states: list[str]) -> list[str]:
        hidden = states[0]
        inputs = build.split(part, [2 * size, size], axis=1)
        gates = build.add("Add", inputs[0], through(hidden, 0))
        both = layer.activate(side, 0, layer.clip(gates))
        update, reset = build.split(both, [size, size], axis=1)
        if layer.attribute("linear_before_reset", 0):
            inner = build.add("Mul", reset, through(hidden, 1))
        else:
            inner = through(build.add("Mul", reset, hidden), 1)
        candidate = layer.activate(side, 1, layer.clip(build.add("Add", inputs[1], inner)))
        difference = build.add("Mul", update, build.add("Sub", hidden, candidate))
        return [build.add("Add", candidate, difference)]

    return step
