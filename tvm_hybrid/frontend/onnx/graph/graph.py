"""The ONNX graph as the front end works on it: node protos, numpy constants, types by name."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from .narrow_types import NARROW, stored

STANDARD_DOMAINS = ("", "ai.onnx")
CONTRIB_DOMAIN = "com.microsoft"  # ONNX Runtime's operators
OWN_DOMAIN = "tvm_hybrid"  # operators that only our rewrites produce


@dataclass
class Graph:
    """One flat graph; `constants` and `types` are keyed by value name.

    Parameters
    ----------
    opset
        Version of the ``ai.onnx`` operator set; at least 7.
    old_opset
        The model's opset if it is older: old_forms.py then updates its nodes. Else 0.
    inputs
        The graph's inputs, except those that name an initialiser.
    outputs
        Names of the graph's outputs, in order.
    nodes
        Topologically sorted.
    constants
        Arrays; an initialiser's array is a view of the model's bytes if possible.
    types
        Known types: of inputs and constants at first, of every value after propagation.
    makers
        The node that makes a value: a node of the model or its replacement.
    sources
        The small inputs that a value is computed from, as far as the walk has come; None if it
        comes from data, whose values are never asked for.
    narrow
        Element types of values that have 2, 4 or 8 bits per element in the model, and are stored as
        integers of 8 bits (narrow_types.py).
    choices
        For each If that is written out with both branches: the name prefix of their nodes, its
        condition, and its description for messages.
    sequences
        The values in each sequence; None for an optional value that is absent.
    is_body
        Whether this is the body of a loop, so that its inputs are not the model's.
    check_indices
        Whether the program checks indices (check_model.py).
    origins
        The number of the model's node that a value is computed for.
    folded
        Values that were made constants, including those that no node reads any more.
    """

    opset: int
    inputs: list[onnx.ValueInfoProto]
    outputs: list[str]
    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    sources: dict[str, set[str] | None] = field(default_factory=dict)
    narrow: dict[str, int] = field(default_factory=dict)
    choices: list[tuple[str, str, str]] = field(default_factory=list)
    sequences: dict[str, list[str] | None] = field(default_factory=dict)
    is_body: bool = False
    old_opset: int = 0
    check_indices: bool = False
    origins: dict[str, int] = field(default_factory=dict)
    folded: set[str] = field(default_factory=set)
    _fresh: int = 0
    _shapes: dict[str, tuple[onnx.TypeProto | None, tuple[int, ...] | None]] = field(
        default_factory=dict
    )  # the type that each shape was read from

    def add_constant(self, name: str, array: np.ndarray) -> None:
        """Makes `name` a constant."""
        self.folded.add(name)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        if kind in NARROW:
            self.narrow[name] = kind
            array = stored(array)
        self.constants[name] = array
        self.declare(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    def declare(self, name: str, elem_type: int, shape: Sequence[int | str | None] | None) -> None:
        """Sets the type of a value; a size is a number, a name, or None if it is dynamic."""
        self.types[name] = helper.make_tensor_type_proto(elem_type, shape)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The static shape of a value; None if any size is unknown."""
        if name in self.constants:
            return self.constants[name].shape
        kind = self.types.get(name)
        known, shape = self._shapes.get(name, (None, None))
        if known is not kind:
            assert kind is not None
            shape = static_shape(kind)
            self._shapes[name] = kind, shape
        return shape

    def dims(self, name: str) -> tuple[int | None, ...] | None:
        """The sizes of a value, None for each dynamic one; None if the rank is unknown."""
        if name in self.constants:
            return self.constants[name].shape
        tensor = self.types.get(name, onnx.TypeProto()).tensor_type
        if not tensor.HasField("shape"):
            return None
        dims = tensor.shape.dim
        return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)

    def elem_type(self, name: str) -> int:
        """The onnx.TensorProto element type of a value; 0 if unknown."""
        return self.types.get(name, onnx.TypeProto()).tensor_type.elem_type

    def inner(self, inputs: list[str]) -> Graph:
        """An empty graph for a body, whose fresh names differ from this graph's."""
        items = [onnx.ValueInfoProto(name=item) for item in inputs]
        found = Graph(self.opset, items, [], [], is_body=True, _fresh=self._fresh)
        found.old_opset, found.check_indices = self.old_opset, self.check_indices
        return found

    def copy(self) -> Graph:
        """A copy that can be changed while this graph stays as it is; arrays are shared."""
        found = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(found, name, value.copy())
        found.nodes = [copied(node) for node in self.nodes]
        return found

    def fresh(self, hint: str) -> str:
        """A value name that is new to the graph."""
        self._fresh += 1
        return f"{hint}::{self._fresh}"


