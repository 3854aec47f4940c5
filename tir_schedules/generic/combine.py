"""How reductions combine two numbers: a NaN stays, whichever of the two it is.

    y[i] = max(y[i], x[i, k])    ->    y[i] = y[i] <= inf ? max(y[i], x[i, k]) : y[i]

x86's maximum returns its second argument if either is a NaN. So the new value comes second, and a
comparison keeps an old NaN. That takes one more instruction on AVX-512 (a masked maximum), and two
more elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr, element_of, like


def _extreme(node: type[tirx.Max | tirx.Min]) -> Callable[[Expr, Expr], Expr]:
    def combine(total: Expr, element: Expr) -> Expr:
        if not element_of(total).startswith(("float", "bfloat")):
            return node(total, element)
        # Not total == total, which TVM takes for true.
        is_number = tirx.LE(total, like(math.inf, total))
        return tirx.Select(is_number, node(total, element), total)

    return combine


COMBINE: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Max: _extreme(tirx.Max),
    tirx.Min: _extreme(tirx.Min),
}
"""By the node that updates an element: (what it is so far, what comes to it) -> what it is then."""


def keeping_nan(value: Expr) -> Expr:
    """An update `max(y[i], x)` or `min(y[i], x)` that keeps a NaN; any other value as it is."""
    if isinstance(value, tirx.Max | tirx.Min) and isinstance(value.a, TensorLoad):
        return COMBINE[type(value)](value.a, value.b)
    return value
