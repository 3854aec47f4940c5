"""MaxPool: explicit padding, and the places of the maxima as a node of its own.

y, places = MaxPool(x, ...)    ->    y = MaxPool(x, ...)
                                     places = MaxPoolPlaces(x, ...)

What computes the maxima stays the same, with all that is fused with it. The padding is that of
auto_pad.py.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from ..graph import OWN_DOMAIN, Graph
from ..node_builder import NodeBuilder, attributes_of, known_shape, with_attributes
from ..windows import window_count
from .auto_pad import auto_pad
from .registry import rewrites


@rewrites("MaxPool")
def max_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """As auto_pad.py has it; the places apart, if they are asked for."""
    if not any(node.output[1:]):
        return auto_pad(node, graph)
    extents = known_shape(graph, node, node.input[0])[2:]
    ones, padded = [1] * len(extents), (auto_pad(node, graph) or [node])[0]
    attributes = attributes_of(padded)
    kernel, pads = attributes["kernel_shape"], attributes.get("pads") or [0, 0] * len(extents)
    strides, dilations = attributes.get("strides") or ones, attributes.get("dilations") or ones
    before, after = pads[: len(extents)], pads[len(extents) :]
    around, ceil = zip(before, after, strict=True), bool(attributes.get("ceil_mode", 0))
    sizes = [
        window_count(*axis, ceil)
        for axis in zip(extents, around, kernel, strides, dilations, strict=True)
    ]
    build = NodeBuilder(graph, node)
    single = with_attributes(padded)
    del single.output[1:]
    build.nodes.append(single)
    build.add(
        "MaxPoolPlaces",
        node.input[0],
        output=node.output[1],
        domain=OWN_DOMAIN,
        sizes=sizes,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        before=before,
        storage_order=attributes.get("storage_order", 0),
    )
    shape = known_shape(graph, node, node.input[0])[:2]
    graph.declare(node.output[1], TensorProto.INT64, (*shape, *sizes))
    return build.nodes
