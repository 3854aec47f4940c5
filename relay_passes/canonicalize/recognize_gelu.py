"""Recognises gelu (both forms) and silu where an exporter wrote them out.

Before

    lv = R.divide(x, R.const(1.4142135))
    lv1 = R.erf(lv)
    lv2 = R.add(lv1, R.const(1.0))
    lv3 = R.multiply(x, lv2)
    gv = R.multiply(lv3, R.const(0.5))

After

    gv = R.nn.gelu(x)

Likewise 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) becomes R.nn.gelu_tanh(x), and
x * sigmoid(x) becomes R.nn.silu(x). Factors and terms may stand in any order and be grouped in any
way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

from tvm import ir, relax

from relay_passes.ir.algebra import Polynomial, close, expand, monomial
from relay_passes.ir.graph import DataflowGraph, downstream, is_f32, op_name, same_shape
from relay_passes.ir.rewrite import Replacements, block_pass, replaced
from relay_passes.ir.used_variables import variables

_X, _F = "x", "f"
_ROOT = math.sqrt(2 / math.pi)
_HALVES: Polynomial = {monomial((_X, 1.0)): 0.5, monomial((_X, 1.0), (_F, 1.0)): 0.5}

# Inner function: (its argument in x, the whole in x and the inner function, the operator).
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
_INSIDE = 6  # operators between x and the inner function, at most
_OUTSIDE = 4  # operators after the inner function, at most


def recognize_gelu() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.recognize_gelu", lambda graph: replaced(graph, _find(graph)))


def _find(graph: DataflowGraph) -> Replacements:
    found: Replacements = {}
    for binding in graph.bindings:
        call = graph.definition(binding.var)
        form = _FORMS.get(op_name(call))
        if call is None or form is None or not is_f32(binding.var):
            continue
        inside, outside, operator = form
        x = _source(graph, call.args[0], inside)
        if x is None:
            continue
        names: dict[relax.Expr, Hashable] = {x: _X, binding.var: _F}
        for position in downstream(graph, binding.var, _OUTSIDE):
            var = graph.bindings[position].var
            if same_shape(var, x) and close(expand(graph, var, names.get), outside):
                found[position] = operator(x)
    return found


def _source(graph: DataflowGraph, argument: relax.Expr, form: Polynomial) -> relax.Var | None:
    """The value x in which the inner function's argument has a form, or None."""
    seen: list[relax.Expr] = [argument]
    level: list[relax.Expr] = [argument]
    for _ in range(_INSIDE):
        calls = [graph.definition(expr) for expr in level]
        level = [var for call in calls if call is not None for var in variables(call)]
        level = [var for var in dict.fromkeys(level) if var not in seen]
        seen += level
    for x in seen:
        names: dict[relax.Expr, Hashable] = {x: _X}
        if isinstance(x, relax.Var) and close(expand(graph, argument, names.get), form):
            return x
    return None
