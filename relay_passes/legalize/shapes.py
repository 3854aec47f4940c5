"""Legalises R.shape_to_tensor, whose TVM function is not in the runtime, R.broadcast_to from sizes
that may be 1, and reshapes to sizes that are sums, which stay views.

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

from collections.abc import Sequence
from typing import Any

from tvm import IRModule, relax, te, tirx
from tvm.sym import Analyzer

from microkernels.base.tvm_compat import relax as tvm_compat
from microkernels.base.tvm_compat.relax import OP_PATTERN, Legalize, legalize_by_tvm
from relay_passes.ir import rewrite
from relay_passes.ir.axes import moves, view_axes
from relay_passes.ir.functions import VIEW, is_foreign_kernel, named_pass
from relay_passes.ir.graph import bindings_of, is_call, region_tensor
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import RESHAPES
from tir_schedules.generic.expressions import const_int

_FUSED = {OP_PATTERN: tvm_compat.INJECTIVE}


def _shape_to_tensor(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    sizes = list(call.args[0].ty.values)  # works for a shape variable, too

    def compute(sizes: list[tirx.Expr]) -> te.Tensor:
        def element(place: tirx.Expr) -> tirx.Expr:
            found = tirx.const(0, "int64")
            for number, size in enumerate(sizes):
                is_here = tirx.EQ(place, tirx.const(number, str(place.ty.dtype)))
                found = tirx.Select(is_here, size, found)
            return found

        return te.compute((len(sizes),), element, name="sizes")

    hint = "shape_to_tensor"
    return builder.call_te(compute, sizes, primfunc_name_hint=hint, primfunc_attrs=_FUSED)


def _broadcast_to(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, sizes = call.args[0], list(call.ty.shape.values)

    def compute(x: te.Tensor, sizes: list[tirx.Expr]) -> te.Tensor:
        missing = len(sizes) - len(x.shape)

        def element(*place: tirx.Expr) -> tirx.Expr:
            own = zip(place[missing:], x.shape, sizes[missing:], strict=True)
            return x(*(_held(each, size, wanted) for each, size, wanted in own))

        return te.compute(sizes, element, name="broadcast")

    hint = "broadcast_to"
    return builder.call_te(compute, x, sizes, primfunc_name_hint=hint, primfunc_attrs=_FUSED)


def _held(place: tirx.Expr, size: tirx.Expr, wanted: tirx.Expr) -> tirx.Expr:
    """The source index of a broadcast element; the source's size is 1 or the wanted size."""
    if const_int(size) == 1:
        return tirx.const(0, str(place.ty.dtype))
    known = isinstance(size, tirx.IntImm) and isinstance(wanted, tirx.IntImm)
    if known or Analyzer().can_prove_equal(size, wanted):
        return place
    return te.min(place, size - 1)


def is_product(size: tirx.Expr) -> bool:
    """Whether a size is a number, a symbol or a product of numbers and symbols."""
    if isinstance(size, tirx.Mul):
        return is_product(size.a) and is_product(size.b)
    return isinstance(size, tirx.IntImm | tirx.Var)


# Legalises R.reshape if it joins dynamic axes with static ones after them, or if sizes are sums.
#
# Before
#
#     lv = R.reshape(x, R.shape([n, 4 * h, 3]))    # x: [n, h, 2, 2, 3]
#
# After
#
#     lv = R.call_tir(reshape, (x,))               # y[i, j, k] = x[i, j // 4, j % 4 // 2, j % 2, k]
#
# TVM divides the number of an element by dynamic sizes, several times for each element, and fuses
# nothing with that. Here the source of an element needs divisions by static sizes only. A reshape
# that is not fused is a view: R.reshape again, by TVM's RewriteDataflowReshape or, for sums and
# quotients, by views_of_sums.


Group = list[int]  # axes of the argument that one axis of the result joins


