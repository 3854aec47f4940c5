"""One walk over the graph that types every value, folds what is constant and rewrites what is not.

    Shape(x: [3, 32]) -> Gather -> Concat -> Reshape(y, .)        ->    Reshape(y, [96, 384])
    FusedMatMul(a, b, transB=1, alpha=0.125)                      ->    Transpose, MatMul, Mul
    Identity, Dropout, Cast to the same type, Expand to the same shape, If(true)  ->  nothing
    Relu(past: [1, 4, 0, 16])                             ->    a constant without elements

Nodes are taken from a queue in topological order. A rewrite puts its nodes back at the front, so
that they are typed, folded and rewritten like all others. With every input's shape known, ONNX's
own inference for single nodes types nearly everything; what it cannot type is left to TVM.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from microkernels.base.errors import (
    InputValueError,
    ModelError,
    ShapeError,
    UnsupportedOperatorError,
)

from .evaluate import evaluate
from .graph.graph import (
    Graph,
    captured_names,
    describe,
    drop_dead_nodes,
    is_standard,
    static_shape,
    subgraphs,
)
from .graph.narrow_types import FLOATS, MOVING
from .graph.node_builder import (
    RESHAPE_TO_ZERO,
    attributes_of,
    constant_or_attribute,
    constant_value,
    optional_input,
)
from .graph.parameters import note_inputs, note_node, require_choice, require_parameters
from .loops import add_body, is_repeat
from .partial_shapes import complete_types
from .reader.check_model import check_parameters, type_name
from .reader.old_forms import renewed
from .rewrites import rewrite

MAX_DATA_ELEMENTS = 256
MAX_ELEMENTS = 2**36
MAX_NODES = 1_000_000
# Operators that read values of types with 2, 4 or 8 bits.
_READING_NARROW = {
    *("Cast", "CastLike", "DequantizeLinear", "QuantizeLinear", "Shape", "Size"),
    *("If", "Loop", "Scan"),
}
# Operators whose results are elements of the first input, or their places.
_CHOOSING = {
    *("ArgMax", "ArgMin", "Gather", "GatherElements", "GatherND", "TopK"),
    *("MaxPool", "AveragePool", "LpPool", "MaxRoiPool", "RoiAlign", "Resize", "GridSample"),
}


def propagate(graph: Graph) -> None:
    """Types, folds and rewrites `graph` in place.

    Raises
    ------
    ShapeError
        The types or shapes that meet at a node do not fit.
    UnsupportedOperatorError
        An operator is used in a form that no rewrite knows.
    InputValueError
        A parameter of an operator, such as axes, comes from inputs.
    ModelError
        A node breaks its operator's signature.
    """
    _Propagation(graph).run()
    drop_dead_nodes(graph)


class _Propagation:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.queue = deque(graph.nodes)
        self.done: list[onnx.NodeProto] = []
        self.aliases: dict[str, str] = {}
        self.data: dict[str, onnx.TensorProto] = {}
        self.outputs = set(graph.outputs)
        self.biases = {name for node in graph.nodes for name in _bias(node)}
        self.opsets = [helper.make_opsetid("", graph.opset)]
        drop_unused_outputs(graph)
        graph.makers = {name: node for node in graph.nodes for name in node.output if name}
        note_inputs(graph)
        for item in graph.inputs:
            if graph.shape(item.name) == (0,):
                self.aliases[item.name] = self.known_input(item)

    def known_input(self, item: onnx.ValueInfoProto) -> str:
        """A constant in the place of an empty vector, such as axes, which has but one value."""
        name = self.graph.fresh(item.name)
        dtype = helper.tensor_dtype_to_np_dtype(self.graph.elem_type(item.name))
        self.graph.add_constant(name, np.empty(0, dtype))
        if item.name in self.graph.narrow:
            self.graph.narrow[name] = self.graph.narrow[item.name]
        return name

    def run(self) -> None:
        visited = 0
        while self.queue:
            visited += 1
            if visited > MAX_NODES:
                raise ModelError(f"the graph unfolds to more than {MAX_NODES} nodes")
            node = self.queue.popleft()
            try:
                self.visit(node)
            except InputValueError:
                raise
            except ModelError:
                require_choice(node, self.graph)
                raise
        self.graph.nodes = self.done

    def visit(self, node: onnx.NodeProto) -> None:
        for position, name in enumerate(node.input):
            if name in self.aliases:
                node.input[position] = self.aliases[name]
        found = renewed(node, self.graph) if self.graph.old_opset else None
        if found is not None:
            self.graph.replaced(node, found)
            self.queue.extendleft(reversed(found))
            return
        check_signature(node, self.graph.opset)
        mark_narrow(node, self.graph)
        if is_standard(node) and node.op_type == "Constant":
            self.graph.add_constant(node.output[0], constant_value(node, self.graph))
            return
        require_parameters(node, self.graph)
        check_parameters(node, self.graph)
        types = self.infer_empty(node)
        values = self.empty_values(node, types)
        if values is None:
            replacement = rewrite(node, self.graph)
            if replacement is not None:
                self.graph.replaced(node, replacement)
                self.queue.extendleft(reversed(replacement))
                return
            if is_repeat(node):
                add_body(node, self.graph, propagate)
            types = types or self.infer(node)
            values = self.shape_values(node)
        if values is None:
            values = self.empty_values(node, types)
        if values is None and not self.is_integer_bias(node):
            values = evaluate(node, self.graph, types)
        if values is not None:
            for name, value in zip(node.output, values, strict=True):
                if name:
                    self.graph.add_constant(name, value)
            return
        self.graph.types.update(types)
        if is_no_op(node, self.graph) and node.output[0] not in self.outputs:
            self.aliases[node.output[0]] = node.input[0]
            return
        self.done.append(node)
        self.graph.makers.update(dict.fromkeys(node.output, node))
        note_node(node, self.graph)

    def shape_values(self, node: onnx.NodeProto) -> list[np.ndarray] | None:
        """The value of Shape and Size of anything whose shape is known."""
        if node.op_type not in ("Shape", "Size") or not is_standard(node):
            return None
        shape = self.graph.shape(node.input[0])
        if shape is None:
            return None
        if node.op_type == "Size":
            return [np.array(math.prod(shape), np.int64)]
        bounds = {item.name: item.i for item in node.attribute}
        return [np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)]

    def infer_empty(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        """Types of the outputs if an input has no elements; else empty, to be inferred later."""
        empty = [name for name in node.input if name and 0 in (self.graph.shape(name) or ())]
        if not empty or any(True for _ in subgraphs(node)):
            return {}
        types = self.infer(node)
        shapes = [static_shape(types[name]) for name in node.output if name in types]
        chooses = is_standard(node) and node.op_type in _CHOOSING and node.input[0] == empty[0]
        if chooses and any(shape is not None and 0 not in shape for shape in shapes):
            raise ShapeError(
                f"{describe(node)}: its input {empty[0]!r} {self.graph.shape(empty[0])} has no "
                f"elements to choose from, but its result would have the shape {shapes[0]}"
            )
        return types

    def empty_values(
        self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]
    ) -> list[np.ndarray] | None:
        """The outputs of a node, whatever it computes, if all are known to have no elements."""
        shapes = [static_shape(types[name]) if name in types else None for name in node.output]
        found = [shape for name, shape in zip(node.output, shapes, strict=True) if name]
        if not found or any(shape is None or 0 not in shape for shape in found):
            return None
        source = self.graph.shape(node.input[0]) if node.op_type == "Reshape" else None
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

    def is_integer_bias(self, node: onnx.NodeProto) -> bool:
        """Whether a node dequantises a bias, which an integer product adds as the integer it is."""
        if node.op_type != "DequantizeLinear" or node.output[0] not in self.biases:
            return False
        array = self.graph.constants.get(node.input[0])
        return array is not None and array.dtype == np.int32

    def infer(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        """Types of the outputs; empty if ONNX has no inference for the node or misses inputs."""
        schema = schema_of(node, self.graph.opset)
        names = [name for name in node.input if name]
        if schema is None or any(name not in self.graph.types for name in names):
            return {}
        try:
            types = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self.graph.types[name] for name in names},
                {name: self.tensor(name) for name in names if self.is_small_constant(name)},
                opset_imports=self.opsets,
            )
        except Exception as error:  # C++ inference raises several kinds
            shapes = ", ".join(f"{name!r} {self.graph.shape(name)}" for name in names)
            reason = str(error).strip().removeprefix("[ShapeInferenceError] ").rstrip(".")
            raise ShapeError(
                f"{describe(node)}: its inputs ({shapes}) do not fit the operator: {reason}; "
                "mend the model, or the shapes given"
            ) from error
        types = complete_types(node, self.graph, types)
        for name, found in types.items():
            shape = static_shape(found)
            if shape is not None and (min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS):
                raise ShapeError(
                    f"{describe(node)}: its output {name!r} would have the shape {shape}, which "
                    "cannot be; check the input shapes"
                )
        return types

    def is_small_constant(self, name: str) -> bool:
        array = self.graph.constants.get(name)
        return array is not None and array.size <= MAX_DATA_ELEMENTS

    def tensor(self, name: str) -> onnx.TensorProto:
        if name not in self.data:
            self.data[name] = numpy_helper.from_array(self.graph.constants[name], name)
        return self.data[name]


def _bias(node: onnx.NodeProto) -> list[str]:
    """The name of a product's or convolution's bias, if it has one."""
    has_bias = is_standard(node) and node.op_type in ("Conv", "ConvTranspose", "Gemm")
    return [name for name in node.input[2:3] if name] if has_bias else []


def mark_narrow(node: onnx.NodeProto, graph: Graph) -> None:
    """Marks what an operator makes of values that only rewrites and moves know how to read.

    Raises
    ------
    UnsupportedOperatorError
        It computes with floats of 4 or 8 bits, or with integers of 2 or 4 that are no constants.
    """
    kinds = {graph.narrow[name] for name in node.input if name in graph.narrow}
    if not kinds:
        return
    if is_standard(node) and node.op_type in MOVING and node.input[0] in graph.narrow:
        graph.narrow.update(dict.fromkeys(filter(None, node.output), graph.narrow[node.input[0]]))
        return
    constant = all(name in graph.constants for name in node.input if name in graph.narrow)
    read = constant and not kinds & FLOATS
    if not read and is_standard(node) and node.op_type not in _READING_NARROW:
        names = ", ".join(sorted(map(type_name, kinds)))
        raise UnsupportedOperatorError(f"{describe(node)}: it cannot compute with {names}")


def check_signature(node: onnx.NodeProto, opset: int) -> None:
    """Raises a ModelError unless inputs, outputs and attributes are there as the schema wants."""
    schema = schema_of(node, opset)
    if schema is None:
        return
    for kind, values, low, high in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not low <= len(values) <= high:
            wanted = f"{low}" if low == high else f"{low} to {high}"
            raise ModelError(
                f"{describe(node)} has {len(values)} {kind}, and the operator takes {wanted}; "
                "export the model again"
            )
    for position, name in enumerate(node.input):
        declared = schema.inputs[min(position, len(schema.inputs) - 1)]
        if not name and declared.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise ModelError(f"{describe(node)} lacks its input {declared.name!r}")
    given = {item.name: item.type for item in node.attribute}
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in given:
            raise ModelError(f"{describe(node)} lacks its attribute {name!r}")
        if name in given and given[name] != int(attribute.type):
            raise ModelError(f"{describe(node)}: its attribute {name!r} has a wrong type")


def drop_unused_outputs(graph: Graph) -> None:
    """Blanks optional outputs that nothing reads, such as Dropout's mask."""
    used = set(graph.outputs)
    for node in graph.nodes:
        used.update(node.input)
        used |= captured_names(node)
    for node in graph.nodes:
        schema = schema_of(node, graph.opset) if len(node.output) > 1 else None
        if schema is None:
            continue
        optional = onnx.defs.OpSchema.FormalParameterOption.Optional
        for position, name in enumerate(node.output):
            declared = schema.outputs[min(position, len(schema.outputs) - 1)]
            if name not in used and declared.option == optional:
                node.output[position] = ""


