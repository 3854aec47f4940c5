"""Generic: gives functions that no template built a vectorised, parallel schedule.

Before

    @T.prim_func(private=True)
    def fused_add_tanh(...):            # plain loops, from LegalizeOps and FuseTIR
        for i, j in T.grid(128, 768): ...

After

    @T.prim_func(private=True)
    def fused_add_tanh(...):
        T.func_attr({"tvm_hybrid.kernel": "generic_injective", "tvm_hybrid.unaligned": True})
        for i in T.parallel(...): ...   # 16 lanes at a time
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import structs
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import REORDER, Decision, DecisionLog
from relay_passes.ir.functions import KERNEL, UNALIGNED
from relay_passes.ir.graph import bindings_of
from relay_passes.ir.rewrite import copy_module, is_kernel, is_relax
from tir_schedules.generic.schedule import schedule_generic

from . import axes, moves, numbers, resize, shapes


def schedule_leftovers(machine: Machine, decisions: DecisionLog) -> ir.transform.Pass:
    """The pass; notes the schedule that every leftover operator got."""

    @module_pass(opt_level=0, name="tvm_hybrid.schedule_generic")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        updated, scheduled = copy_module(mod), dict[ir.GlobalVar, _Scheduled]()
        for gvar, function in mod.functions_items():
            if is_kernel(function) and KERNEL not in function.attrs:
                failed: list[str] = []
                new, name = schedule_generic(function, machine, str(gvar.name_hint), failed)
                updated.update_func(gvar, new.with_attr(KERNEL, name).with_attr(UNALIGNED, True))
                scheduled[gvar] = _Scheduled(name, tuple(failed), moves.reorders_in(function))
        for function in filter(is_relax, mod.functions.values()):
            _note(function, scheduled, decisions)
        return updated

    return run


class _Scheduled(NamedTuple):
    """A function's schedule, those that failed before it, and how many reorders it does."""

    kernel: str
    failed: tuple[str, ...]
    reorders: int


def _note(
    function: relax.Function, scheduled: dict[ir.GlobalVar, _Scheduled], decisions: DecisionLog
) -> None:
    """One decision for every call to a scheduled function; a noted reorder gets its kernel."""
    calls = [
        (str(binding.var.name), binding.value.args[0])
        for binding in bindings_of(function)
        # With destination passing.
        if next(iter(getattr(binding.value, "args", ())), None) in scheduled
    ]
    noted = [i for i, each in enumerate(decisions) if each.op == REORDER and not each.kernel]
    done = [at for at, (_, gvar) in enumerate(calls) for _ in range(scheduled[gvar].reorders)]
    if len(done) != len(noted):  # one was folded
        done, noted = [], []
    for place, index in zip(done, noted, strict=True):
        gvar, before = calls[place][1], decisions[index]
        reason = "; ".join(filter(None, [before.reason, *scheduled[gvar].failed]))
        decisions[index] = structs.replace(
            before, function=str(gvar.name_hint), kernel=scheduled[gvar].kernel, reason=reason
        )
    for place, (node, gvar) in enumerate(calls):
        if place not in done:
            name, how = str(gvar.name_hint), scheduled[gvar]
            reason = "; ".join(["no template; generic schedule", *how.failed])
            own: dict[str, Any] = {"function": name, "kernel": how.kernel, "reason": reason}
            decisions.append(Decision(node=node, op=name, taken=False, **own))


def legalize_operators() -> ir.transform.Pass:
    """Legalises all operators that are left: by TVM's LegalizeOps, some by functions of our own.

    Before

        lv = R.quantize(x, s, z, out_dtype="uint8")
        lv1 = R.nn.relu(y)

    After

        lv = R.call_tir(quantize, (x,))    # relay_passes/legalize/numbers.py
        lv1 = R.call_tir(relu, (y,))       # TVM's

    LegalizeOps with the legalisations of this package instead of TVM's.
    """
    files = (axes, moves, numbers, resize, shapes)
    ours = {name: each for file in files for name, each in file.LEGALIZATIONS.items()}
    return relax.transform.LegalizeOps(customize_legalize_map=ours)
