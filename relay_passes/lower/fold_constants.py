"""Folds constants: runs kernels whose arguments are all constants, once, at compile time.

Before

    lv = R.call_tir(softplus, (const_x,))

After

    lv = const

TVM's FoldConstant runs kernels as TVM wrote them, where a minimum loses a NaN, and ends the process
at a function that only our kernels have. Here a kernel is lowered as those that stay are.
"""

from __future__ import annotations

import tvm
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from relay_passes.ir.fold import fold_pass
from relay_passes.ir.graph import op_name, static_tensor
from tir_schedules.generic.floats import guard_floats
from tir_schedules.generic.vector_math import lower_math

from .kernel_context import kernel_context

_NAME = "folded"


def fold_constants() -> ir.transform.Pass:
    """The pass; it comes after the legalisation of operators."""
    return fold_pass("fold_constants", _Folder)


@mutator
class _Folder(PyExprMutator):
    """Replaces calls of kernels on constants."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = dict(mod.functions_items())

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        """Folds one call if it can be."""
        call = super().visit_call_(op)
        result = static_tensor(call)
        if op_name(call) != "relax.call_tir" or result is None or 0 in result.shape:
            return call
        constants = [self._constant(argument) for argument in call.args[1].fields]
        kernel = self._kernels.get(call.args[0])
        known = [each for each in constants if each is not None]
        if len(known) < len(constants) or not isinstance(kernel, tirx.PrimFunc):
            return call
        if len(call.args) > 2:  # sizes that depend on data
            return call
        body = lower_math(guard_floats(kernel.body))
        kernel = kernel.with_body(body).with_attr("global_symbol", _NAME)
        # Whoever dumps every pass wants those of the model.
        with PassContext(opt_level=3), kernel_context([kernel]):
            compiled = tvm.compile(IRModule({_NAME: kernel}), target={"kind": "llvm"})
        made = tvm.runtime.empty(result.shape, result.dtype)
        compiled[_NAME](*[each.value for each in known], made)
        return relax.const(made.numpy(), result.dtype)

    def _constant(self, expr: relax.Expr) -> ir.GenericConst | None:
        """The constant that an argument is, or None."""
        known = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return known if isinstance(known, ir.GenericConst) else None
