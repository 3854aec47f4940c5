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

from msgspec import structs
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import REORDER, Decision, DecisionLog
from relay_passes.ir.functions import KERNEL, UNALIGNED
from tir_schedules.generic.schedule import schedule_generic

from . import axes, moves, numbers, resize, shapes


def schedule_leftovers(machine: Machine, decisions: DecisionLog) -> ir.transform.Pass:
    """The pass; notes the schedule that every leftover operator got."""

    @module_pass(opt_level=0, name="tvm_hybrid.schedule_generic")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        updated = IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)
        schedules: dict[str, str] = {}
        failed: dict[str, list[str]] = {}
        reorders: dict[str, int] = {}
        for gvar, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and KERNEL not in function.attrs:
                called = str(gvar.name_hint)
                failed[called] = []
                scheduled, name = schedule_generic(function, machine, called, failed[called])
                marked = scheduled.with_attr(KERNEL, name).with_attr(UNALIGNED, True)
                updated.update_func(gvar, marked)
                schedules[called] = name
                reorders[called] = moves.reorders_in(function)
        for _, function in mod.functions_items():
            if isinstance(function, relax.Function):
                _note(function, schedules, reorders, failed, decisions)
        return updated

    return run


def _note(
    function: relax.Function,
    schedules: dict[str, str],
    reorders: dict[str, int],
    failed: dict[str, list[str]],
    decisions: DecisionLog,
) -> None:
    """One decision for every call to a scheduled function; a noted reorder gets its kernel."""
    calls = [
        (str(binding.var.name), name)
        for block in function.body.blocks
        for binding in block.bindings
        if (name := _callee(binding.value)) in schedules
    ]
    noted = [i for i, each in enumerate(decisions) if each.op == REORDER and not each.kernel]
    done = [place for place, (_, name) in enumerate(calls) for _ in range(reorders[name])]
    if len(done) != len(noted):  # one was folded
        done, noted = [], []
    for place, index in zip(done, noted, strict=True):
        name = calls[place][1]
        reason = "; ".join(filter(None, [decisions[index].reason, *failed[name]]))
        decisions[index] = structs.replace(
            decisions[index], function=name, kernel=schedules[name], reason=reason
        )
    decisions.extend(
        Decision(
            node=node,
            op=name,
            taken=False,
            function=name,
            kernel=schedules[name],
            reason="; ".join(["no template; generic schedule", *failed[name]]),
        )
        for place, (node, name) in enumerate(calls)
        if place not in done
    )


def _callee(call: relax.Expr) -> str:
    """Name of the function that an expression calls with destination passing."""
    called = isinstance(call, relax.Call) and call.args
    return str(getattr(call.args[0], "name_hint", "")) if called else ""


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
