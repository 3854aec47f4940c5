"""Range whose limits are computed.

Its elements are start + i * delta, rounded once where the type is narrower than float64. Its length
is that of exact arithmetic of integers, and of float64 for floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ..expressions import Converter, Expr, constant, dtype_of
from .elements import known_elements
from .kernels import INDEX, emit_kernel, index, put
from .sizes import dims_of, same_size, simplified, sizes_in

LONGEST = 1 << 31  # a longer one would be taken for a mistake: memory has to hold it


def _range(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    if all(constant(each) is not None for each in inputs):
        return None
    dtype = dtype_of(inputs[0])
    wide = "float64" if "float" in dtype else INDEX
    vectors = [builder.normalize(relax.op.reshape(each, (1,))) for each in inputs]
    length = _known_length(builder, inputs)
    plain = None if length is None else _arange(builder, inputs, length, dtype)
    if plain is not None:
        return plain
    if length is None:
        length = _length(builder, vectors, wide)

    def compute(start: te.Tensor, delta: te.Tensor, length: Expr) -> te.Tensor:
        def element(place: Expr) -> Expr:
            first, step = tirx.Cast(wide, start[0]), tirx.Cast(wide, delta[0])
            return tirx.Cast(dtype, first + tirx.Cast(wide, place) * step)

        return te.compute((length,), element, name="range")

    start, _, delta = vectors
    return builder.emit_te(compute, start, delta, length, primfunc_name_hint="range")


def _known_length(builder: relax.BlockBuilder, inputs: Sequence[Any]) -> Expr | None:
    """The length where start and limit follow from sizes, and delta is a positive number."""
    known = [known_elements(builder, each) for each in inputs]
    if any(each is None for each in known):
        return None
    start, limit, delta = (each.item() for each in known if each is not None)
    if not isinstance(delta, int) or delta <= 0:
        return None
    up = te.max(index(0) + limit - start, index(0)) + index(delta - 1)
    return simplified(tirx.floordiv(up, index(delta)))


def _arange(
    builder: relax.BlockBuilder, inputs: Sequence[Any], length: Expr, dtype: str
) -> Expr | None:
    """R.arange, if it has that length."""
    known = [known_elements(builder, each) for each in inputs]
    start, end, step = (each.item() for each in known if each is not None)
    found = builder.normalize(relax.op.arange(start, end, step, dtype))
    return found if same_size(dims_of(found)[0], length) else None


def _length(builder: relax.BlockBuilder, vectors: Sequence[Expr], wide: str) -> Expr:
    """The length as the program computes it; it refuses a delta of 0."""

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        start, limit, delta = (tirx.Cast(wide, each[0]) for each in ins)
        zero, one = tirx.const(0, wide), tirx.const(1, wide)
        stands: Expr = tirx.EQ(delta, zero)
        step = tirx.Select(stands, one, delta)
        if wide == INDEX:
            up, size = step > 0, tirx.Select(step > 0, step, zero - step)
            ahead = tirx.Select(up, limit - start, start - limit)
            count = tirx.floordiv(te.max(ahead, zero) + size - 1, size)
        else:
            steps = te.ceil((limit - start) / step)
            possible = tirx.all(steps > zero, steps < tirx.const(LONGEST, wide))
            count = tirx.Cast(INDEX, tirx.Select(possible, steps, zero))
            stands = tirx.any(stands, tirx.Not(steps < tirx.const(LONGEST, wide)))
        (found,) = outs
        put(found, count, 1)
        fits = tirx.all(tirx.Not(stands), found[1] < index(LONGEST))
        put(found, tirx.Select(fits, index(1), index(0)))

    (found,) = emit_kernel(builder, "range_length", vectors, [([2], INDEX)], body)
    return sizes_in(builder, found)[0]


RANGE_CONVERTERS: dict[str, Converter] = {"Range": _range}
