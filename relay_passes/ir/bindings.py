"""Variables and bindings of a block: who uses them, what waits, other names."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, relax

from microkernels.base.tvm_compat.relax import object_address

# Which variables an expression uses; remembered for the block that was read last.
#
# One pass after the other reads the same block, and passes keep most of its values.


_last = threading.local()


def variables(expr: relax.Expr) -> Sequence[relax.Var]:
    """Variables that an expression uses, in order, each once; not to be changed."""
    known = _known().get(object_address(expr))
    return _read(expr) if known is None else known[1]


def read_variables(values: Iterable[relax.Expr]) -> list[Sequence[relax.Var]]:
    """The variables of all values of a block, which are remembered in place of another block's."""
    before, known = _known(), {}
    found = []
    for value in values:
        place = object_address(value)
        entry = known[place] = before.get(place) or (value, _read(value))
        found.append(entry[1])
    _last.known = known
    return found


def forget_variables() -> None:
    """Lets go of the block that this thread read last."""
    _last.known = {}


def _known() -> dict[int, tuple[relax.Expr, Sequence[relax.Var]]]:
    """By address; the object is kept, so no other one has it."""
    known: dict[int, Any] = getattr(_last, "known", {})
    return known


def _read(expr: relax.Expr) -> Sequence[relax.Var]:
    found: dict[relax.Var, None] = {}
    if isinstance(expr, relax.Call) and isinstance(expr.op, (ir.Op, ir.GlobalVar)):
        for argument in expr.args[:]:  # a list: arrays of TVM are slow to iterate over
            if isinstance(argument, relax.Var):
                found[argument] = None
            elif not isinstance(argument, ir.GenericConst):
                found.update(dict.fromkeys(_visited(argument)))
        return list(found)
    return _visited(expr)


def _visited(expr: relax.Expr) -> list[relax.Var]:
    """The same by TVM's visitor, for expressions of any kind."""
    found: dict[relax.Var, None] = {}

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Var):
            found[node] = None

    relax.analysis.post_order_visit(expr, visit)
    return list(found)


def nodes_in(expr: relax.Expr) -> list[relax.Expr]:
    """Every node of an expression or a function, each once, operands before what reads them."""
    found: list[relax.Expr] = []
    relax.analysis.post_order_visit(expr, found.append)
    return found
