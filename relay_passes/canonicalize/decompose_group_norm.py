"""Decomposes a group normalisation: a layer normalisation of rows, and numbers for each channel.

Before

    gv = R.nn.group_norm(x, gamma, beta, num_groups=4, channel_axis=1, axes=[2, 3])
                                                    # x: [N, 16, H, W]
After

    lv = R.reshape(x, R.shape([N, 4, 4 * H * W]))
    lv1 = R.nn.layer_norm(lv, ones, zeros, axes=[-1])
    lv2 = R.reshape(lv1, R.shape([N, 16, H, W]))
    lv3 = R.multiply(lv2, gamma')                   # [16, 1, 1]
    gv = R.add(lv3, beta')

Rows have a template. Factors that are all 1 and terms that are all 0 are left out. Of known sizes,
with channels right behind the batch, over all axes behind them.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import ir, relax

from relay_passes.ir.algebra import uniform_constant
from relay_passes.ir.channel_factors import in_shape
from relay_passes.ir.constants import constant_of
from relay_passes.ir.graph import DataflowGraph, is_call, static_tensor
from relay_passes.ir.rewrite import Bindings, value_pass


def decompose_group_norm() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.decompose_group_norm", _decomposed)


def _decomposed(_graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """A group normalisation in other operators; None for anything else."""
    if not is_call(call, "relax.nn.group_norm"):
        return None
    x, gamma, beta = call.args
    tensor, attrs = static_tensor(x), call.attrs
    if tensor is None or tensor.dtype != "float32" or len(tensor.shape) < 3:
        return None
    rank = len(tensor.shape)
    axes = sorted(int(axis) % rank for axis in attrs.axes)
    if int(attrs.channel_axis) % rank != 1 or axes != list(range(2, rank)):
        return None
    groups, (batch, channels, *spatial) = int(attrs.num_groups), tensor.shape
    row = channels // groups * math.prod(spatial)
    ones, zeros = np.ones(row, np.float32), np.zeros(row, np.float32)
    rows = block.emit(relax.op.reshape(x, (batch, groups, row)))
    normal = relax.op.nn.layer_norm(
        rows, constant_of(ones), constant_of(zeros), [-1], float(attrs.epsilon)
    )
    result: relax.Expr = relax.op.reshape(block.emit(normal), tensor.shape)
    shape = (channels, *(1 for _ in spatial))
    if bool(attrs.scale) and uniform_constant(gamma) != 1.0:
        result = relax.op.multiply(block.emit(result), in_shape(block, gamma, shape))
    if bool(attrs.center) and uniform_constant(beta) != 0.0:
        result = relax.op.add(block.emit(result), in_shape(block, beta, shape))
    return result
