"""Checks what a model says about itself before anything is built from it.

Only what can be said without walking the values: versions, the interface, nesting. Names and
order are checked while the graph is loaded, attributes and types while they are propagated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, ShapeError, UnsupportedOperatorError

from .graph import STANDARD_DOMAINS, describe, is_standard, subgraphs
from .narrow_types import NARROW

MIN_IR_VERSION = 3
MAX_NESTING = 16
MAX_INLINED_NODES = 1_000_000

SUPPORTED_TYPES = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.BOOL,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
    }
)


def check_model(model: onnx.ModelProto) -> None:
    """Raises a ModelError if versions, interface, nesting or functions of `model` are unsound."""
    graph = model.graph
    if not MIN_IR_VERSION <= model.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"the model's IR version is {model.ir_version}; versions {MIN_IR_VERSION} to "
            f"{onnx.IR_VERSION} are supported (is this an ONNX model?)"
        )
    opset_version(model)
    if not graph.output:
        raise ModelError(f"graph {graph.name!r} has no outputs, so there is nothing to compute")
    _check_interface("input", graph.input)
    _check_interface("output", graph.output)
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise ModelError(f"initializer {name!r} is sparse; store it dense")
    _check_nesting(graph.node)
    _check_functions(model)


def opset_version(model: onnx.ModelProto) -> int:
    """The model's version of the standard operator set; ModelError if it is not a known one.

    A model without standard operators needs none; the newest is taken.
    """
    versions = [item.version for item in model.opset_import if item.domain in STANDARD_DOMAINS]
    newest = onnx.defs.onnx_opset_version()
    if not versions and not any(map(is_standard, model.graph.node)):
        return newest
    if not versions:
        raise ModelError("the model imports no version of the standard operator set (opset_import)")
    if not 1 <= versions[0] <= newest:
        raise ModelError(
            f"the model asks for opset {versions[0]}; opsets 1 to {newest} are supported. "
            "Convert it with onnx.version_converter or export it again"
        )
    return versions[0]


def type_name(elem_type: int) -> str:
    """The ONNX name of an element type."""
    known = elem_type in TensorProto.DataType.values()
    return TensorProto.DataType.Name(elem_type) if known else f"type {elem_type}"


def _check_interface(kind: str, items: Sequence[onnx.ValueInfoProto]) -> None:
    for name, count in Counter(item.name for item in items).items():
        if not name:
            raise ModelError(f"a graph {kind} has no name")
        if count > 1:
            raise ModelError(f"graph {kind} {name!r} is listed {count} times")
    for item in items:
        which = item.type.WhichOneof("value")
        if which not in (None, "tensor_type"):
            raise ModelError(
                f"graph {kind} {item.name!r} is a {which.removesuffix('_type')}; "
                "only tensors are supported"
            )
        elem_type = item.type.tensor_type.elem_type
        if kind == "input" and not elem_type:
            raise ModelError(f"graph input {item.name!r} has no element type")
        if elem_type and elem_type not in SUPPORTED_TYPES | NARROW:
            raise ModelError(
                f"graph {kind} {item.name!r} holds {type_name(elem_type)}, "
                "a data type that is not supported"
            )
        for index, dim in enumerate(item.type.tensor_type.shape.dim):
            if dim.dim_value > 2**31 - 1:
                raise ShapeError(
                    f"dimension {index} of {kind} {item.name!r} is {dim.dim_value}, too large"
                )


def _check_nesting(nodes: Iterable[onnx.NodeProto]) -> None:
    """Refuses bodies in bodies so deep that walking them could exhaust the stack."""
    level = [(node, node) for node in nodes]
    for _ in range(MAX_NESTING):
        level = [
            (outer, inner) for outer, node in level for b in subgraphs(node) for inner in b.node
        ]
        if not level:
            return
    raise UnsupportedOperatorError(
        f"{describe(level[0][0])}: bodies are nested more than {MAX_NESTING} deep"
    )


def _check_functions(model: onnx.ModelProto) -> None:
    """Refuses functions that call themselves, or that blow up when they are expanded."""
    functions = {(item.domain, item.name): item for item in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def count(nodes: Iterable[onnx.NodeProto], active: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in active or len(active) > MAX_NESTING:
                raise ModelError(
                    f"function {node.op_type!r} of domain {node.domain!r} calls itself, directly "
                    f"or through others, or calls are nested more than {MAX_NESTING} deep"
                )
            if key in functions and key not in sizes:
                sizes[key] = count(functions[key].node, (*active, key))
            total += sizes.get(key, 1)
            total += sum(count(body.node, active) for body in subgraphs(node))
            if total > MAX_INLINED_NODES:
                raise ModelError(
                    f"function {node.op_type!r} expands to more than {MAX_INLINED_NODES} nodes"
                )
        return total

    count(model.graph.node, ())
