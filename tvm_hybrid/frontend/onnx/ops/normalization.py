"""Normalisations: over a batch's statistics, images, groups of channels, rows, neighbours."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper
from tvm import relax, tirx

from ... import expressions as ex
from ...expressions import OUTPUTS, Attrs, Expr, Inputs
from ..apply import apply
from ..graph.graph import CONTRIB_DOMAIN
from ..graph.requests import check_equal
from ..graph.sizes import dims_of, index
from ..operators import operator

_EPSILON = 1e-5


@operator("BatchNormalization")
def _batch_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """One multiplication and one addition per channel, if the statistics are constant.

        y = x * scale + shift
            scale = gamma / sqrt(variance + epsilon),  shift = beta - mean * scale

    They are combined in float64 and rounded once; the Relax pass `fold_factors` carries on from
    here. Where the inputs have different types, everything is computed in the widest.
    """
    x, *parameters = inputs
    training, counted = attrs.get("training_mode", 0) == 1, len(attrs[OUTPUTS])
    if not training and counted > 1:
        raise ValueError("it is in the training mode of an old opset; export it for inference")
    rank, epsilon = ex.rank_of(x), attrs.get("epsilon", _EPSILON)
    if training:
        if attrs.get("spatial", 1) != 1 or rank < 2:
            raise ValueError(f"it is in training mode, of rank {rank}; export it for inference")
        return _normalized_by_batch(inputs, attrs)
    arrays = [ex.constant(each) for each in parameters]
    known = [array.astype(np.float64) for array in arrays if array is not None]
    channels = dims_of(x)[1] if rank > 1 else 0
    vectors = all(array.shape == (getattr(channels, "value", None),) for array in known)
    dtype, widest = ex.dtype_of(x), ex.dtype_of(x)
    if attrs.get("spatial", 1) == 1 and len(known) == len(arrays) and vectors:
        with np.errstate(all="ignore"):  # a bad variance gives NaN, as it would at run time
            ratio = known[0] / np.sqrt(known[3] + epsilon)
        types = [np.dtype(ex.dtype_of(each)) for each in inputs]
        widest = str(functools.reduce(np.promote_types, types))
        aligned = (-1, *(1 for _ in range(rank - 2)))
        factor, shift = (
            ex.literal(each.reshape(aligned).astype(widest))
            for each in (ratio, known[1] - known[2] * ratio)
        )
        return ex.cast(_affine(ex.cast(x, widest), factor, shift), dtype)
    dtypes = {ex.dtype_of(each) for each in inputs}
    if len(dtypes) > 1 and dtypes != {"float16", "float32"}:
        raise ValueError(f"inputs of the types {', '.join(sorted(dtypes))}")
    computed = dtypes.pop() if len(dtypes) == 1 else "float32"
    x, scale, shift, mean, variance = (ex.cast(each, computed) for each in inputs)
    result = relax.op.nn.batch_norm(x, scale, shift, mean, variance, 1, epsilon, training=False)
    return ex.cast(relax.TupleGetItem(ex.normalize(result), 0), dtype)


def _normalized_by_batch(inputs: Inputs, attrs: Attrs) -> Expr:
    """Training mode, by the mean and variance of the input; the running ones are moved.

        centred = x - mean(x, [0, 2, 3]),  variance = mean(centred * centred, [0, 2, 3])
        y = centred / sqrt(variance + epsilon) * gamma + beta
        m = running mean * momentum + mean(x) * (1 - momentum)    # and so the running variance

    In float32, or in float64 where an input or a statistic is float64.
    """
    wide = "float64" if any(ex.dtype_of(each) == "float64" for each in inputs) else "float32"
    x, gamma, beta, *running = (ex.cast(each, wide) for each in inputs)
    axes = [axis for axis in range(ex.rank_of(x)) if axis != 1]
    mean, centred, variance = _statistics(x, axes)
    normal = centred / relax.op.sqrt(variance + ex.number(x, attrs.get("epsilon", _EPSILON)))
    results = [ex.cast(_scaled(normal, gamma, beta, ex.rank_of(x)), ex.dtype_of(inputs[0]))]
    momentum = attrs.get("momentum", 0.9)
    for old, new in zip(running, (mean, variance), strict=True):
        column = relax.op.reshape(new, relax.ShapeExpr([dims_of(x)[1]]))
        moved = old * ex.number(x, momentum) + column * ex.number(x, 1 - momentum)
        results.append(ex.cast(moved, ex.dtype_of(inputs[3])))
    return relax.Tuple(results)


def _statistics(x: Expr, axes: Sequence[int]) -> tuple[Expr, Expr, Expr]:
    """The mean, the differences from it, and the variance."""
    mean = ex.normalize(relax.op.mean(x, axes, True))
    centred = ex.normalize(x - mean)
    return mean, centred, ex.normalize(relax.op.mean(centred * centred, axes, True))


@operator("InstanceNormalization")
def _instance_norm(inputs: Inputs, attrs: Attrs) -> Any:
    x, scale, shift = inputs
    axes = list(range(2, ex.rank_of(x)))
    mean = ex.normalize(relax.op.mean(x, axis=axes, keepdims=True))
    variance = relax.op.variance(x, axis=axes, keepdims=True)
    epsilon = ex.number(x, attrs.get("epsilon", _EPSILON))
    spread = ex.normalize(relax.op.sqrt(variance + epsilon))
    return _scaled((x - mean) / spread, scale, shift, ex.rank_of(x))


def _scaled(value: Expr, scale: Expr, shift: Expr, rank: int) -> Expr:
    """One factor and one summand for each channel."""
    value, channels = ex.normalize(value), [-1, *([1] * (rank - 2))]
    factor, summand = (ex.normalize(relax.op.reshape(each, channels)) for each in (scale, shift))
    return value * factor + summand


@operator("GroupNormalization")
def _group_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """Factors are one for each group until opset 20, and one for each channel since."""
    x, scale, shift = inputs
    groups, dtype = attrs["num_groups"], ex.dtype_of(x)
    if attrs.get("stash_type", 1) != 1:
        raise ValueError(f"stash_type={attrs['stash_type']}, where only 1 (float32) is supported")
    channels, *extents = dims_of(x)[1:]
    check_equal(channels % index(groups), index(0), "the channels are no whole groups")
    count = int(getattr(channels, "value", -1))
    if ex.static_dims(scale) == (groups,) != (count,) and count > 0:
        columns = (ex.reshaped(each, (groups, 1)) for each in (scale, shift))
        spread = (relax.op.broadcast_to(each, [groups, count // groups]) for each in columns)
        scale, shift = (ex.reshaped(each, (count,)) for each in spread)
    for value in (scale, shift):
        check_equal(channels, dims_of(value)[0], "scale and bias are not one for each channel")
    rank, epsilon = len(extents) + 2, attrs.get("epsilon", _EPSILON)
    axes = list(range(2, rank))
    if dtype == "float32":
        return relax.op.nn.group_norm(x, scale, shift, groups, 1, axes, epsilon)
    # Statistics are of float32; the factors count in the type of x.
    wide, unused, neither = (ex.cast(each, "float32") for each in inputs)
    normal = relax.op.nn.group_norm(
        wide, unused, neither, groups, 1, axes, epsilon, center=False, scale=False
    )
    return _scaled(ex.cast(normal, dtype), scale, shift, rank)


@operator("LayerNormalization")
def _layer_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """Statistics are computed beside the normalisation, which stays one kernel.

    LayerNormalization(x, w, b)  ->  (y, mean, deviation)
        mean: m = mean(x),  deviation: 1 / sqrt(mean((x - m) * (x - m)) + epsilon)
    LayerNormalization(x, w) where w does not have the shape of what is normalised
        ->  layer_norm(x, 1, 0) * w, in float32
    LayerNormalization(x: f64, w)  ->  (x - mean) * deviation * w
    """
    x, scale, shift = inputs[0], inputs[1], inputs[2]
    dims, dtype = dims_of(x), ex.dtype_of(x)
    first = attrs.get("axis", -1) % len(dims)
    axes, epsilon = list(range(first, len(dims))), attrs.get("epsilon", _EPSILON)
    results, wide = [], "float64" if dtype == "float64" else "float32"
    if len(attrs[OUTPUTS]) > 1 or wide == "float64":
        value = ex.cast(x, wide)
        mean, centred, variance = _statistics(value, axes)
        inverse = apply("Reciprocal", relax.op.sqrt(variance + ex.number(value, epsilon)))
        stash = str(helper.tensor_dtype_to_np_dtype(attrs.get("stash_type", 1)))
        results = [ex.cast(each, stash) for each in (mean, inverse)]
    if wide == "float64":
        y = _affine(centred * inverse, scale, shift)
    elif all(_fits(each, dims[first:]) for each in (scale, shift) if each is not None):
        if shift is None:
            shift = _filled(0, dims[first:], dtype)
        y = relax.op.nn.layer_norm(x, scale, shift, axes, epsilon)
    else:
        one, zero = (_filled(each, dims[first:], "float32") for each in (1, 0))
        normal = relax.op.nn.layer_norm(ex.cast(x, "float32"), one, zero, axes, epsilon)
        wide_shift = None if shift is None else ex.cast(shift, "float32")
        y = ex.cast(_affine(normal, ex.cast(scale, "float32"), wide_shift), dtype)
    return relax.Tuple([y, *results]) if len(attrs[OUTPUTS]) > 1 else y


def _fits(value: Expr, sizes: Sequence[Expr]) -> bool:
    """Whether a factor has the shape of what is normalised, as far as that is known."""
    dims = dims_of(value)
    return len(dims) == len(sizes) and all(
        one.value == other.value
        for one, other in zip(dims, sizes, strict=True)
        if isinstance(one, tirx.IntImm) and isinstance(other, tirx.IntImm)
    )


def _filled(value: float, sizes: Sequence[Expr], dtype: str) -> Expr:
    """So many numbers, a constant if their number is known."""
    known = [int(size) for size in sizes if isinstance(size, tirx.IntImm)]
    if len(known) == len(sizes):
        return ex.literal(np.full(known, value, dtype))
    return relax.op.broadcast_to(ex.literal(np.array(value, dtype)), relax.ShapeExpr(list(sizes)))


def _affine(value: Expr, scale: Expr, shift: Expr | None) -> Expr:
    """By a factor and a summand as they broadcast."""
    product = apply("Mul", value, scale)
    return product if shift is None else apply("Add", product, shift)


@operator("SkipLayerNormalization", domain=CONTRIB_DOMAIN)
def _skip_layer_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """Of x + skip + bias; the fourth output is this sum."""
    x, skip, gamma, beta, bias = (inputs[place] for place in range(5))
    shift = _filled(0, dims_of(gamma), ex.dtype_of(gamma)) if beta is None else beta
    return _of_sum((x, skip, bias), (gamma, shift), attrs, "LayerNormalization", 1e-12)


@operator("SkipSimplifiedLayerNormalization", domain=CONTRIB_DOMAIN)
def _skip_rms_norm(inputs: Inputs, attrs: Attrs) -> Any:
    x, skip, gamma, bias = (inputs[place] for place in range(4))
    return _of_sum((x, skip, bias), (gamma,), attrs, "RMSNormalization", _EPSILON)


@operator("SimplifiedLayerNormalization")
def _simplified_layer_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """ONNX Runtime files this one under the standard domain."""
    return _of_sum(inputs[:1], inputs[1:2], attrs, "RMSNormalization", _EPSILON)


def _of_sum(
    terms: Sequence[Any], parameters: Sequence[Any], attrs: Attrs, name: str, epsilon: float
) -> Expr:
    total, *others = (each for each in terms if each is not None)
    for each in others:
        total = apply("Add", total, each)
    form = {"axis": attrs.get("axis", -1), "epsilon": attrs.get("epsilon", epsilon)}
    y = apply(name, total, *parameters, **form)
    if len(attrs[OUTPUTS]) == 1:
        return y
    if len(terms) == 1 or any(attrs[OUTPUTS][1:3]):
        raise ValueError("its mean and deviation as outputs are not supported")
    return relax.Tuple([y, y, y, total])


@operator("RMSNormalization")
def _rms_norm(inputs: Inputs, attrs: Attrs) -> Any:
    x, scale = inputs[:2]
    rank, dtype = ex.rank_of(x), ex.dtype_of(x)
    axes = list(range(attrs.get("axis", -1) % rank, rank))
    if attrs.get("stash_type", 1) == 1:
        x, scale = (ex.cast(each, "float32") for each in (x, scale))
    return ex.cast(relax.op.nn.rms_norm(x, scale, axes, attrs.get("epsilon", _EPSILON)), dtype)


@operator("LRN")
def _local_response(inputs: Inputs, attrs: Attrs) -> Any:
    """x / (bias + alpha / size * (sum of squares of neighbouring channels)) ** beta

    ONNX, "LRN": channel c sums those from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2).
    In float32 of a known shape as a sum of slices, and with the usual beta = 0.75 the power is two
    square roots; else as a pool over an axis before the channels.
    """
    x, size, beta = inputs[0], attrs["size"], attrs.get("beta", 0.75)
    squares = ex.normalize(x * x)
    shape, rank = ex.static_dims(x), ex.rank_of(x)
    sliced = shape is not None and rank >= 2 and ex.dtype_of(x) == "float32"
    if sliced:
        batch, channels, *extents = ex.known_dims(squares)
        around = (np.zeros((batch, n, *extents), np.float32) for n in ((size - 1) // 2, size // 2))
        first, last = ([ex.literal(edge)] if edge.size else [] for edge in around)
        parts = [*first, squares, *last]
        padded = ex.normalize(relax.op.concat(parts, 1)) if len(parts) > 1 else squares
        slices = (
            relax.op.strided_slice(padded, [1], [place], [place + channels])
            for place in range(size)
        )
        total = apply("Sum", *slices)
    elif size % 2 == 0:
        raise ValueError(f"size={size} is even, which is for float32 alone; use an odd one")
    elif rank not in (3, 4):
        raise ValueError(f"LRN of {rank} dimensions, where 3 and 4 are supported")
    else:
        pool = relax.op.nn.avg_pool2d if rank == 3 else relax.op.nn.avg_pool3d
        pad, ones = [size // 2, *([0] * (rank - 2))], [1] * (rank - 2)
        window = (size, *ones), (1, *ones), [*pad, *pad]
        layout, images = "NCHW" if rank == 3 else "NCDHW", relax.op.expand_dims(squares, axis=1)
        mean = pool(images, *window, layout=layout, count_include_pad=True)
        total = relax.op.squeeze(mean, axis=1)
    scaled = total * ex.number(x, attrs.get("alpha", 1e-4) / (size if sliced else 1))
    spread = ex.normalize(scaled + ex.number(x, attrs.get("bias", 1.0)))
    if not sliced:
        return x / spread ** ex.number(x, beta)
    if beta == 0.75:
        root = ex.normalize(relax.op.sqrt(spread))
        return x / (root * relax.op.sqrt(root))
    return x * relax.op.exp(relax.op.log(spread) * ex.number(x, -beta))


@operator("LpNormalization")
def _lp_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """x / max(ReduceL1 or ReduceL2, smallest); where the norm is 0, the result is."""
    x = inputs[0]
    norm = apply(f"ReduceL{attrs.get('p', 2)}", x, axes=[attrs.get("axis", -1)])
    smallest = ex.number(x, float(ml_dtypes.finfo(ex.dtype_of(x)).tiny))
    return x / relax.op.maximum(norm, smallest)
