"""RoiAlign with the coordinate transformation that its opset means.

RoiAlign(x, rois, batch)    ->    RoiAlign(..., coordinate_transformation_mode=half_pixel)

Opset 16 brought the attribute and this default; before, and where none is written, it is
"output_half_pixel".
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from ..node_builder import attributes_of, with_attributes
from .registry import rewrites

HALF_PIXEL = 16


@rewrites("RoiAlign")
def roi_align(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Writes the attribute where it is absent."""
    name = "coordinate_transformation_mode"
    if graph.opset < HALF_PIXEL or name in attributes_of(node):
        return None
    return [with_attributes(node, **{name: "half_pixel"})]
