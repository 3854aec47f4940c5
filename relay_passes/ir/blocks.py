"""Writing dataflow blocks anew: one binding may become several."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from .graph import DataflowGraph


class Bindings:
    """The bindings of a block under construction, each a single operator."""

    def __init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self.bindings: list[relax.Binding] = []

    def emit(self, expr: relax.Expr, name: str = "lv") -> relax.Var:
        """Binds an expression to a new variable."""
        value = self.builder.normalize(expr)
        var = relax.DataflowVar(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def bind(self, var: relax.Var, expr: relax.Expr) -> None:
        """Binds an expression to a variable of the original block."""
        self.bindings.append(relax.VarBinding(var, self.builder.normalize(expr)))


def with_blocks(
    old: relax.Function, rewrite: Callable[[relax.DataflowBlock], relax.DataflowBlock]
) -> relax.Function:
    """A function with its dataflow blocks rewritten."""
    blocks = [
        rewrite(each) if isinstance(each, relax.DataflowBlock) else each for each in old.body.blocks
    ]
    body = relax.SeqExpr(blocks, old.body.body)
    return relax.Function(old.params, body, old.ret_ty, old.is_pure, old.attrs)


RewriteBlock = Callable[[DataflowGraph], "list[relax.Binding] | None"]


def block_pass(name: str, rewrite: RewriteBlock) -> ir.transform.Pass:
    """A module pass that writes dataflow blocks anew, and drops what is unused.

    Parameters
    ----------
    name : str
        Of the pass.
    rewrite : callable
        Dataflow block -> its new bindings, among them the same outputs; None to leave it.
    """

    def block(old: relax.DataflowBlock) -> relax.DataflowBlock:
        bindings = rewrite(DataflowGraph(old))
        return old if bindings is None else relax.DataflowBlock(bindings)

    @module_pass(opt_level=0, name=name)
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        builder = relax.BlockBuilder(mod)
        for gvar, old in list(mod.functions_items()):
            if isinstance(old, relax.Function):
                builder.update_func(gvar, with_blocks(old, block))
        canonical = relax.transform.CanonicalizeBindings()(builder.get())
        return relax.transform.DeadCodeElimination()(canonical)

    return run
