"""Rewrites Relax: blocks and functions with some bindings changed and the others kept.

A pass gives the replacement for a function, a block or a binding; this file does the rest.

    block_pass              makes a pass: graph of a block -> its new bindings
    rewrite_blocks          rewrites blocks in a pass that also adds functions to the module
    rewrite_region_calls    replaces calls of region functions
    map_functions           changes functions of one kind
    with_values             binds other values to some variables of a function

Only ordinary functions are rewritten: a template relies on its region function's body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeGuard

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.tvm_compat.relax import set_type

from .constants import constants_in
from .functions import (
    called_region,
    is_foreign_kernel,
    is_region_function,
    rebound,
    renamed,
    substitute,
    with_blocks,
)
from .graph import AnyBinding, DataflowGraph, forget_block, variables
from .tidy import tidied, tidy_bindings, used_bindings

Emit = Callable[[relax.Expr], relax.Expr]  # normalizes an expression, and may bind it
RewriteBlock = Callable[[relax.DataflowBlock], "list[relax.Binding] | None"]
RewriteGraph = Callable[[DataflowGraph], "list[relax.Binding] | None"]
ChangeValue = Callable[[relax.VarBinding], "relax.Expr | None"]
RewriteCall = Callable[[relax.VarBinding, relax.Function], relax.Expr]


class Bindings:
    """The bindings of a block under construction, each a single operator.

    Attributes
    ----------
    var : relax.Var
        The variable whose value is being rewritten; `at` sets it.
    name : str
        The name for new variables. If it is empty, they get the name of `var`, so that names still
        tell for which node of a model a value is computed.
    """

    var: relax.Var

    def __init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self.bindings: list[relax.Binding] = []
        self.name = "lv"

    def at(self, var: relax.Var) -> None:
        """Starts to rewrite the value of a variable."""
        self.var, self.name = var, ""

    def emit(self, expr: relax.Expr, name: str = "") -> relax.Var:
        """Binds an expression to a new variable."""
        value = self.builder.normalize(expr)
        var = relax.DataflowVar(name or self.name or str(self.var.name), value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def bind(self, var: relax.Var, expr: relax.Expr) -> None:
        """Binds an expression to a variable of the original block."""
        self.bindings.append(relax.VarBinding(var, self.builder.normalize(expr)))


def with_values(function: relax.Function, change: ChangeValue) -> relax.Function:
    """A function with other values bound to some variables.

    Parameters
    ----------
    function : relax.Function
        It is not changed.
    change : callable
        Binding of any block -> the value to bind instead; None to keep its value.
    """

    blocks = (
        type(block)([_changed(binding, change) for binding in block.bindings])
        for block in function.body.blocks
    )
    return with_blocks(function, blocks)


def _changed(binding: relax.Binding, change: ChangeValue) -> relax.Binding:
    value = change(binding) if isinstance(binding, relax.VarBinding) else None
    return binding if value is None else relax.VarBinding(binding.var, value)


def bind_constants(
    mod: IRModule, name: str, change: Callable[[ir.GenericConst], relax.Expr | None]
) -> IRModule:
    """A module whose functions bind replacements of some constants to variables, all of one name.

    Parameters
    ----------
    change : callable
        Constant -> its replacement; None to keep it. A replacement is bound once per tensor.
    """

    def changed(function: relax.Function) -> relax.Function:
        bound: dict[object, relax.Binding] = {}
        items: dict[relax.Expr, relax.Expr] = {}
        for constant in constants_in(function):
            value = change(constant)
            if value is not None:
                new = relax.VarBinding(relax.Var(name, constant.ty), value)
                items[constant] = bound.setdefault(constant.value, new).var
        if not items:
            return function
        body = renamed(function.body, items)
        blocks, bindings = list(body.blocks), list(bound.values())
        if blocks and not isinstance(blocks[0], relax.DataflowBlock):
            bindings += blocks.pop(0).bindings
        return with_blocks(function, [relax.BindingBlock(bindings), *blocks], body.body)

    return map_functions(mod, is_relax, changed)


def is_relax(function: object) -> TypeGuard[relax.Function]:
    """Whether a function of a module is written in Relax."""
    return isinstance(function, relax.Function)


def is_kernel(function: object) -> TypeGuard[tirx.PrimFunc]:
    """Whether a function of a module is a kernel in TIR."""
    return isinstance(function, tirx.PrimFunc)


def unread(each: ir.transform.Pass) -> ir.transform.Pass:
    """Wraps a TVM pass that changes Relax so that it does not see the bodies of our kernels.

    Otherwise TVM walks or hashes every kernel, to find kernels that are used or equal.
    """

    @module_pass(opt_level=0, name=each.info.name)
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        functions = dict(mod.functions_items())
        own = {g for g, f in functions.items() if is_kernel(f) and not is_foreign_kernel(f)}
        return apart_from(mod, own, each)

    return run


def apart_from(
    mod: IRModule, hidden: Collection[ir.GlobalVar], each: Callable[[IRModule], IRModule]
) -> IRModule:
    """Runs a pass on a module in which some kernels have the body `T.evaluate(0)`, so that it
    neither reads nor renames them."""
    shown = copy_module(mod)
    for gvar in hidden:
        shown[gvar] = mod[gvar].with_body(tirx.Evaluate(tirx.const(0, "int32")))
    found = each(shown)
    for gvar in found.get_global_vars():
        if gvar in hidden:
            found[gvar] = mod[gvar]
    return found


def map_functions(
    mod: IRModule, is_kind: Callable[[Any], bool], change: Callable[[Any], ir.BaseFunc]
) -> IRModule:
    """A module with its functions of one kind changed, under the same global variables."""
    updated = IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)
    for gvar, function in mod.functions_items():
        changed = change(function) if is_kind(function) else function
        if changed is not function:
            updated.update_func(gvar, changed)
    return updated


def map_values(mod: IRModule, change: ChangeValue) -> IRModule:
    """A module whose Relax functions bind other values to some variables, as `with_values` does."""
    return map_functions(mod, is_relax, lambda function: with_values(function, change))


def rewrite_blocks(builder: relax.BlockBuilder, rewrite: RewriteBlock) -> IRModule:
    """A module with its dataflow blocks rewritten and without unused bindings.

    If no block is rewritten, the module stays as it is.

    Parameters
    ----------
    builder : BlockBuilder
        The module's builder; `rewrite` may add functions to it.
    rewrite : callable
        Dataflow block -> its new bindings, with the same outputs; None to keep the block.
    """

    written = _written(builder, rewrite)
    clean = unread(relax.transform.DeadCodeElimination())
    return builder.get() if written is None else clean(written)


def _written(builder: relax.BlockBuilder, rewrite: RewriteBlock) -> IRModule | None:
    """A module with its dataflow blocks rewritten; None if every block is kept."""
    changed: dict[ir.GlobalVar, relax.Function] = {}
    for gvar, function in list(builder.get().functions_items()):
        if not is_ordinary(function):
            continue
        old = list(function.body.blocks)
        bindings = [
            rewrite(block) if isinstance(block, relax.DataflowBlock) else None for block in old
        ]
        if any(new is not None for new in bindings):
            blocks = [
                block if new is None else relax.DataflowBlock(tidy_bindings(new))
                for block, new in zip(old, bindings, strict=True)
            ]
            changed[gvar] = with_blocks(function, blocks)
    if not changed:
        return None
    mod = copy_module(builder.get())  # a builder that has added functions hashes its updates
    for gvar, function in changed.items():
        mod[gvar] = function
    return mod


def block_pass(name: str, rewrite: RewriteGraph) -> ir.transform.Pass:
    """A module pass that rewrites dataflow blocks and drops unused bindings.

    If no block changes, the pass returns the module itself: the search for unused bindings takes
    longer than most passes do.

    Parameters
    ----------
    name : str
        Name of the pass.
    rewrite : callable
        Graph of a block -> its new bindings, as for `rewrite_blocks`.
    """

    @module_pass(opt_level=0, name=name)
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        written = _written(relax.BlockBuilder(mod), lambda block: rewrite(DataflowGraph(block)))
        return mod if written is None else tidied(written)

    return run


def rewrite_region_calls(
    mod: IRModule, builder: relax.BlockBuilder, rewrite: RewriteCall
) -> IRModule:
    """A builder's module with every call of a region function replaced.

    Parameters
    ----------
    mod : IRModule
        Holds the region functions.
    builder : BlockBuilder
        Builder of a module with the ordinary functions of `mod`.
    rewrite : callable
        (binding of the call, region function) -> the expression to bind instead.
    """

    def changed(binding: relax.VarBinding) -> relax.Expr | None:
        callee = called_region(mod, binding.value)
        return None if callee is None else rewrite(binding, callee)

    for gvar, function in mod.functions_items():
        if is_ordinary(function):
            builder.update_func(gvar, with_values(function, changed))
    return builder.get()


def is_ordinary(function: object) -> TypeGuard[relax.Function]:
    """Whether a function is written in Relax and is no region function."""
    return isinstance(function, relax.Function) and not is_region_function(function)


def spliced(
    graph: DataflowGraph, replaced: Mapping[int, list[relax.Binding]], dropped: Collection[int] = ()
) -> list[relax.Binding]:
    """The bindings of a block with some positions replaced and others dropped."""
    found: list[relax.Binding] = []
    for position, binding in enumerate(graph.bindings):
        found += replaced.get(position, [] if position in dropped else [binding])
    return found


def with_names(function: relax.Function, names: Mapping[relax.Var, str]) -> relax.Function:
    """The function with new variables, under new names, for some variables that it binds."""
    if not names:
        return function
    bound = {var: type(var)(name, var.ty) for var, name in names.items()}
    items: dict[relax.Expr, relax.Expr] = dict(bound.items())

    def written(binding: AnyBinding) -> AnyBinding:
        var, value = bound.get(binding.var, binding.var), binding.value
        if any(each in items for each in variables(value)):
            value = renamed(value, items)
        elif var is binding.var:
            return binding
        return rebound(binding, value, var)

    blocks = [
        type(block)([written(binding) for binding in block.bindings[:]])
        for block in function.body.blocks
    ]
    return with_blocks(function, blocks, substitute(function.body.body, items))


# Moves functions out of a module, so that weights that a pass replaces can be freed.
#
# A module that is referenced keeps all its weights, and a pass's caller holds the module while the
# pass runs. If the module is empty, each weight can be freed as soon as the pass has replaced it:
# memory never holds the old and the new version of all weights.


Functions = dict[ir.GlobalVar, relax.Function]
_Change = Callable[[list[relax.BindingBlock]], relax.BindingBlock]


def copy_module(mod: IRModule) -> IRModule:
    """A module with the functions of another one."""
    return IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)


def move_functions(mod: IRModule) -> IRModule:
    """A copy of a module; the module itself loses all its functions."""
    moved = copy_module(mod)
    for gvar in moved.get_global_vars():
        del mod[gvar]
    return moved


def take_callers(mod: IRModule) -> Functions:
    """Removes the ordinary Relax functions from a module and returns them."""
    forget_block()  # it refers to weights
    taken = {gvar: each for gvar, each in mod.functions_items() if is_ordinary(each)}
    for gvar in taken:
        del mod[gvar]
    return taken


def take_values(functions: Functions, gvar: ir.GlobalVar, change: ChangeValue) -> relax.Function:
    """A function with other values bound to some variables; each old binding is freed at once.

    Parameters
    ----------
    functions : dict
        Holds the function, and loses it.
    gvar : GlobalVar
        The function's variable.
    change : callable
        Binding of any block -> the value to bind instead; None to keep its value.
    """

    def changed(block: list[relax.BindingBlock]) -> relax.BindingBlock:
        kind, waiting = type(block[0]), list(block.pop().bindings[::-1])
        bindings: list[relax.Binding] = []
        while waiting:
            bindings.append(_changed(waiting.pop(), change))
        return kind(bindings)

    return _with_blocks(functions, gvar, changed)


def take_blocks(functions: Functions, gvar: ir.GlobalVar, rewrite: RewriteGraph) -> relax.Function:
    """A function with its dataflow blocks rewritten.

    Parameters
    ----------
    functions, gvar
        As in `take_values`.
    rewrite : callable
        Graph of a block, the only owner of its bindings -> the new ones; None to keep them.
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
    """A function with changed blocks; `change` pops each block from a list, its only owner."""
    function = functions.pop(gvar)
    params, result, attrs = function.params, function.body.body, function.attrs
    ty, is_pure, body_ty = function.ret_ty, function.is_pure, function.body.ty
    blocks = [[block] for block in function.body.blocks]
    del function
    body = relax.SeqExpr([change(block) for block in blocks], result)
    set_type(body, body_ty)
    return relax.Function(params, body, ty, is_pure, attrs)
