"""Legalises R.reshape where it joins open axes with known ones behind them, or sizes are sums.

Before

    lv = R.reshape(x, R.shape([n, 4 * h, 3]))    # x: [n, h, 2, 2, 3]

After

    lv = R.call_tir(reshape, (x,))               # y[i, j, k] = x[i, j // 4, j % 4 // 2, j % 2, k]

TVM divides the number of an element by open sizes, several times for each, and fuses nothing with
that. Where an element comes from needs divisions by known numbers alone. What is not fused is a
view: R.reshape again, by TVM's RewriteDataflowReshape or, of sums and quotients, by views_of_sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.relax import INJECTIVE, OP_PATTERN, Legalize, legalize_by_tvm

from .legalize_shapes import is_product, legalize_view
from .views_of_sums import VIEW

Group = list[int]  # axes of what is reshaped that one axis of the result consists of


def _reshape(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    before, after = call.args[0].ty.shape, call.ty.shape
    if not isinstance(before, relax.ShapeExpr) or not isinstance(after, relax.ShapeExpr):
        return legalize_by_tvm(builder, call)
    groups, sizes = joined(list(before.values), list(after.values)), list(after.values)
    view = all(map(is_product, sizes))
    if groups is None or (view and not any(_joins_open(each, before.values) for each in groups)):
        return legalize_view(builder, call)

    def compute(x: te.Tensor, sizes: list[tirx.Expr]) -> te.Tensor:
        def element(*place: tirx.Var) -> tirx.Expr:
            source: list[tirx.Expr] = [tirx.const(0, "int64")] * len(x.shape)
            for group, whole in zip(groups, place, strict=True):
                rest: tirx.Expr = whole
                for axis in group[:0:-1]:
                    source[axis] = tirx.floormod(rest, x.shape[axis])
                    rest = tirx.floordiv(rest, x.shape[axis])
                if group:
                    source[group[0]] = rest
            return x(*source)

        return te.compute(sizes, element, name="T_reshape")

    attrs = {OP_PATTERN: INJECTIVE} if view else {OP_PATTERN: INJECTIVE, VIEW: True}
    return builder.call_te(
        compute, call.args[0], sizes, primfunc_name_hint="reshape", primfunc_attrs=attrs
    )


def joined(before: Sequence[tirx.Expr], after: Sequence[tirx.Expr]) -> list[Group] | None:
    """The axes that each axis of a result joins: one, and known ones behind it.

    None if an axis is split, or sizes are not seen to be equal.
    """
    analyzer, groups, place = Analyzer(), list[Group](), 0
    for wanted in after:
        group: Group = []
        product: tirx.Expr = tirx.const(1, "int64")
        while not group or not analyzer.can_prove_equal(product, wanted):
            if not group and _is(wanted, 1) and not _is(_at(before, place), 1):
                break
            following = _at(before, place)
            if following is None or (group and not isinstance(following, tirx.IntImm)):
                return None
            group.append(place)
            product = product * following
            place += 1
        groups.append(group)
    return groups if all(_is(size, 1) for size in before[place:]) else None


def _joins_open(group: Group, sizes: Sequence[tirx.Expr]) -> bool:
    known = [isinstance(sizes[axis], tirx.IntImm) for axis in group]
    return bool(known) and not known[0] and not all(_is(sizes[axis], 1) for axis in group[1:])


def _at(sizes: Sequence[tirx.Expr], place: int) -> tirx.Expr | None:
    return sizes[place] if place < len(sizes) else None


def _is(size: tirx.Expr | None, number: int) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == number


LEGALIZATIONS: dict[str, Legalize] = {"relax.reshape": _reshape}
