"""Checks the declarations of a model before anything is built from it.

They need no walk over the values: versions, interface, nesting. Names and order are checked when
the graph is loaded, attributes and types during the walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, ShapeError, UnsupportedOperatorError

from ..graph.graph import STANDARD_DOMAINS, Graph, describe, is_standard, subgraphs
from ..graph.narrow_types import NARROW
from ..graph.node_builder import attributes_of, constant_or_attribute, optional_input
from .interface import Interface

MIN_IR_VERSION = 3
MAX_NESTING = 16
MAX_INLINED_NODES = 1_000_000

_TYPES = (
    *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "INT8", "INT16", "INT32", "INT64"),
    *("UINT8", "UINT16", "UINT32", "UINT64"),
)
SUPPORTED_TYPES = frozenset(map(TensorProto.DataType.Value, _TYPES))


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
    # Level by level, because recursion into nested bodies could exhaust the stack.
    level = [(node, node) for node in graph.node]
    for _ in range(MAX_NESTING):
        level = [
            (outer, inner) for outer, node in level for b in subgraphs(node) for inner in b.node
        ]
    if level:
        raise UnsupportedOperatorError(
            f"{describe(level[0][0])}: bodies are nested more than {MAX_NESTING} deep"
        )
    _check_functions(model)


def opset_version(model: onnx.ModelProto) -> int:
    """The model's version of the standard operator set; ModelError if it is unknown.

    A model without standard operators needs none; it gets the newest.
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
        try:
            tensor = Interface.of(item).tensor.tensor_type
        except ModelError as error:
            raise ModelError(f"graph {kind} {error}") from error
        elem_type = tensor.elem_type
        if kind == "input" and not elem_type:
            raise ModelError(f"graph input {item.name!r} has no element type")
        if elem_type and elem_type not in SUPPORTED_TYPES | NARROW:
            raise ModelError(
                f"graph {kind} {item.name!r} holds {type_name(elem_type)}, "
                "a data type that is not supported"
            )
        for index, dim in enumerate(tensor.shape.dim):
            if dim.dim_value > 2**31 - 1:
                raise ShapeError(
                    f"dimension {index} of {kind} {item.name!r} is {dim.dim_value}, too large"
                )


def _check_functions(model: onnx.ModelProto) -> None:
    """Refuses functions that call themselves, or that expand to too many nodes."""
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


def check_parameters(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuses a node whose parameters are invalid, if ONNX's inference does not notice.

    operator          refused
    DFT               a transform of no elements
    DepthToSpace      channels that are no multiple of the block
    Range             a step of 0, or a limit or step that is not finite
    Resize, Upsample  a scale that is 0, negative or not finite; a negative size
    Split             a negative size

    Only known inputs and attributes are checked here. Converters check whether sizes fit, dynamic
    ones at run time (graph/requests.py).

    Raises
    ------
    ShapeError
        The message names the node, and what is wrong.
    """
    if is_standard(node) and node.op_type in _CHECKS:
        wrong = _CHECKS[node.op_type](node, graph)
        if wrong is not None:
            raise ShapeError(f"{describe(node)}: {wrong}; correct the model, or the given inputs")


def _depth_to_space(node: onnx.NodeProto, graph: Graph) -> str | None:
    dims, size = graph.dims(node.input[0]), attributes_of(node)["blocksize"]
    channels = None if dims is None or len(dims) != 4 else dims[1]
    if channels is None or size < 1 or channels % size**2 == 0:
        return None
    return f"its {channels} channels are no blocks of {size} x {size}"


def _dft(node: onnx.NodeProto, graph: Graph) -> str | None:
    length = graph.constants.get(optional_input(node, 1))
    if length is None or length.item() > 0:
        return None
    return f"a transform of {length.item()} elements"


def _range(node: onnx.NodeProto, graph: Graph) -> str | None:
    start, limit, step = (graph.constants.get(name) for name in node.input)
    if step is not None and step.item() == 0:
        return "its step is 0"
    known = [float(each.item()) for each in (start, limit, step) if each is not None]
    if not np.isfinite(known).all():
        return f"its limits and its step are not all finite: {known}"
    return None


def _resize(node: onnx.NodeProto, graph: Graph) -> str | None:
    place = 2 if node.op_type == "Resize" and len(node.input) > 2 else 1
    scales = constant_or_attribute(node, graph, place, "scales")
    sizes = graph.constants.get(optional_input(node, 3))
    if scales is not None and not all(0 < scale < np.inf for scale in np.asarray(scales).flat):
        return f"its scales {np.asarray(scales).tolist()} are not all positive numbers"
    if sizes is not None and (sizes < 0).any():
        return f"its sizes {sizes.tolist()} are not all 0 or more"
    return None


def _split(node: onnx.NodeProto, graph: Graph) -> str | None:
    sizes = constant_or_attribute(node, graph, 1, "split")
    if sizes is not None and any(size < 0 for size in sizes):
        return f"its sizes {list(map(int, sizes))} are not all 0 or more"
    return None


_CHECKS: dict[str, Callable[[onnx.NodeProto, Graph], str | None]] = {
    "DFT": _dft,
    "DepthToSpace": _depth_to_space,
    "Range": _range,
    "Resize": _resize,
    "Split": _split,
    "Upsample": _resize,
}
