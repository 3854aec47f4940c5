"""Functions of a module: region functions, and kernels' attributes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeGuard

from tvm import IRModule, ir, relax, tirx

from microkernels.base.tvm_compat.relax import attrs_with, dataflow_function, set_type
from tir_schedules.core.region import Region

from .graph import AnyBinding, nodes_in, region_tensor

# A region function is a private function of a module: one region, and its meaning in Relax.
#
# @R.function(private=True)
# def fused_matmul(x, w, b):
#     R.func_attr({"Composite": "tvm_hybrid.matmul", "tvm_hybrid.region": "{...}"})
#     ...the operators...


COMPOSITE = "Composite"
REGION = "tvm_hybrid.region"  # the Region as JSON; kernels keep it until they are merged
REASON = "tvm_hybrid.reason"  # why a region was formed or changed, for `explain`
# Attributes of kernels.
KERNEL = "tvm_hybrid.kernel"
# The kernel reads unaligned parameters as fast as aligned ones.
UNALIGNED = "tvm_hybrid.unaligned"
# Pairs of an argument and a result that may share memory; the memory may have room for more rows.
IN_PLACE = "tvm_hybrid.in_place"
VIEW = "tvm_hybrid.view"
"""Attribute of a kernel that only reshapes its input."""
# The kernel also takes bfloat16 tensors as their bits.
TAKES_BITS = "tvm_hybrid.takes_bits"
PREFIX = "tvm_hybrid."
NO_ATTRS: Mapping[str, Any] = {}
Options = ParamSpec("Options")


def is_region_function(function: object) -> TypeGuard[relax.Function]:
    """Whether a function of a module was made by `region_function`."""
    return (
        isinstance(function, relax.Function) and bool(function.attrs) and REGION in function.attrs
    )


def is_foreign_kernel(function: object) -> TypeGuard[tirx.PrimFunc]:
    """Whether a function is a kernel that no template of ours made."""
    return isinstance(function, tirx.PrimFunc) and KERNEL not in (function.attrs or {})


def called_region(mod: IRModule, value: relax.Expr) -> relax.Function | None:
    """The region function that a value calls; None if it calls none."""
    called = isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar)
    callee = mod[value.op] if called else None
    return callee if is_region_function(callee) else None


def region_of(function: relax.Function | tirx.PrimFunc) -> Region:
    """The region of a region function, or of a kernel that was built for one."""
    return _region_from(str(function.attrs[REGION]))


_region_from = functools.lru_cache(1 << 12)(Region.from_json)  # every pass reads all regions


def region_counts(mod: IRModule) -> list[tuple[Region, int]]:
    """The distinct regions of a partitioned module, in order of their functions' names, with how
    often the module calls each."""
    calls, regions = Counter[str](), dict[str, Region]()
    for _, function in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
        if is_region_function(function):
            region = region_of(function)
            regions.setdefault(region.key, region)
        elif isinstance(function, relax.Function):
            callees = (called_region(mod, expr) for expr in nodes_in(function))
            calls.update(region_of(each).key for each in callees if each is not None)
    return [(region, calls[key]) for key, region in regions.items()]


def region_function(
    region: Region,
    parameters: Sequence[relax.Var],
    emit: Callable[[relax.BlockBuilder], relax.Expr],
    attrs: Mapping[str, Any] = NO_ATTRS,
) -> relax.Function:
    """A region as a function.

    Parameters
    ----------
    region : Region
        The region; stored as an attribute.
    parameters : sequence of relax.Var
        The region's inputs, then its operands.
    emit : callable
        Emits what the region computes from the parameters; returns the result.
    attrs : mapping
        Further attributes.
    """
    named = {**attrs, COMPOSITE: PREFIX + region.op, REGION: region.to_json()}
    return dataflow_function(parameters, emit, named)


def emit_body(
    builder: relax.BlockBuilder, function: relax.Function, values: dict[relax.Expr, relax.Expr]
) -> relax.Expr:
    """Emits the body of a region function into a dataflow block.

    Parameters
    ----------
    builder : BlockBuilder
        In a dataflow block.
    function : Function
        The region function; it is not changed.
    values : dict
        Values of its parameters; receives the values of its variables.

    Returns
    -------
    Expr
        The result.
    """
    for block in function.body.blocks:
        for binding in block.bindings:
            expr = substitute(binding.value, values)
            values[binding.var] = expr if isinstance(expr, relax.Var) else builder.emit(expr)
    return values[function.body.body]


def emit_as_used(builder: relax.BlockBuilder, expr: relax.Expr, parameter: relax.Var) -> relax.Expr:
    """A parameter in the shape of its argument, which the operators inside use."""
    actual, seen = region_tensor(expr), region_tensor(parameter)
    if actual is None or seen is None or actual.shape == seen.shape:
        return parameter
    return builder.emit(relax.op.reshape(parameter, expr.ty.shape))


def substitute(expr: relax.Expr, values: Mapping[relax.Expr, relax.Expr]) -> relax.Expr:
    """An expression in normal form with its variables and constants replaced."""
    if expr in values:
        return values[expr]
    if isinstance(expr, relax.Call):
        arguments = [substitute(argument, values) for argument in expr.args]
        return with_args(expr, arguments)
    if isinstance(expr, relax.Tuple):
        own = expr.fields[:]
        fields = [substitute(item, values) for item in own]
        return expr if fields == own else relax.Tuple(fields)
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, values), expr.index)
    return expr


def renamed(expr: relax.Expr, items: Mapping[relax.Expr, relax.Expr]) -> relax.Expr:
    """An expression with some values replaced, in branches too; an expression without such values
    stays one object."""
    if isinstance(expr, relax.SeqExpr):
        blocks = [
            type(block)([rebound(each, renamed(each.value, items)) for each in block.bindings])
            for block in expr.blocks
        ]
        return relax.SeqExpr(blocks, renamed(expr.body, items))
    if isinstance(expr, relax.If):
        return relax.If(
            expr.cond, renamed(expr.true_branch, items), renamed(expr.false_branch, items)
        )
    if isinstance(expr, relax.Call):
        own, before = expr.args[:], expr.op
        op = items.get(before, before)
        arguments = [substitute(argument, items) for argument in own]
        if op is before and arguments == own:
            return expr
        return relax.Call(op, arguments, expr.attrs, expr.ty_args, ret_ty=expr.ty)
    return substitute(expr, items)


def rebound(binding: AnyBinding, value: relax.Expr, var: relax.Var | None = None) -> AnyBinding:
    """A binding with another value, and another variable if given; a cast stays a cast."""
    if var is None and value.same_as(binding.value):
        return binding
    var = binding.var if var is None else var
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(var, value, binding.ty)
    return relax.VarBinding(var, value)


def with_body(function: relax.Function, body: relax.SeqExpr) -> relax.Function:
    """A function with another body."""
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def with_blocks(
    function: relax.Function, blocks: Iterable[relax.BindingBlock], result: relax.Expr | None = None
) -> relax.Function:
    """A function with other blocks, and its old result or one of the old result's type."""
    body = relax.SeqExpr(list(blocks), function.body.body if result is None else result)
    set_type(body, function.body.ty)
    return with_body(function, body)


