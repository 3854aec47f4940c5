"""LSTM step by step.

gates = X_t W^T + h R^T + b, cut into i, o, f, c   (Equations of the ONNX operator)
i += P_i * c,  f += P_f * c                        with peepholes
f(f) = 1 - f(i)                                    with input_forget
c' = f(f) * c + f(i) * g(c)
o += P_o * c'                                      with peepholes
h' = f(o) * h(c')

clip bounds the gates, but not the c' of h', as in ONNX Runtime.
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from ..node_builder import optional_input
from .batch_first import batch_first
from .recurrent import recurrent, unroll
from .recurrent_layer import Direction, Recurrent, Step
from .recurrent_operator import as_one_operator
from .registry import rewrites

ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]
_PEEPHOLES = 7


@rewrites("LSTM")
def lstm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the steps."""
    steps_first = batch_first(node, graph, states=[5, 6])
    if steps_first is not None:
        return steps_first
    layer = recurrent(node, graph, gates=4, activations=ACTIVATIONS)
    whole = as_one_operator(layer, "lstm")
    if whole is not None:
        return whole
    return unroll(layer, states=[5, 6], cell=lstm_cell)


def lstm_cell(layer: Recurrent, side: Direction) -> Step:
    """The next h and c of one step."""
    build = layer.build
    peepholes = ["", "", ""]
    if optional_input(layer.node, _PEEPHOLES):
        weights = layer.slice_of(_PEEPHOLES, side.index)
        peepholes = build.split(weights, [layer.hidden] * 3, axis=0)
    coupled = layer.attribute("input_forget", 0)

    def gate(value: str, memory: str, peephole: str) -> str:
        if peephole:
            value = build.add("Add", value, build.add("Mul", memory, peephole))
        return layer.activate(side, 0, layer.clip(value))

    def step(part: str, states: list[str]) -> list[str]:
        hidden, memory = states
        gates = build.add("Add", part, layer.multiply(hidden, side.recurrence))
        if side.recurrence_bias:
            gates = build.add("Add", gates, side.recurrence_bias)
        pieces = build.split(gates, [layer.hidden] * 4, axis=1)
        enter = gate(pieces[0], memory, peepholes[0])
        if coupled:
            forget = build.add("Sub", build.number(layer.node.input[0], 1.0), enter)
        else:
            forget = gate(pieces[2], memory, peepholes[2])
        candidate = layer.activate(side, 1, layer.clip(pieces[3]))
        kept = build.add("Mul", forget, memory)
        memory = build.add("Add", kept, build.add("Mul", enter, candidate))
        leave = gate(pieces[1], memory, peepholes[1])
        return [build.add("Mul", leave, layer.activate(side, 2, memory)), memory]

    return step
