"""A recurrent layer as its cell sees it: weights of a direction, shapes, activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import DTypeLike

from ..node_builder import Extent, NodeBuilder, attributes_of, optional_input
from .recurrent_activations import Activation


@dataclass(frozen=True)
class Direction:
    """The weights of one direction, as value names.

    Parameters
    ----------
    order
        1 if time runs forward, -1 if it runs backward.
    recurrence
        R^T, ``[hidden, gates * hidden]``, for `Recurrent.multiply`.
    input_bias, recurrence_bias
        ``[gates * hidden]`` each, or ``""``.
    """

    index: int
    order: int
    recurrence: str
    input_bias: str
    recurrence_bias: str
    activations: list[Activation]


@dataclass(frozen=True)
class Recurrent:
    """Shapes and attributes of one recurrent node.

    Parameters
    ----------
    steps, batch
        May be open.
    input_axis
        The axis of W that is as long as what each step of X has.
    lengths
        The value with the sequences' lengths, ``""`` if all have all steps.
    """

    node: onnx.NodeProto
    build: NodeBuilder
    gates: int
    steps: Extent
    batch: Extent
    hidden: int
    input_axis: int
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
            if isinstance(self.batch, int):
                return self.build.constant(np.zeros((self.batch, self.hidden)), self.dtype)
            zero = self.build.constant(0, self.dtype)
            return self.build.add("Expand", zero, self.build.shape([self.batch, self.hidden]))
        return self.build.take(name, direction, axis=0)

    def weight(self, position: int, direction: int) -> str:
        """W^T or R^T of one direction, for `multiply`."""
        return self.build.add("Transpose", self.slice_of(position, direction), perm=[1, 0])

    def multiply(self, value: str, weight: str) -> str:
        """The product of a value and one of the weights."""
        return self.build.add("MatMul", value, weight)

    def known_recurrence(self) -> dict[str, str] | None:
        """Inputs of `Recurrent`: R ``[directions, gates * hidden, hidden]``, if it is a constant,
        and what belongs to it."""
        name = self.node.input[2]
        return {"weight": name} if name in self.build.graph.constants else None

    def input_product(self, rows: str) -> str:
        """Rows of inputs by W^T of all directions, ``[rows, directions * gates * hidden]``."""
        build, width = self.build, self.directions * self.gates * self.hidden
        name = self.node.input[1]
        known = build.graph.constants.get(name)
        size = (build.graph.shape(name) or (0,))[self.input_axis]
        if known is not None:
            weight = build.constant(np.ascontiguousarray(known.reshape(width, size).T))
        else:
            weight = build.add("Transpose", build.reshape(name, [width, size]), perm=[1, 0])
        return build.add("MatMul", rows, weight)

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
