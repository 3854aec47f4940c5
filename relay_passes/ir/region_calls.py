"""Rewriting the calls to region functions, wherever they stand in a module."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, relax

from relay_passes.regions.partition import is_region_function

RewriteCall = Callable[[relax.VarBinding, relax.Function], relax.Expr]


def rewrite_region_calls(
    mod: IRModule, rewrite: RewriteCall
) -> dict[relax.GlobalVar, relax.Function]:
    """The module's ordinary Relax functions with every call to a region replaced.

    Parameters
    ----------
    mod : IRModule
        Holds the region functions.
    rewrite : callable
        (binding of the call, region function) -> the expression to bind instead.

    Returns
    -------
    dict
        The rewritten functions by their global variable; region functions are not among them.
    """
    return {
        gvar: _rewrite_function(mod, function, rewrite)
        for gvar, function in mod.functions_items()
        if isinstance(function, relax.Function) and not is_region_function(function)
    }


def _rewrite_function(
    mod: IRModule, function: relax.Function, rewrite: RewriteCall
) -> relax.Function:
    blocks = []
    for block in function.body.blocks:
        bindings = [_rewrite_binding(mod, binding, rewrite) for binding in block.bindings]
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _rewrite_binding(mod: IRModule, binding: relax.Binding, rewrite: RewriteCall) -> relax.Binding:
    call = binding.value if isinstance(binding, relax.VarBinding) else None
    if isinstance(call, relax.Call) and isinstance(call.op, relax.GlobalVar):
        callee = mod[call.op]
        if is_region_function(callee):
            return relax.VarBinding(binding.var, rewrite(binding, callee))
    return binding


def emit_body(
    builder: relax.BlockBuilder, function: relax.Function, values: dict[relax.Expr, relax.Expr]
) -> relax.Expr:
    """Emits the body of a region function into a dataflow block.

    Parameters
    ----------
    builder : BlockBuilder
        Within a dataflow block.
    function : Function
        The region function; it stays as it is.
    values : dict
        What stands for its parameters; receives what stands for its variables.

    Returns
    -------
    Expr
        The result.
    """
    for block in function.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call):
                mapped = [values.get(arg, arg) for arg in call.args]
                call = relax.Call(call.op, mapped, call.attrs, call.ty_args)
            else:
                call = values.get(call, call)
            values[binding.var] = builder.emit(call)
    return values[function.body.body]
