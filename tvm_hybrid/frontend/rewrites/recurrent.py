"""LSTM, GRU and RNN: each a product of all inputs, and one operator of all steps.

    LSTM(X [steps, batch, input], W, R, B, ...)
        ->  MatMul(X, W^T of all directions) + bias,
            Recurrent(part [steps, batch, directions * gates * hidden], R, ...)

Steps and sequences may be open. In steps behind the end of a sequence (sequence_lens) its state
stays as it is, and Y is zero.
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from .recurrent_forms import batch_first, one_direction_each
from .recurrent_layer import Recurrent, recurrent
from .recurrent_operator import one_operator
from .registry import rewrites


@rewrites("LSTM")
def lstm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator."""
    return written(node, graph, "lstm")


@rewrites("GRU")
def gru(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator."""
    return written(node, graph, "gru")


@rewrites("RNN")
def rnn(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator."""
    return written(node, graph, "rnn")


def written(
    node: onnx.NodeProto,
    graph: Graph,
    cell: str,
    kind: type[Recurrent] = Recurrent,
    hidden_axis: int = 2,
) -> list[onnx.NodeProto]:
    """A layer as one operator, or as layers that are.

    Parameters
    ----------
    cell
        "lstm", "gru" or "rnn".
    kind
        What tells the weights.
    hidden_axis
        The axis of R that is as long as the hidden state.
    """
    steps_first = batch_first(node, graph, states=[5, 6] if cell == "lstm" else [5])
    if steps_first is not None:
        return steps_first
    layer = recurrent(node, graph, cell, kind, hidden_axis)
    return one_direction_each(node, graph, layer.activations) or one_operator(layer)
