"""Plain indices: rows are taken by indices as they come, without a cast or a reshape before.

Before

    lv = R.astype(tokens, "int32")                  # tokens: [1, 32] of int64
    lv1 = R.reshape(lv, R.shape([32]))
    lv2 = R.take(table, lv1, axis=0)
    gv = R.reshape(lv2, R.shape([1, 32, 64]))

After

    gv = R.take(table, tokens, axis=0)

TVM imports torch's embeddings so, and its nn.Embedding is written so.
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor
from relay_passes.ir.rewrite import Bindings, value_pass
from relay_passes.ir.traits import RESHAPES

_INDICES = ("int32", "int64")


def plain_indices() -> ir.transform.Pass:
    """The pass; it needs A-normal form, and comes before indices are clipped."""
    return value_pass("tvm_hybrid.plain_indices", _plainer)


def _plainer(graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """What a take is without a cast or a reshape before; None if there is none."""
    if not is_call(call, "relax.take") or call.attrs.axis is None or int(call.attrs.axis) != 0:
        return None
    table, indices = call.args
    found = _source(graph, indices)
    if found.same_as(indices):
        return None
    taken = relax.op.take(table, found, axis=0, mode=str(call.attrs.mode))
    before, after = region_tensor(indices), region_tensor(found)
    if before is not None and after is not None and before.shape == after.shape:
        return taken
    return relax.op.reshape(block.emit(taken), call.ty.shape)


def _source(graph: DataflowGraph, indices: relax.Expr) -> relax.Expr:
    """Where indices come from, before casts that lose nothing of an index and reshapes."""
    while True:
        call = graph.definition(indices)
        if not is_call(call, "relax.astype", *RESHAPES):
            return indices
        source = region_tensor(call.args[0])
        if source is None or source.dtype not in _INDICES or not source.shape:
            return indices
        if str(call.ty.dtype) not in _INDICES:
            return indices
        indices = call.args[0]
