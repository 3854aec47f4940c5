"""Plain views: reshapes of every kind get one name, so that the same kernels get one, too.

Before

    lv = R.squeeze(x, axis=[0])

After

    lv = R.reshape(x, R.shape([2, 64]))
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_call
from relay_passes.ir.rewrite import Bindings, value_pass
from relay_passes.ir.traits import RESHAPES


def plain_views() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.plain_views", _reshape)


def _reshape(_graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """A reshape in the place of another operator that keeps the order of elements."""
    if not is_call(call, *RESHAPES) or is_call(call, "relax.reshape"):
        return None
    shape = getattr(call.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return relax.op.reshape(call.args[0], shape)
