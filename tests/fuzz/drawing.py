"""Draws a graph node by node; every node is evaluated at once, so shapes and values are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import helper, numpy_helper

from tests.onnx_builder import CONTRIB

from .run_node import NodeError, run_node

Array = NDArray[Any]
T = TypeVar("T")

# Larger values swallow small addends, and overflow after a few operators.
LARGEST = 1e4
MOST_ELEMENTS = 60_000
OPSETS = (13, 15, 17, 18, 19, 20, 21, 22)
# Results of 32 or 64 bits that do not fit have no defined value: see docs/numerics.md.
OVERFLOWING = ("Abs", "Add", "CumSum", "Mul", "Neg", "Pow", "ReduceSum", "Sub")


class UnsuitableError(Exception):
    """The drawn node is not valid, or its values are useless for a test."""


@dataclass(frozen=True)
class Value:
    """A value of the graph, with its content for the drawn feeds.

    Attributes
    ----------
    name : str
        Name in the graph.
    array : numpy.ndarray
        Content.
    constant : bool
        Whether it is a weight.
    """

    name: str
    array: Array
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype


class Draw:
    """A graph that grows, and the random generator of its choices.

    Parameters
    ----------
    name : str
        Seed of all choices.
    wild : bool
        Whether values may be special: not finite, or large.
    """

    def __init__(self, name: str, wild: bool = False) -> None:
        self.rng = random.Random(name)
        self.numbers = np.random.default_rng(self.rng.getrandbits(64))
        self.wild = wild
        self.opset = self.pick(OPSETS)
        self.values: list[Value] = []
        self.outputs: list[Value] = []
        self.feeds: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, Array] = {}

    def pick(self, choices: Sequence[T]) -> T:
        """Returns one of the choices."""
        return self.rng.choice(choices)

    def chance(self, probability: float) -> bool:
        """Returns True with this probability."""
        return self.rng.random() < probability

    def integer(self, first: int, last: int) -> int:
        """Returns an integer of [first, last]."""
        return self.rng.randint(first, last)

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        """Normally distributed numbers around 0."""
        return (self.numbers.standard_normal(shape) * scale).astype(np.float32)

    def input(self, array: ArrayLike) -> Value:
        """Adds an input of the model, with its feed."""
        value = Value(f"x{len(self.feeds)}", np.asarray(array))
        self.feeds[value.name] = value.array
        self.values.append(value)
        return value

    def constant(self, array: ArrayLike, dtype: Any = None) -> Value:
        """Adds a weight."""
        value = Value(f"c{len(self._constants)}", np.asarray(array, dtype), constant=True)
        self._constants[value.name] = value.array
        return value

    def either(self, array: ArrayLike, constant: float = 0.5) -> Value:
        """Adds a weight with this probability, else an input."""
        return self.constant(array) if self.chance(constant) else self.input(array)

    def integers(self, *numbers: int) -> Value:
        """Adds a constant vector of integers, such as axes."""
        return self.constant(np.array(numbers, np.int64))

    def node(self, op: str, *inputs: Value | None, domain: str = "", **attributes: Any) -> Value:
        """Adds a node with one output.

        Raises
        ------
        UnsuitableError
            If the node is not valid, or its values are useless for a test.
        """
        return self.several(op, 1, *inputs, domain=domain, **attributes)[0]

    def contrib(self, op: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Adds a node of ONNX Runtime's contrib operators."""
        return self.node(op, *inputs, domain=CONTRIB, **attributes)

    def several(
        self, op: str, count: int, *inputs: Value | None, domain: str = "", **attributes: Any
    ) -> list[Value]:
        """Adds a node with several outputs."""
        names = [f"v{len(self.nodes)}_{place}" for place in range(count)]
        sources = ["" if each is None else each.name for each in inputs]
        node = helper.make_node(op, sources, names, domain=domain, **attributes)
        arrays = [None if each is None else each.array for each in inputs]
        if not domain:
            _check_types(op, self.opset, arrays)
        try:
            results = run_node(node, arrays, self.opset)
        except NodeError as error:
            raise UnsuitableError(f"{op}: {error}") from error
        if op in OVERFLOWING and _overflows(node, arrays, self.opset, results[0]):
            raise UnsuitableError(f"{op}: an integer overflows")
        for result in results:
            self._check(op, result)
        self.nodes.append(node)
        made = [Value(name, array) for name, array in zip(names, results, strict=True)]
        self.values.extend(made)
        return made

    def _check(self, op: str, result: Array) -> None:
        if result.size > MOST_ELEMENTS:
            raise UnsuitableError(f"{op}: {result.size} elements")
        if self.wild:
            return
        if not result.size:
            raise UnsuitableError(f"{op}: the result is empty")
        if result.dtype.kind in "iub":
            return
        wide = np.abs(result.astype(np.float64))
        if not np.isfinite(wide).all() or wide.max() > LARGEST:
            raise UnsuitableError(f"{op}: values are too large")

    def attempt(self, step: Callable[[], Value], instead: Value) -> Value:
        """Returns the step's result, or removes its nodes and returns `instead` if it fails.

        A step without any valid choice for a shape fails with an error of `random` or NumPy.
        """
        counts = len(self.nodes), len(self.values), list(self.feeds)
        constants = list(self._constants)
        try:
            return step()
        except (UnsuitableError, ValueError, IndexError):
            del self.nodes[counts[0] :], self.values[counts[1] :]
            self.feeds = {name: self.feeds[name] for name in counts[2]}
            self._constants = {name: self._constants[name] for name in constants}
            return instead

    def output(self, *values: Value) -> None:
        """Declares outputs."""
        self.outputs.extend(values)

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """The model and its feeds; unread values are outputs, and some other values."""
        read = {name for node in self.nodes for name in node.input}
        made = {name for node in self.nodes for name in node.output}
        wanted = {value.name for value in self.outputs}
        outputs = [
            value
            for value in self.values
            if value.name in made
            and (value.name in wanted or value.name not in read or self.chance(0.04))
        ]
        if not outputs:
            raise UnsuitableError("no node was drawn")
        used = read.union(value.name for value in outputs)
        feeds = {name: array for name, array in self.feeds.items() if name in used}
        inputs = [described(name, array) for name, array in feeds.items()]
        constants = [
            numpy_helper.from_array(array, name)
            for name, array in self._constants.items()
            if name in used
        ]
        graph = helper.make_graph(
            self.nodes,
            "graph",
            inputs,
            [described(value.name, value.array) for value in outputs],
            constants,
        )
        return whole_model(graph, self.opset), feeds


