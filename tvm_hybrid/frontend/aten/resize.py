"""Resized images.

    upsample_nearest2d(x, size)   ->  R.image.resize2d(x, size, "nearest_neighbor", asymmetric)
    upsample_bilinear2d(x, size)  ->  R.image.resize2d(x, size, "linear", half_pixel)

TVM's own converters round to other pixels where a factor is not whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from microkernels.errors import UnsupportedOperatorError

METHODS = {"nearest": "nearest_neighbor", "bilinear": "linear", "bicubic": "cubic"}


def is_exact(sizes: Sequence[Any], factors: Sequence[float] | None) -> bool:
    """Whether pixels lie where sizes say, and not where factors of which a part is lost say.

    Parameters
    ----------
    sizes : sequence
        Height and width before and after.
    factors : sequence of float or None
        Those of height and width, if they were given.
    """
    if not all(isinstance(size, int) for size in sizes):
        return False
    wanted = [before * factor for before, factor in zip(sizes[:2], factors or (), strict=False)]
    return all(size == after for size, after in zip(wanted, sizes[2:], strict=False))


def resize(node: Any, importer: Any) -> Any:
    """`tvm_hybrid.resize2d`: image, height, width, mode, whether corners are aligned."""
    x, height, width, mode, corners = node.args
    return _resized(importer, importer.env[x], (height, width), mode, corners)


def nearest(node: Any, importer: Any) -> Any:
    """`aten.upsample_nearest2d.vec`: image, size, factors."""
    return _upsampled(node, importer, "nearest", False)


def bilinear(node: Any, importer: Any) -> Any:
    """`aten.upsample_bilinear2d.vec`: image, size, whether corners are aligned, factors."""
    return _upsampled(node, importer, "bilinear", node.args[2])


def _upsampled(node: Any, importer: Any, mode: str, corners: bool) -> Any:
    before, after = node.args[0].meta["val"].shape[2:], node.meta["val"].shape[2:]
    factors = node.args[-1] if node.args[1] is None else None
    if not is_exact((*before, *after), factors) and not corners:
        raise UnsupportedOperatorError(
            f"an image of {tuple(before)} resized to {tuple(after)} by the factors {factors}; "
            "give the size instead, or recompute_scale_factor=True"
        )
    return _resized(importer, importer.env[node.args[0]], after, mode, corners)


def _resized(importer: Any, x: Any, size: Sequence[Any], mode: str, corners: bool) -> Any:
    places = "asymmetric" if mode == "nearest" else "half_pixel"
    return importer.block_builder.emit(
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
