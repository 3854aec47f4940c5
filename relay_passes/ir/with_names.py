"""A function with other names for some of its variables."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from .graph import AnyBinding
from .region_functions import substitute
from .renamed import renamed
from .rewrite import with_blocks
from .used_variables import variables


def with_names(function: relax.Function, names: Mapping[relax.Var, str]) -> relax.Function:
    """The function with new variables, of these names, in the place of some that it binds."""
    if not names:
        return function
    bound = {var: type(var)(name, var.ty) for var, name in names.items()}
    items: dict[relax.Expr, relax.Expr] = dict(bound.items())
    blocks = [
        type(block)([_written(binding, bound, items) for binding in block.bindings[:]])
        for block in function.body.blocks
    ]
    return with_blocks(function, blocks, substitute(function.body.body, items))


def _written(
    binding: AnyBinding,
    bound: Mapping[relax.Var, relax.Var],
    items: Mapping[relax.Expr, relax.Expr],
) -> AnyBinding:
    var, value = bound.get(binding.var, binding.var), binding.value
    if any(each in items for each in variables(value)):
        value = renamed(value, items)
    elif var is binding.var:
        return binding
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(var, value, binding.ty)
    return relax.VarBinding(var, value)