def schema_of(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a standard operator, the newest if the opset is older than the operator."""
    if not is_standard(node):
        return None
    if any(item.name == "allowzero" for item in node.attribute):
        opset = max(opset, RESHAPE_TO_ZERO)
    for version in (opset, onnx.defs.onnx_opset_version()):
        if onnx.defs.has(node.op_type, version, ""):
            schema = onnx.defs.get_schema(node.op_type, version, "")
            if not schema.deprecated:
                return schema
    return None


_Rule = Callable[[onnx.NodeProto, Graph], bool]


def is_no_op(node: onnx.NodeProto, graph: Graph) -> bool:
    """Whether the node's first output always equals its first input, in type and value."""
    if not is_standard(node) or not node.input or sum(map(bool, node.output)) != 1:
        return False
    rule = _RULES.get(node.op_type)
    return rule is not None and rule(node, graph)


def _same_elements(node: onnx.NodeProto, graph: Graph) -> bool:
    source, result = node.input[0], node.output[0]
    return (
        source in graph.types
        and result in graph.types
        and graph.elem_type(source) == graph.elem_type(result)
        and graph.narrow.get(source) == graph.narrow.get(result)
    )


def _same_type(node: onnx.NodeProto, graph: Graph) -> bool:
    shape = graph.shape(node.input[0])
    return (
        shape is not None and shape == graph.shape(node.output[0]) and _same_elements(node, graph)
    )


def _always(node: onnx.NodeProto, graph: Graph) -> bool:
    return True


def _inference_dropout(node: onnx.NodeProto, graph: Graph) -> bool:
    training = optional_input(node, 2)
    return not training or (training in graph.constants and not graph.constants[training].any())


def _single_input(node: onnx.NodeProto, graph: Graph) -> bool:
    return len(node.input) == 1


def _identity_permutation(node: onnx.NodeProto, graph: Graph) -> bool:
    order = attributes_of(node).get("perm")
    return order is not None and list(order) == list(range(len(order)))


def _pads_nothing(node: onnx.NodeProto, graph: Graph) -> bool:
    pads = constant_or_attribute(node, graph, 1, "pads")
    return pads is not None and not np.any(pads)


def _whole_slice(node: onnx.NodeProto, graph: Graph) -> bool:
    name = optional_input(node, 4)
    forward = not name or (name in graph.constants and bool((graph.constants[name] > 0).all()))
    return forward and _same_type(node, graph)


_RULES: dict[str, _Rule] = {
    "Identity": _always,
    "Dropout": _inference_dropout,
    "Cast": _same_elements,
    "Reshape": _same_type,
    "Flatten": _same_type,
    "Expand": _same_type,
    "Concat": _single_input,
    "Sum": _single_input,
    "Max": _single_input,
    "Min": _single_input,
    "Transpose": _identity_permutation,
    "Pad": _pads_nothing,
    "Slice": _whole_slice,
}
