"""Operators that move pixels and channels between convolutions, which block layouts must pass."""

from __future__ import annotations

from math import prod

import numpy as np

from ..drawing import Draw, Value
from .chains import reduced
from .convolutions import batch_norm, dense, depthwise, pointwise
from .parts import activation, batch, binary, epilogue, unary


def layout(d: Draw) -> None:
    """Draws convolutions, and three to eight operators that move data between and around them."""
    rank = d.pick((1, 2, 2, 2, 2))
    spatial = [d.integer(2, 12 if rank == 2 else 30) for _ in range(rank)]
    value = d.input(d.normal(batch(d, 2), d.pick((2, 4, 6, 8, 12, 16, 24)), *spatial))
    if d.chance(0.7):
        value = d.attempt(lambda value=value: dense(d, value), value)
    for _ in range(d.integer(3, 8)):
        form = d.pick(FORMS)
        value = d.attempt(lambda form=form, value=value: form(d, value), value)
        if d.chance(0.12):
            d.output(value)
        if d.chance(0.15):
            images = [each for each in d.values if len(each.shape) == rank + 2]
            value = d.pick(images) if images else value
    epilogue(d, value, 1)


def concat(d: Draw, x: Value) -> Value:
    """Concatenates with a value of equal shape, along any axis."""
    other = (
        d.attempt(lambda: unary(d, x), x) if d.chance(0.5) else d.either(d.normal(*x.shape), 0.3)
    )
    parts = [x, other] if d.chance(0.7) else [other, x, x]
    return d.node("Concat", *parts, axis=d.pick((1, 1, 1, -1, 2, 0)) if len(x.shape) > 2 else 1)


def sliced(d: Draw, x: Value) -> Value:
    """Slices an axis, perhaps backwards or with steps."""
    axis = d.integer(0, len(x.shape) - 1) if d.chance(0.5) else 1
    extent = x.shape[axis]
    start = d.integer(0, extent - 1)
    end = d.integer(start + 1, extent)
    step = d.pick((1, 1, 1, 2, -1))
    bounds = (start, end) if step > 0 else (end - 1, start - 1 - (extent if start == 0 else 0))
    if d.chance(0.2):
        bounds = (bounds[0], 2**31 if step > 0 else -(2**31))
    return d.node("Slice", x, *(d.integers(each) for each in (*bounds, axis, step)))


def split(d: Draw, x: Value) -> Value:
    """Splits channels; the parts are concatenated in another order, or used one by one."""
    channels = x.shape[1]
    first = d.integer(1, channels - 1) if channels > 1 else channels
    sizes = [first, channels - first] if channels > 1 else [1]
    parts = d.several("Split", len(sizes), x, d.integers(*sizes), axis=1)
    changed = [activation(d, each) if d.chance(0.5) else each for each in parts]
    if d.chance(0.3):
        return changed[0]
    return d.node("Concat", *reversed(changed), axis=1)


