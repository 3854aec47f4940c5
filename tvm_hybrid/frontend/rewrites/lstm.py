"""LSTM with its time steps written out.

gates = X_t W^T + h R^T + b, cut into i, o, f, c   (Equations of the ONNX operator)
c' = f(f) * c + f(i) * g(c),  h' = f(o) * h(c')
"""

from __future__ import annotations

import onnx

from microkernels.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import attributes_of, optional_input
from .recurrent import Direction, Recurrent, activate, recurrent, unroll
from .registry import rewrites

ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]


@rewrites("LSTM")
def lstm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the steps out; peepholes and coupled gates are unsupported."""
    check_gates(node)
    layer = recurrent(node, graph, gates=4, activations=ACTIVATIONS)
    return unroll(layer, states=[5, 6], cell=lstm_cell)


def check_gates(node: onnx.NodeProto) -> None:
    """Refuses peepholes and coupled gates."""
    if optional_input(node, 7) or attributes_of(node).get("input_forget"):
        raise UnsupportedOperatorError(
            f"{describe(node)}: peepholes and coupled input/forget gates are unsupported"
        )


def lstm_cell(layer: Recurrent, side: Direction, part: str, states: list[str]) -> list[str]:
    """The next h and c of one step."""
    build = layer.build
    hidden, memory = states
    gates = build.add("Add", part, layer.multiply(hidden, side.recurrence))
    if side.recurrence_bias:
        gates = build.add("Add", gates, side.recurrence_bias)
    pieces = build.split(gates, [layer.hidden] * 4, axis=1)
    enter, leave, forget = (activate(layer, side, 0, piece) for piece in pieces[:3])
    candidate = activate(layer, side, 1, pieces[3])
    kept = build.add("Mul", forget, memory)
    memory = build.add("Add", kept, build.add("Mul", enter, candidate))
    return [build.add("Mul", leave, activate(layer, side, 2, memory)), memory]
