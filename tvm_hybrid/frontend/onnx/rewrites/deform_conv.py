"""DeformConv as a matrix product.

DeformConv(x, w, offset, b, mask)
    ->  MatMul(DeformColumns(x, offset, mask), Transpose(w)) + b, channels moved to the front

Channels and the kernel must be known; batch and extents may be open.
Narrow floats are sampled and multiplied in float32.
"""

from __future__ import annotations

import math
from typing import Any

import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    differ,
    extents_of,
    known,
    known_shape,
    optional_input,
    shape_text,
    with_attributes,
)
from ..ops.pooling import window_count
from .registry import rewrites

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rewrites("DeformConv")
def deform_conv(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Samples, a product for each group, and the bias."""
    build = NodeBuilder(graph, node)
    form = _form(build, node, graph)
    channels, weights = form.pop("channels"), form.pop("weights")
    batch, *outputs = form.pop("result")
    elem_type, groups = graph.elem_type(node.input[0]), form["group"]
    x, w, offset, bias, mask = (
        build.add("Cast", name, to=TensorProto.FLOAT) if name and elem_type in _NARROW else name
        for name in (*node.input[:3], optional_input(node, 3), optional_input(node, 4))
    )
    inputs = [x, offset, *([mask] if mask else [])]
    columns = build.add("DeformColumns", *inputs, domain=OWN_DOMAIN, **form)
    depth = channels // groups * math.prod(form["kernel_shape"])
    rows = math.prod(outputs) if all(isinstance(size, int) for size in outputs) else None
    computed = TensorProto.FLOAT if elem_type in _NARROW else elem_type
    known_batch = batch if isinstance(batch, int) else None
    graph.declare(columns, computed, (known_batch, groups, rows, depth))
    taps = math.prod(form["kernel_shape"])
    matrix = build.reshape(w, [groups, weights // groups, channels // groups, taps])
    matrix = build.add("Transpose", matrix, perm=[0, 3, 2, 1])
    matrix = build.reshape(matrix, [groups, depth, weights // groups])
    value = build.add("MatMul", columns, matrix)
    if bias:
        value = build.add("Add", value, build.reshape(bias, [groups, 1, weights // groups]))
    value = build.add("Transpose", value, perm=[0, 1, 3, 2])
    narrow = elem_type in _NARROW
    value = build.reshape(value, [batch, weights, *outputs], "" if narrow else node.output[0])
    if narrow:
        build.add("Cast", value, output=node.output[0], to=elem_type)
    return build.nodes


def _form(build: NodeBuilder, node: onnx.NodeProto, graph: Graph) -> dict[str, Any]:
    """Attributes with their defaults, channels, and batch and extents of the result, once all
    shapes fit as far as they are known.

    Raises
    ------
    ModelError
        They do not.
    UnsupportedOperatorError
        The channels or the shape of the kernel are open.
    """
    attributes = attributes_of(node)
    image = extents_of(build, node.input[0])
    batch, channels = image[0], known(build, image[1], "the number of its channels")
    weights, _, *kernel = known_shape(graph, node, node.input[1])
    rank = len(image) - 2
    form = {
        "kernel_shape": kernel,
        "strides": attributes.get("strides", [1] * rank),
        "pads": attributes.get("pads", [0] * (2 * rank)),
        "dilations": attributes.get("dilations", [1] * rank),
        "group": attributes.get("group", 1),
        "offset_group": attributes.get("offset_group", 1),
    }
    sizes = [len(kernel), len(form["strides"]), len(form["dilations"]), len(form["pads"]) // 2]
    groups = form["group"], form["offset_group"]
    if sizes != [rank] * 4 or attributes.get("kernel_shape", kernel) != kernel:
        raise ModelError(f"{describe(node)}: kernel, strides, pads, dilations do not fit its input")
    if min(*groups, *form["strides"], *form["dilations"]) < 1:
        raise ModelError(f"{describe(node)}: groups, strides and dilations must be positive")
    if channels % groups[0] or channels % groups[1] or weights % groups[0]:
        raise ModelError(f"{describe(node)}: its groups do not divide its channels")
    around = zip(form["pads"][:rank], form["pads"][rank:], strict=True)
    axes = zip(image[2:], around, kernel, form["strides"], form["dilations"], strict=True)
    # What x leaves open, the offsets may tell; those of open extents are checked by DeformColumns.
    offsets = extents_of(build, node.input[2])
    outputs = [
        window_count(*axis) if isinstance(axis[0], int) else size
        for axis, size in zip(axes, offsets[2:], strict=True)
    ]
    batch = batch if isinstance(batch, int) else offsets[0]
    taps = math.prod(kernel)
    expected: dict[int, tuple[Extent, ...]] = {
        1: (weights, channels // groups[0], *kernel),
        2: (batch, groups[1] * taps * rank, *outputs),
        3: (weights,),
        4: (batch, groups[1] * taps, *outputs),
    }
    for position, shape in expected.items():
        name = optional_input(node, position)
        found = extents_of(build, name) if name else shape
        if len(found) != len(shape) or any(map(differ, found, shape)):
            raise ModelError(
                f"{describe(node)}: its input {name!r} has the shape {shape_text(found)}; the "
                f"others ask for {shape_text(shape)}"
            )
    made = {"channels": channels, "weights": weights, "result": [batch, *outputs]}
    return form | made


FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
# What float64 holds exactly.
PICKED = (
    *(TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32),
)


@rewrites("GridSample")
def grid_sample(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """GridSample in the types that TVM's operator computes as it should.

    GridSample(x: float16, grid: float64)    ->    Cast(GridSample(Cast(x), Cast(grid))), in float64

    TVM's operator makes float32 of float16, and of different types the wider one.

    One type of at least 32 bits.
    """
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


HALF_PIXEL = 16


@rewrites("RoiAlign")
def roi_align(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """RoiAlign with the coordinate transformation that its opset means.

    RoiAlign(x, rois, batch)    ->    RoiAlign(..., coordinate_transformation_mode=half_pixel)

    Opset 16 brought the attribute and this default; before, and where none is written, it is
    "output_half_pixel".

    Writes the attribute where it is absent.
    """
    name = "coordinate_transformation_mode"
    if graph.opset < HALF_PIXEL or name in attributes_of(node):
        return None
    return [with_attributes(node, **{name: "half_pixel"})]
