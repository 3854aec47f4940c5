"""Converters of operators along one axis, often that of time.

operator           Relax
CumSum, CumProd    R.cumsum, R.cumprod, between two R.flip if reverse=1
ReverseSequence    a kernel: y[t] = x[length - 1 - t] for t < length, else x[t]
TensorScatter      a kernel: y[s] = update[s - start] for 0 <= s - start < count, else past[s]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from relay_passes.lower.in_place import ROW_UPDATE

from ... import expressions as ex
from ...expressions import Attrs, Expr, Place
from ..graph.requests import check, check_equal, check_sizes
from ..graph.sizes import dims_of
from ..operators import operator


def _scan(
    x: Expr, axis: Expr, *, run: Callable[..., Expr], exclusive: int = 0, reverse: int = 0
) -> Expr:
    """Running sums or products; narrow floats are accumulated in float32, as each step rounds."""
    place = int(ex.known_array(axis, "the axis must be a constant").item())
    dtype, rank = ex.dtype_of(x), ex.rank_of(x)
    if not -rank <= place < rank:
        raise ValueError(f"axis {place} of a tensor of rank {rank}")
    place %= rank
    x = ex.cast(x, "float32") if dtype in ("float16", "bfloat16") else x
    x = relax.op.flip(x, place) if reverse else x
    x = run(x, place, exclusive=bool(exclusive))
    return ex.cast(relax.op.flip(x, place) if reverse else x, dtype)


@operator("ReverseSequence")
def _reverse_sequence(x: Expr, lengths: Expr, *, time_axis: int = 0, batch_axis: int = 1) -> Expr:
    dims, time, batch = dims_of(x), time_axis, batch_axis
    if {time, batch} != {0, 1}:
        raise ValueError(f"time_axis={time} and batch_axis={batch} are not 0 and 1 or 1 and 0")
    misfit = "sequence_lens has not one element for each sequence"
    if ex.rank_of(lengths) != 1:
        raise ValueError("sequence_lens is no vector")
    check_equal(dims_of(lengths)[0], dims[batch], misfit)

    def element(place: Place, x: te.Tensor, lengths: te.Tensor) -> Expr:
        step, length = place[time].astype("int64"), lengths[place[batch]]
        source = te.if_then_else(step < length, length - 1 - step, step)
        # Lengths come from the user's feeds: a wrong one must not read foreign memory.
        source = te.max(te.min(source, x.shape[time] - 1), 0)
        return x[(*place[:time], source, *place[time + 1 :])]

    return ex.emit_each("reverse_sequence", dims, element, x, lengths, hint="reverse_sequence")


@operator("TensorScatter")
def _tensor_scatter(
    past: Expr, update: Expr, starts: Expr, *, mode: str = "linear", axis: int = -2
) -> Expr:
    dims = dims_of(past)
    if mode not in ("linear", "circular"):
        raise ValueError(f"mode={mode!r} is neither linear nor circular")
    if not -len(dims) < axis < len(dims) or axis == 0:
        raise ValueError(f"axis {axis} of a tensor of rank {len(dims)}; axis 0 is the batch")
    axis %= len(dims)
    new, misfit = dims_of(update), "an update that does not fit into the cache"
    check_sizes(new, [*dims[:axis], *new[axis : axis + 1], *dims[axis + 1 :]], misfit)
    check(new[axis] <= dims[axis], misfit)
    if starts is None:
        starts = ex.normalize(relax.op.zeros((dims[0],), "int64"))
    check_equal(dims_of(starts)[0], dims[0])

    def element(place: Place, past: te.Tensor, update: te.Tensor, starts: te.Tensor) -> Expr:
        count, source = update.shape[axis], place[axis].astype("int64") - starts[place[0]]
        if mode == "circular":
            source = tirx.floormod(source, past.shape[axis])
        inside = te.all(source >= 0, source < count)
        held = te.max(te.min(source, count - 1), 0)
        written = update[(*place[:axis], held, *place[axis + 1 :])]
        return te.if_then_else(inside, written, past[place])

    in_rows = mode == "linear" and axis == len(dims) - 2 > 0
    name, marks = "tensor_scatter", {ROW_UPDATE: [1, 2, 0]} if in_rows else {}
    return ex.emit_each(name, dims, element, past, update, starts, hint=name, **marks)


operator("CumProd")(partial(_scan, run=relax.op.cumprod))
operator("CumSum")(partial(_scan, run=relax.op.cumsum))


# TfIdfVectorizer of integers: counts each n-gram of a pool in each row.
#
# A kernel compares every n-gram with every position of a row, for each distance between its
# elements; R.where and R.multiply apply the weights.


@operator("TfIdfVectorizer", static=True)
def _tf_idf(x: Expr, *, mode: str, **attrs: Any) -> Expr:
    if "pool_int64s" not in attrs:
        raise ValueError("n-grams of strings are not supported")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ValueError(f"mode={mode!r} is none of TF, IDF and TFIDF")
    dims, arrays = ex.known_dims(x), _pool(attrs)
    (grams, longest), (width, most) = arrays[0].shape, arrays[2].shape
    *tables, weight = map(ex.literal, arrays)
    rows, count = (1, *dims)[-2:] if dims else (1, 1)
    shape = (width,) if len(dims) < 2 else (rows, width)
    if not count or not grams:
        return ex.literal(np.zeros(shape, np.float32))
    flat = ex.normalize(relax.op.reshape(ex.cast(x, "int64"), (rows, count)))
    distances = attrs["max_skip_count"] + 1

    def element(at: Place, x: te.Tensor, *tables: te.Tensor) -> Expr:
        (row, column), (grams, lengths, columns) = at, tables
        axes = [te.reduce_axis((0, extent)) for extent in (most, distances, count)]
        which, skipped, place = (axis.var for axis in axes)
        number, step = columns[column, which], skipped + 1
        gram = te.max(number, 0)
        length = lengths[gram]
        # An n-gram of one element has only one distance.
        hits = [number >= 0, te.any(length > 1, skipped == 0), place + (length - 1) * step < count]
        for position in range(longest):
            read = te.min(place + position * step, count - 1)
            hits.append(te.any(position >= length, x[row, read] == grams[gram, position]))
        hit = te.if_then_else(te.all(*hits), tirx.const(1, "int32"), tirx.const(0, "int32"))
        return te.sum(hit, axis=axes)

    name = "count_ngrams"
    counts = ex.emit_each(name, (rows, width), element, flat, *tables, hint=name)
    found = ex.cast(relax.op.reshape(counts, shape), "float32")
    if mode == "TF":
        return found
    zero = ex.number(found, 0)
    return found * weight if mode == "TFIDF" else relax.op.where(found > zero, weight, zero)


def _pool(attrs: Attrs) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The n-grams of the requested lengths, their lengths, and each column's n-grams and weight."""
    items, starts = attrs["pool_int64s"], attrs["ngram_counts"]
    indexes, weights = attrs["ngram_indexes"], attrs.get("weights")
    if not indexes or min(indexes) < 0:
        raise ValueError("ngram_indexes must hold the columns of the n-grams, from 0 on")
    if weights and len(weights) != len(indexes):
        raise ValueError(f"there are {len(weights)} weights for {len(indexes)} n-grams")
    found: dict[tuple[int, ...], int] = {}
    number = 0
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(items)], strict=True), 1):
        for first in range(start, end - length + 1, length):
            gram = tuple(items[first : first + length])
            if number >= len(indexes) or gram in found:
                raise ValueError(f"the n-gram {gram} comes twice, or has no column")
            if attrs["min_gram_length"] <= length <= attrs["max_gram_length"]:
                found[gram] = number
            number += 1
    grams = np.zeros((len(found), max(map(len, found), default=1)), np.int64)
    members: list[list[int]] = [[] for _ in range(max(indexes) + 1)]
    of_column = np.ones(len(members), np.float32)
    for row, (gram, number) in enumerate(found.items()):
        grams[row, : len(gram)] = gram
        members[indexes[number]].append(row)
        of_column[indexes[number]] = weights[number] if weights else 1
    most = max(1, *map(len, members))
    if weights and most > 1:
        raise ValueError("two n-grams have the same column, and weights")
    columns = np.full((len(members), most), -1, np.int32)
    for place, each in zip(columns, members, strict=True):
        place[: len(each)] = each
    lengths = np.array([len(gram) for gram in found], np.int32)
    return grams, lengths, columns, of_column
