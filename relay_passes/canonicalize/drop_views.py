"""Drops reshapes that change nothing, or that a softmax or a reduction does not need.

Before

    lv = R.reshape(x, [320, 40])                    # x: [1, 8, 40, 40]
    lv1 = R.nn.softmax(lv, axis=-1)
    gv = R.reshape(lv1, [1, 8, 40, 40])

After

    gv = R.nn.softmax(x, axis=-1)

Older ONNX models write every softmax so. Of the axes that the reshape joins, only one may have more
than one element. A reshape of a reshape becomes one reshape; a reshape or a broadcast to the same
shape is dropped. And axes that a reduction keeps for a reshape to drop are not kept:

    lv = R.mean(x, axis=[2, 3], keepdims=True)      # a global pool
    gv = R.reshape(lv, [1, 64])                     # R.mean(x, axis=[2, 3])
"""

from __future__ import annotations

import math

from tvm import ir, relax

from relay_passes.ir.call_axes import reduced_axes
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor
from relay_passes.ir.rewrite import Bindings, value_pass
from relay_passes.ir.traits import RESHAPES

_SOFTMAX = {
    "relax.nn.softmax": relax.op.nn.softmax,
    "relax.nn.log_softmax": relax.op.nn.log_softmax,
}
_REDUCTIONS = {
    "relax.mean": relax.op.mean,
    "relax.sum": relax.op.sum,
    "relax.max": relax.op.max,
    "relax.min": relax.op.min,
}


def drop_views() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.drop_views", _simpler)


def _simpler(graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """What a reshape is, if it is less; else None."""
    if op_name(call) not in (*RESHAPES, "relax.broadcast_to"):
        return None
    result, source = region_tensor(call), region_tensor(call.args[0])
    if result is None or source is None:
        return None
    if result.shape == source.shape:
        return call.args[0]
    if op_name(call) == "relax.broadcast_to":
        return None
    softmax = _softmax(graph, call.args[0], result.shape)
    if softmax is not None:
        return softmax
    inner = graph.definition(call.args[0])
    if op_name(inner) in _REDUCTIONS:
        return _without_axes(graph, call.args[0], result.shape)
    if not is_call(inner, *RESHAPES):
        return None
    first = region_tensor(inner.args[0])
    if first is not None and first.shape == result.shape:
        return inner.args[0]
    return relax.op.reshape(inner.args[0], call.ty.shape)


def _without_axes(
    graph: DataflowGraph, value: relax.Expr, shape: tuple[int, ...]
) -> relax.Expr | None:
    """A reduction that keeps its axes without them, if that gives the shape."""
    call, kept = graph.definition(value), region_tensor(value)
    if not isinstance(call, relax.Call) or kept is None or graph.only_user(value) is None:
        return None
    if not call.attrs.keepdims:
        return None
    axes = reduced_axes(call)
    if shape != tuple(size for axis, size in enumerate(kept.shape) if axis not in axes):
        return None
    return _REDUCTIONS[op_name(call)](call.args[0], axes, False)


def _softmax(graph: DataflowGraph, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr | None:
    """A softmax over the last axis of a reshaped value, as one of the value itself."""
    softmax = graph.definition(value)
    operator = _SOFTMAX.get(op_name(softmax))
    if operator is None:
        return None
    assert softmax is not None
    view = graph.definition(softmax.args[0])
    if not is_call(view, *RESHAPES):
        return None
    source, flat = region_tensor(view.args[0]), region_tensor(view)
    if source is None or flat is None or source.shape != shape:
        return None
    if int(softmax.attrs.axis) % len(flat.shape) != len(flat.shape) - 1:
        return None
    axis = _joined_axis(source.shape, flat.shape[-1])
    if axis is None:
        return None
    last = axis == len(shape) - 1
    return operator(view.args[0], axis=-1 if last else axis)


def _joined_axis(shape: tuple[int, ...], extent: int) -> int | None:
    """The axis of `extent` elements that stands for all trailing axes of as many together."""
    for first in reversed(range(len(shape))):
        if math.prod(shape[first:]) == extent:
            found = [axis for axis in range(first, len(shape)) if shape[axis] == extent]
            return found[0] if found else None
    return None
