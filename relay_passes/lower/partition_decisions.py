"""What a partitioned module says of its nodes, for users who compile the rest by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import IRModule, ir, relax

from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.region_functions import is_region_function, region_of
from relay_passes.ir.rewrite import is_relax
from relay_passes.ir.traits import RESHAPES

from .lower_regions import decision_of
from .select_configs import config_of

LEFT = "no template; left to the rest of the caller's pipeline"


def note_partition(mod: IRModule, machine: Machine, decisions: DecisionLog) -> None:
    """Notes, for every call of a region function, the kernel that it will be, and what is left.

    Parameters
    ----------
    mod : tvm.IRModule
        Its region functions have their configurations.
    machine : Machine
        What kernels will be built for.
    decisions : list of Decision
        Those of the passes before; what they have noted as left is not noted again.
    """
    noted = {decision.node for decision in decisions if not decision.taken}
    for binding in _bindings(mod):
        call = binding.value
        if isinstance(call.op, relax.GlobalVar) and is_region_function(mod[call.op]):
            callee = mod[call.op]
            region = region_of(callee)
            config = config_of(callee, region)
            decisions.append(decision_of(binding, callee, region, config, call.op, machine))
        elif isinstance(call.op, ir.Op) and call.op.name not in RESHAPES:
            node, name = str(binding.var.name), call.op.name.removeprefix("relax.")
            if node not in noted:
                decisions.append(Decision(node=node, op=name, taken=False, reason=LEFT))


def _bindings(mod: IRModule) -> Iterator[relax.VarBinding]:
    """Every call that an ordinary function binds."""
    for _, function in mod.functions_items():
        if is_relax(function) and not is_region_function(function):
            for block in function.body.blocks:
                for binding in block.bindings:
                    if isinstance(binding, relax.VarBinding) and isinstance(
                        binding.value, relax.Call
                    ):
                        yield binding
