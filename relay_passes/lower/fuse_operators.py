"""TVM's FuseOps, after which variables still have the names that they had.

Before

    exp_n0_ = R.call_tir(exp, (x,))
    add_n1_ = R.call_tir(add, (exp_n0_, x))
    gv = R.call_tir(sum, (add_n1_,))

After

    add_n1_ = fused_exp_add(x)          # FuseOps calls it lv
    gv = R.call_tir(sum, (add_n1_,))

What reads a value tells the name: parameters of a fused function are called as their arguments
were, and a call that stays by itself had the arguments before.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.entries import MAIN
from relay_passes.ir.used_variables import variables
from relay_passes.ir.with_names import with_names


def fuse_operators() -> ir.transform.Pass:
    """The pass."""

    @module_pass(opt_level=0, name="tvm_hybrid.fuse_operators")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        fused = relax.transform.FuseOps()(mod)
        if all(str(gvar.name_hint) != MAIN for gvar in mod.get_global_vars()):
            return fused
        main = fused[MAIN]
        written = with_names(main, _former_names(mod[MAIN], fused))
        updated = IRModule(dict(fused.functions_items()), fused.attrs, fused.global_infos)
        updated.update_func(updated.get_global_var(MAIN), written)
        return updated

    return run


def _values(function: relax.Function) -> Iterator[tuple[relax.Var, relax.Expr]]:
    for block in function.body.blocks:
        for binding in block.bindings[:]:
            yield binding.var, binding.value


def _former_names(main: relax.Function, fused: IRModule) -> dict[relax.Var, str]:
    """The names that values had whose variables fusion made."""
    before, after = dict(_values(main)), dict(_values(fused[MAIN]))
    found: dict[relax.Var, str] = {}
    for var, value in after.items():
        arguments, names = list(variables(value)), []
        callee = value.op if isinstance(value, relax.Call) else None
        if isinstance(callee, ir.GlobalVar):
            arguments = list(value.args[:])
            names = [str(each.name) for each in fused[callee].params]
        elif var in before:
            names = [str(each.name) for each in variables(before[var])]
        for argument, name in zip(arguments, names, strict=False):
            made = argument in after and argument not in before
            if made and isinstance(argument, relax.DataflowVar):
                found.setdefault(argument, name)
    return found
