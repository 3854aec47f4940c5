"""Identities: a maximum of floats begins with -inf, a minimum with +inf, and so does its padding.

Before

    padded[i] = if_then_else(1 <= i and i < 9, x[i - 1], -3.4e38)
    with T.init(): y[i] = -3.4e38
    y[i] = max(y[i], padded[2 * i + k])

After

    padded[i] = if_then_else(1 <= i and i < 9, x[i - 1], -inf)
    with T.init(): y[i] = -inf
    y[i] = max(y[i], padded[2 * i + k])

TVM begins with the least finite number, which is larger than -inf. For integers the least number is
already right. The pass runs while each function is still one operator, so that it cannot change a
number with which the model itself pads: that is in another function.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir.expr import TensorLoad
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.rewrite import is_kernel, map_functions
from tir_schedules.generic.expressions import call_name, loads_of

_IDENTITIES: dict[type, tuple[Callable[[str], tirx.Expr], float]] = {
    tirx.Max: (tirx.min_value, -math.inf),
    tirx.Min: (tirx.max_value, math.inf),
}


def reduction_identities() -> ir.transform.Pass:
    """The pass; it comes directly behind the legalisation of operators."""

    @module_pass(opt_level=0, name="tvm_hybrid.reduction_identities")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_kernel, lambda each: each.with_body(_mended(each.body)))

    return run


def _mended(body: tirx.Stmt) -> tirx.Stmt:
    """Statements whose maxima and minima begin with their identities."""
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

    tvm_ffi.structural_walk(body, (tirx.BufferStore, note))
    return tvm_ffi.structural_map(body, (tirx.BufferStore, change)) if kinds else body


def _identity(value: tirx.Expr, kind: type) -> tirx.Expr:
    """-inf or +inf in place of the largest finite number of that sign; another value as it is."""
    bound, identity = _IDENTITIES[kind]
    dtype = str(value.ty.dtype)
    if not isinstance(value, tirx.FloatImm) or value.value != bound(dtype).value:
        return value
    return tirx.const(identity, dtype)
