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
    product = relax.op.multiply(call.args[0], _in_shape(block, scale, shape))
    return relax.op.add(block.emit(product), _in_shape(block, shift, shape))


def _factors(block: Bindings, call: relax.Call) -> tuple[relax.Expr, relax.Expr]:
    """The factor and the term of each channel."""
    attrs, parameters = call.attrs, list(call.args[1:])
    epsilon = float(attrs.epsilon)
    if all(isinstance(each, ir.GenericConst) for each in parameters):
        gamma, beta, mean, variance = (array_of(e.value).astype(np.float64) for e in parameters)
        with np.errstate(all="ignore"):  # a bad variance gives NaN, as it would at run time
            scale = (gamma if bool(attrs.scale) else 1.0) / np.sqrt(variance + epsilon)
        shift = (beta if bool(attrs.center) else 0.0) - mean * scale
        dtype = str(parameters[0].ty.dtype)
        return constant_of(scale.astype(dtype)), constant_of(shift.astype(dtype))
    gamma, beta, mean, variance = parameters
    spread = relax.op.add(variance, relax.const(epsilon, str(variance.ty.dtype)))
    factor = block.emit(relax.op.rsqrt(block.emit(spread)))
    if bool(attrs.scale):
        factor = block.emit(relax.op.multiply(gamma, factor))
    term = block.emit(relax.op.negative(block.emit(relax.op.multiply(mean, factor))))
    if bool(attrs.center):
        term = block.emit(relax.op.add(beta, term))
    return factor, term


def _in_shape(block: Bindings, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """One number per channel, with an axis for each axis behind the channels."""
    if isinstance(value, ir.GenericConst):
        return constant_of(array_of(value.value).reshape(shape))
    return block.emit(relax.op.reshape(value, shape)) if len(shape) > 1 else value
