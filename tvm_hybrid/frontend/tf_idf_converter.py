"""TfIdfVectorizer of integers: how often each n-gram of a pool occurs in each row.

A kernel compares every n-gram with every place of a row, at every distance between its elements;
R.where and R.multiply apply the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .expressions import Converter, Expr, cast, known_dims, literal

MODES = (b"TF", b"IDF", b"TFIDF")


@dataclass(frozen=True)
class _Pool:
    """The n-grams that count.

    Attributes
    ----------
    grams : numpy.ndarray
        [number, longest], int64.
    lengths : numpy.ndarray
        Of each of them.
    columns : numpy.ndarray
        [columns of the result, most n-grams of one], the n-grams of each column, -1 for none.
    weights : numpy.ndarray
        Of each column, float32.
    """

    grams: np.ndarray
    lengths: np.ndarray
    columns: np.ndarray
    weights: np.ndarray


def _tf_idf(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    if "pool_int64s" not in attrs:
        raise ValueError("n-grams of strings are not supported")
    mode = attrs["mode"]
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is none of TF, IDF and TFIDF")
    x, dims, pool = inputs[0], known_dims(inputs[0]), _pool(attrs)
    rows, count = (1, *dims)[-2:] if dims else (1, 1)
    width = len(pool.columns)
    shape = (width,) if len(dims) < 2 else (rows, width)
    if not count or not len(pool.grams):
        return literal(np.zeros(shape, np.float32))
    flat = builder.normalize(relax.op.reshape(cast(builder, x, "int64"), (rows, count)))
    tables = [literal(array) for array in (pool.grams, pool.lengths, pool.columns)]
    distances = attrs["max_skip_count"] + 1

    def compute(x: te.Tensor, grams: te.Tensor, lengths: te.Tensor, columns: te.Tensor) -> Any:
        which = te.reduce_axis((0, pool.columns.shape[1]))
        skipped, place = te.reduce_axis((0, distances)), te.reduce_axis((0, count))

        def element(row: Expr, column: Expr) -> Expr:
            number, step = columns[column, which.var], skipped.var + 1
            gram = te.max(number, 0)
            length = lengths[gram]
            hits = [
                number >= 0,
                # One element has no distance to another.
                te.any(length > 1, skipped.var == 0),
                place.var + (length - 1) * step < count,
            ]
            for position in range(pool.grams.shape[1]):
                at = te.min(place.var + position * step, count - 1)
                hits.append(te.any(position >= length, x[row, at] == grams[gram, position]))
            return te.sum(
                te.if_then_else(te.all(*hits), tirx.const(1, "int32"), tirx.const(0, "int32")),
                axis=[which, skipped, place],
            )

        return te.compute((rows, width), element, name="count_ngrams")

    counts = builder.emit_te(compute, flat, *tables, primfunc_name_hint="count_ngrams")
    found = cast(builder, builder.normalize(relax.op.reshape(counts, shape)), "float32")
    if mode == b"TF":
        return found
    weight = literal(pool.weights)
    if mode == b"TFIDF":
        return relax.op.multiply(found, weight)
    zero = literal(np.zeros((), np.float32))
    return relax.op.where(builder.normalize(relax.op.greater(found, zero)), weight, zero)


def _pool(attrs: dict[str, Any]) -> _Pool:
    """The n-grams of the lengths that are asked for."""
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
    return _Pool(grams, lengths, columns, of_column)


TF_IDF_CONVERTERS: dict[str, Converter] = {"TfIdfVectorizer": _tf_idf}