@functools.cache
def dtype_named(elem_type: int) -> str:
    """NumPy's or ml_dtypes' name of an onnx.TensorProto element type."""
    return str(helper.tensor_dtype_to_np_dtype(elem_type))


def copied(node: onnx.NodeProto) -> onnx.NodeProto:
    """A copy of a node."""
    return copy.deepcopy(node)


def static_shape(type_proto: onnx.TypeProto) -> tuple[int, ...] | None:
    """The shape in a tensor type; None if the rank or any dimension is unknown."""
    tensor = type_proto.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    known = tuple([dim.dim_value for dim in dims if dim.HasField("dim_value")])
    return known if len(known) == len(dims) else None


def describe(node: onnx.NodeProto) -> str:
    """Describes a node for messages: ``MatMul node 'encoder/0' (domain com.microsoft)``."""
    if node.name:
        text = f"{node.op_type} node {node.name!r}"
    else:
        text = f"{node.op_type} node that makes {next(iter(node.output), '')!r}"
    named = is_standard(node) or node.domain == OWN_DOMAIN  # no model names our domain
    return text if named else f"{text} (domain {node.domain})"


def is_standard(node: onnx.NodeProto) -> bool:
    """Whether a node belongs to the standard operator set."""
    return node.domain in STANDARD_DOMAINS


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies that a control-flow node carries."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured_names(node: onnx.NodeProto) -> set[str]:
    """Names of outer values that a node's bodies read."""
    names: set[str] = set()
    for body in subgraphs(node):
        known = {item.name for item in (*body.input, *body.initializer)}
        for inner in body.node:
            names |= ({name for name in inner.input if name} | captured_names(inner)) - known
            known.update(inner.output)
        names |= {item.name for item in body.output} - known
    return names


def drop_dead_nodes(graph: Graph) -> set[str]:
    """Removes nodes of a sorted graph that no output depends on; returns the names still read."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.output):
            continue
        needed.update(name for name in node.input if name)
        needed |= captured_names(node)
        kept.append(node)
    graph.nodes = kept[::-1]
    return needed


def inline(
    nodes: Iterable[onnx.NodeProto], names: dict[str, str], graph: Graph, prefix: str
) -> list[onnx.NodeProto]:
    """Copies nodes under new names.

    Parameters
    ----------
    names
        Old name -> new name, for the body's inputs and outputs. Other values that the body defines
        get fresh names, which are added here. Names that are neither listed nor defined in the body
        are outer values and stay.
    prefix
        Prefix of the copies' node names.
    """
    copies = []
    for node in nodes:
        copy = copied(node)
        copy.name = f"{prefix}/{node.name or node.op_type}"
        rename_values(copy, names)
        for position, name in enumerate(node.output):
            if name:
                names.setdefault(name, graph.fresh(f"{prefix}/{name}"))
                copy.output[position] = names[name]
        copies.append(copy)
    return copies


def rename_values(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Renames, in place, the outer values that a node and the bodies inside it read."""
    for position, name in enumerate(node.input):
        node.input[position] = names.get(name, name)
    for body in subgraphs(node):
        own = {item.name for item in (*body.input, *body.initializer)}
        own.update(name for inner in body.node for name in inner.output)
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in body.node:
            rename_values(inner, outer)
        for item in body.output:
            item.name = outer.get(item.name, item.name)
