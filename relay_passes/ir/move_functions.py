"""Moves functions out of a module, so that what a pass replaces in them can go.

A module that somebody holds keeps all its weights, and while a pass runs its caller holds the
module. If the module is empty, each weight can go as soon as the pass has put another in its place:
there are never two of all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, ir, relax

from microkernels.base.tvm_compat.relax import set_type

from .functions import is_region_function
from .graph import DataflowGraph, forget_block
from .rewrite import ChangeValue, RewriteGraph
from .tidy import used_bindings

Functions = dict[ir.GlobalVar, relax.Function]
_Change = Callable[[list[relax.BindingBlock]], relax.BindingBlock]


def copy_module(mod: IRModule) -> IRModule:
    """A module with the functions of another one."""
    return IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)


def move_functions(mod: IRModule) -> IRModule:
    """A module with the functions of another one, which has none then."""
    moved = copy_module(mod)
    for gvar in moved.get_global_vars():
        del mod[gvar]
    return moved


def take_callers(mod: IRModule) -> Functions:
    """The Relax functions of a module that are no regions; it has them no more."""
    forget_block()  # it has weights
    taken = {
        gvar: function
        for gvar, function in mod.functions_items()
        if isinstance(function, relax.Function) and not is_region_function(function)
    }
    for gvar in taken:
        del mod[gvar]
    return taken


def take_values(functions: Functions, gvar: ir.GlobalVar, change: ChangeValue) -> relax.Function:
    """A function with other values bound to some variables; each binding goes when it is changed.

    Parameters
    ----------
    functions : dict
        Has the function, and loses it.
    gvar : GlobalVar
        Its name.
    change : callable
        Binding of any block -> the value to bind instead; None to leave it.
    """

    def changed(block: list[relax.BindingBlock]) -> relax.BindingBlock:
        kind, waiting = type(block[0]), list(block.pop().bindings[::-1])
        bindings: list[relax.Binding] = []
        while waiting:
            binding = waiting.pop()
            value = change(binding) if isinstance(binding, relax.VarBinding) else None
            bindings.append(binding if value is None else relax.VarBinding(binding.var, value))
        return kind(bindings)

    return _with_blocks(functions, gvar, changed)


def take_blocks(functions: Functions, gvar: ir.GlobalVar, rewrite: RewriteGraph) -> relax.Function:
    """A function with its dataflow blocks written anew.

    Parameters
    ----------
    functions, gvar
        As of `take_values`.
    rewrite : callable
        Graph of a block, whose bindings nobody else has -> the new ones; None to leave them.
    """

    def changed(block: list[relax.BindingBlock]) -> relax.BindingBlock:
        found = block.pop()
        if not isinstance(found, relax.DataflowBlock):
            return found
        graph = DataflowGraph(found)
        del found
        forget_block()
        new = rewrite(graph)
        return relax.DataflowBlock(list(graph.bindings) if new is None else used_bindings(new))

    return _with_blocks(functions, gvar, changed)


def _with_blocks(functions: Functions, gvar: ir.GlobalVar, change: _Change) -> relax.Function:
    """A function with changed blocks; `change` takes each out of a list, so that nobody has it."""
    function = functions.pop(gvar)
    params, result, attrs = function.params, function.body.body, function.attrs
    ty, is_pure, body_ty = function.ret_ty, function.is_pure, function.body.ty
    blocks = [[block] for block in function.body.blocks]
    del function
    body = relax.SeqExpr([change(block) for block in blocks], result)
    set_type(body, body_ty)
    return relax.Function(params, body, ty, is_pure, attrs)