def with_renamed(
    function: relax.Function, items: Mapping[relax.Expr, relax.Expr]
) -> relax.Function:
    """A function with some values and functions replaced, in branches too."""
    body = renamed(function.body, items)
    assert isinstance(body, relax.SeqExpr)
    return with_blocks(function, body.blocks, body.body)


def with_args(
    call: relax.Call, args: Sequence[relax.Expr], ty: ir.Type | None = None, /, **changed: Any
) -> relax.Call:
    """A call of the operator with other operands.

    Parameters
    ----------
    call : relax.Call
        A call of an operator.
    args : sequence of relax.Expr
        All operands.
    ty : Type, optional
        The result's type if known; TVM takes long to infer it for convolutions.
    **changed
        Attributes that differ from those of `call`.
    """
    attrs = attrs_with(call.attrs, **changed) if changed else call.attrs
    return relax.Call(call.op, list(args), attrs, call.ty_args, ret_ty=ty)


def named_pass(
    rewrite: Callable[Concatenate[IRModule, Options], IRModule],
) -> Callable[Options, ir.transform.Pass]:
    """Makes a pass from a function; called with the options, it gives a pass of its name."""

    @functools.wraps(rewrite)
    def made(*args: Options.args, **kwargs: Options.kwargs) -> ir.transform.Pass:
        @ir.transform.module_pass(opt_level=0, name=f"tvm_hybrid.{rewrite.__name__}")
        def run(mod: IRModule, _context: ir.transform.PassContext) -> IRModule:
            return rewrite(mod, *args, **kwargs)

        return run

    return made
