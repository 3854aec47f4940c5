"""Sizes of a resized image that the program finds, and the scales that belong to them.

    scales            int(extent * scale), in float32
    sizes             as they are, and their quotients
    one scale         the smallest or largest quotient, and int(extent * it + 0.5)

Extents that make no sense are refused when the program runs.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx

from ..expressions import Expr, cast
from .kernels import INDEX, emit_kernel, index, put
from .resize_axis import Element, f32
from .sizes import sizes_in

MOST = 1 << 31  # elements; more would be taken for a mistake: memory has to hold them

# Whether it makes sense, the extent and the scale of an axis: of what is asked for, the axis and
# all extents.
Rule = Callable[[Expr, int, list[Expr]], tuple[Expr, Expr, Expr]]


def sizes_by_scales(
    builder: relax.BlockBuilder, scales: Expr, extents: list[Expr], whole: bool
) -> list[tuple[Expr, Element]]:
    """Extents and scales of all axes.

    Parameters
    ----------
    whole
        Whether scales have to give whole sizes.
    """

    def rule(asked: Expr, axis: int, extents: list[Expr]) -> tuple[Expr, Expr, Expr]:
        exact = extents[axis].astype("float32") * asked[axis]
        fits = tirx.all(asked[axis] > f32(0), exact < f32(MOST))
        if whole:
            fits = tirx.all(fits, exact - te.floor(exact) <= exact * f32(1e-6))
        return fits, exact.astype(INDEX), asked[axis]

    return _found(builder, cast(builder, scales, "float32"), extents, rule)


def sizes_as_asked(
    builder: relax.BlockBuilder, sizes: Expr, extents: list[Expr], policy: str
) -> list[tuple[Expr, Element]]:
    """Extents and scales of all axes, by keep_aspect_ratio_policy."""
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise ValueError(f"unknown keep_aspect_ratio_policy {policy!r}")

    def rule(asked: Expr, axis: int, extents: list[Expr]) -> tuple[Expr, Expr, Expr]:
        ratios = [
            asked[place].astype("float32") / te.max(extent, index(1)).astype("float32")
            for place, extent in enumerate(extents)
        ]
        fits = tirx.all(asked[axis] >= 0, asked[axis] < index(MOST))
        if policy == "stretch":
            return fits, asked[axis], ratios[axis]
        one = ratios[0]
        for ratio in ratios[1:]:
            one = (te.min if policy == "not_larger" else te.max)(one, ratio)
        exact = one.astype("float64") * extents[axis].astype("float64")
        exact = te.floor(exact + tirx.const(0.5, "float64"))
        fits = tirx.all(fits, exact < tirx.const(MOST, "float64"))
        return fits, exact.astype(INDEX), one

    return _found(builder, cast(builder, sizes, INDEX), extents, rule)


def _found(
    builder: relax.BlockBuilder, asked: Expr, extents: list[Expr], rule: Rule
) -> list[tuple[Expr, Element]]:
    def body(ins: list[Expr], outs: list[Expr], *extents: Expr) -> None:
        (asked,), (sizes, scales) = ins, outs
        put(sizes, index(1))
        for axis in range(len(extents)):
            fits, size, scale = rule(asked, axis, list(extents))
            put(scales, scale, axis)
            put(sizes, tirx.if_then_else(fits, size, index(0)), axis + 1)
            # Not `if not fits`, which TVM takes for true of NaN's comparisons.
            put(sizes, tirx.Select(fits, sizes[0], index(0)))

    count = len(extents)
    results = [([count + 1], INDEX), ([count], "float32")]
    sizes, scales = emit_kernel(builder, "resized_sizes", [asked], results, body, extents)
    found = sizes_in(builder, sizes)
    return [(size, Element(scales, axis)) for axis, size in enumerate(found)]
