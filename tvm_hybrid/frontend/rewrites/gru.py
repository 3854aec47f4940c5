"""GRU with its time steps written out.

z, r = f(X_t W_zr^T + h R_zr^T + b)               (Equations of the ONNX operator)
n = g(X_t W_n^T + (r * h) R_n^T + b)              linear_before_reset = 0
n = g(X_t W_n^T + b_w + r * (h R_n^T + b_r))      linear_before_reset = 1
h' = (1 - z) * n + z * h  =  n + z * (h - n)
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from .recurrent import Direction, Recurrent, activate, recurrent, unroll
from .registry import rewrites


@rewrites("GRU")
def gru(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the steps out."""
    layer = recurrent(node, graph, gates=3, activations=["Sigmoid", "Tanh"])
    return unroll(layer, states=[5], cell=_cell)


def _cell(layer: Recurrent, side: Direction, part: str, states: list[str]) -> list[str]:
    build, size = layer.build, layer.hidden
    hidden = states[0]
    inputs = build.split(part, [2 * size, size], axis=1)
    recurrences = build.split(side.recurrence, [2 * size, size], axis=1)
    biases = ["", ""]
    if side.recurrence_bias:
        biases = build.split(side.recurrence_bias, [2 * size, size], axis=0)

    def through(value: str, piece: int) -> str:
        product = build.add("MatMul", value, recurrences[piece])
        return build.add("Add", product, biases[piece]) if biases[piece] else product

    both = activate(layer, side, 0, build.add("Add", inputs[0], through(hidden, 0)))
    update, reset = build.split(both, [size, size], axis=1)
    if layer.attribute("linear_before_reset", 0):
        inner = build.add("Mul", reset, through(hidden, 1))
    else:
        inner = through(build.add("Mul", reset, hidden), 1)
    candidate = activate(layer, side, 1, build.add("Add", inputs[1], inner))
    step = build.add("Mul", update, build.add("Sub", hidden, candidate))
    return [build.add("Add", candidate, step)]
