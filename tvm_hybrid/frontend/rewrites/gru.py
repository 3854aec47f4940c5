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
from .recurrent_operator import as_one_operator
from .registry import rewrites


@rewrites("GRU")
def gru(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the steps."""
    steps_first = batch_first(node, graph, states=[5])
    if steps_first is not None:
        return steps_first
    layer = recurrent(node, graph, gates=3, activations=["Sigmoid", "Tanh"])
    linear = bool(layer.attribute("linear_before_reset", 0))
    whole = as_one_operator(layer, "gru_linear" if linear else "gru")
    if whole is not None:
        return whole
    return unroll(layer, states=[5], cell=_cell)


def _cell(layer: Recurrent, side: Direction) -> Step:
    build, size = layer.build, layer.hidden
    whole = bool(layer.attribute("linear_before_reset", 0))
    pieces = [3 * size] if whole else [2 * size, size]
    recurrences, biases = [side.recurrence], [side.recurrence_bias]
    if not whole:
        recurrences = build.split(side.recurrence, pieces, axis=1)
        biases = build.split(side.recurrence_bias, pieces, axis=0) if biases[0] else ["", ""]

    def through(value: str, piece: int) -> list[str]:
        value = build.add("MatMul", value, recurrences[piece])
        if biases[piece]:
            value = build.add("Add", value, biases[piece])
        gates = pieces[piece] // size
        return build.split(value, [size] * gates, axis=1) if gates > 1 else [value]

    def step(part: str, states: list[str]) -> list[str]:
        hidden = states[0]
        inputs, products = build.split(part, [size] * 3, axis=1), through(hidden, 0)
        reset, update = (
            layer.activate(side, 0, layer.clip(build.add("Add", products[gate], inputs[gate])))
            for gate in (1, 0)
        )
        if whole:
            inner = build.add("Mul", products[2], reset)
        else:
            (inner,) = through(build.add("Mul", reset, hidden), 1)
        candidate = layer.activate(side, 1, layer.clip(build.add("Add", inputs[2], inner)))
        difference = build.add("Mul", build.add("Sub", hidden, candidate), update)
        return [build.add("Add", difference, candidate)]

    return step
