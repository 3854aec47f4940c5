"""Folds constants: runs kernels whose arguments are all constants, once, at compile time.

Before

    lv = R.call_tir(minimum, (const_x, const_y))
    lv1 = R.call_tir(softplus, (const_x,))

After

    lv = const
    lv1 = R.call_tir(softplus, (const_x,))      # what calls functions is left to run time

TVM's FoldConstant runs kernels as TVM wrote them, where a minimum loses a NaN, and ends the process
at a function that only our kernels have. So floats get their IEEE meaning first, as in kernels that
stay, and kernels that call functions stay.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir import Call
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from relay_passes.ir.graph import op_name, static_tensor
from tir_schedules.generic.expressions import call_name
from tir_schedules.generic.floats import guard_floats

# Calls in TIR that are single instructions, and whose meaning is the same everywhere.
_PLAIN = frozenset(
    {
        *("if_then_else", "likely", "reinterpret", "fabs", "round", "nearbyint", "trunc"),
        *("floor", "ceil", "shift_left", "shift_right"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
    }
)
_NAME = "folded"


def fold_constants() -> ir.transform.Pass:
    """The pass; it comes after the legalisation of operators."""

    @module_pass(opt_level=0, name="tvm_hybrid.fold_constants")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        folder = _Folder(mod)
        for gvar, function in mod.functions_items():
            if isinstance(function, relax.Function):
                folder.builder_.update_func(gvar, folder.visit_expr(function))
        folded = relax.transform.CanonicalizeBindings()(folder.builder_.get())
        return relax.transform.DeadCodeElimination()(folded)

    return run


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
        if not _is_plain(kernel) or len(call.args) > 2:
            return call
        kernel = kernel.with_body(guard_floats(kernel.body)).with_attr("global_symbol", _NAME)
        with PassContext(opt_level=3):  # whoever dumps every pass wants those of the model
            compiled = tvm.compile(IRModule({_NAME: kernel}), target={"kind": "llvm"})
        made = tvm.runtime.empty(result.shape, result.dtype)
        compiled[_NAME](*[each.value for each in known], made)
        return relax.const(made.numpy(), result.dtype)

    def _constant(self, expr: relax.Expr) -> ir.GenericConst | None:
        """The constant that an argument is, or None."""
        known = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return known if isinstance(known, ir.GenericConst) else None


def _is_plain(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel calls no functions, such as exponentials."""
    names: set[str] = set()

    def look(call: Call) -> None:
        names.add(call_name(call))

    tvm_ffi.structural_walk(kernel.body, (Call, look))
    return _PLAIN.issuperset(names)
