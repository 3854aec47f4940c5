"""Replacing what variables of dataflow blocks are bound to; the rest of a recognising pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from .graph import DataflowGraph, static_tensor

Replacements = dict[int, relax.Expr]
Find = Callable[[DataflowGraph], Replacements]


def replacing_pass(name: str, find: Find) -> ir.transform.Pass:
    """A module pass that binds other expressions of the same value, and drops what is unused.

    Parameters
    ----------
    name : str
        Of the pass.
    find : callable
        Dataflow block -> {position of a binding: expression to bind instead}; the expressions use
        only values that stand before, or constants.
    """

    @module_pass(opt_level=0, name=name)
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        builder = relax.BlockBuilder(mod)
        for gvar, function in list(mod.functions_items()):
            if isinstance(function, relax.Function):
                builder.update_func(gvar, _rewrite(function, find))
        return relax.transform.DeadCodeElimination()(builder.get())

    return run


def _rewrite(function: relax.Function, find: Find) -> relax.Function:
    blocks = [
        _block(block, find) if isinstance(block, relax.DataflowBlock) else block
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _block(block: relax.DataflowBlock, find: Find) -> relax.DataflowBlock:
    graph = DataflowGraph(block)
    replacements = find(graph)
    builder = relax.BlockBuilder()
    bindings: list[relax.Binding] = []
    for position, binding in enumerate(graph.bindings):
        if position in replacements:
            value = builder.normalize(replacements[position])
            binding = relax.VarBinding(binding.var, value)
        bindings.append(binding)
    return relax.DataflowBlock(bindings)


def downstream(graph: DataflowGraph, var: relax.Var, depth: int) -> Iterator[int]:
    """Positions of bindings that use a value, directly or through at most `depth` operators."""
    reached = {var}
    frontier = [var]
    found: set[int] = set()
    for _ in range(depth):
        users = {user for v in frontier for user in graph.users.get(v, ())}
        found |= users
        frontier = [graph.bindings[user].var for user in users]
        frontier = [v for v in frontier if v not in reached]
        reached.update(frontier)
    return iter(sorted(found))


def is_f32(expr: relax.Expr) -> bool:
    """Whether an expression is a float32 tensor of known shape."""
    tensor = static_tensor(expr)
    return tensor is not None and tensor.dtype == "float32"


def same_shape(a: relax.Expr, b: relax.Expr) -> bool:
    """Whether two tensors have the same known shape."""
    first, second = static_tensor(a), static_tensor(b)
    return first is not None and second is not None and first.shape == second.shape
