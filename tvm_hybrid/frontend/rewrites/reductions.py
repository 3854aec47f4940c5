"""Reductions over no axes, and means of integers.

    ReduceSumSquare(x, axes=[], noop_with_empty_axes=1)    ->    Mul(x, x)
    ReduceMean(x: int32)                                   ->    Cast(ReduceMean(Cast(x)))

Without axes TVM's importer returns the input. That is right for sums, but not for operators that
also compute something from each element. Its mean of int32 is an int64.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .log_sum_exp import log_sum_exp
from .registry import Rewrite, rewrites

_OF_ONE = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log", "ReduceSumSquare": "Mul"}
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


def _mean_of_integers(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    elem_type = graph.elem_type(node.input[0])
    if elem_type not in (TensorProto.INT32, TensorProto.UINT32):
        return None
    build = NodeBuilder(graph, node)
    wide = build.add("Cast", node.input[0], to=TensorProto.INT64)
    mean = build.add("ReduceMean", wide, *node.input[1:], **attributes_of(node))
    build.add("Cast", mean, output=node.output[0], to=elem_type)
    return build.nodes


_OTHER_FORMS: dict[str, Rewrite] = {
    "ReduceLogSumExp": log_sum_exp,
    "ReduceMean": _mean_of_integers,
}
