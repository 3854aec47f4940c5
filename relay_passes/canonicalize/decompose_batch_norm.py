"""Decomposes a batch normalisation of inference: one factor and one term per channel.

Before

    lv = R.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, training=False)
    gv = lv[0]

After

    lv = R.multiply(x, const_scale)     # gamma / sqrt(variance + epsilon), [C, 1, 1]
    gv = R.add(lv, const_shift)         # beta - mean * scale

Constants are combined in float64 and rounded once; `fold_factors` carries on from here. Statistics
that are known at run time only are combined then. Running statistics, lv[1] and lv[2], stay those
that were given. A normalisation of training stays.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from relay_passes.ir.channel_factors import in_shape
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor, static_tensor
from relay_passes.ir.rewrite import Bindings, value_pass

_FLOATS = ("float32", "float64")


def decompose_batch_norm() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.decompose_batch_norm", _decomposed)


def _decomposed(graph: DataflowGraph, block: Bindings, value: relax.Expr) -> relax.Expr | None:
    """An item of a batch normalisation in other operators; None for anything else."""
    if not isinstance(value, relax.TupleGetItem):
        return None
    call = graph.definition(value.tuple_value)
    if not is_call(call, "relax.nn.batch_norm") or bool(call.attrs.training):
        return None
    if value.index > 0:
        return call.args[2 + value.index]
    tensor = region_tensor(call.args[0])
    if tensor is None or tensor.dtype not in _FLOATS:
        return None
    if any(str(arg.ty.dtype) != tensor.dtype for arg in call.args):
        return None
    axis = int(call.attrs.axis) % len(tensor.shape)
    channels = static_tensor(call.args[3])
    if channels is None:
        return None
    shape = (*channels.shape, *(1 for _ in tensor.shape[axis + 1 :]))
    scale, shift = _factors(block, call)
    product = relax.op.multiply(call.args[0], in_shape(block, scale, shape))
    return relax.op.add(block.emit(product), in_shape(block, shift, shape))


def _factors(block: Bindings, call: relax.Call) -> tuple[relax.Expr, relax.Expr]:
    """The factor and the term of each channel."""
    if all(isinstance(each, ir.GenericConst) for each in call.args[1:]):
        return _constant_factors(call)
    gamma, beta, mean, variance = call.args[1:]
    dtype = str(variance.ty.dtype)
    spread = relax.op.add(variance, relax.const(float(call.attrs.epsilon), dtype))
    above = gamma if bool(call.attrs.scale) else relax.const(1.0, dtype)
    factor = block.emit(relax.op.divide(above, block.emit(relax.op.sqrt(block.emit(spread)))))
    term = block.emit(relax.op.negative(block.emit(relax.op.multiply(mean, factor))))
    if bool(call.attrs.center):
        term = block.emit(relax.op.add(beta, term))
    return factor, term


def _constant_factors(call: relax.Call) -> tuple[relax.Expr, relax.Expr]:
    """The same of constants."""
    attrs, arrays = call.attrs, [array_of(each.value) for each in call.args[1:]]
    gamma, beta, mean, variance = (each.astype(np.float64) for each in arrays)
    with np.errstate(all="ignore"):  # a bad variance gives NaN, as it would at run time
        root = np.sqrt(variance + float(attrs.epsilon))
        scale = (gamma if bool(attrs.scale) else np.ones_like(gamma)) / root
    shift = (beta if bool(attrs.center) else np.zeros_like(beta)) - mean * scale
    dtype = arrays[0].dtype
    return constant_of(scale.astype(dtype)), constant_of(shift.astype(dtype))
