"""What LSTM and GRU share: directions and time steps; the cell is each operator's own.

    LSTM/GRU(X [steps, batch, input], W, R, B, ...)
        ->  one MatMul(X, W^T) + bias for all steps, then per step MatMul(h, R^T) and the cell,
            Concat of the steps, Concat of the directions

The number of steps is static once shapes are frozen, so the loop is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper

from microkernels.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, optional_input

MAX_STEPS = 1024
_ACTIVATIONS = {"Sigmoid", "Tanh", "Relu"}


@dataclass(frozen=True)
class Direction:
    """The weights of one direction, as value names.

    Parameters
    ----------
    recurrence
        R^T, ``[hidden, gates * hidden]``, for `Recurrent.multiply`.
    input_bias, recurrence_bias
        ``[gates * hidden]`` each, or ``""``.
    """

    index: int
    recurrence: str
    input_bias: str
    recurrence_bias: str
    activations: list[str]


@dataclass(frozen=True)
class Recurrent:
    """Shapes and attributes of one recurrent node."""

    node: onnx.NodeProto
    build: NodeBuilder
    gates: int
    steps: int
    batch: int
    hidden: int
    dtype: DTypeLike
    activations: list[str]

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.attribute("direction", "forward") == "bidirectional" else 1

    def attribute(self, name: str, default: object = None) -> object:
        """An attribute of the node."""
        return attributes_of(self.node).get(name, default)

    def state(self, position: int, direction: int) -> str:
        """The initial state in an input, ``[batch, hidden]``; zeros if it is absent."""
        name = optional_input(self.node, position)
        if not name:
            return self.build.constant(np.zeros((self.batch, self.hidden)), self.dtype)
        return self.build.take(name, direction, axis=0)

    def weight(self, position: int, direction: int) -> str:
        """W^T or R^T of one direction, for `multiply`."""
        return self.build.add("Transpose", self.slice_of(position, direction), perm=[1, 0])

    def multiply(self, value: str, weight: str) -> str:
        """The product of a value and one of the weights."""
        return self.build.add("MatMul", value, weight)

    def slice_of(self, position: int, direction: int) -> str:
        """One direction's part of an input, ``""`` if the input is absent."""
        name = optional_input(self.node, position)
        return self.build.take(name, direction, axis=0) if name else ""


Cell = Callable[[Recurrent, Direction, str, list[str]], list[str]]


def recurrent(
    node: onnx.NodeProto,
    graph: Graph,
    gates: int,
    activations: list[str],
    kind: type[Recurrent] = Recurrent,
    hidden_axis: int = 2,
) -> Recurrent:
    """Reads a node; UnsupportedOperatorError for forms that are not written out.

    Parameters
    ----------
    hidden_axis
        The axis of R that is as long as the hidden state.
    """
    attributes = attributes_of(node)
    shape = graph.shape(node.input[0])
    weight = graph.shape(node.input[2])
    if shape is None or len(shape) != 3 or weight is None or len(weight) != 3:
        raise UnsupportedOperatorError(f"{describe(node)}: its shapes are not static")
    if attributes.get("layout"):
        raise UnsupportedOperatorError(f"{describe(node)}: layout=1 is unsupported")
    if "clip" in attributes:
        raise UnsupportedOperatorError(f"{describe(node)}: clip is unsupported")
    names = [name.capitalize() for name in attributes.get("activations", activations * weight[0])]
    if not _ACTIVATIONS.issuperset(names) or len(names) != len(activations) * weight[0]:
        raise UnsupportedOperatorError(
            f"{describe(node)}: activations {names}; only {sorted(_ACTIVATIONS)} are supported"
        )
    steps, batch, _ = shape
    if steps > MAX_STEPS:
        raise UnsupportedOperatorError(
            f"{describe(node)}: {steps} time steps; up to {MAX_STEPS} can be written out"
        )
    lengths = optional_input(node, 4)
    if lengths and not _full_lengths(graph, lengths, steps):
        raise UnsupportedOperatorError(
            f"{describe(node)}: sequence_lens {lengths!r} must be constant and equal {steps}"
        )
    return kind(
        node=node,
        build=NodeBuilder(graph, node),
        gates=gates,
        steps=steps,
        batch=batch,
        hidden=weight[hidden_axis],
        dtype=helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0])),
        activations=names,
    )


def unroll(layer: Recurrent, states: list[int], cell: Cell) -> list[onnx.NodeProto]:
    """Writes all directions and steps out.

    Parameters
    ----------
    states
        The positions of the inputs with the initial states; the first is h.
    cell
        Makes the next states of the gates' input part ``[batch, gates * hidden]`` and the states.
    """
    build, node = layer.build, layer.node
    sequences: list[list[str]] = []
    finals: list[list[str]] = []
    for direction in range(layer.directions):
        side = _direction(layer, direction)
        parts = _input_parts(layer, side)
        current = [layer.state(position, direction) for position in states]
        backward = direction == 1 or layer.attribute("direction", "forward") == "reverse"
        made = [""] * layer.steps
        for step in reversed(range(layer.steps)) if backward else range(layer.steps):
            current = cell(layer, side, parts[step], current)
            made[step] = current[0]
        sequences.append(made)
        finals.append(current)
    shape = [1, layer.batch, layer.hidden]
    if node.output[0]:
        rows = [
            build.reshape(value, [1, *shape])
            for step in range(layer.steps)
            for value in (sequence[step] for sequence in sequences)
        ]
        full = [layer.steps, layer.directions, layer.batch, layer.hidden]
        if not rows:
            build.graph.add_constant(node.output[0], np.empty(full, layer.dtype))
        elif len(rows) == 1:
            build.add("Identity", rows[0], output=node.output[0])
        else:
            stacked = build.add("Concat", *rows, axis=0)
            build.reshape(stacked, full, output=node.output[0])
    for position in range(len(states)):
        output = node.output[position + 1] if position + 1 < len(node.output) else ""
        if output:
            last = [build.reshape(final[position], shape) for final in finals]
            build.add("Concat", *last, output=output, axis=0)
    return build.nodes


def activate(layer: Recurrent, side: Direction, position: int, value: str) -> str:
    """Applies the direction's activation function of that position."""
    return layer.build.add(side.activations[position], value)


def _full_lengths(graph: Graph, name: str, steps: int) -> bool:
    lengths = graph.constants.get(name)
    return lengths is not None and bool((lengths == steps).all())


def _direction(layer: Recurrent, index: int) -> Direction:
    build = layer.build
    width = layer.gates * layer.hidden
    bias = layer.slice_of(3, index)
    input_bias, recurrence_bias = build.split(bias, [width, width], axis=0) if bias else ("", "")
    per_direction = len(layer.activations) // layer.directions
    return Direction(
        index=index,
        recurrence=layer.weight(2, index),
        input_bias=input_bias,
        recurrence_bias=recurrence_bias,
        activations=layer.activations[index * per_direction : (index + 1) * per_direction],
    )


def _input_parts(layer: Recurrent, side: Direction) -> list[str]:
    """X W^T + bias of every step, in one MatMul."""
    build, width = layer.build, layer.gates * layer.hidden
    weight = layer.weight(1, side.index)
    size = (build.graph.shape(layer.node.input[0]) or (0,))[-1]
    rows = build.reshape(layer.node.input[0], [layer.steps * layer.batch, size])
    product = layer.multiply(rows, weight)
    if side.input_bias:
        product = build.add("Add", product, side.input_bias)
    if layer.steps == 1:
        return [product]
    steps = build.reshape(product, [layer.steps, layer.batch, width])
    return [build.take(steps, step, axis=0) for step in range(layer.steps)]
