"""Writes ONNX models of the corpus: nodes with seeded weights, and static or dynamic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

CONTRIB = "com.microsoft"
Part = int | str
"""A part of a shape: a number, or a value of one element."""


@dataclass(frozen=True)
class Form:
    """The form that a model takes."""

    dynamic: bool = False  # whether sizes are dynamic
    head: int = 0  # additional results of the last layer, or the size of an added layer
    batch: int = 1  # number of samples, if it is static


@dataclass(frozen=True)
class Model:
    """A model and the inputs of its first run."""

    proto: onnx.ModelProto
    sizes: dict[str, int] = field(default_factory=dict)  # dynamic dimension -> its value
    values: dict[str, np.ndarray] = field(default_factory=dict)  # inputs that are not random


class Graph:
    """A graph that grows node by node; its methods take and return names of values.

    In a dynamic `form`, `size` returns names, else numbers.
    """

    def __init__(self, form: Form = Form()) -> None:
        self.form = form
        self.rng = np.random.default_rng(0)
        self._count = 0
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._sizes: dict[str, int] = {}
        self._values: dict[str, np.ndarray] = {}

    def size(self, name: str, value: int) -> Part:
        """A dimension of an input: its name if sizes are dynamic, else its value."""
        self._sizes[name] = value
        return name if self.form.dynamic else value

    def batch(self, value: int = 0) -> Part:
        """The number of samples."""
        return self.size("batch", value or self.form.batch)

    def input(
        self, name: str, shape: Sequence[Part], dtype: Any = np.float32, value: Any = None
    ) -> str:
        """Adds an input of the model; `value` is for the first run, by default random."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        if value is not None:
            self._values[name] = np.asarray(value, dtype)
        return name

    def output(self, value: str, name: str = "", dtype: Any = np.float32) -> None:
        """Declares a value as an output of unknown shape."""
        self._outputs.append(_untold(self.node("Identity", value, name=name), dtype))

    def constant(self, value: ArrayLike, dtype: Any = np.float32) -> str:
        name = self._new("c")
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def random(self, *shape: int, spread: float = 1.0, around: float = 0.0) -> str:
        """A weight of normal random numbers."""
        values = self.rng.standard_normal(shape, np.float32)
        return self.constant(values * np.float32(spread) + np.float32(around))

    def node(
        self, op: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """A node with one output."""
        output = name or self._new(op)
        node = helper.make_node(op, inputs, [output], output, domain=domain, **attributes)
        self._nodes.append(node)
        return output

    def nodes(
        self, op: str, count: int, *inputs: str, domain: str = "", **attributes: Any
    ) -> list[str]:
        """A node with several outputs."""
        outputs = [self._new(op) for _ in range(count)]
        name = f"{outputs[0]}_node"
        self._nodes.append(helper.make_node(op, inputs, outputs, name, domain=domain, **attributes))
        return outputs

    def dim(self, x: str, axis: int) -> str:
        """A dimension of x as a vector of one element, in the form that exporters write."""
        size = self.node("Gather", self.node("Shape", x), self.constant(axis, np.int64), axis=0)
        return self.node("Unsqueeze", size, self.ints(0))

    def shape(self, *parts: Part) -> str:
        """A shape from numbers and dimensions."""
        if all(isinstance(part, int) for part in parts):
            return self.ints(*map(int, parts))
        names = (part if isinstance(part, str) else self.ints(part) for part in parts)
        return self.node("Concat", *names, axis=0)

    def same(self, x: str, axis: int, value: Part) -> Part:
        """A dimension of a value, for `shape`: a number if it is static."""
        return value if isinstance(value, int) else self.dim(x, axis)

    def reshape(self, x: str, *parts: Part) -> str:
        return self.node("Reshape", x, self.shape(*parts))

    def transpose(self, x: str, *order: int) -> str:
        return self.node("Transpose", x, perm=order)

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        return self.node("Slice", x, self.ints(start), self.ints(end), self.ints(axis))

    def linear(self, x: str, inner: int, outer: int, bias: bool = True) -> str:
        """A product with a random weight."""
        y = self.node("MatMul", x, self.random(inner, outer, spread=inner**-0.5))
        return self.node("Add", self.random(outer, spread=0.1), y) if bias else y

    def layer_norm(self, x: str, width: int) -> str:
        scale, shift = self.random(width, spread=0.1, around=1), self.random(width, spread=0.1)
        return self.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)

    def gelu(self, x: str) -> str:
        erf = self.node("Erf", self.node("Div", x, self.constant(2**0.5)))
        half = self.node("Mul", x, self.node("Add", erf, self.constant(1.0)))
        return self.node("Mul", half, self.constant(0.5))

    def activate(self, x: str, kind: str) -> str:
        """An activation by name; "" for none."""
        if kind == "Swish":
            return self.node("Mul", x, self.node("Sigmoid", x))
        if kind == "PaddleSwish":  # HardSwish, as Paddle writes it
            ends = self.constant(0.0), self.constant(6.0)
            top = self.node("Clip", self.node("Add", x, self.constant(3.0)), *ends)
            return self.node("Div", self.node("Mul", x, top), self.constant(6.0))
        return self.node(kind, x) if kind else x

    @contextmanager
    def branch(self) -> Iterator[Branch]:
        """Adds nodes to a branch of an If while the context is open."""
        outer = self._nodes, self._outputs
        self._nodes, self._outputs = [], []
        found = Branch()
        yield found
        found.graph = helper.make_graph(self._nodes, self._new("branch"), [], self._outputs)
        self._nodes, self._outputs = outer

    def model(self, opset: int = 17) -> Model:
        graph = helper.make_graph(
            self._nodes, "graph", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return Model(proto, self._sizes if self.form.dynamic else {}, self._values)

    def _new(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"


class Branch:
    """A branch of an If; its graph is set when it is complete."""

    graph: onnx.GraphProto


def _untold(name: str, dtype: Any) -> onnx.ValueInfoProto:
    """A value of a type, without a shape."""
    info = helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [])
    info.type.tensor_type.ClearField("shape")
    return info
