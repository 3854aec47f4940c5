"""What LSTM, GRU and RNN share: directions and time steps; the cell is each operator's own.

    LSTM/GRU/RNN(X [steps, batch, input], W, R, B, ...)
        ->  one MatMul(X, W^T) + bias for all steps, then per step MatMul(h, R^T) and the cell,
            Concat of the steps, Concat of the directions

The number of steps is static once shapes are frozen, so the loop is written out. In steps behind
the end of a sequence (sequence_lens) its state stays as it is, and Y is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper

from microkernels.errors import ModelError, UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .recurrent_activations import Activation, activations_of

MAX_STEPS = 1024
_DIRECTIONS = ("forward", "reverse", "bidirectional")


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
    activations: list[Activation]


@dataclass(frozen=True)
class Recurrent:
    """Shapes and attributes of one recurrent node.

    Parameters
    ----------
    lengths
        The value with the sequences' lengths, ``""`` if all have all steps.
    """

    node: onnx.NodeProto
    build: NodeBuilder
    gates: int
    steps: int
    batch: int
    hidden: int
    dtype: DTypeLike
    activations: list[Activation]
    lengths: str

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

    def activate(self, side: Direction, position: int, value: str) -> str:
        """Applies the direction's activation function of that position."""
        return side.activations[position].apply(self.build, value, self.node.input[0])

    def clip(self, value: str) -> str:
        """The inputs of gates, within bounds if the node asks for it."""
        bound = self.attribute("clip")
        if not isinstance(bound, float):
            return value
        return self.build.clip(value, self.node.input[0], -bound, bound)


# Makes the next states of the gates' input part ``[batch, gates * hidden]`` and the states.
Step = Callable[[str, list[str]], list[str]]
Cell = Callable[[Recurrent, Direction], Step]


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
    direction = attributes.get("direction", "forward")
    if direction not in _DIRECTIONS or weight[0] != (2 if direction == "bidirectional" else 1):
        raise ModelError(f"{describe(node)}: direction {direction!r} with weights of {weight[0]}")
    steps, batch, _ = shape
    if steps > MAX_STEPS:
        raise UnsupportedOperatorError(
            f"{describe(node)}: {steps} time steps; up to {MAX_STEPS} can be written out"
        )
    lengths = optional_input(node, 4)
    return kind(
        node=node,
        build=NodeBuilder(graph, node),
        gates=gates,
        steps=steps,
        batch=batch,
        hidden=weight[hidden_axis],
        dtype=helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0])),
        activations=activations_of(node, activations, weight[0]),
        lengths="" if _full_lengths(graph, lengths, steps) else lengths,
    )


def unroll(layer: Recurrent, states: list[int], cell: Cell) -> list[onnx.NodeProto]:
    """Writes all directions and steps out.

    Parameters
    ----------
    states
        The positions of the inputs with the initial states; the first is h.
    cell
        Makes a direction's function for one step.
    """
    build, node = layer.build, layer.node
    within = _within(layer)
    zero = build.constant(0, layer.dtype)
    sequences: list[list[str]] = []
    finals: list[list[str]] = []
    for direction in range(layer.directions):
        side = _direction(layer, direction)
        parts = _input_parts(layer, side)
        advance = cell(layer, side)
        current = [layer.state(position, direction) for position in states]
        backward = direction == 1 or layer.attribute("direction", "forward") == "reverse"
        made = [""] * layer.steps
        for step in reversed(range(layer.steps)) if backward else range(layer.steps):
            following = advance(parts[step], current)
            if within:
                following = [
                    build.add("Where", within[step], new, old)
                    for new, old in zip(following, current, strict=True)
                ]
            current = following
            if within:
                made[step] = build.add("Where", within[step], current[0], zero)
            else:
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


def _full_lengths(graph: Graph, name: str, steps: int) -> bool:
    lengths = graph.constants.get(name)
    return not name or (lengths is not None and bool((lengths == steps).all()))


def _within(layer: Recurrent) -> list[str]:
    """Which sequences have a step, ``[batch, 1]`` for every step; empty if all have all."""
    build = layer.build
    if not layer.lengths:
        return []
    # Integers are compared since opset 9.
    kind = onnx.TensorProto.FLOAT if build.graph.opset < 9 else onnx.TensorProto.INT32
    ends = build.add("Cast", build.reshape(layer.lengths, [layer.batch, 1]), to=kind)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    return [build.add("Less", build.constant(step, dtype), ends) for step in range(layer.steps)]


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
