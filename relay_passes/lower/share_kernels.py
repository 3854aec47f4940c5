"""Share: merges kernels that differ only in numbers; the numbers become an input.

Before

    lv = R.call_tir(tvm_hybrid_conv2d, (x, const_w), ...)    # ... quantize(v, 0.0107, 0.0)
    lv1 = R.call_tir(tvm_hybrid_conv2d1, (lv, const_w1), ...)    # ... quantize(v, 0.0132, 0.0)

After

    lv = R.call_tir(tvm_hybrid_conv2d_shared, (x, const_w, [0.0107]), ...)
    lv1 = R.call_tir(tvm_hybrid_conv2d_shared, (lv, const_w1, [0.0132]), ...)

Layers of a quantised network often differ only in scales and zero points: ResNet-50 has 34 kernels
instead of 58. Constants that all merged kernels have in common stay in the code. Results stay the
same, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.graph import is_call, op_name
from relay_passes.ir.region_functions import REGION
from relay_passes.ir.rewrite import with_values
from relay_passes.ir.with_args import with_args
from tir_schedules.core.kernel_numbers import (
    different_columns,
    numbers_as_parameter,
    numbers_of,
    without_numbers,
)

CALLS = ("relax.call_tir", "relax.call_tir_inplace")
UNSHARED_ATTRS = (REGION, "global_symbol")  # they differ, and say nothing about the code


@dataclass(frozen=True)
class _Shared:
    """What takes a kernel's place.

    Attributes
    ----------
    gvar : GlobalVar
        The kernel that several share.
    numbers : ir.GenericConst or None
        What it reads in this one's place; None if they all have the same.
    """

    gvar: ir.GlobalVar
    numbers: ir.GenericConst | None


def share_kernels(decisions: DecisionLog) -> ir.transform.Pass:
    """The pass; it comes when there are no more kernels to make. Decisions follow."""

    @module_pass(opt_level=0, name="tvm_hybrid.share_kernels")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        arguments = _arguments(mod)
        builder = relax.BlockBuilder(mod)
        shared: dict[relax.Expr, _Shared] = {}
        for group in _alike(mod, arguments):
            shared |= _share(mod, builder, group, arguments[group[0]])
        if not shared:
            return mod
        for gvar, function in list(mod.functions_items()):
            if isinstance(function, relax.Function):
                builder.update_func(gvar, _with_calls(function, builder, shared))
        names = {str(old.name_hint): str(new.gvar.name_hint) for old, new in shared.items()}
        decisions[:] = [
            msgspec.structs.replace(decision, function=names[decision.function])
            if decision.function in names
            else decision
            for decision in decisions
        ]
        return relax.transform.DeadCodeElimination()(builder.get())

    return run


def _arguments(mod: IRModule) -> dict[ir.GlobalVar, int]:
    """How many arguments every kernel has that nothing but calls to TIR uses."""
    found: dict[ir.GlobalVar, int] = {}
    uses: dict[ir.GlobalVar, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, ir.GlobalVar):
            uses[expr] = uses.get(expr, 0) + 1
        if op_name(expr) in CALLS and isinstance(expr.args[1], relax.Tuple):
            gvar = expr.args[0]
            found[gvar] = len(expr.args[1].fields)
            calls[gvar] = calls.get(gvar, 0) + 1

    calls: dict[ir.GlobalVar, int] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return {gvar: count for gvar, count in found.items() if uses.get(gvar) == calls[gvar]}


def _alike(mod: IRModule, arguments: dict[ir.GlobalVar, int]) -> list[list[ir.GlobalVar]]:
    """Groups of kernels that differ only in their numbers, in order of their names."""
    groups: dict[int, list[tuple[tirx.PrimFunc, list[ir.GlobalVar]]]] = {}
    for gvar in sorted(arguments, key=lambda gvar: str(gvar.name_hint)):
        function = mod[gvar]
        if not isinstance(function, tirx.PrimFunc) or len(function.params) < arguments[gvar]:
            continue
        form = without_numbers(plain(function))
        same = groups.setdefault(tvm_ffi.structural_hash(form), [])
        for other, members in same:
            if tvm_ffi.structural_equal(form, other):
                members.append(gvar)
                break
        else:
            same.append((form, [gvar]))
    found = [members for same in groups.values() for _, members in same]
    return [members for members in found if len(members) > 1]


def plain(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel without what tells it from others that do the same."""
    for name in UNSHARED_ATTRS:
        function = function.without_attr(name)
    return function


def _share(
    mod: IRModule, builder: relax.BlockBuilder, group: list[ir.GlobalVar], place: int
) -> dict[relax.Expr, _Shared]:
    """One kernel for a group, and what each of them becomes."""
    moved, values = different_columns([numbers_of(mod[gvar]) for gvar in group])
    if not moved:
        return {gvar: _Shared(group[0], None) for gvar in group[1:]}
    kernel = numbers_as_parameter(plain(mod[group[0]]), moved, place)
    gvar = builder.add_func(kernel, f"{group[0].name_hint}_shared")
    return {old: _Shared(gvar, relax.const(own)) for old, own in zip(group, values, strict=True)}


def _with_calls(
    function: relax.Function, builder: relax.BlockBuilder, shared: dict[relax.Expr, _Shared]
) -> relax.Function:
    """A function that calls shared kernels."""

    def changed(binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_call(call, *CALLS) or call.args[0] not in shared:
            return None
        return builder.normalize(_call(call, shared[call.args[0]]))

    return with_values(function, changed)


def _call(call: relax.Call, shared: _Shared) -> relax.Call:
    arguments = list(call.args[1].fields)
    if shared.numbers is not None:
        arguments.append(shared.numbers)
    rest = call.args[2:]
    return with_args(call, [shared.gvar, relax.Tuple(arguments), *rest])
