"""ReduceLogSumExp of infinities.

    ReduceLogSumExp(x)    ->    m = Clip(ReduceMax(x), finite);  Log(ReduceSum(Exp(x - m))) + m

The largest element is subtracted so that no power overflows. If it is infinite, as in a row of
-inf, that would be inf - inf; so the largest or least finite number is subtracted instead.
"""

from __future__ import annotations

import ml_dtypes
import onnx
from onnx import helper

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input


def log_sum_exp(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The operators that it is made of, for floats and known axes; none are all."""
    x, given = node.input[0], optional_input(node, 1)
    dims, attributes = graph.dims(x), attributes_of(node)
    axes = graph.constants[given].tolist() if given in graph.constants else attributes.get("axes")
    elem_type = graph.elem_type(x)
    if dims is None or elem_type is None or (given and axes is None):
        return None
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    if dtype.name not in ("float16", "float32", "float64", "bfloat16"):
        return None
    axes = list(axes or range(len(dims)))
    build, finite = NodeBuilder(graph, node), ml_dtypes.finfo(dtype)
    most = build.reduce("ReduceMax", x, axes)
    most = build.clip(most, x, float(finite.min), float(finite.max))
    powers = build.add("Exp", build.add("Sub", x, most))
    total = build.add("Log", build.reduce("ReduceSum", powers, axes))
    if attributes.get("keepdims", 1):
        build.add("Add", total, most, output=node.output[0])
        return build.nodes
    build.squeeze(build.add("Add", total, most), axes, output=node.output[0])
    return build.nodes