def _reshape(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    before, after = call.args[0].ty.shape, call.ty.shape
    if not isinstance(before, relax.ShapeExpr) or not isinstance(after, relax.ShapeExpr):
        return legalize_by_tvm(builder, call)
    groups, sizes = joined(list(before.values), list(after.values)), list(after.values)
    view = all(map(is_product, sizes))
    # A group that starts with a dynamic size and has a static size other than 1 after it.
    joins_dynamic = any(
        group
        and const_int(before.values[group[0]]) is None
        and any(const_int(before.values[axis]) != 1 for axis in group[1:])
        for group in groups or ()
    )
    if groups is None or (view and not joins_dynamic):
        return legalize_by_tvm(builder, call) if view else call  # a call that stays is a view

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

    attrs = _FUSED if view else {**_FUSED, VIEW: True}
    names = {"primfunc_name_hint": "reshape", "primfunc_attrs": attrs}
    return builder.call_te(compute, call.args[0], sizes, **names)


def joined(before: Sequence[tirx.Expr], after: Sequence[tirx.Expr]) -> list[Group] | None:
    """The axes that each axis of a result joins: any one, and static ones after it.

    None if an axis is split, or if sizes cannot be proved equal.
    """
    analyzer, groups, place = Analyzer(), list[Group](), 0
    for wanted in after:
        group: Group = []
        product: tirx.Expr = tirx.const(1, "int64")
        while not group or not analyzer.can_prove_equal(product, wanted):
            following = before[place] if place < len(before) else None
            is_one = following is not None and const_int(following) == 1
            if not group and const_int(wanted) == 1 and not is_one:
                break
            if following is None or (group and const_int(following) is None):
                return None
            group.append(place)
            product = product * following
            place += 1
        groups.append(group)
    return groups if all(const_int(size) == 1 for size in before[place:]) else None


@named_pass
def views_of_sums(mod: IRModule) -> IRModule:
    """Turns reshapes to sizes that are sums into views.

    Before

        lv = R.call_tir(view, (x, n), out_ty=R.Tensor((1, n + 5, 8)))    # x: [n + 5, 8]

    After

        lv = R.reshape(x, R.shape([1, n + 5, 8]))

    TVM's RewriteDataflowReshape, which does this for other sizes, fails on these: it cannot prove
    that products of sums divide each other.

    It must run before TVM's RewriteDataflowReshape.
    """
    if not any(VIEW in (function.attrs or {}) for function in mod.functions.values()):
        return mod
    builder = relax.BlockBuilder()

    def view(binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_call(call, "relax.call_tir") or VIEW not in (mod[call.args[0]].attrs or {}):
            return None
        return builder.normalize(relax.op.reshape(call.args[1].fields[0], call.ty.shape))

    return rewrite.map_values(mod, view)


@rule(*RESHAPES)
def plain_views(graph: RuleGraph, _block: rewrite.Bindings, call: relax.Call) -> relax.Expr | None:
    """Plain views: reshapes of every kind get one name, so that equal kernels get one name, too.

    Before

        lv = R.squeeze(x, axis=[0])
        lv1 = R.permute_dims(y, axes=[0, 2, 1, 3])      # [5, 1, 8, 64]
        lv2 = R.reshape(lv1, R.shape([40, 64]))

    After

        lv = R.reshape(x, R.shape([2, 64]))
        lv2 = R.reshape(y, R.shape([40, 64]))

    A permutation that moves nothing is dropped before a reshape: TVM would make a kernel of both,
    which copies.
    """
    shape = getattr(call.ty, "shape", None)
    if not is_call(call, *RESHAPES) or not isinstance(shape, relax.ShapeExpr):
        return None
    source = graph.definition(call.args[0])
    if is_call(source, "relax.permute_dims"):
        tensor, axes = region_tensor(source.args[0]), view_axes(source)
        order = [axis for axis in axes or () if axis is not None]
        if tensor is not None and axes is not None and not moves(tensor.shape, order):
            return relax.op.reshape(source.args[0], shape)
    return None if is_call(call, "relax.reshape") else relax.op.reshape(call.args[0], shape)


@named_pass
def rewrite_reshapes(mod: IRModule) -> IRModule:
    """Runs TVM's RewriteDataflowReshape, except on kernels at which it fails.

    Before

        lv = R.call_tir(reshape, (x,), out_ty=R.Tensor((2, n)))          # x: [n * 2]
        lv1 = R.call_tir(transpose, (y,), out_ty=R.Tensor((2, 5, n * 6 + 1)))

    After

        lv = R.reshape(x, R.shape([2, n]))
        lv1 = R.call_tir(transpose, (y,), out_ty=R.Tensor((2, 5, n * 6 + 1)))

    TVM tests for every kernel whether it is a reshape. The test raises an error, instead of
    answering no, if a product of sizes is not known to be divisible by a sum. Those kernels are
    hidden from TVM. An output is no view in TVM; the kernel that copies it gets the attribute
    `VIEW`.

    Kernels of templates that are no reshapes are hidden, too: TVM reads a kernel again for each
    call.
    """
    hidden = {g for g, f in mod.functions_items() if rewrite.is_kernel(f) and _is_to_hide(f)}
    found = rewrite.apart_from(mod, hidden, relax.transform.RewriteDataflowReshape())
    for function in filter(rewrite.is_relax, mod.functions.values()):
        for binding in bindings_of(function):
            call = binding.value
            if isinstance(binding.var, relax.DataflowVar) or not is_call(call, "relax.call_tir"):
                continue
            callee: Any = call.args[0]
            if (
                callee in hidden
                or len(call.args[1].fields) != 1
                or not rewrite.is_kernel(mod[callee])
            ):
                continue
            # An output that is a copy. TVM also considers a copy of the first elements a reshape.
            read, made = region_tensor(call.args[1].fields[0]), region_tensor(binding.var)
            is_copy = relax.analysis.has_reshape_pattern(mod[callee])
            if is_copy and read is not None and made is not None and read.size == made.size:
                found[callee] = mod[callee].with_attr(VIEW, True)
    return found


def _is_to_hide(function: tirx.PrimFunc) -> bool:
    """Whether a template's kernel is no reshape, or TVM cannot analyse a kernel's dynamic sizes."""
    sizes = [size for param in function.params for size in getattr(param.ty, "shape", ())]
    if is_foreign_kernel(function) and all(isinstance(size, tirx.IntImm) for size in sizes):
        return False
    try:
        found = relax.analysis.has_reshape_pattern(function)
    except Exception:  # TVM's InternalError, or what its analysis of indices raises
        return True
    return not found and not is_foreign_kernel(function)


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.broadcast_to": _broadcast_to,
    "relax.shape_to_tensor": _shape_to_tensor,
    "relax.reshape": _reshape,
}
