"""Makes functions of branches with products in them: passes look into functions, not into branches.

Before

    if c:
        lv = R.matmul(x, const_w)
        y = R.nn.relu(lv)
    else:
        y = R.exp(x)

After

    if c:
        y = branch(x)
    else:
        y = R.exp(x)

    @R.function(private=True)
    def branch(x):
        lv = R.matmul(x, const_w)
        return R.nn.relu(lv)

A branch of sizes that its values do not tell stays, and so does one with side effects.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.utils import copy_with_new_vars

from relay_passes.ir.graph import is_call
from relay_passes.ir.rewrite import is_relax
from relay_passes.ir.traits import CONVOLUTIONS

_PRODUCTS = ("relax.matmul", *CONVOLUTIONS)


def outline_branches() -> ir.transform.Pass:
    """The pass; it comes before dataflow blocks are formed."""

    @module_pass(opt_level=0, name="tvm_hybrid.outline_branches")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        found = [
            (gvar, function)
            for gvar, function in mod.functions_items()
            if is_relax(function) and _has_branches(function)
        ]
        if not found:
            return mod
        outliner = _Outliner(mod)
        for gvar, function in found:
            outliner.builder_.update_func(gvar, outliner.visit_expr(function))
        return outliner.builder_.get()

    return run


@mutator
class _Outliner(PyExprMutator):
    """Adds a function for each branch with a product, the inner ones first."""

    def visit_if_(self, op: relax.If) -> relax.Expr:
        """The choice between two calls."""
        inner = super().visit_if_(op)
        if not isinstance(inner, relax.If):
            return inner
        branches = map(self._outlined, (inner.true_branch, inner.false_branch))
        return relax.If(inner.cond, *branches)

    def _outlined(self, branch: relax.Expr) -> relax.Expr:
        """A call of a new function; the branch if it is to stay."""
        if not _has_product(branch) or relax.analysis.contains_impure_call(branch):
            return branch
        values = list(relax.analysis.free_vars(branch))
        function = relax.Function(values, branch, branch.ty)
        if relax.analysis.free_symbolic_vars(function):
            return branch
        name = self.builder_.add_func(copy_with_new_vars(function), "branch")
        result = relax.Var("result", branch.ty)
        call = relax.Call(name, values, ret_ty=branch.ty)
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, call)])], result)


def _has_branches(function: relax.Function) -> bool:
    """Whether a function chooses between branches one of which has a product."""
    return any(
        isinstance(binding.value, relax.If) and _has_product(binding.value)
        for block in function.body.blocks
        for binding in block.bindings[:]
    )


def _has_product(expr: relax.Expr) -> bool:
    found: list[relax.Expr] = []

    def visit(each: relax.Expr) -> None:
        if is_call(each, *_PRODUCTS):
            found.append(each)

    relax.analysis.post_order_visit(expr, visit)
    return bool(found)
