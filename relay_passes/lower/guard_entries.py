"""Guard entries: every entry of a module calls a function first.

Before

    @R.function
    def main(x):
        lv = R.call_tir(kernel, (x,), out_ty=...)
        return lv

After

    @R.function(pure=False)
    def main(x):
        checked = R.call_packed("tvm_hybrid_require_1f0c", ty_args=(R.Tuple,))
        lv = R.call_tir(kernel, (x,), out_ty=...)
        return lv

A function that passes shall take for pure whatever it calls (`relax.force_pure`) stays pure.
The function raises an error where code of the module cannot run. TVM's virtual machine looks for it
among what its executable imports.
"""

from __future__ import annotations

from typing import TypeGuard

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.rewrite import is_relax, map_functions


def guard_entries(guard: str) -> ir.transform.Pass:
    """The pass, for a guard of this name; entries that call it already stay as they are."""

    @module_pass(opt_level=0, name="tvm_hybrid.guard_entries")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_entry, lambda function: _guarded(function, guard))

    return run


def is_entry(function: object) -> TypeGuard[relax.Function]:
    """Whether a function can be called from outside, and is not left to a code generator."""
    if not is_relax(function) or not function.attrs:
        return False
    return "global_symbol" in function.attrs and "Codegen" not in function.attrs


def _guarded(function: relax.Function, guard: str) -> relax.Function:
    blocks = list(function.body.blocks)
    if any(_calls(binding.value, guard) for block in blocks for binding in block.bindings):
        return function
    nothing = relax.TupleType([])
    call = relax.Call(relax.ExternFunc(guard), [], None, [nothing], ret_ty=nothing)
    first = relax.BindingBlock([relax.VarBinding(relax.Var("checked", nothing), call)])
    body = relax.BlockBuilder().normalize(relax.SeqExpr([first, *blocks], function.body.body))
    forced = bool(function.attrs.get("relax.force_pure"))  # what it calls does not count
    return relax.Function(function.params, body, function.ret_ty, forced, function.attrs)


def _calls(value: relax.Expr, name: str) -> bool:
    """Whether a value is a call of a function of this name that lies outside of the module."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, relax.ExternFunc):
        return False
    return str(value.op.global_symbol) == name
