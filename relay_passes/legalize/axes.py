"""Reductions and scans along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import IRModule, relax, te, tirx, topi
from tvm.ir.expr import TensorLoad
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.relax import Legalize, legalize_by_tvm
from microkernels.vector import ieee
from microkernels.vector.expressions import Expr, cast, element_of
from relay_passes.ir.functions import is_foreign_kernel, named_pass
from relay_passes.ir.graph import scalar_constant
from relay_passes.ir.rewrite import map_functions
from tir_schedules.core.emission import opaque_block
from tir_schedules.generic.expressions import call_name, loads_of

# Legalises cumulative sums and products along an axis, with adjacent results innermost.
#
# Before
#
#     lv = R.cumsum(x, axis=0)                # x: [rows, columns]
#
# After
#
#     lv = R.call_tir(cumsum, (x,))
#
#     for j in columns: y[0, j] = x[0, j]
#     for i in rows - 1: for j in columns: y[i + 1, j] = y[i, j] + x[i + 1, j]
#
# TVM's own kernel, which DispatchSortScan uses for remaining scans, runs down one column after the
# other.


_FIRST = {"cumsum": 0, "cumprod": 1}  # first element of an exclusive scan


def _scan(name: str, combine: Callable[[Expr, Expr], Expr]) -> Legalize:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, attrs = call.args[0], call.attrs
        dtype = str(attrs.dtype or x.ty.dtype)
        if attrs.axis is None or "bool" in (dtype, str(x.ty.dtype)):
            return call
        axis = int(attrs.axis) % int(x.ty.ndim)

        def computed(x: te.Tensor) -> Any:
            def statement(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
                first = tirx.const(_FIRST[name], dtype) if attrs.exclusive else None
                with IRBuilder() as kernel, opaque_block("scan"):
                    _emit_scan(ins[0], outs[0], axis, first, combine)
                return kernel.get()

            return te.extern([x.shape], [x], statement, name=name, dtype=dtype)

        return builder.call_te(computed, x, primfunc_name_hint=name)

    return legalize


At = Callable[[Expr], tuple[Expr, ...]]
"""Position on the axis -> indices of an element."""


def _emit_scan(
    x: Expr, y: Expr, axis: int, first: Expr | None, combine: Callable[[Expr, Expr], Expr]
) -> None:
    """Emits the loops into the current PrimFunc; an exclusive scan starts with `first`."""
    extent = x.shape[axis]
    zero, one = (tirx.const(number, str(extent.ty.dtype)) for number in (0, 1))

    def read(at: tuple[Expr, ...]) -> Expr:
        return cast(element_of(y[at]), x[at])

    def store(place: Expr, value: Callable[[At], Expr]) -> None:
        """Stores a value at a position of the axis, for all elements of the axes after it."""
        with ExitStack() as inner:
            behind = _loops(inner, x.shape[axis + 1 :])

            def at(number: Expr) -> tuple[Expr, ...]:
                return (*before, number, *behind)

            I.buffer_store(y, value(at), list(at(place)))

    with ExitStack() as loops:
        before = _loops(loops, x.shape[:axis], shared=True)
        with I.serial(te.min(extent, one)):
            store(zero, lambda at: read(at(zero)) if first is None else first)
        with I.serial(extent - one) as step:
            place = step + one if first is None else step
            store(step + one, lambda at: combine(y[at(step)], read(at(place))))


def _loops(stack: ExitStack, extents: Sequence[Expr], shared: bool = False) -> list[Expr]:
    """Opens loops; threads may share the outermost one."""
    kinds = (I.parallel if shared and not number else I.serial for number in range(len(extents)))
    return [stack.enter_context(kind(extent)) for kind, extent in zip(kinds, extents, strict=True)]


# Legalises R.argmax and R.argmin, so that the result is a valid index for all values.
#
# Before
#
#     lv = R.argmax(x, axis=1)
#
# After
#
#     lv = R.call_tir(argmax, (x,))
#
#     most[i] = max(most[i], x[i, k])
#     first[i] = min(first[i], x[i, k] == most[i] ? k : largest int)
#     place[i] = min(first[i], m - 1)
#
# Both reductions vectorise along either axis; TVM's single reduction, of pairs, does not along the
# reduced axis. The result is the index of the first NaN, or else of the first of equal extremes, as
# in NumPy. TVM begins with the index -1, and keeps it if nothing is larger than the type's smallest
# number.


_FLOATS = ("float16", "float32", "float64", "bfloat16")
_MOST = (1 << 31) - 1  # elements that int32 can number


def _place_of_extreme(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name = str(call.op.name).removeprefix("relax.")
    return builder.call_te(partial(_place, call, name), call.args[0], primfunc_name_hint=name)


def _place(call: relax.Call, name: str, data: te.Tensor) -> te.Tensor:
    rank, keep = len(data.shape), bool(call.attrs.keepdims)
    axes = list(range(rank)) if call.attrs.axis is None else [int(call.attrs.axis) % rank]
    shape = [extent for i, extent in enumerate(data.shape) if keep or i not in axes]
    shape = [tirx.const(1, "int64") if keep and i in axes else n for i, n in enumerate(shape)]
    count = math.prod((data.shape[i] for i in axes), start=tirx.const(1, "int64"))
    kind = "int32" if isinstance(count, tirx.IntImm) and int(count) <= _MOST else "int64"

    def steps() -> dict[int, Any]:
        return {i: te.reduce_axis((0, data.shape[i]), f"k{i}") for i in axes}

    def element(indices: tuple[tirx.Var, ...], reduced: dict[int, Any]) -> tirx.Expr:
        rest = iter(indices)
        at: list[Any] = []
        for i in range(rank):
            given = next(rest) if keep or i not in reduced else None
            at.append(reduced.get(i, given))
        return data(*at)

    def extreme(*indices: tirx.Var) -> tirx.Expr:
        reduced = steps()
        combine = te.max if name == "argmax" else te.min
        return combine(element(indices, reduced), axis=list(reduced.values()))

    extremes = te.compute(shape, extreme, name=name)

    def first(*indices: tirx.Var) -> tirx.Expr:
        reduced = steps()
        place: tirx.Expr = tirx.const(0, kind)
        for i in axes:
            place = place * data.shape[i].astype(kind) + reduced[i].var.astype(kind)
        found = _same(element(indices, reduced), extremes(*indices))
        nowhere = tirx.max_value(kind)
        return te.min(tirx.Select(found, place, nowhere), axis=list(reduced.values()))

    places = te.compute(shape, first, name=f"{name}_first")
    last = te.max(count.astype(kind) - tirx.const(1, kind), tirx.const(0, kind))
    return te.compute(
        shape,
        lambda *indices: te.min(places(*indices), last).astype(str(call.ty.dtype)),
        name=f"{name}_place",
    )


def _same(element: tirx.Expr, extreme: tirx.Expr) -> tirx.Expr:
    """Whether an element is the extreme of its row; the extreme is NaN if any element is."""
    dtype = str(element.ty.dtype)
    if dtype not in _FLOATS:
        return tirx.EQ(element, extreme)
    # Not x == x, which TVM simplifies to true.
    infinity = tirx.const(math.inf, dtype)
    return tirx.Select(
        tirx.LE(extreme, infinity), tirx.EQ(element, extreme), ~(element <= infinity)
    )


_IDENTITIES: dict[type, tuple[Callable[[str], tirx.Expr], float]] = {
    tirx.Max: (tirx.min_value, -math.inf),
    tirx.Min: (tirx.max_value, math.inf),
}


@named_pass
def reduction_identities(mod: IRModule) -> IRModule:
    """Identities: a maximum of floats, and its padding, begins with -inf, a minimum with +inf.

    Before

        padded[i] = if_then_else(1 <= i and i < 9, x[i - 1], -3.4e38)
        with T.init(): y[i] = -3.4e38
        y[i] = max(y[i], padded[2 * i + k])

    After

        padded[i] = if_then_else(1 <= i and i < 9, x[i - 1], -inf)
        with T.init(): y[i] = -inf
        y[i] = max(y[i], padded[2 * i + k])

    TVM begins with the lowest finite number, which is larger than -inf. For integers the smallest
    number is already right. The pass runs while each function is still one operator, so it cannot
    change a number with which the model itself pads: that is in another function.

    It must run directly after the legalisation of operators.
    """

    return map_functions(mod, is_foreign_kernel, _mended)


def _mended(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose maxima and minima begin with their identities."""
    kinds: dict[tirx.Var, type] = {}
    padded: dict[tirx.Var, type] = {}

    def note(store: tirx.BufferStore) -> None:
        value = store.value
        if type(value) not in _IDENTITIES or not str(value.ty.dtype).startswith(("float", "bf")):
            return
        if isinstance(value.a, TensorLoad) and value.a.source.same_as(store.buffer):
            kinds[store.buffer] = type(value)
            padded.update({load.source: type(value) for load in loads_of(value.b)})

    def change(store: tirx.BufferStore) -> tirx.BufferStore:
        value = store.value
        if store.buffer in kinds:
            value = _identity(value, kinds[store.buffer])
        elif store.buffer in padded and call_name(value) == "if_then_else":
            condition, inside, outside = value.args
            outside = _identity(outside, padded[store.buffer])
            value = tirx.if_then_else(condition, inside, outside)
        return tirx.BufferStore(store.buffer, value, store.indices)

    tvm_ffi.structural_walk(kernel.body, (tirx.BufferStore, note))
    if not kinds:
        return kernel
    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (tirx.BufferStore, change)))


