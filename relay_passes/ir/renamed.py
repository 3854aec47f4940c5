"""Expressions with variables in the place of constants, or the other way round."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from .functions import substitute
from .graph import AnyBinding


def renamed(expr: relax.Expr, items: Mapping[relax.Expr, relax.Expr]) -> relax.Expr:
    """An expression with other values in the place of some, in branches too."""
    if isinstance(expr, relax.SeqExpr):
        blocks = [
            type(block)([_bound(binding, items) for binding in block.bindings])
            for block in expr.blocks
        ]
        return relax.SeqExpr(blocks, renamed(expr.body, items))
    if isinstance(expr, relax.If):
        return relax.If(
            expr.cond, renamed(expr.true_branch, items), renamed(expr.false_branch, items)
        )
    if isinstance(expr, relax.Call):
        arguments = [substitute(argument, items) for argument in expr.args]
        return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args, ret_ty=expr.ty)
    return substitute(expr, items)


def _bound(binding: AnyBinding, items: Mapping[relax.Expr, relax.Expr]) -> AnyBinding:
    value = renamed(binding.value, items)
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(binding.var, value, binding.ty)
    return relax.VarBinding(binding.var, value)
