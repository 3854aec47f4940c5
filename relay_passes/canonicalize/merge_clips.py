"""Merge: a clip of a clip becomes one, and one without limits vanishes.

Before

    lv = R.clip(x, 0, inf)
    gv = R.clip(lv, -inf, 6)

After

    gv = R.clip(x, 0, 6)

torch.export writes hard-swish so.
"""

from __future__ import annotations

import math

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor
from relay_passes.ir.rewrite import Bindings, value_pass


def merge_clips() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.merge_clips", _merged)


def _merged(graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """The value with one clip less; None if there is none to leave out."""
    limits = _limits(call)
    if limits is None or not isinstance(call, relax.Call):
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
    """Between which numbers a clip of float32 puts values; None for anything else."""
    if not is_call(call, "relax.clip"):
        return None
    tensor = region_tensor(call)
    if tensor is None or tensor.dtype != "float32":
        return None
    low, high = (float(arg.value) for arg in call.args[1:])
    return (low, high) if low <= high else None
