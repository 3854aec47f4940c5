"""Accept bits: a model's only kernel takes tensors of bfloat16 as their bits, too.

Before

    assert A.dtype == "bfloat16"

After

    assert A.dtype == "bfloat16" or A.dtype == "uint16"

NumPy passes no bfloat16, but its bits. Where a model is one kernel, a caller that may hand it the
bits needs neither the virtual machine nor views: a call takes half the time. `main` itself keeps
its checks of types.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import Pass, PassContext, module_pass

from microkernels.base.tvm_compat.relax import BFLOAT_CODE, TYPE_CODE_AT, UINT_CODE, with_condition
from relay_passes.ir.entries import BITS_ENTRY, MAIN
from relay_passes.ir.graph import op_name
from tir_schedules.core.statements import children, with_children

TAKES_BITS = "tvm_hybrid.takes_bits"  # an attribute of kernels


def mark_takers() -> Pass:
    """Marks the kernel of a model that is no more; it comes when kernels are called by `call_tir`.

    Such a model has an entry for bits (`uint16_entry`).
    """

    @module_pass(opt_level=0, name="tvm_hybrid.mark_takers_of_bits")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        names = [gvar.name_hint for gvar in mod.get_global_vars()]
        if MAIN not in names or BITS_ENTRY not in names:
            return mod
        values = [each.value for block in mod[MAIN].body.blocks for each in block.bindings]
        calls = [each for each in values if not isinstance(each, relax.Var)]
        if len(calls) != 1 or op_name(calls[0]) != "relax.call_tir":
            return mod
        updated = IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)
        kernel = calls[0].args[0]
        updated[kernel] = mod[kernel].with_attr(TAKES_BITS, True)
        return updated

    return run


def accept_bits() -> Pass:
    """Changes the checks of marked kernels, once TVM has written them."""

    @module_pass(opt_level=0, name="tvm_hybrid.accept_bits")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        functions = dict(mod.functions_items())
        for gvar, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and TAKES_BITS in (function.attrs or {}):
                functions[gvar] = function.with_body(_accepting(function.body))
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return run


def _accepting(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement with the checks in it changed; there are none in loops."""
    if isinstance(statement, tirx.AssertStmt):
        return with_condition(statement, _or_bits(statement.condition))
    if isinstance(statement, tirx.For):
        return statement
    return with_children(statement, [_accepting(each) for each in children(statement)])


def _or_bits(condition: ir.Expr) -> ir.Expr:
    if isinstance(condition, tirx.And):
        return tirx.And(_or_bits(condition.a), _or_bits(condition.b))
    if not isinstance(condition, tirx.EQ) or not _is_type_code(condition.a):
        return condition
    if not isinstance(condition.b, tirx.IntImm) or int(condition.b.value) != BFLOAT_CODE:
        return condition
    return tirx.Or(condition, tirx.EQ(condition.a, tirx.const(UINT_CODE, "uint8")))


def _is_type_code(value: ir.Expr) -> bool:
    return (
        isinstance(value, ir.Call)
        and op_name(value) == "tirx.tvm_struct_get"
        and isinstance(value.args[2], tirx.IntImm)
        and int(value.args[2].value) == TYPE_CODE_AT
    )
