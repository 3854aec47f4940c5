"""Writes ELU with one choice in the place of two ReLUs.

Before

    lv = R.subtract(R.const(1.0), R.exp(x))
    lv1 = R.multiply(R.const(-a), R.nn.relu(lv))
    gv = R.add(lv1, R.nn.relu(x))

After

    lv = R.exp(x)
    lv1 = R.less(x, R.const(0.0))
    lv2 = R.multiply(R.subtract(lv, R.const(1.0)), R.const(a))   # not multiplied if a is 1
    gv = R.where(lv1, lv2, x)

TVM imports torch's ELU so; it reads x twice, and makes an infinity of large x on the way.
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.algebra import ONE, expand, monomial
from relay_passes.ir.graph import DataflowGraph, is_call, is_f32
from relay_passes.ir.number_factor import number_factor
from relay_passes.ir.rewrite import Bindings, value_pass

_EXP = "exp"


def recognize_elu() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.recognize_elu", _chosen)


def _chosen(graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """The choice that a sum of two ReLUs is; None if it is none."""
    if not is_call(call, "relax.add") or not is_f32(call):
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
    """x of relu(x)."""
    call = graph.definition(expr)
    return call.args[0] if is_call(call, "relax.nn.relu") else None


def _below(graph: DataflowGraph, expr: relax.Expr, x: relax.Expr) -> float | None:
    """a > 0 of -a * relu(1 - exp(x))."""
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
