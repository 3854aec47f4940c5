"""Normalisations, and the reductions that they consist of.

Normalisations differ in the axes of their statistics: batches, images, groups, rows, neighbours.

    EmbedLayerNormalization(ids, segment_ids, words, positions, segments, gamma, beta, mask, ...)
        ->  LayerNormalization(Gather(words, ids) + Gather(positions, ...) + Gather(segments, ...)),
            the number of ones in each row of the mask, and the sum that was normalised
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper
from tvm import relax

from ... import expressions as ex
from ...expressions import OUTPUTS, Attrs, Expr, Inputs
from ..graph.graph import CONTRIB_DOMAIN
from ..graph.requests import broadcast, check, check_equal, differ, sizes_text, viewed
from ..graph.sizes import counted, dims_of, index, plain, plain_dims, scalar_of
from ..operators import apply, operator

_EPSILON = 1e-5


@operator("BatchNormalization")
def _batch_norm(*inputs: Expr, epsilon: float = _EPSILON, **attrs: Any) -> Expr:
    """BatchNormalization; one multiplication and addition per channel for constant statistics.

    y = x * scale + shift
        scale = gamma / sqrt(variance + epsilon),  shift = beta - mean * scale
    """
    x, *parameters = inputs
    training, counted = attrs.get("training_mode", 0) == 1, len(attrs[OUTPUTS])
    if not training and counted > 1:
        raise ValueError("it is in the training mode of an old opset; export it for inference")
    rank = ex.rank_of(x)
    if training:
        if attrs.get("spatial", 1) != 1 or rank < 2:
            raise ValueError(f"it is in training mode, of rank {rank}; export it for inference")
        return _normalized_by_batch(inputs, epsilon, attrs.get("momentum", 0.9))
    arrays = [ex.constant(each) for each in parameters]
    known = [array.astype(np.float64) for array in arrays if array is not None]
    channels = dims_of(x)[1] if rank > 1 else 0
    vectors = all(array.shape == (getattr(channels, "value", None),) for array in known)
    dtype = ex.dtype_of(x)
    if attrs.get("spatial", 1) == 1 and len(known) == len(arrays) and vectors:
        with np.errstate(all="ignore"):  # a negative variance gives NaN, as it does at run time
            ratio = known[0] / np.sqrt(known[3] + epsilon)
        # If the inputs have different types, all is computed in the widest.
        widest = str(np.result_type(*(np.dtype(ex.dtype_of(each)) for each in inputs)))
        aligned = (-1, *[1] * (rank - 2))
        # Scale and shift are rounded once; the Relax pass `fold_factors` folds them further.
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


def _normalized_by_batch(inputs: Sequence[Expr], epsilon: float, momentum: float) -> Expr:
    """Training mode: normalises by the input's own mean and variance, and updates the running ones.

    centred = x - mean(x, [0, 2, 3]),  variance = mean(centred * centred, [0, 2, 3])
    y = centred / sqrt(variance + epsilon) * gamma + beta
    m = running mean * momentum + mean(x) * (1 - momentum)    # likewise the running variance
    """
    wide = "float64" if any(ex.dtype_of(each) == "float64" for each in inputs) else "float32"
    x, gamma, beta, *running = (ex.cast(each, wide) for each in inputs)
    axes = [axis for axis in range(ex.rank_of(x)) if axis != 1]
    mean, centred, variance = _statistics(x, axes)
    normal = centred / relax.op.sqrt(variance + ex.number(x, epsilon))
    results = [ex.cast(_scaled(normal, gamma, beta, ex.rank_of(x)), ex.dtype_of(inputs[0]))]
    for old, new in zip(running, (mean, variance), strict=True):
        column = relax.op.reshape(new, relax.ShapeExpr([dims_of(x)[1]]))
        moved = old * ex.number(x, momentum) + column * ex.number(x, 1 - momentum)
        results.append(ex.cast(moved, ex.dtype_of(inputs[3])))
    return relax.Tuple(results)


def _statistics(x: Expr, axes: Sequence[int]) -> tuple[Expr, Expr, Expr]:
    """The mean, x minus the mean, and the variance."""
    mean = ex.normalize(relax.op.mean(x, axes, True))
    centred = ex.normalize(x - mean)
    return mean, centred, ex.normalize(relax.op.mean(centred * centred, axes, True))


@operator("InstanceNormalization")
def _instance_norm(x: Expr, scale: Expr, shift: Expr, *, epsilon: float = _EPSILON) -> Expr:
    axes = list(range(2, ex.rank_of(x)))
    mean = ex.normalize(relax.op.mean(x, axis=axes, keepdims=True))
    variance = relax.op.variance(x, axis=axes, keepdims=True)
    spread = ex.normalize(relax.op.sqrt(variance + ex.number(x, epsilon)))
    return _scaled((x - mean) / spread, scale, shift, ex.rank_of(x))


def _scaled(value: Expr, scale: Expr, shift: Expr, rank: int) -> Expr:
    """Applies a factor and a summand of each channel."""
    value, channels = ex.normalize(value), [-1, *([1] * (rank - 2))]
    factor, summand = (ex.normalize(relax.op.reshape(each, channels)) for each in (scale, shift))
    return value * factor + summand


@operator("GroupNormalization")
def _group_norm(x: Expr, scale: Expr, shift: Expr, **attrs: Any) -> Expr:
    """GroupNormalization; up to opset 20 there is one factor per group, since then per channel."""
    groups, dtype = attrs["num_groups"], ex.dtype_of(x)
    if attrs.get("stash_type", 1) != 1:
        raise ValueError(f"stash_type={attrs['stash_type']}, where only 1 (float32) is supported")
    channels, *extents = dims_of(x)[1:]
    check_equal(channels % index(groups), index(0), "the channels are no multiple of the groups")
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
    # Statistics are float32; the factors are applied in the type of x.
    wide, unused, neither = (ex.cast(each, "float32") for each in (x, scale, shift))
    normal = relax.op.nn.group_norm(
        wide, unused, neither, groups, 1, axes, epsilon, center=False, scale=False
    )
    return _scaled(ex.cast(normal, dtype), scale, shift, rank)


@operator("LayerNormalization")
def _layer_norm(x: Expr, scale: Expr, shift: Expr, **attrs: Any) -> Expr:
    """LayerNormalization; statistics are computed separately, so that it stays one kernel.

    LayerNormalization(x, w, b)  ->  (y, mean, deviation)
        mean: m = mean(x),  deviation: 1 / sqrt(mean((x - m) * (x - m)) + epsilon)
    LayerNormalization(x, w) if w does not have the shape of the normalised axes
        ->  layer_norm(x, 1, 0) * w, in float32
    LayerNormalization(x: f64, w)  ->  (x - mean) * deviation * w
    """
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
    """Whether a factor may have the sizes of the normalised axes; unknown sizes count as equal."""
    dims = plain_dims(value)
    return len(dims) == len(sizes) and not any(map(differ, dims, plain(sizes)))


def _filled(value: float, sizes: Sequence[Expr], dtype: str) -> Expr:
    """A tensor filled with a value; a constant if its sizes are known."""
    known = plain(sizes)
    if all(isinstance(size, int) for size in known):
        return ex.literal(np.full(known, value, dtype))
    return relax.op.broadcast_to(ex.literal(np.array(value, dtype)), relax.ShapeExpr(list(sizes)))


def _affine(value: Expr, scale: Expr, shift: Expr | None) -> Expr:
    """value * scale + shift, broadcast."""
    product = apply("Mul", value, scale)
    return product if shift is None else apply("Add", product, shift)


@operator("SkipLayerNormalization", domain=CONTRIB_DOMAIN)
def _skip_layer_norm(x: Expr, skip: Expr, gamma: Expr, beta: Expr, bias: Expr, **form: Any) -> Expr:
    """LayerNormalization of x + skip + bias; the fourth output is this sum."""
    return _of_sum((x, skip, bias), (gamma, beta), form, "LayerNormalization", 1e-12)


@operator("SkipSimplifiedLayerNormalization", domain=CONTRIB_DOMAIN)
def _skip_rms_norm(x: Expr, skip: Expr, gamma: Expr, bias: Expr, **form: Any) -> Expr:
    return _of_sum((x, skip, bias), (gamma,), form, "RMSNormalization", _EPSILON)


@operator("SimplifiedLayerNormalization")
def _simplified_layer_norm(x: Expr, gamma: Expr, **form: Any) -> Expr:
    """RMSNormalization; ONNX Runtime has this name in the standard domain."""
    return _of_sum((x,), (gamma,), form, "RMSNormalization", _EPSILON)


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


@operator("EmbedLayerNormalization", "QEmbedLayerNormalization", domain=CONTRIB_DOMAIN)
def _normalized_embeddings(*given: Expr, **attrs: Any) -> Expr:
    """The normalised sum, the number of tokens of each sequence, and the sum of the embeddings."""
    inputs = Inputs(given)
    is_quantized = "int8" in ex.dtype_of(inputs[2])
    ids, segments, positions = inputs[0], inputs[1], None if is_quantized else inputs[8]
    if ex.rank_of(ids) != 2:
        raise ValueError(f"its input has the shape {sizes_text(plain_dims(ids))}, not two axes")
    length = plain_dims(ids)[1]
    positions = viewed(counted(length), 1, length) if positions is None else positions

    def real(place: int, indices: Expr = None) -> Expr:
        table = inputs[place]
        # Rows of 8-bit tables are dequantized after they are gathered.
        rows = table if indices is None else apply("Gather", table, indices, axis=0)
        if not is_quantized:
            return rows
        # For inputs 2 to 6, scales are inputs 8 to 12, and zero points are inputs 13 to 17.
        parameters = (inputs[place + behind] for behind in (6, 11))
        parameters = (None if each is None else viewed(each) for each in parameters)
        return apply("DequantizeLinear", rows, *parameters)

    total = apply("Add", real(2, ids), real(3, positions))
    if segments is not None:
        total = apply("Add", total, real(4, segments))
    affine, epsilon = [real(5), real(6)], attrs.get("epsilon", 1e-12)
    y = apply("LayerNormalization", total, *affine, axis=-1, epsilon=epsilon)
    if not any(attrs[OUTPUTS][1:2]):
        return relax.Tuple([y, y, total])
    kind, mask = attrs.get("mask_index_type", 1), inputs[7]
    if kind != 1:
        raise ValueError(f"its attribute mask_index_type ({kind}) is not supported; 1 is")
    if mask is None:
        zeros = broadcast(ex.literal(np.array(0, np.int32)), dims_of(ids)[:1])
        return relax.Tuple([y, zeros, total])
    is_one = apply("Equal", ex.cast(mask, "int32"), ex.literal(np.array(1, np.int32)))
    count = apply("ReduceSum", ex.cast(is_one, "int32"), axes=[1], keepdims=0)
    return relax.Tuple([y, count, total])


@operator("RMSNormalization")
def _rms_norm(
    x: Expr, scale: Expr, *, axis: int = -1, epsilon: float = _EPSILON, stash_type: int = 1
) -> Expr:
    rank, dtype = ex.rank_of(x), ex.dtype_of(x)
    if stash_type == 1:
        x, scale = (ex.cast(each, "float32") for each in (x, scale))
    return ex.cast(relax.op.nn.rms_norm(x, scale, [*range(axis % rank, rank)], epsilon), dtype)


@operator("LRN")
def _local_response(x: Expr, *, size: int, beta: float = 0.75, **attrs: Any) -> Expr:
    """x / (bias + alpha / size * (sum of squares of neighbouring channels)) ** beta"""
    squares = ex.normalize(x * x)
    batch, channels, *extents = dims_of(squares)
    # ONNX, "LRN": channel c sums channels from c - floor((size - 1) / 2)
    # to c + ceil((size - 1) / 2).
    first, last = (
        [_filled(0, [batch, index(count), *extents], ex.dtype_of(x))] if count else []
        for count in ((size - 1) // 2, size // 2)
    )
    padded = ex.normalize(relax.op.concat([*first, squares, *last], 1) if last else squares)
    slices = (
        relax.op.strided_slice(padded, [1], [place], [place + channels]) for place in range(size)
    )
    scaled = apply("Sum", *slices) * ex.number(x, attrs.get("alpha", 1e-4) / size)
    spread = ex.normalize(scaled + ex.number(x, attrs.get("bias", 1.0)))
    # For the usual beta the power is two square roots.
    if beta == 0.75:
        root = ex.normalize(relax.op.sqrt(spread))
        return x / (root * relax.op.sqrt(root))
    return x * relax.op.exp(relax.op.log(spread) * ex.number(x, -beta))


@operator("LpNormalization")
def _lp_norm(x: Expr, *, axis: int = -1, p: int = 2) -> Expr:
    """x / max(norm, smallest), with ReduceL1 or ReduceL2 as norm; 0 if the norm is 0."""
    norm = apply(f"ReduceL{p}", x, axes=[axis])
    smallest = ex.number(x, float(ml_dtypes.finfo(ex.dtype_of(x)).tiny))
    return x / relax.op.maximum(norm, smallest)


# Reductions of axes: sums and means of all kinds, extremes and their indices.


OfOne = Callable[[Expr], Expr]
Reduce = Callable[[Expr, "list[int] | None", bool], Expr]
# Relax's mean of int32 is int64, bool has no extremes, roots and logarithms need floats.
_INTEGERS = ("int32", "int64", "uint32", "uint64")
_COMPUTED_AS = {
    "ReduceMax": {"bool": "uint8"},
    "ReduceMean": {"int32": "int64", "uint32": "int64"},
    "ReduceMin": {"bool": "uint8"},
    **dict.fromkeys(
        ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), dict.fromkeys(_INTEGERS, "float64")
    ),
}


def _reduction(
    name: str, reduce: Reduce, before: OfOne = lambda x: x, after: OfOne = lambda x: x
) -> Callable[..., Expr]:
    """Makes a converter that reduces axes; without axes it reduces all, or none if so requested."""

    def convert(x: Expr, axes: Expr, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Expr:
        misfit = "the axes are computed at run time; only known ones are supported"
        places = None if axes is None else ex.known_array(axes, misfit).tolist()
        if not places and noop_with_empty_axes:
            return relax.op.abs(x) if name == "ReduceL2" else after(before(x))
        dtype = ex.dtype_of(x)
        wide = ex.cast(x, _COMPUTED_AS.get(name, {}).get(dtype, dtype))
        return ex.cast(after(reduce(before(wide), places or None, bool(keepdims))), dtype)

    return convert


def _log_sum_exp(x: Expr, axes: list[int] | None, kept: bool) -> Expr:
    """log(sum(exp(x - m))) + m, where m is the largest element, so that no power overflows."""
    axes = axes or list(range(ex.rank_of(x)))
    finite = ml_dtypes.finfo(ex.dtype_of(x))
    most = relax.op.max(x, axes, True)
    # If m is infinite, as in a row of -inf, x - m would be inf - inf; so m is clipped to the
    # largest or least finite number.
    most = apply("Clip", most, min=float(finite.min), max=float(finite.max))
    total = relax.op.log(apply("ReduceSum", relax.op.exp(x - most), axes=axes)) + most
    return total if kept else relax.op.squeeze(total, axes)


def _extreme(
    x: Expr, *, find: Callable[..., Expr], axis: int = 0, keepdims: int = 1, **attrs: Any
) -> Expr:
    axis %= ex.rank_of(x)
    check(dims_of(x)[axis] > 0)
    if not attrs.get("select_last_index", 0):
        return find(x, axis, bool(keepdims))
    # The last of equal elements is the first one in the reversed axis.
    last = scalar_of(dims_of(x)[axis] - index(1))
    return last - find(ex.normalize(relax.op.flip(x, axis=axis)), axis, bool(keepdims))


def _over_images(x: Expr, *, reduce: Reduce) -> Expr:
    axes = list(range(2, ex.rank_of(x)))
    return reduce(x, axes, True) if axes else x


@operator("MeanVarianceNormalization")
def _mean_variance(x: Expr, *, axes: Sequence[int] = (0, 2, 3)) -> Expr:
    """(x - mean) / sqrt(mean of squares - square of mean), over batch, height and width."""
    axes, two = list(axes), ex.number(x, 2)
    mean = ex.normalize(relax.op.mean(x, axes, True))
    variance = ex.normalize(relax.op.mean(x**two, axes, True) - mean**two)
    return (x - mean) / relax.op.sqrt(variance)


_SAME_NAME = ("Max", "Mean", "Min", "Prod", "Sum")  # the same names in Relax
# Operator -> reduction, function before it, function after it.
_REDUCTIONS: dict[str, tuple[Any, ...]] = {
    "ReduceL1": (relax.op.sum, relax.op.abs),
    "ReduceL2": (relax.op.sum, lambda x: x * x, relax.op.sqrt),
    "ReduceLogSum": (relax.op.sum, lambda x: x, relax.op.log),
    "ReduceLogSumExp": (_log_sum_exp,),
    **{f"Reduce{name}": (getattr(relax.op, name.lower()),) for name in _SAME_NAME},
    "ReduceSumSquare": (relax.op.sum, lambda x: x * x),
}
for _name, _parts in _REDUCTIONS.items():
    operator(_name)(_reduction(_name, *_parts))
operator("ArgMax")(partial(_extreme, find=relax.op.argmax))
operator("ArgMin")(partial(_extreme, find=relax.op.argmin))
operator("GlobalAveragePool")(partial(_over_images, reduce=relax.op.mean))
operator("GlobalMaxPool")(partial(_over_images, reduce=relax.op.max))
