"""Recognises how torch.export zeroes rows of a softmax whose scores are all minus infinity.

lv = R.nn.softmax(scores)
lv1 = R.logical_not(R.equal(scores, R.const(-inf)))
lv2 = R.logical_not(R.astype(R.max(R.astype(lv1, "int8"), axis=[-1], keepdims=True), "bool"))
gv = R.where(lv2, R.full_like(lv, R.const(0.0)), lv)
"""

from __future__ import annotations

import math

from tvm import relax

from relay_passes.ir.call_axes import reduced_axes
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor, scalar_constant

_CONDITION = ("logical_not", "astype", "max", "astype", "logical_not", "equal")
_ZEROS = ("relax.zeros_like", "relax.zeros")


def zeroes_blind_rows(graph: DataflowGraph, guard: relax.Call, softmax: relax.Call) -> bool:
    """Whether a choice zeroes the rows of a softmax that see nothing, and reads it alone.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    guard : relax.Call
        An R.where, whose last operand is the softmax.
    softmax : relax.Call
        Along the last axis.
    """
    condition, zero, weights = guard.args
    tested = _tested(graph, condition)
    if tested is None or not tested.same_as(softmax.args[0]):
        return False
    if scalar_constant(zero) != 0.0 and not _is_zero(graph, zero):
        return False
    # Zeros that are like the softmax read its shape alone.
    readers = {graph.bindings[user].var for user in graph.users.get(weights, ())}
    others = readers - {zero}
    return isinstance(weights, relax.DataflowVar) and len(others) == 1


def _tested(graph: DataflowGraph, condition: relax.Expr) -> relax.Expr | None:
    """The scores of which a condition says that all of a row are minus infinity, else None."""
    for name in _CONDITION:
        call = graph.definition(condition)
        if not is_call(call, f"relax.{name}") or graph.only_user(condition) is None:
            return None
        if name == "max" and not _is_of_rows(call):
            return None
        if name == "equal":
            return call.args[0] if scalar_constant(call.args[1]) == -math.inf else None
        condition = call.args[0]
    return None


def _is_of_rows(call: relax.Call) -> bool:
    tensor = region_tensor(call.args[0])
    last = tensor is not None and reduced_axes(call) == [len(tensor.shape) - 1]
    return last and bool(call.attrs.keepdims)


def _is_zero(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a tensor is filled with zeros."""
    call = graph.definition(expr)
    if not isinstance(call, relax.Call):
        return False
    if is_call(call, "relax.full_like", "relax.full"):
        return scalar_constant(call.args[1]) == 0.0
    return op_name(call) in _ZEROS
