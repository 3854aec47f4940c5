"""TVM's fusion of what no template takes, and the generic schedules of the fused functions."""

from __future__ import annotations

from typing import Any, TypeVar

from tvm import IRModule, ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.relax import FUSED, OP_PATTERN, OPAQUE, set_type
from relay_passes.ir.entries import MAIN
from relay_passes.ir.functions import named_pass
from relay_passes.ir.graph import bindings_of, op_name, variables
from relay_passes.ir.rewrite import copy_module, is_relax, with_names
from tir_schedules.generic.expressions import const_int, substitute, variables_of


@named_pass
def scalars_in_shapes(mod: IRModule) -> IRModule:
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

    TVM's FuseTIR makes a parameter of every size that a function with such a shape reads, of
    `past`, too, and fails where there is one already. Functions without such a shape stay.

    The pass; it comes between TVM's FuseOps and FuseTIR.
    """
    moves: dict[ir.GlobalVar, _Move] = {}
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
    for name, function in mod.functions_items():
        if is_relax(function) and FUSED in (function.attrs or {}) and function.params:
            *others, last = function.params
            if isinstance(last.ty, relax.ShapeType) and any(map(_is_number, others)):
                moves[name] = _Move(name, function)
                functions[moves[name].name] = moves[name].function
                continue
        functions[name] = function
    if not moves:
        return mod
    made = {move.name for move in moves.values()}
    for name, function in functions.items():
        if is_relax(function) and name not in made:
            functions[name] = _Calls(moves).visit_expr(function)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


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


_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod),
    *(tirx.Min, tirx.Max, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or),
)


@named_pass
def unmatched_sizes(mod: IRModule) -> IRModule:
    """Keeps kernels out of fusion whose sizes are written otherwise than those of their calls.

    Before

        def slice(x: T.Buffer((n,)), m: T.int64, y: T.Buffer((T.max(m - 1, 0) * 5,))):
            T.func_attr({"op_pattern": 2})
        lv = R.call_tir(slice, (x, m), out_ty=R.Tensor((n * 600,), "float32"))    # m is n * 120 + 1

    After

        def slice(x: T.Buffer((n,)), m: T.int64, y: T.Buffer((T.max(m - 1, 0) * 5,))):
            T.func_attr({"op_pattern": 8})
        lv = R.call_tir(slice, (x, m), out_ty=R.Tensor((n * 600,), "float32"))

    A size that depends on data may have two names: m here, and n * 120 + 1, which TVM has found to
    be equal. TVM's FuseTIR compares a kernel's sizes with those of its call term by term. It fails
    at two products of different factors, and where two names fall on one. A kernel that is not
    fused is called with these sizes as it is.

    The pass; it comes before TVM's FuseOps, behind AnnotateTIROpPattern.
    """
    updated = copy_module(mod)
    for function in filter(is_relax, mod.functions.values()):
        for call in (binding.value for binding in bindings_of(function)):
            if op_name(call) == "relax.call_tir" and not _matches(mod[call.args[0]], call):
                updated[call.args[0]] = mod[call.args[0]].with_attr(OP_PATTERN, OPAQUE)
    return updated


def _matches(kernel: tirx.PrimFunc, call: Any) -> bool:
    """Whether FuseTIR can tell that a kernel's sizes are those of its call."""
    made = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    given = [*call.args[1].fields, *(relax.Var("made", each) for each in made)]
    pairs: list[tuple[ir.Expr, ir.Expr]] = []
    values: dict[tirx.Var, ir.Expr] = {}
    for param, argument in zip(kernel.params, given, strict=False):
        if isinstance(argument.ty, ir.PrimType):
            values[param] = argument
        elif isinstance(getattr(argument.ty, "shape", None), relax.ShapeExpr):
            pairs += zip(param.ty.shape, argument.ty.shape.values, strict=False)
    for one, other in pairs:
        if isinstance(one, tirx.Var):
            values.setdefault(one, other)
    return all(_match(one, other) and _is(one, other, values) for one, other in pairs)


def _is(param: ir.Expr, given: ir.Expr, values: dict[tirx.Var, ir.Expr]) -> bool:
    """Whether a kernel's size is the given one, in the same names; True if a name has no value."""
    if isinstance(param, tirx.IntImm) or any(var not in values for var in variables_of(param)):
        return True
    analyzer = Analyzer()
    return const_int(analyzer.simplify(substitute(param, values) - given)) == 0


def _match(param: ir.Expr, given: ir.Expr) -> bool:
    """Whether two sizes agree term by term, as far as both are of one form."""
    if isinstance(param, tirx.IntImm):
        return isinstance(given, tirx.IntImm) and int(param) == int(given)
    if not isinstance(param, _BINARY) or type(param) is not type(given):
        return True
    return _match(param.a, given.a) and _match(param.b, given.b)


@named_pass
def fuse_operators(mod: IRModule) -> IRModule:
    """TVM's FuseOps, after which variables still have the names that they had.

    Before

        exp_n0_ = R.call_tir(exp, (x,))
        add_n1_ = R.call_tir(add, (exp_n0_, x))
        gv = R.call_tir(sum, (add_n1_,))

    After

        add_n1_ = fused_exp_add(x)          # FuseOps calls it lv
        gv = R.call_tir(sum, (add_n1_,))

    What reads a value tells the name: parameters of a fused function are called as their arguments
    were, and a call that stays by itself had the arguments before.

    The pass.
    """
    fused = relax.transform.FuseOps()(mod)
    if all(str(gvar.name_hint) != MAIN for gvar in mod.get_global_vars()):
        return fused
    before, after = (
        {binding.var: binding.value for binding in bindings_of(each[MAIN])} for each in (mod, fused)
    )
    found: dict[relax.Var, str] = {}  # the names that values had whose variables fusion made
    for var, value in after.items():
        arguments, names = list(variables(value)), []
        callee = value.op if isinstance(value, relax.Call) else None
        if isinstance(callee, ir.GlobalVar):
            arguments = list(value.args[:])
            names = [str(each.name) for each in fused[callee].params]
        elif var in before:
            names = [str(each.name) for each in variables(before[var])]
        for argument, name in zip(arguments, names, strict=False):
            made = argument in after and argument not in before
            if made and isinstance(argument, relax.DataflowVar):
                found.setdefault(argument, name)
    updated = copy_module(fused)
    updated.update_func(updated.get_global_var(MAIN), with_names(fused[MAIN], found))
    return updated