def shuffle(d: Draw, x: Value) -> Value:
    """Shuffles channels between groups, as ShuffleNet does."""
    n, channels, *spatial = x.shape
    groups = d.pick([each for each in (2, 3, 4) if channels % each == 0] or [1])
    shape = (n, groups, channels // groups, *spatial)
    wide = d.node("Reshape", x, d.integers(*shape))
    turned = d.node("Transpose", wide, perm=[0, 2, 1, *range(3, len(shape))])
    if d.chance(0.2):
        d.output(turned)
    return d.node("Reshape", turned, d.integers(*x.shape))


def padded(d: Draw, x: Value) -> Value:
    """Pads in any mode, or crops."""
    rank = len(x.shape)
    mode = d.pick(("constant", "constant", "reflect", "edge"))
    before, after = ([0, 0] + [d.integer(0, 2) for _ in range(rank - 2)] for _ in range(2))
    if d.chance(0.2):
        before[1] = d.integer(0, 3)
    if mode == "constant" and d.chance(0.15):
        after[-1] = -1
    fill = [d.constant(np.float32(d.pick((0.0, 1.5))))] if d.chance(0.5) else []
    return d.node("Pad", x, d.integers(*before, *after), *fill, mode=mode)


def resized(d: Draw, x: Value) -> Value:
    """Resizes by a factor or to a size."""
    mode = d.pick(("nearest", "linear"))
    forms = ("half_pixel", "asymmetric", "align_corners")
    attributes = {"mode": mode, "coordinate_transformation_mode": d.pick(forms)}
    if mode == "nearest":
        # A coordinate between two pixels may be near a tie, which float32 may round the other way.
        attributes["coordinate_transformation_mode"] = d.pick(forms[:2])
        attributes["nearest_mode"] = d.pick(("floor", "round_prefer_floor"))
    if d.chance(0.5):
        factors = [1.0, 1.0] + [d.pick((1.0, 2.0, 2.0, 0.5, 1.5)) for _ in x.shape[2:]]
        return d.node("Resize", x, None, d.constant(factors, np.float32), **attributes)
    sizes = [*x.shape[:2], *(d.integer(1, 2 * each) for each in x.shape[2:])]
    return d.node("Resize", x, None, None, d.integers(*sizes), **attributes)


def pooled(d: Draw, x: Value) -> Value:
    """The maximum or mean of windows, or of all pixels."""
    if d.chance(0.2):
        return d.node(d.pick(("GlobalAveragePool", "GlobalMaxPool")), x)
    rank = len(x.shape) - 2
    window = [d.integer(1, 3) for _ in range(rank)]
    attributes = {"kernel_shape": window}
    if d.chance(0.6):
        attributes["strides"] = [d.integer(1, 2) for _ in range(rank)]
    if d.chance(0.4):
        attributes["pads"] = [d.integer(0, each - 1) for each in window * 2]
    if d.chance(0.2):
        attributes["ceil_mode"] = 1
    if d.chance(0.5):
        return d.node("MaxPool", x, **attributes)
    if d.chance(0.4):
        attributes["count_include_pad"] = 1
    return d.node("AveragePool", x, **attributes)


def squeezed(d: Draw, x: Value) -> Value:
    """Squeeze and excite: scales channels by a function of the mean over all pixels."""
    if d.chance(0.5):
        mean = d.node("GlobalAveragePool", x)
    else:
        mean = reduced(d, "ReduceMean", x, *range(2, len(x.shape)))
    gate = activation(d, pointwise(d, mean))
    w = d.constant(d.normal(x.shape[1], gate.shape[1], *(1,) * (len(x.shape) - 2), scale=0.3))
    return d.node("Mul", x, d.node(d.pick(("Sigmoid", "HardSigmoid")), d.node("Conv", gate, w)))


def turned(d: Draw, x: Value) -> Value:
    """Transposes, applies an operator, and perhaps transposes back."""
    order = list(range(len(x.shape)))
    if d.chance(0.6):
        order = [0, *order[2:], 1]
    else:
        d.rng.shuffle(order)
    moved = d.node("Transpose", x, perm=order)
    y = d.attempt(lambda: binary(d, moved), moved) if d.chance(0.6) else moved
    if d.chance(0.25) or len(y.shape) != len(order):
        return y
    return d.node("Transpose", y, perm=[order.index(place) for place in range(len(order))])


def reshaped(d: Draw, x: Value) -> Value:
    """Flattens and restores the shape, or merges two axes."""
    if d.chance(0.3):
        flat = d.node("Flatten", x, axis=d.integer(0, len(x.shape)))
        flat = d.attempt(lambda: unary(d, flat), flat)
        return d.node("Reshape", flat, d.integers(*x.shape))
    shape = d.pick(((0, 0, -1), (0, -1, x.shape[-1]), (0, 0, 1, -1), (-1, 1, *x.shape[1:])))
    return d.node("Reshape", x, d.integers(*shape))


def blocks(d: Draw, x: Value) -> Value:
    """DepthToSpace or SpaceToDepth."""
    if d.chance(0.6):
        return d.node("DepthToSpace", x, blocksize=2, mode=d.pick(("DCR", "CRD")))
    return d.node("SpaceToDepth", x, blocksize=2)


def gathered(d: Draw, x: Value) -> Value:
    """Gathers some indices of an axis, in any order, perhaps negative."""
    axis = d.integer(0, len(x.shape) - 1)
    extent = x.shape[axis]
    indices = d.numbers.integers(-extent, extent, d.integer(1, extent + 1))
    return d.node("Gather", x, d.constant(indices), axis=axis)


def stretched(d: Draw, x: Value) -> Value:
    """Repeats a value along axes, or broadcasts its reduction."""
    if d.chance(0.5):
        counts = [d.pick((1, 1, 2)) for _ in x.shape]
        return d.node("Tile", x, d.integers(*counts))
    axis = d.integer(0, len(x.shape) - 1)
    part = reduced(d, d.pick(("ReduceMean", "ReduceMax", "ReduceSum")), x, axis)
    return d.node("Expand", part, d.integers(*x.shape))


def classified(d: Draw, x: Value) -> Value:
    """A reduction at the end of a classifier."""
    form = d.pick(("ArgMax", "Softmax", "ReduceMean"))
    if form == "ArgMax":
        found = d.node("ArgMax", x, axis=d.integer(0, len(x.shape) - 1), keepdims=d.integer(0, 1))
        d.output(found)
        return x
    if form == "Softmax":
        return d.node("Softmax", x, axis=d.integer(1, len(x.shape) - 1))
    return reduced(d, "ReduceMean", x, *range(2, len(x.shape)), keep=d.chance(0.5))


def branches(d: Draw, x: Value) -> Value:
    """Two branches from one value that meet again."""
    left = d.attempt(lambda: dense(d, x), x)
    right = d.attempt(lambda: pooled(d, x) if d.chance(0.5) else pointwise(d, x), x)
    if left.shape == right.shape and d.chance(0.6):
        return d.node(d.pick(("Add", "Mul")), left, right)
    if left.shape[:1] + left.shape[2:] == right.shape[:1] + right.shape[2:]:
        return d.node("Concat", left, right, axis=1)
    d.output(left)
    return right


def joined(d: Draw, x: Value) -> Value:
    """A product of flattened pixels."""
    count = prod(x.shape[1:])
    flat = d.node("Reshape", x, d.integers(0, -1))
    return d.node("MatMul", flat, d.constant(d.normal(count, d.integer(1, 33), scale=count**-0.5)))


FORMS = (
    *(concat, sliced, split, shuffle, padded, resized, pooled, squeezed, turned, reshaped, blocks),
    *(gathered, stretched, classified, branches, joined, activation, binary, batch_norm),
    *(dense, dense, dense, depthwise, pointwise, branches, concat, split),
)
