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

s x clip(p x + q, low, high) + t is x clip(s p x + s q, s low, s high) + t: four instructions in
place of eight. Likewise s clip(p x + q, low, high) + t becomes one clip. Factors and terms may have
any order and grouping. A formula that begins or ends with integers stays as it is, because its
roundings decide ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import ir, relax

from relay_passes.ir.algebra import ONE, expand, monomial, uniform_constant
from relay_passes.ir.graph import DataflowGraph, downstream, is_call, is_f32, op_name, same_shape
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values
from relay_passes.ir.traits import QUANTIZING

_X, _CLIP = "x", "clip"
_INSIDE = 4  # operators between x and the clip, at most
_OUTSIDE = 5  # operators after the clip, at most


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
        """Writes it, in two to four operators."""
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
        """Writes it; only its last operator is not bound yet."""
        value = self.clip.emit(block)
        if self.gated:
            value = relax.op.multiply(self.clip.x, block.emit(value))
        if self.gated and self.shift != 0.0:
            value = relax.op.add(block.emit(value), relax.const(self.shift, "float32"))
        return value


def recognize_activations() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.recognize_activations", _rewrite)


def activations(graph: DataflowGraph) -> dict[relax.Var, list[relax.Expr]]:
    """The values that are hard-swish or hard-sigmoid, with scale and shift, and what each is of."""
    found: dict[relax.Var, list[relax.Expr]] = {}
    for binding in graph.bindings:
        for clip in _clips(graph, binding.var):
            results = [binding.var, *(result for result, _ in _forms(graph, binding.var, clip))]
            for result in results:
                found.setdefault(result, []).append(clip.x)
    return found


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    found: dict[relax.Var, _Activation] = {}
    for binding in graph.bindings:
        for clip in _clips(graph, binding.var):
            for result, form in _forms(graph, binding.var, clip):
                if _saves(form, clip):
                    found[result] = form
    block = Bindings()
    return rewrite_values(
        graph, block, lambda b: found[b.var].emit(block) if b.var in found else None
    )


def _saves(form: _Activation, clip: _Clip) -> bool:
    """Whether an activation is not yet what it is to become."""
    if form.gated:
        return form.clip != clip
    return (clip.scale, clip.shift) != (1.0, 0.0)


def _forms(
    graph: DataflowGraph, var: relax.Var, clip: _Clip
) -> Iterator[tuple[relax.Var, _Activation]]:
    """The variables after a clip that are activations."""
    names = {clip.x: _X, var: _CLIP}
    gate, alone = monomial((_X, 1.0), (_CLIP, 1.0)), monomial((_CLIP, 1.0))
    for position in downstream(graph, var, _OUTSIDE):
        result = graph.bindings[position].var
        if not is_f32(result) or not same_shape(result, clip.x) or _rounds(graph, result):
            continue
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


def _rounds(graph: DataflowGraph, result: relax.Var) -> bool:
    """Whether a value becomes integers at once."""
    users = graph.users.get(result, ())
    return any(op_name(graph.value(user)) in QUANTIZING for user in users)


def _clips(graph: DataflowGraph, var: relax.Var) -> Iterator[_Clip]:
    """A value as clip(scale * x + shift, low, high), for every x that it can be said of."""
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
        step = _linear_step(graph, value)
        if step is None:
            return
        value, factor, term = step
        scale, shift = scale * factor, shift + scale * term


def _bounds(graph: DataflowGraph, var: relax.Var) -> tuple[relax.Expr, float, float] | None:
    """(u, low, high) of clip(u, low, high), or of the minimum and maximum that make it."""
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
    """The operand that is no number and the other, which is one, of an operator of two."""
    if not isinstance(call, relax.Call) or len(call.args) != 2:
        return None
    for value, other in (call.args, reversed(call.args)):
        number = uniform_constant(other)
        if number is not None and uniform_constant(value) is None:
            return value, number
    return None


def _linear_step(graph: DataflowGraph, expr: relax.Expr) -> tuple[relax.Expr, float, float] | None:
    """(v, factor, term) of an expression factor * v + term that is one operator."""
    call = graph.definition(expr)
    found = _with_number(call)
    if found is None:
        return None
    assert call is not None
    value, number = found
    first = call.args[0].same_as(value)
    match op_name(call):
        case "relax.add":
            return value, 1.0, number
        case "relax.subtract":
            return (value, 1.0, -number) if first else (value, -1.0, number)
        case "relax.multiply" if number != 0.0:
            return value, number, 0.0
        case "relax.divide" if first and number != 0.0:
            return value, 1.0 / number, 0.0
    return None
