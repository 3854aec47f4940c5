"""RNN step by step.

h' = f(X_t W^T + h R^T + b)   (Equations of the ONNX operator)
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from .batch_first import batch_first
from .recurrent import recurrent, unroll
from .recurrent_layer import Direction, Recurrent, Step
from .recurrent_operator import as_one_operator
from .registry import rewrites


@rewrites("RNN")
def rnn(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the steps."""
    steps_first = batch_first(node, graph, states=[5])
    if steps_first is not None:
        return steps_first
    layer = recurrent(node, graph, gates=1, activations=["Tanh"])
    whole = as_one_operator(layer, "rnn")
    if whole is not None:
        return whole
    return unroll(layer, states=[5], cell=_cell)


def _cell(layer: Recurrent, side: Direction) -> Step:
    build = layer.build

    def step(part: str, states: list[str]) -> list[str]:
        total = build.add("Add", part, layer.multiply(states[0], side.recurrence))
        if side.recurrence_bias:
            total = build.add("Add", total, side.recurrence_bias)
        return [layer.activate(side, 0, layer.clip(total))]

    return step
