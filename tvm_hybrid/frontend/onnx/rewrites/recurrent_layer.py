"""A recurrent node as its rewrite sees it: sizes, functions, and how its weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, UnsupportedOperatorError
from tir_schedules.recurrent.problem import DIRECTIONS, GATES

from ..graph.graph import Graph, describe
from ..graph.node_builder import Extent, NodeBuilder, attributes_of, extents_of, optional_input

W, R, LENGTHS = 1, 2, 4
"""Positions of inputs."""
_FUNCTIONS = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Recurrent:
    """Shapes and attributes of one recurrent node.

    Parameters
    ----------
    cell
        As the template "recurrent" names it.
    steps, batch
        May be open.
    input_axis
        The axis of W that is as long as what each step of X has.
    elem_type
        The type of X and of the results.
    activations
        The functions of all directions, one direction after the other.
    lengths
        The value with the sequences' lengths, ``""`` if all have all steps.
    """

    node: onnx.NodeProto
    build: NodeBuilder
    cell: str
    steps: Extent
    batch: Extent
    hidden: int
    input_axis: int
    elem_type: int
    activations: list[Activation]
    lengths: str

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return GATES[self.cell]

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.attribute("direction", "forward") == "bidirectional" else 1

    @property
    def is_narrow(self) -> bool:
        """Whether values are of 16 bits; the recurrence is computed in float32 then."""
        return self.elem_type in _NARROW

    @property
    def wide_type(self) -> int:
        """The type in which the recurrence is computed."""
        return TensorProto.FLOAT if self.is_narrow else self.elem_type

    def attribute(self, name: str, default: object = None) -> object:
        """An attribute of the node."""
        return attributes_of(self.node).get(name, default)

    def widened(self, name: str) -> str:
        """A value in the type in which the recurrence is computed."""
        return self.build.add("Cast", name, to=self.wide_type) if self.is_narrow else name

    def recurrence(self) -> dict[str, str]:
        """Inputs of `Recurrent`: R [directions, gates * hidden, hidden], and what belongs to it."""
        return {"weight": self.node.input[R]}

    def input_product(self, rows: str) -> str:
        """Rows of inputs by W^T of all directions, [rows, directions * gates * hidden]."""
        build, width = self.build, self.directions * self.gates * self.hidden
        name = self.node.input[W]
        known = build.graph.constants.get(name)
        size = (build.graph.shape(name) or (0,))[self.input_axis]
        if known is not None:
            weight = build.constant(np.ascontiguousarray(known.reshape(width, size).T))
        else:
            weight = build.add("Transpose", build.reshape(name, [width, size]), perm=[1, 0])
        return self.widened(build.add("MatMul", rows, weight))


def recurrent(
    node: onnx.NodeProto,
    graph: Graph,
    cell: str,
    kind: type[Recurrent] = Recurrent,
    hidden_axis: int = 2,
) -> Recurrent:
    """Reads a node; parameters are those of `recurrent.written`.

    Raises
    ------
    UnsupportedOperatorError
        The shapes of its weights are not known, or it has a function that is not known.
    ModelError
        The node is not what ONNX defines.
    """
    attributes = attributes_of(node)
    build, weight = NodeBuilder(graph, node), graph.shape(node.input[R])
    shape = extents_of(build, node.input[0])
    input_weight = graph.shape(node.input[W])
    if len(shape) != 3 or any(each is None or len(each) != 3 for each in (weight, input_weight)):
        raise UnsupportedOperatorError(f"{describe(node)}: the shapes of its weights are not known")
    assert weight is not None
    direction = attributes.get("direction", "forward")
    if direction not in DIRECTIONS or weight[0] != (2 if direction == "bidirectional" else 1):
        raise ModelError(f"{describe(node)}: direction {direction!r} with weights of {weight[0]}")
    steps, batch, _ = shape
    lengths = optional_input(node, LENGTHS)
    return kind(
        node=node,
        build=build,
        cell="gru_linear" if attributes.get("linear_before_reset") else cell,
        steps=steps,
        batch=batch,
        hidden=weight[hidden_axis],
        input_axis=hidden_axis,
        elem_type=graph.elem_type(node.input[0]),
        activations=activations_of(node, _FUNCTIONS[cell], weight[0]),
        lengths="" if _full_lengths(graph, lengths, steps) else lengths,
    )


def _full_lengths(graph: Graph, name: str, steps: Extent) -> bool:
    lengths = graph.constants.get(name)
    return not name or (lengths is not None and bool((lengths == steps).all()))


# The activation functions of LSTM, GRU and RNN, with their parameters.
#
# activations=["HardSigmoid", "Tanh", "Elu"], activation_alpha=[0.1, 2.0], activation_beta=[0.4]
#     ->  HardSigmoid(alpha=0.1, beta=0.4), Tanh, Elu(alpha=2.0)
#
# As in ONNX Runtime a function takes its parameters from the lists in turn if it has them, and its
# defaults once a list is used up.


# The parameters of every function and their defaults: those of ONNX's operators. Affine and
# ScaledTanh are operators no more, so theirs have to be given.
_DEFAULTS: dict[str, dict[str, float | None]] = {
    "Affine": {"alpha": None, "beta": None},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Relu": {},
    "ScaledTanh": {"alpha": None, "beta": None},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 1.0},
}
_NAMES = {name.lower(): name for name in _DEFAULTS}


@dataclass(frozen=True)
class Activation:
    """A function of `_DEFAULTS` with its parameters."""

    name: str
    parameters: dict[str, float]

    @property
    def text(self) -> str:
        """As the template "recurrent" writes it: "HardSigmoid:0.2:0.5"."""
        return ":".join([self.name, *map(repr, self.parameters.values())])


def activations_of(
    node: onnx.NodeProto, defaults: Sequence[str], directions: int
) -> list[Activation]:
    """The functions of all directions, one direction after the other.

    Parameters
    ----------
    defaults
        Names of one direction's functions if the node names none.

    Raises
    ------
    UnsupportedOperatorError
        A function is unknown, or lacks a parameter that has no default.
    ModelError
        There are too few functions or too many.
    """
    attributes = attributes_of(node)
    names = attributes.get("activations", list(defaults) * directions)
    unknown = [name for name in names if name.lower() not in _NAMES]
    if unknown:
        raise UnsupportedOperatorError(
            f"{describe(node)}: activations {unknown} are unknown; there are {sorted(_DEFAULTS)}"
        )
    if len(names) != len(defaults) * directions:
        raise ModelError(
            f"{describe(node)}: {len(names)} activations for {directions} directions, each of "
            f"which has {len(defaults)}"
        )
    lists = {key: iter(attributes.get(f"activation_{key}", [])) for key in ("alpha", "beta")}
    found = []
    for name in (_NAMES[name.lower()] for name in names):
        parameters = {key: next(lists[key], default) for key, default in _DEFAULTS[name].items()}
        missing = [f"activation_{key}" for key, value in parameters.items() if value is None]
        if missing:
            raise UnsupportedOperatorError(
                f"{describe(node)}: {name} has no defaults; {' and '.join(missing)} must say more"
            )
        found.append(
            Activation(name, {k: float(v) for k, v in parameters.items() if v is not None})
        )
    return found
