"""Removes unused bindings and those that only rename a value, if there are any.

Before

    lv = R.exp(x)
    lv1 = lv
    lv2 = R.negative(x)
    gv = R.nn.relu(lv1)

After

    lv = R.exp(x)
    gv = R.nn.relu(lv)

TVM's passes CanonicalizeBindings and DeadCodeElimination do that, but they rewrite even a tidy
module, and most modules are tidy. With many bindings that is slow: each visit of all bindings reads
more memory than a CPU's caches hold. So a rewritten block is tidied here, and so is a module of one
block, as most modules are before they have regions.
"""

from __future__ import annotations

from tvm import IRModule, relax

from .functions import named_pass, rebound, substitute, with_blocks
from .graph import DataflowGraph, variables


@named_pass
def tidy(mod: IRModule) -> IRModule:
    """The pass."""
    if is_tidy(mod):
        return mod
    return _tidied_by_tvm(_of_used_bindings(mod))


@named_pass
def to_dataflow(mod: IRModule) -> IRModule:
    """A pass that puts pure bindings into dataflow blocks, as TVM's ConvertToDataflow does.

    A module that has only dataflow blocks is returned as it is.
    """
    functions = [each for each in mod.functions.values() if isinstance(each, relax.Function)]
    blocks = [block for function in functions for block in function.body.blocks]
    if all(isinstance(block, relax.DataflowBlock) for block in blocks):
        return mod
    return relax.transform.ConvertToDataflow(min_size=1)(mod)


def tidied(mod: IRModule) -> IRModule:
    """A module whose blocks were rewritten without unused bindings, with all else tidied."""
    return mod if _only_block(mod) is not None else _tidied_by_tvm(mod)


def _tidied_by_tvm(mod: IRModule) -> IRModule:
    return relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(mod))


def is_tidy(mod: IRModule) -> bool:
    """Whether a module is one function of one dataflow block of calls, all of them used."""
    found = _only_block(mod)
    if found is None:
        return False
    function, block = found
    result = function.body.body
    returned = {*(result.fields if isinstance(result, relax.Tuple) else [result])}
    graph = DataflowGraph(block)
    return all(
        each.var in (graph.users if isinstance(each.var, relax.DataflowVar) else returned)
        for each in graph.bindings
    )


def used_bindings(bindings: list[relax.Binding]) -> list[relax.Binding]:
    """The bindings of a dataflow block without unused ones.

    TVM's DeadCodeElimination does that too, but visits the function once for every link of a chain.
    """
    needed: set[relax.Expr] = set()
    kept: list[relax.Binding] = []
    for binding in reversed(bindings):
        if isinstance(binding, (relax.VarBinding, relax.MatchCast)):
            inside = isinstance(binding, relax.VarBinding)
            inside = inside and isinstance(binding.var, relax.DataflowVar)
            if inside and binding.var not in needed:
                continue
            needed.update(variables(binding.value))
        kept.append(binding)
    return kept[::-1]


def tidy_bindings(bindings: list[relax.Binding]) -> list[relax.Binding]:
    """The bindings without those that only rename values of the block."""
    builder = relax.BlockBuilder()
    names: dict[relax.Expr, relax.Expr] = {}
    written: list[relax.Binding] = []
    for binding in bindings:
        if not isinstance(binding, (relax.VarBinding, relax.MatchCast)):
            written.append(binding)
            continue
        value = binding.value
        if isinstance(value, relax.Var) and isinstance(binding.var, relax.DataflowVar):
            names[binding.var] = names.get(value, value)
        elif names and any(var in names for var in variables(value)):
            written.append(rebound(binding, builder.normalize(substitute(value, names))))
        else:
            written.append(binding)
    return used_bindings(written)


def _of_used_bindings(mod: IRModule) -> IRModule:
    """A module without most unused bindings: TVM takes longer the more of them there are."""

    def used(function: relax.Function) -> relax.Function:
        blocks = [
            relax.DataflowBlock(used_bindings(list(block.bindings[:])))
            if isinstance(block, relax.DataflowBlock)
            else block
            for block in function.body.blocks
        ]
        return with_blocks(function, blocks)

    functions = {
        g: used(f) if isinstance(f, relax.Function) else f for g, f in mod.functions_items()
    }
    return IRModule(functions, mod.attrs, mod.global_infos)


def _only_block(mod: IRModule) -> tuple[relax.Function, relax.DataflowBlock] | None:
    """The only function of a module, and its only block, a dataflow block of calls; None for any
    other module."""
    functions = list(mod.functions.values())
    function = functions[0] if len(functions) == 1 else None
    if not isinstance(function, relax.Function):
        return None
    blocks = list(function.body.blocks)
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        return None
    # Casts (`MatchCast`) are bindings, but no `VarBinding`.
    plain = all(
        isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Call)
        for binding in blocks[0].bindings[:]
    )
    return (function, blocks[0]) if plain else None
