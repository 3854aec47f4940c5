"""MaxPool: explicit padding, and the places of the maxima as a node of its own.

y, places = MaxPool(x, ...)    ->    y = MaxPool(x, ...)
                                     places = MaxPoolPlaces(x, ...)

What computes the maxima stays the same, with all that is fused with it. The padding is that of
auto_pad.py.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import OWN_DOMAIN, Graph, describe
from ..node_builder import NodeBuilder, attributes_of, with_attributes
from ..windows import window_count
from .auto_pad import auto_pad
from .registry import rewrites


@rewrites("MaxPool")
def max_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """As auto_pad.py has it; the places apart, if they are asked for."""
    if not any(node.output[1:]):
        return auto_pad(node, graph)
    same = attributes_of(node).get("auto_pad", "NOTSET").startswith("SAME")
    padded, *behind = auto_pad(node, graph) or [node]
    attributes = attributes_of(padded)
    if behind and not same:
        raise UnsupportedOperatorError(
            f"{describe(node)}: with ceil_mode and places, windows of a dynamic extent are not "
            "counted; give shapes that fix it, or leave out ceil_mode"
        )
    if same and (behind or attributes.get("auto_pad", "NOTSET").startswith("SAME")):
        raise UnsupportedOperatorError(
            f"{describe(node)}: the padding of an open extent is not known where places are asked "
            "for; give shapes that fix it, or write the padding as a Pad before it"
        )
    kernel = attributes["kernel_shape"]
    ones, none = [1] * len(kernel), [0, 0] * len(kernel)
    pads, ceil = attributes.get("pads") or none, attributes.get("ceil_mode", 0)
    strides, dilations = attributes.get("strides") or ones, attributes.get("dilations") or ones
    build = NodeBuilder(graph, node)
    single = with_attributes(padded)
    del single.output[1:]
    build.nodes.append(single)
    build.add(
        "MaxPoolPlaces",
        node.input[0],
        output=node.output[1],
        domain=OWN_DOMAIN,
        kernel_shape=kernel,
        pads=pads,
        strides=strides,
        dilations=dilations,
        ceil_mode=ceil,
        storage_order=attributes.get("storage_order", 0),
    )
    dims = graph.dims(node.input[0])
    if dims is not None:
        around = zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)
        axes = zip(dims[2:], around, kernel, strides, dilations, strict=True)
        sizes = [None if axis[0] is None else window_count(*axis, bool(ceil)) for axis in axes]
        graph.declare(node.output[1], TensorProto.INT64, (*dims[:2], *sizes))
    return build.nodes