def _check_types(op: str, opset: int, arrays: Sequence[Array | None]) -> None:
    """Raises if an operator does not allow the operands' types: onnx's reference allows most."""
    if not onnx.defs.has(op, opset):
        raise UnsuitableError(f"there is no {op} in opset {opset}")
    schema = onnx.defs.get_schema(op, opset)
    types: dict[str, str] = {}
    for place, array in enumerate(arrays):
        if array is None:
            continue
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        kind = helper.tensor_dtype_to_string(helper.np_dtype_to_tensor_dtype(array.dtype))
        name = f"tensor({kind.removeprefix('TensorProto.').lower()})"
        same = formal.is_homogeneous or place < len(schema.inputs) - 1
        if name not in formal.types or (same and types.setdefault(formal.type_str, name) != name):
            raise UnsuitableError(f"{op}: operand {place} cannot be a {name}")


def _overflows(
    node: onnx.NodeProto, arrays: Sequence[Array | None], opset: int, result: Array
) -> bool:
    """Whether float64 gives a very different result: an overflow is off by 2^32 or 2^64."""
    if result.dtype.kind not in "iu" or result.itemsize < 4 or not result.size:
        return False
    axes = node.op_type in ("CumSum", "ReduceSum")
    wide = [
        each if each is None or (axes and place) else each.astype(np.float64)
        for place, each in enumerate(arrays)
    ]
    (exact,) = run_node(node, wide, opset)
    return bool((np.abs(exact - result.astype(np.float64)) > 2.0**31).any())


def described(name: str, array: Array) -> onnx.ValueInfoProto:
    """The declaration of an input or output."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def whole_model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """Wraps a graph in a model."""
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
