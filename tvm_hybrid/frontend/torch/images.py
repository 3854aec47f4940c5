"""Resized images, and images sampled at given positions.

    upsample_nearest2d(x, size)   ->  R.image.resize2d(x, size, "nearest_neighbor", asymmetric)
    upsample_bilinear2d(x, size)  ->  R.image.resize2d(x, size, "linear", half_pixel)
    _upsample_bilinear2d_aa(x, size)
        ->  R.matmul(R.matmul(rows, x), columns)   rows: [height after, height before], constants
    grid_sampler_2d(x, grid)      ->  R.image.grid_sample(x, R.permute_dims(grid, [0, 3, 1, 2]))

TVM's converters round to other pixels if a factor is not whole, ignore antialiasing, and read a
grid of [N, H, W, 2] as [N, 2, H, W].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size
from torch.fx.experimental.symbolic_shapes import statically_known_true
from tvm import relax

from microkernels.base.errors import UnsupportedOperatorError

from ..expressions import dtype_of, emit
from ..onnx.ops.sampling import grid_sampled
from .promotion import as_type, constant_of

METHODS = {"nearest": "nearest_neighbor", "bilinear": "linear", "bicubic": "cubic"}


def is_exact(sizes: Sequence[Any], factors: Sequence[float] | None) -> bool:
    """Whether the sizes determine the pixels' positions; they do not if a factor was rounded off.

    Parameters
    ----------
    sizes : sequence
        Height and width before and after.
    factors : sequence of float or None
        Factors of height and width, if given.
    """
    if factors is None:
        return True
    wanted = [
        before * (int(factor) if float(factor).is_integer() else factor)
        for before, factor in zip(sizes[:2], factors, strict=True)
    ]
    return all(
        statically_known_true(size == after) for size, after in zip(wanted, sizes[2:], strict=True)
    )


def resize(node: Any, importer: Any) -> Any:
    """`tvm_hybrid.resize2d`: image, height, width, mode, whether corners are aligned."""
    x, *size, mode, corners = importer.retrieve_args(node)
    return _resized(x, size, mode, corners)


def upsample(node: Any, importer: Any, mode: str) -> Any:
    """`aten.upsample_nearest2d.vec`: image, size, factors; `aten.upsample_bilinear2d.vec`: image,
    size, whether corners are aligned, factors.
    """
    size = [importer.sizes.of(each) for each in node.meta["val"].shape[2:]]
    corners = mode == "bilinear" and node.args[2]
    return _resized(importer.env[node.args[0]], size, mode, corners)


def by_gathers(operator: Any, x: Any, size: Any, *options: Any) -> Any:
    """Decomposes a resize into gathers if its sizes round off the factors; else NotImplemented, as
    the importer takes it whole.
    """
    *corners, factors = options
    after = upsample_compute_output_size(x.shape, size, factors)
    if any(corners) or is_exact((*x.shape[2:], *after), factors):
        return NotImplemented
    return decomposition_table[operator](x, size, *options)


def antialiased(node: Any, importer: Any) -> Any:
    """`aten._upsample_bilinear2d_aa` and `_bicubic2d_aa`: image, size, corners, two factors.

    Each axis is resized by a matrix, which torch computes by resizing the identity matrix.
    """
    x, size, corners, *factors = (*node.args, None, None)[:5]
    name, before = node.target.__name__, node.args[0].meta["val"].shape
    if not all(isinstance(extent, int) for extent in (*before[2:], *size)):
        raise UnsupportedOperatorError(
            f"operator {name} (node {node.name!r}) of a dynamic size; antialiasing needs "
            "static ones"
        )
    matrices = []
    for extent, count, factor in zip(before[2:], size, factors, strict=True):
        identity = torch.eye(extent)[None, None]
        matrices.append(node.target(identity, [count, extent], corners, factor, None)[0, 0])
    value = importer.env[x]
    rows, columns = constant_of(matrices[0]), constant_of(matrices[1].T)
    wide = emit(relax.op.matmul(rows, as_type(value, "float32")))
    return as_type(emit(relax.op.matmul(wide, columns)), dtype_of(value))


def sampled(node: Any, importer: Any) -> Any:
    """`aten.grid_sampler_2d`: image, grid, sampling mode, padding, whether corners are aligned."""
    image, grid, method, padding, corners = node.args
    how = ("bilinear", "nearest", "bicubic")[method], ("zeros", "border", "reflection")[padding]
    return emit(grid_sampled(importer.env[image], importer.env[grid], *how, corners))


def _resized(x: Any, size: Sequence[Any], mode: str, corners: bool) -> Any:
    places = "asymmetric" if mode == "nearest" else "half_pixel"
    return emit(
        relax.op.image.resize2d(
            x,
            relax.ShapeExpr(list(size)),
            layout="NCHW",
            method=METHODS[mode],
            coordinate_transformation_mode="align_corners" if corners else places,
            rounding_method="floor" if mode == "nearest" else "",
            cubic_alpha=-0.75,
        )
    )


_POOLS = {2: (relax.op.nn.avg_pool2d, "NCHW"), 3: (relax.op.nn.avg_pool3d, "NCDHW")}


def average(node: Any, importer: Any) -> Any:
    """`aten.avg_pool2d.default` and `aten.avg_pool3d.default`; TVM ignores `divisor_override`.

    avg_pool2d(x, [3, 3], [2, 2], divisor_override=5)
        ->  R.multiply(R.nn.avg_pool2d(x, (3, 3), (2, 2)), R.const(9 / 5, "float32"))
    """
    name = node.target.__name__
    divisor = node.args[6] if len(node.args) > 6 else node.kwargs.get("divisor_override")
    if divisor is None:
        return importer.create_convert_map()[name](node)
    x, kernel, stride, padding, ceil_mode = (*node.args[:5], *[None] * 5)[:5]
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    rank = int(name.removeprefix("avg_pool")[0])
    kernel, padding = _each(kernel, rank), _each(padding or 0, rank)
    stride = _each(stride or kernel, rank)
    if ceil_mode and not all(isinstance(size, int) for size in (*before, *after)):
        raise UnsupportedOperatorError(
            f"operator {name} (node {node.name!r}) of a dynamic size with ceil_mode and a divisor; "
            "leave one of them out"
        )
    # Whole windows that count all elements: their mean is their sum by a constant.
    ends = list(padding)
    if ceil_mode:
        for axis, (size, count) in enumerate(zip(before[-rank:], after[-rank:], strict=True)):
            reach = (count - 1) * stride[axis] + kernel[axis]
            ends[axis] = max(reach - size - padding[axis], 0)
    value = importer.env[x]
    inside = [each for pair in zip(padding, ends, strict=True) for each in pair]
    around = [0, 0] * (len(before) - rank) + inside
    value = emit(relax.op.nn.pad(value, around, "constant", 0))
    pool, layout = _POOLS[rank]
    if len(before) == rank + 1:
        value = emit(relax.op.expand_dims(value, 0))
    value = emit(pool(value, kernel, stride, layout=layout))
    if len(before) == rank + 1:
        value = emit(relax.op.squeeze(value, [0]))
    factor = relax.const(math.prod(kernel) / divisor, str(value.ty.dtype))
    return emit(relax.op.multiply(value, factor))


def _each(given: Any, rank: int) -> list[int]:
    """Numbers for all axes; a single number stands for all."""
    numbers = list(given) if isinstance(given, (list, tuple)) else [given]
    return numbers * rank if len(numbers) == 1 else numbers


CONVERTERS: dict[str, Callable[..., Any]] = {
    "upsample_nearest2d.vec": functools.partial(upsample, mode="nearest"),
    "upsample_bilinear2d.vec": functools.partial(upsample, mode="bilinear"),
    "resize2d.default": resize,
    "_upsample_bilinear2d_aa.default": antialiased,
    "_upsample_bicubic2d_aa.default": antialiased,
    "grid_sampler_2d.default": sampled,
}
