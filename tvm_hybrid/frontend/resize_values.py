"""Values while they are resized: the type they are computed in, and sums of taps along an axis.

What becomes an integer is rounded after every product and every sum, in the order of the taps: ties
depend on it. LLVM would make one instruction of a product and a sum here, and not there.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from .onnx.graph.expressions import Expr, cast, dtype_of, literal
from .onnx.ops.resize_taps import Taps

# Types in which weighted sums are computed; float64 for all others.
_COMPUTED_IN = dict.fromkeys(
    ("float16", "bfloat16", "float32", "int8", "uint8", "int16", "uint16"), "float32"
)
FLOATS_IN_RELAX = ("float32", "float16", "bfloat16")
"""Types that R.image.resize2d is right for, once they are widened."""


def widened(builder: relax.BlockBuilder, value: Expr) -> Expr:
    """A value in the type in which its weighted sums are computed."""
    return cast(builder, value, _COMPUTED_IN.get(dtype_of(value), "float64"))


def rounded(builder: relax.BlockBuilder, value: Expr, dtype: str) -> Expr:
    """A value in the type that the result is to have: integers rounded to even, and saturated."""
    if dtype_of(value) == dtype or "float" in dtype:
        return cast(builder, value, dtype)
    limits, wide = np.iinfo(dtype), np.dtype(dtype_of(value)).type
    low, high = wide(limits.min), wide(limits.max)
    if int(high) > limits.max:  # which the float cannot hold
        high = np.nextafter(high, wide(0))
    whole = builder.normalize(relax.op.round(value))
    above = builder.normalize(relax.op.maximum(whole, literal(np.array(low))))
    held = builder.normalize(relax.op.minimum(above, literal(np.array(high))))
    return cast(builder, held, dtype)


def is_apart(dtype: str) -> bool:
    """Whether products are rounded before they are added up, as an image of this type wants."""
    return "float" not in dtype


def weighed(builder: relax.BlockBuilder, part: Expr, weight: Expr, apart: bool) -> Expr:
    """The product of two values, rounded by itself if wanted."""
    product = builder.normalize(relax.op.multiply(part, weight))
    if not apart:
        return product
    least = np.array(np.finfo(dtype_of(product)).min)
    return builder.normalize(relax.op.maximum(product, literal(least)))


def apply_taps(
    builder: relax.BlockBuilder, x: Expr, axis: int, taps: Taps, rank: int, apart: bool
) -> Expr:
    """A value resized along one axis."""
    total: Expr = None
    for index, weight in zip(taps.index.T, taps.weight.T, strict=True):
        part = builder.normalize(relax.op.take(x, literal(index), axis, mode="clip"))
        if taps.is_choice:
            return part
        shaped = weight.reshape(-1, *(1 for _ in range(rank - 1 - axis))).astype(dtype_of(x))
        part = weighed(builder, part, literal(shaped), apart)
        total = part if total is None else builder.normalize(relax.op.add(total, part))
    return total
