"""Reductions over no axes, and reductions of integers and booleans.

    ReduceSumSquare(x, axes=[], noop_with_empty_axes=1)    ->    Mul(x, x)
    ReduceMean(x: int32)                                   ->    Cast(ReduceMean(Cast(x)))
    ReduceMax(x: bool)                                     ->    Cast(ReduceMax(Cast(x)))
    ReduceL2(x: int32)                                     ->    Cast(ReduceL2(Cast(x)))
    GlobalMaxPool(x: [n, c])                               ->    x

Without axes TVM's importer returns the input. That is right for sums, but not for operators that
also compute something from each element. Its mean of int32 is an int64, a bool has no extremes,
and roots and logarithms are of floats.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .log_sum_exp import log_sum_exp
from .registry import Rewrite, rewrites

_OF_ONE = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log", "ReduceSumSquare": "Mul"}
_INTEGERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64)
_SUMS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceLogSumExp")


@rewrites(*_OF_ONE, *_SUMS)
def reduction(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The operator on single elements where nothing is reduced, else its `_OTHER_FORMS`."""
    attributes, axes = attributes_of(node), optional_input(node, 1)
    known = graph.constants.get(axes) if axes else None
    empty = not attributes.get("axes") and (not axes or (known is not None and not known.size))
    if not attributes.get("noop_with_empty_axes") or not empty:
        other = _OTHER_FORMS.get(node.op_type)
        return other(node, graph) if other else None
    build, x, name = NodeBuilder(graph, node), node.input[0], _OF_ONE.get(node.op_type, "Identity")
    build.add(name, *([x, x] if name == "Mul" else [x]), output=node.output[0])
    return build.nodes


@rewrites("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The input, if it has no axes behind the channels."""
    shape, build = graph.dims(node.input[0]), NodeBuilder(graph, node)
    if shape is None or len(shape) > 2:
        return None
    build.add("Identity", node.input[0], output=node.output[0])
    return build.nodes


def _mean_of_integers(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    narrow = graph.elem_type(node.input[0]) in (TensorProto.INT32, TensorProto.UINT32)
    return _computed_as(TensorProto.INT64, node, graph) if narrow else None


def _extreme_of_booleans(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    is_bool = graph.elem_type(node.input[0]) == TensorProto.BOOL
    return _computed_as(TensorProto.UINT8, node, graph) if is_bool else None


def _root_or_logarithm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    if graph.elem_type(node.input[0]) in _INTEGERS:
        return _computed_as(TensorProto.DOUBLE, node, graph)
    return log_sum_exp(node, graph) if node.op_type == "ReduceLogSumExp" else None


def _computed_as(elem_type: int, node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The reduction of another type, between casts."""
    build = NodeBuilder(graph, node)
    other = build.add("Cast", node.input[0], to=elem_type)
    reduced = build.add(node.op_type, other, *node.input[1:], **attributes_of(node))
    build.add("Cast", reduced, output=node.output[0], to=graph.elem_type(node.input[0]))
    return build.nodes


_OTHER_FORMS: dict[str, Rewrite] = {
    "ReduceL2": _root_or_logarithm,
    "ReduceLogSum": _root_or_logarithm,
    "ReduceLogSumExp": _root_or_logarithm,
    "ReduceMax": _extreme_of_booleans,
    "ReduceMean": _mean_of_integers,
    "ReduceMin": _extreme_of_booleans,
}
