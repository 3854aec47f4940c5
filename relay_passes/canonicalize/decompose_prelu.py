"""Writes PReLU as elementwise operators, which every epilogue can compute.

Before

    gv = R.nn.prelu(x, const_slope, axis=1)         # x: [N, C, H, W], slope: [C]

After

    lv = R.less(x, R.const(0))
    lv1 = R.multiply(x, const_slope')               # [C, 1, 1]
    gv = R.where(lv, lv1, x)

Both sides are computed, without a branch. (The maximum of x and slope * x would differ for slopes
above 1, and for a slope of 0 and an infinite x.)
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_f32, known_tensor, op_name
from relay_passes.ir.rewrite import Bindings, value_pass


def decompose_prelu() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.decompose_prelu", _decomposed)


def _decomposed(_graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    if op_name(call) != "relax.nn.prelu" or not is_f32(call):
        return None
    x, slope = call.args
    tensor = known_tensor(x)
    rank = len(tensor.shape)
    after = rank - 1 - int(call.attrs.axis) % rank
    slope = _spread(block, slope, after)
    negative = block.emit(relax.op.less(x, relax.const(0.0, "float32")))
    product = block.emit(relax.op.multiply(x, slope))
    return relax.op.where(negative, product, x)


def _spread(block: Bindings, slope: relax.Expr, after: int) -> relax.Expr:
    """Slopes [C] as [C, 1, ...], with as many axes of one element as follow the channels'."""
    tensor = known_tensor(slope)
    if after == 0 or tensor.size == 1:
        after = 0
    shape = (tensor.size, *(1 for _ in range(after)))
    if isinstance(slope, ir.GenericConst):
        return relax.const(np.ascontiguousarray(slope.value.numpy().reshape(shape)))
    return slope if tensor.shape == shape else block.emit(relax.op.reshape(slope, shape))
