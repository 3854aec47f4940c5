"""Rename kernels, so that two programs that were compiled from one model fit in one library.

Before

    @T.prim_func
    def tvm_hybrid_matmul(...): ...
    gv = R.call_tir(cls.tvm_hybrid_matmul, (x, const_packed), ...)

After, for the suffix "_avx512_vnni"

    @T.prim_func
    def tvm_hybrid_matmul_avx512_vnni(...): ...
    gv = R.call_tir(cls.tvm_hybrid_matmul_avx512_vnni, (x, const_packed), ...)
"""

from __future__ import annotations

import msgspec
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.tvm_compat.relax import set_type
from relay_passes.ir.decisions import DecisionLog

GLOBAL_SYMBOL = "global_symbol"


def rename_kernels(suffix: str, decisions: DecisionLog) -> ir.transform.Pass:
    """The pass; it renames kernels in decisions too.

    It comes when there are no more kernels to make, and again when TVM has written functions that
    compute sizes. What has the suffix keeps its name.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.rename_kernels")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        renamed: dict[ir.GlobalVar, ir.GlobalVar] = {}
        for gvar, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and not gvar.name_hint.endswith(suffix):
                renamed[gvar] = ir.GlobalVar(gvar.name_hint + suffix)
                set_type(renamed[gvar], gvar.ty)
        names = {gvar.name_hint for gvar in renamed}
        decisions[:] = [
            msgspec.structs.replace(decision, function=decision.function + suffix)
            if decision.function in names
            else decision
            for decision in decisions
        ]
        functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
        for gvar, function in mod.functions_items():
            if gvar in renamed:
                attrs = function.attrs
                if attrs and GLOBAL_SYMBOL in attrs:
                    symbol = str(attrs[GLOBAL_SYMBOL]) + suffix
                    function = function.with_attr(GLOBAL_SYMBOL, symbol)
                functions[renamed[gvar]] = function
            elif isinstance(function, relax.Function):
                functions[gvar] = _Renamer(renamed).visit_expr(function)
            else:
                functions[gvar] = function
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return run


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    """Puts other global variables in the place of those named."""

    def __init__(self, renamed: dict[ir.GlobalVar, ir.GlobalVar]) -> None:
        super().__init__()
        self._renamed = renamed

    def visit_global_var_(self, op: ir.GlobalVar) -> ir.GlobalVar:
        return self._renamed.get(op, op)
