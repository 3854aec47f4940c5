"""Blocks and functions: checks first, equal values once, branches with products as functions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

from tvm import IRModule, ir, relax, tirx
from tvm.relax.analysis import tir_vars_in_type
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.utils import copy_with_new_vars
from tvm_ffi import structural_equal

from microkernels.base.tvm_compat.relax import set_type
from relay_passes.ir.constants import array_of, bytes_of, constants_in, memory_of
from relay_passes.ir.functions import (
    COMPOSITE,
    named_pass,
    rebound,
    renamed,
    substitute,
    with_blocks,
)
from relay_passes.ir.graph import (
    AnyBinding,
    bindings_of,
    is_call,
    nodes_in,
    region_tensor,
    variables,
)
from relay_passes.ir.rewrite import is_relax, map_functions
from relay_passes.ir.tidy import is_tidy
from relay_passes.ir.traits import CONVOLUTIONS

_PRODUCTS = ("relax.matmul", *CONVOLUTIONS)


@named_pass
def outline_branches(mod: IRModule) -> IRModule:
    """Makes functions of branches with products in them: passes look into functions, not into
    branches.

    Before

        if c:
            lv = R.matmul(x, const_w)
            y = R.nn.relu(lv)
        else:
            y = R.exp(x)

    After

        if c:
            y = branch(x)
        else:
            y = R.exp(x)

        @R.function(private=True)
        def branch(x):
            lv = R.matmul(x, const_w)
            return R.nn.relu(lv)

    A branch of sizes that its values do not tell stays, and so does one with side effects.

    It comes before dataflow blocks are formed.
    """

    outliner = _Outliner(mod)
    for gvar, function in mod.functions_items():
        if is_relax(function) and any(
            isinstance(each.value, relax.If) and _has_product(each.value)
            for each in bindings_of(function)
        ):
            outliner.builder_.update_func(gvar, outliner.visit_expr(function))
    return outliner.builder_.get()


@mutator
class _Outliner(PyExprMutator):
    """Adds a function for each branch with a product, the inner ones first."""

    def visit_if_(self, op: relax.If) -> relax.Expr:
        """The choice between two calls."""
        inner = super().visit_if_(op)
        if not isinstance(inner, relax.If):
            return inner
        branches = map(self._outlined, (inner.true_branch, inner.false_branch))
        return relax.If(inner.cond, *branches)

    def _outlined(self, branch: relax.Expr) -> relax.Expr:
        """A call of a new function; the branch if it is to stay."""
        if not _has_product(branch) or relax.analysis.contains_impure_call(branch):
            return branch
        values = list(relax.analysis.free_vars(branch))
        function = relax.Function(values, branch, branch.ty)
        if relax.analysis.free_symbolic_vars(function):
            return branch
        name = self.builder_.add_func(copy_with_new_vars(function), "branch")
        result = relax.Var("result", branch.ty)
        call = relax.Call(name, values, ret_ty=branch.ty)
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, call)])], result)


def _has_product(expr: relax.Expr) -> bool:
    return any(is_call(each, *_PRODUCTS) for each in nodes_in(expr))


@named_pass
def isolate_casts(mod: IRModule) -> IRModule:
    """Moves match casts out of dataflow blocks, where no other pass touches them.

    Before

        with R.dataflow():
            lv = R.nonzero(x)
            lv1 = R.match_cast(lv, R.Tensor((2, n), dtype="int64"))
            gv = R.add(lv1, lv1)
            R.output(gv)

    After

        with R.dataflow():
            lv = R.nonzero(x)
            R.output(lv)
        lv1 = R.match_cast(lv, R.Tensor((2, n), dtype="int64"))
        with R.dataflow():
            gv = R.add(lv1, lv1)
            R.output(gv)

    A match cast checks a shape at run time and defines the variables in it. A pass that moved or
    renamed it would lose both. A cast that is known to hold is dropped.

    It needs A-normal form.
    """

    if is_tidy(mod):  # without match casts
        return mod

    def apart(function: relax.Function) -> relax.Function:
        return with_blocks(function, itertools.chain(*map(_segments, function.body.blocks)))

    return relax.transform.CanonicalizeBindings()(map_functions(mod, is_relax, apart))


def _segments(block: relax.BindingBlock) -> list[relax.BindingBlock]:
    """The block cut at its match casts if it is a dataflow block."""
    bindings: list[AnyBinding] = list(block.bindings)
    for number, cast in enumerate(bindings):  # one that is known to hold is a name of its value
        if isinstance(cast, relax.MatchCast) and structural_equal(cast.value.ty, cast.ty):
            bindings[number] = relax.VarBinding(cast.var, cast.value)
    casts = any(isinstance(binding, relax.MatchCast) for binding in bindings)
    if not casts or not isinstance(block, relax.DataflowBlock):
        return [block]
    segments = [
        (is_cast, list(part))
        for is_cast, part in itertools.groupby(bindings, lambda b: isinstance(b, relax.MatchCast))
    ]
    home = {b.var: number for number, (_, part) in enumerate(segments) for b in part}
    crossing: dict[relax.Expr, relax.Var] = {
        var: relax.Var(str(var.name), var.ty)
        for number, (is_cast, part) in enumerate(segments)
        for binding in part
        for var in (*variables(binding.value), *([binding.var] if is_cast else []))
        if isinstance(var, relax.DataflowVar) and (is_cast or home[var] != number)
    }
    return [
        (relax.BindingBlock if is_cast else relax.DataflowBlock)(
            [_renamed(binding, crossing) for binding in part]
        )
        for is_cast, part in segments
    ]


def _renamed(binding: AnyBinding, names: Mapping[relax.Expr, relax.Var]) -> relax.Binding:
    value = binding.value
    changed = substitute(value, names)
    if not changed.same_as(value) and not isinstance(changed, relax.Var):
        changed = relax.BlockBuilder().normalize(changed)
    return rebound(binding, changed, names.get(binding.var))


_KEPT = ("global_symbol", COMPOSITE, "Codegen", "Primitive")  # called by others, or one kernel


@named_pass
def inline_functions(mod: IRModule) -> IRModule:
    """Inlines private functions that are given weights: these are constants then, where they are
    used.

    Before

        @R.function(private=True)
        def layer(x, w):
            return R.matmul(x, w)

        def main(x):
            lv = layer(x, const_w)
            gv = layer(lv, const_v)

    After

        def main(x):
            lv = R.matmul(x, const_w)
            gv = R.matmul(lv, const_v)

    A weight is a constant of floats with two or more axes. Other functions stay, and so do those
    that call themselves, as loops do.
    """

    changed = False
    while found := _to_inline(mod):
        inlined = functools.partial(relax.Function.inline_functions, function_map=found)
        mod, changed = map_functions(mod, is_relax, inlined), True
    if not changed:
        return mod
    tidied = relax.transform.CanonicalizeBindings()(mod)
    return relax.transform.DeadCodeElimination()(tidied)


def _to_inline(mod: IRModule) -> dict[ir.GlobalVar, relax.Function]:
    """The functions that some caller gives a weight."""
    if len(mod.functions) == 1:
        return {}
    recursive = {gvar for group in relax.analysis.detect_recursion(mod) for gvar in group}
    return {
        call.op: mod[call.op]
        for function in mod.functions.values()
        for call in (nodes_in(function) if is_relax(function) else ())
        if isinstance(call, relax.Call) and isinstance(call.op, ir.GlobalVar)
        if any(map(_is_weight, call.args)) and call.op not in recursive
        if is_relax(mod[call.op]) and not any(name in (mod[call.op].attrs or ()) for name in _KEPT)
    }


def _is_weight(expr: relax.Expr) -> bool:
    tensor = region_tensor(expr) if isinstance(expr, ir.GenericConst) else None
    return tensor is not None and len(tensor.shape) >= 2 and "float" in tensor.dtype


LARGE_BYTES = 1 << 18
_HEAD = 1 << 10


@named_pass
def common_values(mod: IRModule) -> IRModule:
    """Common values: what is computed twice is computed once, by TVM's EliminateCommonSubexpr.

    Before

        lv = R.exp(x)
        lv1 = R.exp(x)

    After

        lv = R.exp(x)

    TVM's pass reads all constants to tell expressions apart: half a second for 400 MiB. Here it
    sees variables in the place of large ones, the same for equal ones.
    """
    taken: dict[relax.Expr, relax.Expr] = {}

    def without(function: relax.Function) -> relax.Function:
        large = [each for each in constants_in(function) if bytes_of(each.value) >= LARGE_BYTES]
        variables = _variables(large)
        taken.update({variable: constant for constant, variable in variables.items()})
        return _with(function, [*function.params, *dict.fromkeys(variables.values())], variables)

    def whole(function: relax.Function) -> relax.Function:
        return _with(function, [each for each in function.params if each not in taken], taken)

    eliminate = relax.transform.EliminateCommonSubexpr()
    return map_functions(eliminate(map_functions(mod, is_relax, without)), is_relax, whole)


_Values = Mapping[relax.Expr, relax.Expr]


def _with(function: relax.Function, params: list[relax.Var], values: _Values) -> relax.Function:
    if len(params) == len(function.params):
        return function
    body = renamed(function.body, values)
    set_type(body, function.body.ty)
    return relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)


def _variables(constants: list[ir.GenericConst]) -> dict[relax.Expr, relax.Var]:
    """A variable for each constant, the same for equal ones."""
    found: dict[relax.Expr, relax.Var] = {}
    alike: dict[tuple[str, bytes], list[ir.GenericConst]] = {}
    for constant in constants:
        array = array_of(constant.value).reshape(-1)
        others = alike.setdefault((str(constant.ty), array[:_HEAD].tobytes()), [])
        bits = memory_of(constant.value)
        known = next((each for each in others if memory_of(each.value) == bits), None)
        if known is None:
            others.append(constant)
            found[constant] = relax.Var("weight", constant.ty)
        else:
            found[constant] = found[known]
    return found


@named_pass
def checks_first(mod: IRModule) -> IRModule:
    """Checks first: moves checks of sizes to the beginning of their block.

    Before

        lv = R.nn.relu(x)                                   # x: [n, 4]
        lv1: R.Shape([1]) = R.match_cast(R.shape([T.Select(n <= 512, 1, 0)]), R.Shape([1]))
        lv2 = R.exp(lv)

    After

        lv1: R.Shape([1]) = R.match_cast(R.shape([T.Select(n <= 512, 1, 0)]), R.Shape([1]))
        lv = R.nn.relu(x)
        lv2 = R.exp(lv)

    A check ends a dataflow block, and regions stay within one. The size that is wanted may also be
    an expression of those of the inputs. Checks of sizes that data decide stay where they are.

    It comes before dataflow blocks are formed.
    """

    def rewritten(function: relax.Function) -> relax.Function:
        known = {var for param in function.params for var in tir_vars_in_type(param.ty)}
        return with_blocks(function, [_reordered(block, known) for block in function.body.blocks])

    return map_functions(mod, is_relax, rewritten)


def _reordered(block: relax.BindingBlock, known: set[tirx.Var]) -> relax.BindingBlock:
    """A block whose checks of known sizes come first, with the shapes that they read."""
    shapes: dict[relax.Expr, AnyBinding] = {}
    first: list[AnyBinding] = []
    for binding in block.bindings:
        value = binding.value
        if isinstance(value, relax.ShapeExpr) and known.issuperset(tir_vars_in_type(value.ty)):
            shapes[binding.var] = binding
        elif isinstance(binding, relax.MatchCast) and value in shapes:
            told = known.issuperset(tir_vars_in_type(binding.ty))  # else it tells a variable
            first += [each for each in (shapes[value], binding) if told and each not in first]
    kept = [binding for binding in block.bindings if binding not in first]
    return type(block)(first + kept) if first else block
