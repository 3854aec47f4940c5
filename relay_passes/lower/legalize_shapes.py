"""Legalises R.shape_to_tensor, for which TVM's function is not in its runtime, R.broadcast_to where
sizes may be 1 or not, and reshapes to sizes that are sums, which stay views (views_of_sums.py).

Before

    lv = R.shape_to_tensor(R.shape([n, 4]))

After

    lv = R.call_tir(shape_to_tensor, (n,))    # y[i] = i == 0 ? n : 4

Before

    lv = R.broadcast_to(x, R.shape([m, 4]))    # x: [n // 2, 4]

After

    lv = R.call_tir(broadcast_to, (x,))        # y[i, j] = x[min(i, n // 2 - 1), j]
"""

from __future__ import annotations

from tvm import relax, te, tirx, topi
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.relax import (
    INJECTIVE,
    OP_PATTERN,
    OPAQUE,
    Legalize,
    legalize_by_tvm,
)

from .views_of_sums import VIEW

VIEWS = ("relax.expand_dims", "relax.squeeze", "relax.flatten")  # R.reshape: legalize_joins.py


def _shape_to_tensor(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    sizes = list(call.args[0].ty.values)  # of a variable, too

    def compute(sizes: list[tirx.Expr]) -> te.Tensor:
        def element(place: tirx.Expr) -> tirx.Expr:
            found = tirx.const(0, "int64")
            for number, size in enumerate(sizes):
                found = tirx.Select(
                    tirx.EQ(place, tirx.const(number, str(place.ty.dtype))), size, found
                )
            return found

        return te.compute((len(sizes),), element, name="sizes")

    attrs = {OP_PATTERN: INJECTIVE}
    return builder.call_te(
        compute, sizes, primfunc_name_hint="shape_to_tensor", primfunc_attrs=attrs
    )


def _broadcast_to(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, sizes = call.args[0], list(call.ty.shape.values)

    def compute(x: te.Tensor, sizes: list[tirx.Expr]) -> te.Tensor:
        missing = len(sizes) - len(x.shape)

        def element(*place: tirx.Expr) -> tirx.Expr:
            own = zip(place[missing:], x.shape, sizes[missing:], strict=True)
            return x(*(_held(each, size, wanted) for each, size, wanted in own))

        return te.compute(sizes, element, name="broadcast")

    attrs = {OP_PATTERN: INJECTIVE}
    return builder.call_te(
        compute, x, sizes, primfunc_name_hint="broadcast_to", primfunc_attrs=attrs
    )


def _held(place: tirx.Expr, size: tirx.Expr, wanted: tirx.Expr) -> tirx.Expr:
    """Where an element of an axis comes from, whose size is 1 or the one that is wanted."""
    if isinstance(size, tirx.IntImm) and int(size) == 1:
        return tirx.const(0, str(place.ty.dtype))
    known = isinstance(size, tirx.IntImm) and isinstance(wanted, tirx.IntImm)
    if known or Analyzer().can_prove_equal(size, wanted):
        return place
    return te.min(place, size - 1)


def legalize_view(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A kernel that the pass `views_of_sums` replaces, where a size is a sum; else TVM's."""
    sizes = list(call.ty.shape.values)
    if all(map(is_product, sizes)):
        return legalize_by_tvm(builder, call)
    attrs = {VIEW: True, OP_PATTERN: OPAQUE}
    return builder.call_te(
        topi.reshape, call.args[0], sizes, primfunc_name_hint="view", primfunc_attrs=attrs
    )


def is_product(size: tirx.Expr) -> bool:
    """Whether a size is a number, a symbol or a product of such."""
    if isinstance(size, tirx.Mul):
        return is_product(size.a) and is_product(size.b)
    return isinstance(size, tirx.IntImm | tirx.Var)


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.broadcast_to": _broadcast_to,
    **dict.fromkeys(VIEWS, legalize_view),
    "relax.shape_to_tensor": _shape_to_tensor,
}
