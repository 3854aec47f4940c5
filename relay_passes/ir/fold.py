"""Passes that put constants in the place of calls."""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator


def fold_pass(name: str, mutator: type[PyExprMutator]) -> ir.transform.Pass:
    """A pass that rewrites all Relax functions by a mutator, and drops what nothing reads then.

    Parameters
    ----------
    name
        Of the pass, without the package.
    mutator
        Made of the module.
    """

    @module_pass(opt_level=0, name=f"tvm_hybrid.{name}")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        folder = mutator(mod)
        for gvar, function in mod.functions_items():
            if isinstance(function, relax.Function):
                folder.builder_.update_func(gvar, folder.visit_expr(function))
        folded = relax.transform.CanonicalizeBindings()(folder.builder_.get())
        return relax.transform.DeadCodeElimination()(folded)

    return run
