"""Activations in the form that epilogues compute: recognised, merged, or decomposed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from tvm import relax

from relay_passes.ir.algebra import (
    ONE,
    Polynomial,
    close,
    expand,
    in_shape,
    linear,
    monomial,
    number_factor,
    uniform_constant,
)
from relay_passes.ir.graph import (
    DataflowGraph,
    downstream,
    is_call,
    is_f32,
    known_tensor,
    op_name,
    same_shape,
    variables,
)
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import QUANTIZING

from .normalizations import recognize_norms

_X, _CLIP = "x", "clip"
_INSIDE = 4  # most operators between x and the clip
_OUTSIDE = 5  # most operators after the clip


@dataclass(frozen=True)
class _Clip:
    """A value clip(scale * x + shift, low, high)."""

    x: relax.Expr
    scale: float
    shift: float
    low: float
    high: float

    def times(self, factor: float) -> _Clip:
        """The value times a number."""
        low, high = sorted((self.low * factor, self.high * factor))
        return _Clip(self.x, self.scale * factor, self.shift * factor, low, high)

    def plus(self, term: float) -> _Clip:
        """The value plus a number."""
        return _Clip(self.x, self.scale, self.shift + term, self.low + term, self.high + term)

    def emit(self, block: Bindings) -> relax.Expr:
        """Emits it, as one to three operators; the last is not bound yet."""
        value = self.x
        if self.scale != 1.0:
            value = block.emit(relax.op.multiply(value, relax.const(self.scale, "float32")))
        if self.shift != 0.0:
            value = block.emit(relax.op.add(value, relax.const(self.shift, "float32")))
        return relax.op.clip(value, relax.prim_value(self.low), relax.prim_value(self.high))


@dataclass(frozen=True)
class _Activation:
    """clip, or x * clip + shift."""

    clip: _Clip
    gated: bool = False
    shift: float = 0.0

    def emit(self, block: Bindings) -> relax.Expr:
        """Emits it; only its last operator is not bound yet."""
        value = self.clip.emit(block)
        if self.gated:
            value = relax.op.multiply(self.clip.x, block.emit(value))
        if self.gated and self.shift != 0.0:
            value = relax.op.add(block.emit(value), relax.const(self.shift, "float32"))
        return value


@rule("relax.clip", "relax.minimum", "relax.maximum")
def recognize_activations(graph: RuleGraph, block: Bindings, _: relax.Expr) -> relax.Expr | None:
    """Writes hard-swish and hard-sigmoid, with their scales and shifts, in the cheapest form.

    Before

        lv = R.add(x, R.const(3.0))
        lv1 = R.clip(lv, 0, 6)
        lv2 = R.multiply(x, lv1)
        lv3 = R.divide(lv2, R.const(6.0))
        lv4 = R.multiply(R.const(a), lv3)
        gv = R.add(lv4, R.const(b))

    After

        lv = R.multiply(x, R.const(a / 6))
        lv1 = R.add(lv, R.const(a / 2))
        lv2 = R.clip(lv1, 0, a)
        lv3 = R.multiply(x, lv2)
        gv = R.add(lv3, R.const(b))

    s x clip(p x + q, low, high) + t is x clip(s p x + s q, s low, s high) + t: four instructions
    instead of eight. s clip(p x + q, low, high) + t becomes one clip, too. Factors and terms may
    have any order and grouping. A formula that begins or ends with integers stays as it is, because
    its roundings decide ties.
    """
    found: dict[relax.Var, _Activation] = {}
    for clip in _clips(graph, block.var):
        for result, form in _forms(graph, block.var, clip):
            # Only if the form changes.
            if form.clip != clip if form.gated else (clip.scale, clip.shift) != (1.0, 0.0):
                found[result] = form
    for result in reversed(downstream(graph, block.var, _OUTSIDE) if found else []):
        if result in found:
            block.at(result)
            return found[result].emit(block)
    return None


def formulas(graph: DataflowGraph) -> dict[relax.Var, list[relax.Expr]]:
    """Maps values that are a written-out activation or norm to its possible arguments."""
    found: dict[relax.Var, list[relax.Expr]] = {}
    for binding in graph.bindings:
        for clip in _clips(graph, binding.var):
            results = [binding.var, *(result for result, _ in _forms(graph, binding.var, clip))]
            for result in results:
                found.setdefault(result, []).append(clip.x)
        for each in (recognize_gelu, recognize_norms):
            block = Bindings()
            block.at(binding.var)
            call = each.tried(graph, block, binding.value)
            if isinstance(call, relax.Call):
                found.setdefault(block.var, []).append(call.args[0])
    return found


def _forms(
    graph: DataflowGraph, var: relax.Var, clip: _Clip
) -> Iterator[tuple[relax.Var, _Activation]]:
    """The variables after a clip that are activations of it, and their forms."""
    names = {clip.x: _X, var: _CLIP}
    gate, alone = monomial((_X, 1.0), (_CLIP, 1.0)), monomial((_CLIP, 1.0))
    for result in downstream(graph, var, _OUTSIDE):
        if not is_f32(result) or not same_shape(result, clip.x):
            continue
        if any(op_name(graph.value(user)) in QUANTIZING for user in graph.users_of(result)):
            continue  # it is quantised directly
        form = expand(graph, result, names.get)
        gated = gate in form
        product = gate if gated else alone
        factor, shift = form.get(product, 0.0), form.get(ONE, 0.0)
        if factor == 0.0 or not form.keys() <= {product, ONE}:
            continue
        if gated:
            yield result, _Activation(clip.times(factor), True, shift)
        else:
            yield result, _Activation(clip.times(factor).plus(shift))


def _clips(graph: DataflowGraph, var: relax.Var) -> Iterator[_Clip]:
    """A value as clip(scale * x + shift, low, high), once for every possible x."""
    if not is_f32(var):
        return
    bounds = _bounds(graph, var)
    if bounds is None:
        return
    value, low, high = bounds
    scale, shift = 1.0, 0.0
    for _ in range(_INSIDE):
        if op_name(graph.definition(value)) in QUANTIZING:
            return
        if isinstance(value, relax.Var) and same_shape(value, var):
            yield _Clip(value, scale, shift, low, high)
        call = graph.definition(value)
        operands = _with_number(call)
        if call is None or operands is None:
            return
        first = call.args[0].same_as(operands[0])
        step = linear(op_name(call).removeprefix("relax."), np.full(1, operands[1]), first)
        if step is None or not step[0].any():
            return
        value, factor, term = operands[0], *(float(each[0]) for each in step)
        scale, shift = scale * factor, shift + scale * term


def _bounds(graph: DataflowGraph, var: relax.Var) -> tuple[relax.Expr, float, float] | None:
    """(u, low, high) of a clip, or of a minimum and maximum that compute it; else None."""
    call = graph.definition(var)
    if is_call(call, "relax.clip"):
        return call.args[0], float(call.args[1].value), float(call.args[2].value)
    outer = _with_number(call)
    if outer is None or op_name(call) not in ("relax.minimum", "relax.maximum"):
        return None
    inner_call = graph.definition(outer[0])
    inner = _with_number(inner_call)
    if inner is None or {op_name(call), op_name(inner_call)} != {"relax.minimum", "relax.maximum"}:
        return None
    low, high = inner[1], outer[1]
    if op_name(call) == "relax.maximum":
        low, high = high, low
    return (inner[0], low, high) if low <= high else None


def _with_number(call: relax.Expr | None) -> tuple[relax.Expr, float] | None:
    """The operand and the number of an operator of one value and one number; else None."""
    if not isinstance(call, relax.Call) or len(call.args) != 2:
        return None
    for value, other in (call.args, reversed(call.args)):
        number = uniform_constant(other)
        if number is not None and uniform_constant(value) is None:
            return value, number
    return None


_F = "f"
_ROOT = math.sqrt(2 / math.pi)
_HALVES: Polynomial = {monomial((_X, 1.0)): 0.5, monomial((_X, 1.0), (_F, 1.0)): 0.5}

# Inner function: (its argument in x, the whole formula in x and the inner function, the operator).
_FORMS: dict[str, tuple[Polynomial, Polynomial, Callable[[relax.Expr], relax.Expr]]] = {
    "relax.erf": ({monomial((_X, 1.0)): math.sqrt(0.5)}, _HALVES, relax.op.nn.gelu),
    "relax.tanh": (
        {monomial((_X, 1.0)): _ROOT, monomial((_X, 3.0)): _ROOT * 0.044715},
        _HALVES,
        relax.op.nn.gelu_tanh,
    ),
    "relax.sigmoid": (
        {monomial((_X, 1.0)): 1.0},
        {monomial((_X, 1.0), (_F, 1.0)): 1.0},
        relax.op.nn.silu,
    ),
}
_INSIDE_gelu = 6  # most operators between x and the inner function
_OUTSIDE_gelu = 4  # most operators after the inner function


@rule(*_FORMS)
def recognize_gelu(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Recognises written-out gelu (both forms) and silu.

    Before

        lv = R.divide(x, R.const(1.4142135))
        lv1 = R.erf(lv)
        lv2 = R.add(lv1, R.const(1.0))
        lv3 = R.multiply(x, lv2)
        gv = R.multiply(lv3, R.const(0.5))

    After

        gv = R.nn.gelu(x)

    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) becomes R.nn.gelu_tanh(x), and x * sigmoid(x)
    becomes R.nn.silu(x). Factors and terms may have any order and grouping.
    """
    inside, outside, operator = _FORMS[op_name(call)]
    inner = block.var
    x = _source(graph, call.args[0], inside) if is_f32(inner) else None
    if x is None:
        return None
    names: dict[relax.Expr, Hashable] = {x: _X, inner: _F}
    for var in downstream(graph, inner, _OUTSIDE_gelu):
        if same_shape(var, x) and close(expand(graph, var, names.get), outside):
            block.at(var)
            return operator(x)
    return None


