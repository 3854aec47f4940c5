"""Reshapes to sizes that are sums become views.

Before

    lv = R.call_tir(view, (x, n), out_ty=R.Tensor((1, n + 5, 8)))    # x: [n + 5, 8]

After

    lv = R.reshape(x, R.shape([1, n + 5, 8]))

TVM's RewriteDataflowReshape, which does so for other sizes, fails on these: it cannot prove that
products of sums divide each other.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

VIEW = "tvm_hybrid.view"
"""Attribute of a kernel that does nothing but give its input another shape."""


def views_of_sums() -> ir.transform.Pass:
    """The pass; it comes before TVM's RewriteDataflowReshape."""

    @module_pass(opt_level=0, name="tvm_hybrid.views_of_sums")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        if not any(VIEW in (function.attrs or {}) for function in mod.functions.values()):
            return mod
        views = _Views(mod)
        for name, function in mod.functions.items():
            if isinstance(function, relax.Function):
                views.builder_.update_func(name, views.visit_expr(function))
        return views.builder_.get()

    return run


@mutator
class _Views(PyExprMutator):
    """Puts R.reshape in the place of calls of such kernels."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._mod = mod

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = super().visit_call_(op)
        if call.op != ir.Op.get("relax.call_tir"):
            return call
        kernel = self._mod[call.args[0]]
        if VIEW not in (kernel.attrs or {}):
            return call
        return relax.op.reshape(call.args[1].fields[0], call.ty.shape)