def _identity(value: tirx.Expr, kind: type) -> tirx.Expr:
    """-inf or +inf instead of the largest finite number of that sign; any other value unchanged."""
    bound, identity = _IDENTITIES[kind]
    dtype = str(value.ty.dtype)
    if not isinstance(value, tirx.FloatImm) or value.value != bound(dtype).value:
        return value
    return tirx.const(identity, dtype)


# Legalises operators on floats for which TVM's own legalisation is wrong for some values.
#
# Before
#
#     lv = R.multiply(x, R.const(0.0))
#     lv1 = R.sign(y)
#     lv2 = R.nn.softplus(z)
#
# After
#
#     lv = R.call_tir(multiply, (x, R.const(0.0)))    # inside a kernel, TVM folds x * 0 to 0
#     lv1 = R.call_tir(sign, (y,))                    # NaN for NaN
#     lv2 = R.call_tir(softplus, (z,))                # accurate for negative z
#
# Leaky ReLU is here for a slope of 0, and casts to integers for values out of range.


Element = Callable[[tirx.Expr], tirx.Expr]
_ARITHMETIC = {
    f"relax.{name}": getattr(topi, name) for name in ("add", "subtract", "multiply", "divide")
}


def _arithmetic(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """An arithmetic operator; a constant 0 stays a tensor, so that TVM cannot fold it."""
    if not any(_is_zero(arg) for arg in call.args):
        return legalize_by_tvm(builder, call)
    return builder.call_te(_ARITHMETIC[str(call.op.name)], *call.args)


def _is_zero(expr: relax.Expr) -> bool:
    return scalar_constant(expr) == 0.0 and "float" in str(expr.ty.dtype)


def elementwise(
    builder: relax.BlockBuilder, call: relax.Call, element: Element, block: str = "compute"
) -> relax.Expr:
    """A kernel that computes each element from one element, in a block named `block`."""

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *indices: element(x(*indices)), block)

    name = str(call.op.name).rsplit(".", 1)[-1]
    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)


