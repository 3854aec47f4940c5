"""Clip: an index outside its tensor reads the nearest element instead of foreign memory.

Before

    R.take(table, indices, axis=0, mode="fast")

After

    R.take(table, indices, axis=0, mode="clip")

ONNX calls such an index an error, and TVM's importer trusts the model; a token id that is too large
would end the process.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from .graph import op_name


def clip_indices() -> ir.transform.Pass:
    """The pass."""

    @module_pass(opt_level=0, name="tvm_hybrid.clip_indices")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        clipper = _Clipper(mod)
        for gvar, function in mod.functions_items():
            if isinstance(function, relax.Function):
                clipper.builder_.update_func(gvar, clipper.visit_expr(function))
        return clipper.builder_.get()

    return run


@mutator
class _Clipper(PyExprMutator):
    """Rewrites every take in mode "fast"."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """The call, clipped if it is such a take."""
        call = super().visit_call_(call)
        if op_name(call) == "relax.take" and call.attrs.mode == "fast":
            axis = None if call.attrs.axis is None else int(call.attrs.axis)
            return relax.op.take(call.args[0], call.args[1], axis=axis, mode="clip")
        return call
