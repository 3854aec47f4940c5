"""torch's LSTM, GRU and RNN: a layer is one product of all inputs, and one operator of all steps.

    lstm(x: [steps, batch, input], (h, c), weights and biases, ...)
        ->  for each layer: R.matmul(x, W^T of both directions) + bias, and `recurrent_layer`

Torch's decompositions write out all steps: a product and a dozen other kernels for each. They are
still used for programs with layers that are not `is_whole`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import fx
from tvm import relax

from relay_passes.ir.constants import array_of, constant_of
from tir_schedules.recurrent.problem import STATES

from ..expressions import emit
from ..onnx.ops.recurrent import recurrent_layer
from .promotion import as_type

Table = TypeVar("Table", bound=Any)
Array = np.ndarray[Any, Any]
aten = torch.ops.aten

_NARROW = ("float16", "bfloat16")


class _Kind(NamedTuple):
    """A kind of layer, with the order of torch's gates in ONNX, and ONNX's activations."""

    cell: str
    gates: tuple[int, ...]
    activations: tuple[str, ...]


_KINDS = {
    aten.lstm.input: _Kind("lstm", (0, 3, 1, 2), ("Sigmoid", "Tanh", "Tanh")),
    aten.gru.input: _Kind("gru_linear", (1, 0, 2), ("Sigmoid", "Tanh")),
    aten.rnn_tanh.input: _Kind("rnn", (0,), ("Tanh",)),
    aten.rnn_relu.input: _Kind("rnn", (0,), ("Relu",)),
}


class _Call(NamedTuple):
    """The arguments of a node, by torch's names."""

    input: Any
    hx: Any
    params: Any
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


def with_whole_layers(table: Table, graph: Any, constants: Collection[Any]) -> Table:
    """Removes the decompositions of recurrent layers, if all layers of a graph are `is_whole`.

    Parameters
    ----------
    table : dict or torch.export.decomp_utils.CustomDecompTable
        It is changed, and returned.
    graph : torch.fx.GraphModule
        The program; layers in branches count as having no constants.
    constants : collection of torch.fx.Node
        The program's placeholders with known values.
    """
    graphs = [each for each in graph.modules() if isinstance(each, fx.GraphModule)]
    layers = [node for each in graphs for node in each.graph.nodes if node.target in _KINDS]
    if all(is_whole(node, constants) for node in layers):
        for operator in _KINDS:
            table.pop(operator, None)
    return table


def is_whole(node: Any, constants: Collection[Any]) -> bool:
    """Whether a node's layers have constant weights and no projections.

    If such a layer has dropout, it is refused; torch's decomposition would ignore the dropout.
    """
    call = _Call(*node.args)
    count = call.num_layers * (1 + call.bidirectional) * (2 + 2 * call.has_biases)
    return len(call.params) == count and all(each in constants for each in call.params)


def drops_out(node: Any) -> bool:
    """Whether a node's layers apply dropout."""
    call = _Call(*node.args)
    return bool(call.train and call.dropout)


def _layers(node: Any, importer: Any, kind: _Kind) -> list[Any]:
    """The output of the last layer, and the final states of all layers if they are read."""
    call = _Call(*node.args)
    x = importer.env[call.input]
    dtype = str(x.ty.dtype)
    wide = "float32" if dtype in _NARROW else dtype
    x = as_type(x, wide)
    if call.batch_first:
        x = emit(relax.op.permute_dims(x, [1, 0, 2]))
    states = call.hx if kind.cell == "lstm" else [call.hx]
    given = [] if all(map(_is_zero, states)) else [importer.env[each] for each in states]
    given = [as_type(each, wide) for each in given]
    weights = [array_of(importer.env[each].value).astype(wide) for each in call.params]
    finals = any(user.args[1] != 0 for user in node.users)
    directions, count = 1 + call.bidirectional, 2 + 2 * call.has_biases
    ends: list[list[Any]] = [[] for _ in range(STATES[kind.cell])]
    for layer in range(call.num_layers):
        sides = range(layer * directions, (layer + 1) * directions)
        own = [weights[side * count : (side + 1) * count] for side in sides]
        first = [
            emit(relax.op.strided_slice(each, [0], [sides.start], [sides.stop])) for each in given
        ]
        x, *found = _layer(x, own, first, kind, finals)
        for end, each in zip(ends, found, strict=False):
            end.append(each)
    if call.batch_first:
        x = emit(relax.op.permute_dims(x, [1, 0, 2]))
    joined = [emit(relax.op.concat(end, axis=0)) for end in ends if end]
    results = [as_type(each, dtype) for each in (x, *joined)]
    return results + [None] * (1 + len(ends) - len(results))


def _layer(
    x: Any, weights: list[list[Array]], states: list[Any], kind: _Kind, finals: bool
) -> list[Any]:
    """All steps of one layer, with both directions side by side; final states if `finals`."""
    directions = len(weights)
    of_inputs, of_states, *biases = (
        np.stack([_in_order(side[number], kind.gates) for side in weights])
        for number in range(len(weights[0]))
    )
    matrix = constant_of(np.ascontiguousarray(of_inputs.reshape(-1, of_inputs.shape[-1]).T))
    made = recurrent_layer(
        x,
        lambda rows: emit(relax.op.matmul(rows, matrix)),
        (constant_of(biases[0]), constant_of(biases[1])) if biases else None,
        {"weight": constant_of(of_states)} | dict(zip(("hidden", "memory"), states, strict=False)),
        cell=kind.cell,
        direction="bidirectional" if directions == 2 else "forward",
        activations=kind.activations,
        finals=finals,
    )
    y, *ends = map(emit, made)
    steps, batch, _ = x.ty.shape.values
    hidden = of_states.shape[-1]
    y = emit(relax.op.permute_dims(y, [0, 2, 1, 3])) if directions == 2 else y
    return [emit(relax.op.reshape(y, [steps, batch, directions * hidden])), *ends]


def _in_order(weight: Array, gates: tuple[int, ...]) -> Array:
    """A weight or bias with its gates reordered."""
    return np.concatenate([np.split(weight, len(gates))[gate] for gate in gates])


def _is_zero(node: Any) -> bool:
    """Whether a state is torch's default of zeros."""
    return node.target is aten.full.default and node.args[1] == 0


RECURRENT = {
    str(operator).removeprefix("aten."): functools.partial(_layers, kind=kind)
    for operator, kind in _KINDS.items()
}
"""Operator name -> converter."""
