"""Blocks and functions: checks first, common values once, branches with products outlined."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

from tvm import IRModule, ir, relax, tirx
from tvm.relax.analysis import tir_vars_in_type
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.utils import copy_with_new_vars
from tvm_ffi import structural_equal

from relay_passes.ir.constants import bytes_of
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
    op_name,
    region_tensor,
    variables,
)
from relay_passes.ir.rewrite import Bindings, is_relax, map_functions
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.tidy import is_tidy
from relay_passes.ir.traits import CONVOLUTIONS

_PRODUCTS = ("relax.matmul", *CONVOLUTIONS)


@named_pass
def outline_branches(mod: IRModule) -> IRModule:
    """Outlines branches with products: passes rewrite functions, not branches.

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

    A branch with sizes that its values do not define stays, and so does one with side effects.

    It must run before dataflow blocks are formed.
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
    """Adds a function for each branch with a product, inner branches first."""

    def visit_if_(self, op: relax.If) -> relax.Expr:
        """The choice, with outlined branches."""
        inner = super().visit_if_(op)
        if not isinstance(inner, relax.If):
            return inner
        branches = map(self._outlined, (inner.true_branch, inner.false_branch))
        return relax.If(inner.cond, *branches)

    def _outlined(self, branch: relax.Expr) -> relax.Expr:
        """A call of a new function for the branch; the branch itself if it must stay."""
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
    """Moves match casts out of dataflow blocks, so that no other pass touches them.

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
    renamed it would lose both. A cast that always holds is dropped.

    It needs A-normal form.
    """

    if is_tidy(mod):  # it has no match casts
        return mod

    def apart(function: relax.Function) -> relax.Function:
        return with_blocks(function, itertools.chain(*map(_segments, function.body.blocks)))

    return relax.transform.CanonicalizeBindings()(map_functions(mod, is_relax, apart))


def _segments(block: relax.BindingBlock) -> list[relax.BindingBlock]:
    """The block cut at its match casts, if it is a dataflow block."""
    bindings: list[AnyBinding] = list(block.bindings)
    for number, cast in enumerate(bindings):  # a cast that always holds only renames its value
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


_KEPT = ("global_symbol", COMPOSITE, "Codegen", "Primitive")  # called from outside, or one kernel


@named_pass
def inline_functions(mod: IRModule) -> IRModule:
    """Inlines private functions that take weights, so that these are constants where they are used.

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

    A weight is a float constant with two or more axes. Other functions stay, and so do recursive
    ones, such as loops.
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
    """The functions that some caller passes a weight."""
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
_ALLOCATING = ("relax.builtin.", "relax.memory.", "relax.vm.")


@rule()
def common_values(graph: RuleGraph, block: Bindings, value: relax.Expr) -> relax.Expr | None:
    """Common values: equal expressions are computed once, and equal weights are stored once.

    Before

        lv = R.exp(x)
        lv1 = R.exp(x)

    After

        lv = R.exp(x)
    """
    if isinstance(value, (relax.Var, ir.GenericConst)) or op_name(value).startswith(_ALLOCATING):
        return None
    first = graph.first(block.var, value)
    if not first.same_as(block.var):
        return first
    constants = [arg for arg in getattr(value, "args", ()) if isinstance(arg, ir.GenericConst)]
    weights = [arg for arg in constants if bytes_of(arg.value) >= LARGE_BYTES]
    firsts: dict[relax.Expr, relax.Expr] = {arg: graph.first(arg, arg) for arg in weights}
    changed = any(not one.same_as(arg) for arg, one in firsts.items())
    return renamed(value, firsts) if changed else None


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

    A check ends a dataflow block, and regions stay within one block. The checked size may also be
    an expression of sizes of the inputs. Checks of sizes that depend on data stay in place.

    It must run before dataflow blocks are formed.
    """

    def rewritten(function: relax.Function) -> relax.Function:
        known = {var for param in function.params for var in tir_vars_in_type(param.ty)}
        return with_blocks(function, [_reordered(block, known) for block in function.body.blocks])

    return map_functions(mod, is_relax, rewritten)


def _reordered(block: relax.BindingBlock, known: set[tirx.Var]) -> relax.BindingBlock:
    """The block with checks of known sizes first, together with the shapes that they read."""
    shapes: dict[relax.Expr, AnyBinding] = {}
    first: list[AnyBinding] = []
    for binding in block.bindings:
        value = binding.value
        if isinstance(value, relax.ShapeExpr) and known.issuperset(tir_vars_in_type(value.ty)):
            shapes[binding.var] = binding
        elif isinstance(binding, relax.MatchCast) and value in shapes:
            # A cast with other variables defines them, so it stays in place.
            fixed = known.issuperset(tir_vars_in_type(binding.ty))
            first += [each for each in (shapes[value], binding) if fixed and each not in first]
    kept = [binding for binding in block.bindings if binding not in first]
    return type(block)(first + kept) if first else block
