"""GridSample in the types that TVM's operator computes as it should.

GridSample(x: float16, grid: float64)    ->    Cast(GridSample(Cast(x), Cast(grid))), in float64

TVM's operator makes float32 of float16, and of different types the wider one.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
# What float64 holds exactly.
PICKED = (
    *(TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32),
)


@rewrites("GridSample")
def grid_sample(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """One type of at least 32 bits."""
    x, grid = node.input
    own, attributes = graph.elem_type(x), attributes_of(node)
    if own not in FLOATS and (attributes.get("mode") != "nearest" or own not in PICKED):
        raise UnsupportedOperatorError(
            f"{describe(node)}: {TensorProto.DataType.Name(own)} is not interpolated; cast it to "
            "float before"
        )
    single = all(graph.elem_type(name) in FLOATS[:3] for name in (x, grid))
    wide = TensorProto.FLOAT if single else TensorProto.DOUBLE
    if own == graph.elem_type(grid) == wide:
        return None
    build = NodeBuilder(graph, node)
    x, grid = (build.add("Cast", name, to=wide) for name in (x, grid))
    sampled = build.add("GridSample", x, grid, **attributes)
    build.add("Cast", sampled, output=node.output[0], to=own)
    return build.nodes
