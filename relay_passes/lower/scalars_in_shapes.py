"""Sizes that a fused function takes as numbers go into the shape that it takes for other sizes.

Before

    def fused(past: T.int64, tir_vars: R.Shape([n])):
        lv = R.call_tir(arange, (past,), out_ty=R.Tensor((n,), "int64"))
        ...
    lv1 = fused(past, R.shape([n]))

After

    def fused(tir_vars: R.Shape([n, past])):
        lv = R.call_tir(arange, (past,), out_ty=R.Tensor((n,), "int64"))
        ...
    lv1 = fused(R.shape([n, past]))

TVM's FuseTIR makes a parameter of every size that a function with such a shape reads, of `past`,
too, and fails where there is one already. Functions without such a shape stay.
"""

from __future__ import annotations

from typing import TypeVar

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from microkernels.base.tvm_compat.relax import FUSED, set_type


def scalars_in_shapes() -> ir.transform.Pass:
    """The pass; it comes between TVM's FuseOps and FuseTIR."""

    @module_pass(opt_level=0, name="tvm_hybrid.scalars_in_shapes")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        moves = {
            name: _Move(name, function)
            for name, function in mod.functions_items()
            if isinstance(function, relax.Function) and _takes_both(function)
        }
        if not moves:
            return mod
        functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
        for name, function in mod.functions_items():
            if name in moves:
                functions[moves[name].name] = moves[name].function
            elif isinstance(function, relax.Function):
                functions[name] = _Calls(moves).visit_expr(function)
            else:
                functions[name] = function
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return run


def _takes_both(function: relax.Function) -> bool:
    """Whether FuseOps made a function with numbers among its parameters and a shape behind them."""
    if not function.attrs or FUSED not in function.attrs or not function.params:
        return False
    *others, last = function.params
    return isinstance(last.ty, relax.ShapeType) and any(map(_is_number, others))


class _Move:
    """A fused function whose shape has its numbers as well.

    Attributes
    ----------
    name : GlobalVar
        Of the new function.
    function : relax.Function
        The new function.
    """

    def __init__(self, name: ir.GlobalVar, function: relax.Function) -> None:
        *others, last = function.params
        kept, numbers = _apart(others)
        shape = relax.Var(last.name, relax.ShapeType([*last.ty.values, *numbers]))
        body, attrs, is_pure = function.body, function.attrs, function.is_pure
        self.function = relax.Function([*kept, shape], body, function.ret_ty, is_pure, attrs)
        self.name = ir.GlobalVar(name.name_hint)
        set_type(self.name, self.function.ty)

    def call(self, call: relax.Call) -> relax.Call:
        """The same call, of the new function."""
        *others, last = call.args
        kept, numbers = _apart(others)
        return relax.Call(self.name, [*kept, relax.ShapeExpr([*last.values, *numbers])], call.attrs)


Item = TypeVar("Item", bound=relax.Expr)  # a parameter or an argument


def _apart(items: list[Item]) -> tuple[list[Item], list[Item]]:
    """Tensors, and numbers."""
    numbers = [each for each in items if _is_number(each)]
    return [each for each in items if not _is_number(each)], numbers


def _is_number(item: relax.Expr) -> bool:
    return isinstance(item.ty, ir.PrimType)


@mutator
class _Calls(PyExprMutator):
    """Passes numbers in shapes to the functions that take them so."""

    def __init__(self, moves: dict[ir.GlobalVar, _Move]) -> None:
        super().__init__()
        self._moves = moves

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = super().visit_call_(op)
        if not isinstance(call, relax.Call) or not isinstance(call.op, ir.GlobalVar):
            return call
        move = self._moves.get(call.op)
        return call if move is None else move.call(call)
