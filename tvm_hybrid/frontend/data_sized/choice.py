"""Select: the result of the branch of an If that is taken, where the branches differ in sizes.

condition, then [4, 8], other [n, 8]    ->    m = condition ? 4 : n, result [m, 8]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ..expressions import Converter, Expr, reshaped
from .kernels import INDEX
from .sizes import dims_of, same_size, size_in


def _select(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    condition, then, other = inputs
    condition = reshaped(builder, condition, ())
    sizes = [
        one if same_size(one, two) else _chosen(builder, condition, one, two)
        for one, two in zip(dims_of(then), dims_of(other), strict=True)
    ]

    def compute(
        condition: te.Tensor, then: te.Tensor, other: te.Tensor, sizes: list[Expr]
    ) -> te.Tensor:
        # An element of the other branch may be outside of it, so it must not be read.
        return te.compute(
            sizes,
            lambda *place: tirx.if_then_else(condition(), then(*place), other(*place)),
            name="taken",
        )

    return builder.emit_te(
        compute, condition, then, other, sizes, primfunc_name_hint="select_branch"
    )


def _chosen(builder: relax.BlockBuilder, condition: Expr, one: Expr, two: Expr) -> tirx.Var:
    """One of two sizes."""

    def compute(condition: te.Tensor, sizes: list[Expr]) -> te.Tensor:
        one, two = (tirx.Cast(INDEX, size) for size in sizes)
        return te.compute((1,), lambda _: tirx.if_then_else(condition(), one, two), name="chosen")

    count = builder.emit_te(compute, condition, [one, two], primfunc_name_hint="select_size")
    return size_in(builder, count)


CHOICE_CONVERTERS: dict[str, Converter] = {"Select": _select}