def _source(graph: DataflowGraph, argument: relax.Expr, form: Polynomial) -> relax.Var | None:
    """The x for which the argument of the inner function has a form; else None."""
    seen: list[relax.Expr] = [argument]
    level: list[relax.Expr] = [argument]
    for _ in range(_INSIDE_gelu):
        calls = [graph.definition(expr) for expr in level]
        level = [var for call in calls if call is not None for var in variables(call)]
        level = [var for var in dict.fromkeys(level) if var not in seen]
        seen += level
    for x in seen:
        names: dict[relax.Expr, Hashable] = {x: _X}
        if isinstance(x, relax.Var) and close(expand(graph, argument, names.get), form):
            return x
    return None


_EXP = "exp"


@rule("relax.add")
def recognize_elu(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Writes ELU with one choice instead of two ReLUs.

    Before

        lv = R.subtract(R.const(1.0), R.exp(x))
        lv1 = R.multiply(R.const(-a), R.nn.relu(lv))
        gv = R.add(lv1, R.nn.relu(x))

    After

        lv = R.exp(x)
        lv1 = R.less(x, R.const(0.0))
        lv2 = R.multiply(R.subtract(lv, R.const(1.0)), R.const(a))   # not multiplied if a is 1
        gv = R.where(lv1, lv2, x)

    TVM imports torch's ELU in this form; it reads x twice, and its exp(x) overflows for large x.
    """
    if not is_f32(call):
        return None
    for scaled, rectified in (call.args, reversed(call.args)):
        x = _rectified(graph, rectified)
        factor = _below(graph, scaled, x) if x is not None else None
        if x is not None and factor is not None:
            break
    else:
        return None
    exponential = block.emit(relax.op.exp(x))
    negative = block.emit(relax.op.less(x, relax.const(0.0, "float32")))
    below = block.emit(relax.op.subtract(exponential, relax.const(1.0, "float32")))
    if factor != 1.0:
        below = block.emit(relax.op.multiply(below, relax.const(factor, "float32")))
    return relax.op.where(negative, below, x)


def _rectified(graph: DataflowGraph, expr: relax.Expr) -> relax.Expr | None:
    """x, if an expression is relu(x); else None."""
    call = graph.definition(expr)
    return call.args[0] if is_call(call, "relax.nn.relu") else None


def _below(graph: DataflowGraph, expr: relax.Expr, x: relax.Expr) -> float | None:
    """a > 0, if an expression is -a * relu(1 - exp(x)); else None."""
    call = graph.definition(expr)
    found = number_factor(call) if isinstance(call, relax.Call) else None
    if found is None or found[1] >= 0:
        return None
    inner = _rectified(graph, found[0])
    if inner is None:
        return None

    def atom(each: relax.Expr) -> str | None:
        value = graph.definition(each)
        return _EXP if is_call(value, "relax.exp") and value.args[0].same_as(x) else None

    form = expand(graph, inner, atom)
    return -found[1] if form == {ONE: 1.0, monomial((_EXP, 1.0)): -1.0} else None


@rule("relax.nn.prelu")
def decompose_prelu(_graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Writes PReLU as elementwise operators, which every epilogue can compute.

    Before

        gv = R.nn.prelu(x, const_slope, axis=1)         # x: [N, C, H, W], slope: [C]

    After

        lv = R.less(x, R.const(0))
        lv1 = R.multiply(x, const_slope')               # [C, 1, 1]
        gv = R.where(lv, lv1, x)

    Both sides are computed, without a branch. (The maximum of x and slope * x would differ for
    slopes above 1, and for a slope of 0 and an infinite x.)
    """
    if not is_f32(call):
        return None
    x, slope = call.args
    rank, count = len(known_tensor(x).shape), known_tensor(slope).size
    after = rank - 1 - int(call.attrs.axis) % rank if count > 1 else 0
    slope = in_shape(block, slope, (count, *(1,) * after))
    negative = block.emit(relax.op.less(x, relax.const(0.0, "float32")))
    product = block.emit(relax.op.multiply(x, slope))
    return relax.op.where(negative, product, x)


@rule("relax.clip")
def merge_clips(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Merge: a clip of a clip becomes one clip, and a clip without limits is dropped.

    Before

        lv = R.clip(x, 0, inf)
        gv = R.clip(lv, -inf, 6)

    After

        gv = R.clip(x, 0, 6)

    torch.export writes hard-swish in this form.
    """
    limits = _limits(call)
    if limits is None:
        return None
    low, high = limits
    if (low, high) == (-math.inf, math.inf):
        return call.args[0]
    inner = graph.definition(call.args[0])
    first = _limits(inner)
    if first is None or not isinstance(inner, relax.Call):
        return None
    low, high = (min(max(each, low), high) for each in first)
    return relax.op.clip(inner.args[0], relax.prim_value(low), relax.prim_value(high))


def _limits(call: relax.Expr | None) -> tuple[float, float] | None:
    """(low, high) of a clip of floats; None for anything else."""
    if not is_call(call, "relax.clip") or "float" not in str(call.ty.dtype):
        return None
    low, high = (float(arg.value) for arg in call.args[1:])
    return (low, high) if low <= high else None
