"""Types of a node's results, as ONNX infers them, and results that follow from types alone."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from microkernels.base.errors import ShapeError

from .graph import Graph, describe, is_standard, static_shape, subgraphs
from .narrow_types import stored_type
from .node_builder import with_attributes
from .node_facts import schema_of

MAX_DATA_ELEMENTS = 256
MAX_ELEMENTS = 2**36
# Operators whose results are elements of the first input, or their places.
_CHOOSING = {
    *("ArgMax", "ArgMin", "Gather", "GatherElements", "GatherND", "TopK"),
    *("MaxPool", "AveragePool", "LpPool", "MaxRoiPool", "RoiAlign", "Resize", "GridSample"),
}

Types = dict[str, onnx.TypeProto]


class Inference:
    """ONNX's inference for the nodes of a graph, one at a time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._data: dict[str, onnx.TensorProto] = {}
        self._opsets = [helper.make_opsetid("", graph.opset)]

    def of(self, node: onnx.NodeProto) -> Types:
        """Types of the outputs; empty if ONNX has no inference for the node or misses inputs."""
        graph, schema = self._graph, schema_of(node, self._graph.opset)
        names = [name for name in node.input if name]
        if schema is None or any(name not in graph.types for name in names):
            return {}
        if node.op_type == "BatchNormalization":  # ONNX wants all results of one that trains
            node = with_attributes(node, training_mode=None)
            del node.output[1:]
        if node.op_type == "QuantizeLinear" and node.input[-1] in graph.narrow:
            node = with_attributes(node, output_dtype=None)  # the zero point is of the stored type
        given = {name: graph.types[name] for name in names}
        data = {name: self._tensor(name) for name in names if self._is_small_constant(name)}
        if node.op_type == "Range":  # functions of ONNX itself give it vectors of one element
            for name in names:
                if graph.shape(name) == (1,):
                    given[name] = helper.make_tensor_type_proto(graph.elem_type(name), ())
                    if name in data:
                        data[name] = numpy_helper.from_array(graph.constants[name].reshape(()))
        try:
            types: Types = onnx.shape_inference.infer_node_outputs(
                schema, node, given, data, opset_imports=self._opsets
            )
        except Exception as error:  # C++ inference raises several kinds
            shapes = ", ".join(f"{name!r} {graph.shape(name)}" for name in names)
            reason = str(error).strip().rstrip(".")
            for kind in ("Shape", "Type"):
                reason = reason.removeprefix(f"[{kind}InferenceError] ")
            raise ShapeError(
                f"{describe(node)}: its inputs ({shapes}) do not fit the operator: {reason}; "
                "mend the model, or the shapes given"
            ) from error
        for name, found in types.items():
            if found.HasField("tensor_type"):
                found.tensor_type.elem_type = stored_type(found.tensor_type.elem_type)
            shape = static_shape(found)
            if shape is not None and (min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS):
                raise ShapeError(
                    f"{describe(node)}: its output {name!r} would have the shape {shape}, which "
                    "cannot be; check the input shapes"
                )
        return types

    def of_empty(self, node: onnx.NodeProto) -> Types:
        """Types of the outputs if an input has no elements; else empty, to be inferred later."""
        empty = [name for name in node.input if name and 0 in (self._graph.shape(name) or ())]
        if not empty or any(True for _ in subgraphs(node)):
            return {}
        types = self.of(node)
        shapes = [static_shape(types[name]) for name in node.output if name in types]
        chooses = is_standard(node) and node.op_type in _CHOOSING and node.input[0] == empty[0]
        if chooses and any(shape is not None and 0 not in shape for shape in shapes):
            raise ShapeError(
                f"{describe(node)}: its input {empty[0]!r} {self._graph.shape(empty[0])} has no "
                f"elements to choose from, but its result would have the shape {shapes[0]}"
            )
        return types

    def empty_values(self, node: onnx.NodeProto, types: Types) -> list[np.ndarray] | None:
        """The outputs of a node, whatever it computes, if all are known to have no elements."""
        shapes = [static_shape(types[name]) if name in types else None for name in node.output]
        found = [shape for name, shape in zip(node.output, shapes, strict=True) if name]
        if not found or any(shape is None or 0 not in shape for shape in found):
            return None
        source = self._graph.shape(node.input[0]) if node.op_type == "Reshape" else None
        if source is not None and 0 not in source:
            raise ShapeError(
                f"{describe(node)}: its input {node.input[0]!r} {source} has elements, and the "
                f"shape {found[0]} has none"
            )
        kinds = [types[name].tensor_type.elem_type if name else 0 for name in node.output]
        return [
            np.empty(shape or (), helper.tensor_dtype_to_np_dtype(kind) if kind else None)
            for shape, kind in zip(shapes, kinds, strict=True)
        ]

    def shape_values(self, node: onnx.NodeProto) -> list[np.ndarray] | None:
        """The value of Shape and Size of anything whose shape is known."""
        if node.op_type not in ("Shape", "Size") or not is_standard(node):
            return None
        shape = self._graph.shape(node.input[0])
        if shape is None:
            return None
        if node.op_type == "Size":
            return [np.array(math.prod(shape), np.int64)]
        bounds = {item.name: item.i for item in node.attribute}
        return [np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)]

    def _is_small_constant(self, name: str) -> bool:
        array = self._graph.constants.get(name)
        return array is not None and array.size <= MAX_DATA_ELEMENTS

    def _tensor(self, name: str) -> onnx.TensorProto:
        if name not in self._data:
            self._data[name] = numpy_helper.from_array(self._graph.constants[name], name)
        return self._data[name]
