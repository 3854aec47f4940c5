"""Normalisations: over a batch's statistics, images, groups of channels, rows, neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ...expressions import (
    Attrs,
    Expr,
    Inputs,
    cast,
    dtype_of,
    known_dims,
    literal,
    normalize,
    rank_of,
    reshaped,
    static_dims,
)
from ..data_sized.sizes import dims_of
from ..operators import operator

_EPSILON = 1e-5


@operator("BatchNormalization")
def _batch_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """With the statistics that are given, in float32 where float16 meets it."""
    dtypes = {dtype_of(each) for each in inputs}
    if len(dtypes) > 1 and dtypes != {"float16", "float32"}:
        raise ValueError(f"inputs of the types {', '.join(sorted(dtypes))}")
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
    x, scale, shift, mean, variance = (cast(each, dtype) for each in inputs)
    epsilon = attrs.get("epsilon", _EPSILON)
    result = relax.op.nn.batch_norm(x, scale, shift, mean, variance, 1, epsilon, training=False)
    normal = normalize(relax.TupleGetItem(normalize(result), 0))
    return cast(normal, dtype_of(inputs[0]))


@operator("InstanceNormalization")
def _instance_norm(inputs: Inputs, attrs: Attrs) -> Any:
    x, scale, shift = inputs
    rank = rank_of(x)
    axes = list(range(2, rank))
    epsilon = literal(np.array(attrs.get("epsilon", _EPSILON), dtype_of(x)))
    mean = normalize(relax.op.mean(x, axis=axes, keepdims=True))
    variance = normalize(relax.op.variance(x, axis=axes, keepdims=True))
    spread = normalize(relax.op.sqrt(normalize(relax.op.add(variance, epsilon))))
    centred = normalize(relax.op.subtract(x, mean))
    normal = normalize(relax.op.divide(centred, spread))
    return _scaled(normal, scale, shift, rank)


def _scaled(value: Expr, scale: Expr, shift: Expr, rank: int) -> Expr:
    """One factor and one summand for each channel."""
    channels = [-1, *([1] * (rank - 2))]
    factor, summand = (normalize(relax.op.reshape(each, channels)) for each in (scale, shift))
    return relax.op.add(normalize(relax.op.multiply(value, factor)), summand)


@operator("GroupNormalization")
def _group_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """Factors are one for each group until opset 20, and one for each channel since."""
    x, scale, shift = inputs
    groups, dtype = attrs["num_groups"], dtype_of(x)
    if attrs.get("stash_type", 1) != 1:
        raise ValueError(f"stash_type={attrs['stash_type']}, where only 1 (float32) is supported")
    channels, *extents = dims_of(x)[1:]
    count = int(getattr(channels, "value", -1))
    if static_dims(scale) == (groups,) != (count,) and count > 0:
        each = count // groups
        scale, shift = (_for_channels(value, groups, each) for value in (scale, shift))
    rank, epsilon = len(extents) + 2, attrs.get("epsilon", _EPSILON)
    axes = list(range(2, rank))
    if dtype == "float32":
        return relax.op.nn.group_norm(x, scale, shift, groups, 1, axes, epsilon)
    # Statistics are of float32; the factors count in the type of x.
    wide, unused, neither = (cast(each, "float32") for each in inputs)
    normal = relax.op.nn.group_norm(
        wide, unused, neither, groups, 1, axes, epsilon, center=False, scale=False
    )
    return _scaled(cast(normalize(normal), dtype), scale, shift, rank)


def _for_channels(value: Expr, groups: int, each: int) -> Expr:
    column = reshaped(value, (groups, 1))
    spread = normalize(relax.op.broadcast_to(column, [groups, each]))
    return normalize(relax.op.reshape(spread, [groups * each]))


@operator("LayerNormalization")
def _layer_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """Over the axes that the scale has; statistics as further outputs were rewritten."""
    x, scale = inputs[:2]
    axis, shift = attrs.get("axis", -1), inputs[2]
    rank = rank_of(scale)
    if shift is None:
        shift = literal(np.zeros(known_dims(scale), dtype_of(scale)))
    axes = list(range(axis, axis + max(rank, 1)))
    return relax.op.nn.layer_norm(x, scale, shift, axes, attrs.get("epsilon", _EPSILON))


@operator("RMSNormalization")
def _rms_norm(inputs: Inputs, attrs: Attrs) -> Any:
    x, scale = inputs[:2]
    rank, dtype = rank_of(x), dtype_of(x)
    axes = list(range(attrs.get("axis", -1) % rank, rank))
    if attrs.get("stash_type", 1) == 1:
        x, scale = (cast(each, "float32") for each in (x, scale))
    normal = relax.op.nn.rms_norm(x, scale, axes, attrs.get("epsilon", _EPSILON))
    return cast(normalize(normal), dtype)


@operator("LRN")
def _local_response(inputs: Inputs, attrs: Attrs) -> Any:
    """By the mean of squares over neighbouring channels, as a pool over an axis before them."""
    x, size = inputs[0], attrs["size"]
    rank = rank_of(x)
    if rank not in (3, 4):
        raise ValueError(f"LRN of {rank} dimensions, where 3 and 4 are supported")
    squares = normalize(relax.op.multiply(x, x))
    images = normalize(relax.op.expand_dims(squares, axis=1))
    pool = relax.op.nn.avg_pool2d if rank == 3 else relax.op.nn.avg_pool3d
    pad, ones = [size // 2, *([0] * (rank - 2))], [1] * (rank - 2)
    mean = pool(
        images,
        pool_size=(size, *ones),
        strides=(1, *ones),
        padding=[*pad, *pad],
        layout="NCHW" if rank == 3 else "NCDHW",
        count_include_pad=True,
    )
    mean = normalize(relax.op.squeeze(normalize(mean), axis=1))
    alpha, bias, beta = (
        literal(np.array(attrs.get(name, default), np.float32))
        for name, default in (("alpha", 1e-4), ("bias", 1.0), ("beta", 0.75))
    )
    spread = normalize(relax.op.add(normalize(relax.op.multiply(mean, alpha)), bias))
    return relax.op.divide(x, normalize(relax.op.power(spread, beta)))