def _sign(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    if "float" not in dtype:
        return legalize_by_tvm(builder, call)
    zero, one, minus = (tirx.const(number, dtype) for number in (0, 1, -1))

    def element(x: tirx.Expr) -> tirx.Expr:
        rest = tirx.Select(tirx.EQ(x, zero), zero, x)
        return tirx.Select(x > zero, one, tirx.Select(x < zero, minus, rest))

    return elementwise(builder, call, element)


def _leaky_relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    slope, zero = tirx.const(float(call.attrs.alpha), dtype), tirx.const(0, dtype)
    return elementwise(builder, call, lambda x: tirx.Select(x < zero, ieee.multiply(x, slope), x))


def _softplus(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    plain = call.attrs is None or (call.attrs.beta == 1.0 and call.attrs.threshold == 20.0)
    if not plain or dtype not in ("float16", "float32", "float64"):
        return legalize_by_tvm(builder, call)

    def element(x: tirx.Expr) -> tirx.Expr:
        if dtype != "float64":  # generic.vector_math computes it
            return tirx.call_pure_extern(dtype, "softplus", x)
        zero = tirx.const(0, dtype)
        return te.max(x, zero) + tirx.log1p(tirx.exp(zero - tirx.abs(x)))

    return elementwise(builder, call, element)


def _cast(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    source, dtype = str(call.args[0].ty.dtype), str(call.ty.dtype)
    if source not in ("float16", "float32", "float64") or not dtype.startswith(("int", "uint")):
        return legalize_by_tvm(builder, call)
    return elementwise(builder, call, lambda x: ieee.convert(dtype, x))


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.cumsum": _scan("cumsum", lambda total, element: total + element),
    "relax.cumprod": _scan("cumprod", lambda total, element: total * element),
    **dict.fromkeys(["relax.argmax", "relax.argmin"], _place_of_extreme),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    "relax.astype": _cast,
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.nn.softplus": _softplus,
    "relax.sign": _sign,
}
