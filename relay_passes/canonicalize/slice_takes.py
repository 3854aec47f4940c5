"""Slice: one index that is known cuts out a slice.

Before

    gv = R.take(x, R.const(1), axis=0, mode="clip")             # x: [3, 4, 5]

After

    lv = R.strided_slice(x, axes=[0], begin=[1], end=[2])
    gv = R.reshape(lv, R.shape([4, 5]))

PyTorch writes x[1] so. A product then reads the slice in place. `clip_indices` runs first: the
index is inside.
"""

from __future__ import annotations

import math

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor, scalar_constant
from relay_passes.ir.rewrite import Bindings, value_pass


def slice_takes() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.slice_takes", _sliced)


def _sliced(_graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """A slice, if a call takes elements at one index that is known; else None."""
    if not is_call(call, "relax.take") or call.attrs.axis is None:
        return None
    data, index = call.args
    tensor, number = region_tensor(data), scalar_constant(index)
    if tensor is None or number is None or tensor.constant or math.isnan(number):
        return None
    axis = int(call.attrs.axis) % len(tensor.shape)
    extent, begin = call.args[0].ty.shape.values[axis], int(number)
    if not hasattr(extent, "value") or not 0 <= begin < int(extent):
        return None
    cut = relax.op.strided_slice(data, [axis], [begin], [begin + 1])
    return relax.op.reshape(block.emit(cut), call.ty.shape)
