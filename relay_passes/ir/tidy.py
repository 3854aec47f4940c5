"""Tidies up: names for values alone go, and what nothing needs. Looks first whether there are any.

Before

    lv = R.exp(x)
    lv1 = lv
    lv2 = R.negative(x)
    gv = R.nn.relu(lv1)

After

    lv = R.exp(x)
    gv = R.nn.relu(lv)

TVM's passes CanonicalizeBindings and DeadCodeElimination do that, and write a module anew even if
it is tidy, as it mostly is. Of many bindings that takes long: each visit of all goes through more
memory than a CPU's caches hold. So a block that is written anew is tidied here, and so is all of a
module of one block, as most are before it has regions.
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

    A module of nothing but dataflow blocks stays.
    """
    functions = [each for each in mod.functions.values() if isinstance(each, relax.Function)]
    blocks = [block for function in functions for block in function.body.blocks]
    if all(isinstance(block, relax.DataflowBlock) for block in blocks):
        return mod
    return relax.transform.ConvertToDataflow(min_size=1)(mod)


def tidied(mod: IRModule) -> IRModule:
    """A module of blocks that were written anew, of what is used, with nothing untidy."""
    return mod if _only_block(mod) is not None else _tidied_by_tvm(mod)


def _tidied_by_tvm(mod: IRModule) -> IRModule:
    return relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(mod))


def is_tidy(mod: IRModule) -> bool:
    """Whether a module is surely one function of one dataflow block of calls, all needed."""
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
    """The bindings of a dataflow block without those that nothing needs.

    TVM's DeadCodeElimination does the same, but visits the function for every link of a chain.
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
    """The bindings without second names for values of the block."""
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
    """A module without most of what is unused, as TVM takes the longer the more of it there is."""

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
    """The function, and its dataflow block of calls, that a module is all of.

    None if there is more, or less, or if the block binds expressions of other kinds, or casts.
    """
    functions = list(mod.functions.values())
    function = functions[0] if len(functions) == 1 else None
    if not isinstance(function, relax.Function):
        return None
    blocks = list(function.body.blocks)
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        return None
    plain = all(
        isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Call)
        for binding in blocks[0].bindings[:]
    )
    return (function, blocks[0]) if plain else None
