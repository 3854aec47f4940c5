"""Passes that put constants in the place of calls."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator


def fold_pass(
    name: str,
    mutator: type[PyExprMutator],
    is_foldable: Callable[[relax.Call], bool] | None = None,
) -> ir.transform.Pass:
    """A pass that rewrites all Relax functions by a mutator, and drops what nothing reads then.

    Parameters
    ----------
    name
        Of the pass, without the package.
    mutator
        Made of the module.
    is_foldable
        Whether the mutator puts something in the place of a call, whose arguments are as they
        stand there. If it is given, a module with nothing to fold is the same module: to write it
        anew takes much longer than to look.
    """

    @module_pass(opt_level=0, name=f"tvm_hybrid.{name}")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        functions = [(g, f) for g, f in mod.functions_items() if isinstance(f, relax.Function)]
        if is_foldable and not any(_may_fold(f, is_foldable) for _, f in functions):
            return mod
        folder = mutator(mod)
        for gvar, function in functions:
            folder.builder_.update_func(gvar, folder.visit_expr(function))
        folded = relax.transform.CanonicalizeBindings()(folder.builder_.get())
        return relax.transform.DeadCodeElimination()(folded)

    return run


def _may_fold(function: relax.Function, is_foldable: Callable[[relax.Call], bool]) -> bool:
    """Whether there is a call to fold, or something that hides one: a branch, a named constant."""
    return any(
        is_foldable(binding.value)
        if isinstance(binding.value, relax.Call)
        else isinstance(binding.value, (ir.GenericConst, relax.If, relax.SeqExpr, relax.Function))
        for block in function.body.blocks
        for binding in block.bindings[:]
    )
