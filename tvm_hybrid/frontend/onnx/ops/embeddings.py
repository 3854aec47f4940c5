"""Embeddings: rotations of heads by their positions, and sums of tables' rows.

    RotaryEmbedding(x, position_ids, cos_cache, sin_cache)    of ONNX Runtime
    RotaryEmbedding(x, cos_cache, sin_cache, position_ids)    of opset 23
        ->  Concat(x1 * cos - x2 * sin, x1 * sin + x2 * cos, the rest of x)
    EmbedLayerNormalization(ids, segment_ids, words, positions, segments, gamma, beta, mask, ...)
        ->  LayerNormalization(Gather(words, ids) + Gather(positions, ...) + Gather(segments, ...)),
            the number of ones in each row of the mask, and the sum that was normalised

x1 and x2 are the halves of what is rotated of each head, or its even and odd elements if they are
interleaved (arXiv 2104.09864, section 3.4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...expressions import OUTPUTS, Attrs, Expr, Inputs, cast, literal, rank_of
from ..apply import apply
from ..evaluate import computed
from ..graph.graph import CONTRIB_DOMAIN
from ..graph.requests import broadcast, expect_shape, sizes_text, viewed
from ..graph.sizes import counted, dims_of, plain_dims
from ..operators import operator


@operator("RotaryEmbedding", domain=CONTRIB_DOMAIN)
def _contrib_rotary_embedding(inputs: Inputs, attrs: Attrs) -> Any:
    """Positions are given for every token, or the first one."""
    refuse_attributes(attrs, "is_packed_batching")
    if attrs.get("scale", 1.0) != 1.0:
        raise ValueError("its attribute scale is not supported")
    x, positions, *caches = inputs
    batch, length = _tokens(x)
    if rank_of(positions) == 1:
        expect_shape("position_ids", positions, 1)
        positions = apply("Add", viewed(counted(length), 1, length), positions)
    else:
        expect_shape("position_ids", positions, batch, length)
    return _rotated(x, gathered(positions, caches), attrs)


@operator("RotaryEmbedding")
def _rotary_embedding(inputs: Inputs, attrs: Attrs) -> Any:
    """Positions are given for every token, or its cosines and sines."""
    x, caches, positions = inputs[0], inputs[1:3], inputs[3]
    if positions is None:
        expect_shape("cos_cache", caches[0], *_tokens(x), plain_dims(caches[0])[-1])
        return _rotated(x, caches, attrs)
    return _rotated(x, gathered(positions, caches), attrs)


def _tokens(x: Expr) -> tuple[Any, Any]:
    """(batch, length) of [batch, length, columns] or [batch, heads, length, size]."""
    dims = plain_dims(x)
    if len(dims) not in (3, 4):
        raise ValueError(f"its input has {len(dims)} axes, not 3 or 4")
    return dims[0], dims[-2]


def gathered(positions: Expr, caches: Sequence[Expr]) -> list[Expr]:
    """The rows of cosines and sines that belong to positions; constants of constants."""
    return [computed("Gather", cache, positions, axis=0) for cache in caches]


def _rotated(x: Expr, rotation: Sequence[Expr], attrs: Attrs) -> Expr:
    """x [batch, length, heads * size] or [batch, heads, length, size], rotated."""
    rotated, columns = attrs.get("rotary_embedding_dim", 0) or 0, plain_dims(rotation[0])[-1]
    if rotated and rotated != 2 * columns:
        raise ValueError(f"caches of {columns} columns do not rotate {rotated} elements")
    interleaved = bool(attrs.get("interleaved"))
    if rank_of(x) == 4:
        return rotate(x, rotation, interleaved, heads_axis=1)
    heads, shape = attrs.get("num_heads", 0), plain_dims(x)
    if not heads and rotated:
        raise ValueError("rotary_embedding_dim needs num_heads")
    if not heads:
        heads = head_size("x", shape[2], 2 * columns)
    return viewed(rotate(with_heads("x", x, heads), rotation, interleaved, heads_axis=2), *shape)


def head_size(what: str, columns: Expr | int, heads: int) -> int:
    """Columns of one head; ValueError if the heads do not divide the columns."""
    if not isinstance(columns, int):
        raise ValueError(f"the columns of {what} must be known")
    if heads < 1 or columns % heads:
        raise ValueError(f"{what} has {columns} columns for {heads} heads")
    return columns // heads


def with_heads(what: str, value: Expr, heads: int) -> Expr:
    """[batch, length, heads * size] as [batch, length, heads, size]."""
    batch, length, columns = plain_dims(value)
    return viewed(value, batch, length, heads, head_size(what, columns, heads))


def rotate(value: Expr, rotation: Sequence[Expr], interleaved: bool, heads_axis: int) -> Expr:
    """A value of four axes, the last of which is a head, rotated.

    Parameters
    ----------
    rotation
        Cosines and sines [batch or 1, length, half]; elements of a head beyond 2 * half stay.
    interleaved
        Whether elements 2 i and 2 i + 1 are a pair, and not i and half + i.
    heads_axis
        1 or 2: where the heads are; the other one is that of positions.
    """
    *dims, size = plain_dims(value)
    batch, length, half = plain_dims(rotation[0])
    if not isinstance(half, int) or not isinstance(size, int):
        raise ValueError("the columns of its caches and of a head must be known")
    if 2 * half > size:
        raise ValueError(f"caches of {half} columns do not fit heads of {size}")
    single = [batch, 1, length] if heads_axis == 1 else [batch, length, 1]
    cos, sin = (viewed(each, *single, half) for each in rotation)
    if interleaved:
        first, second = _columns(value, 0, 2 * half, 2), _columns(value, 1, 2 * half, 2)
    else:
        first, second = _columns(value, 0, half), _columns(value, half, 2 * half)
    real = apply("Sub", apply("Mul", first, cos), apply("Mul", second, sin))
    imaginary = apply("Add", apply("Mul", first, sin), apply("Mul", second, cos))
    if interleaved:
        pairs = [viewed(each, *dims, half, 1) for each in (real, imaginary)]
        rotated = viewed(apply("Concat", *pairs, axis=4), *dims, 2 * half)
    else:
        rotated = apply("Concat", real, imaginary, axis=3)
    if 2 * half == size:
        return rotated
    return apply("Concat", rotated, _columns(value, 2 * half, size), axis=3)


def _columns(value: Expr, begin: int, end: int, step: int = 1) -> Expr:
    """Elements of the last of four axes."""
    return apply("Slice", value, *(literal(np.array([each])) for each in (begin, end, 3, step)))


def refuse_attributes(attrs: Attrs, *names: str) -> None:
    """Raises a ValueError if an attribute is set."""
    for name in names:
        if attrs.get(name):
            raise ValueError(f"its attribute {name} is not supported")


operator("EmbedLayerNormalization", domain=CONTRIB_DOMAIN)(
    lambda inputs, attrs: _normalized_sum(inputs, attrs, inputs[8], lambda _place, rows: rows)
)


@operator("QEmbedLayerNormalization", domain=CONTRIB_DOMAIN)
def _quantized_embed_layer_norm(inputs: Inputs, attrs: Attrs) -> Any:
    """The same of 8-bit tables, whose rows are dequantised once they are gathered."""

    def dequantized(place: int, rows: Expr) -> Expr:
        # Scales are inputs 8 to 12, zero points 13 to 17, of inputs 2 to 6.
        given = (inputs[place + behind] for behind in (6, 11))
        parameters = (None if each is None else viewed(each) for each in given)
        return apply("DequantizeLinear", rows, *parameters)

    return _normalized_sum(inputs, attrs, None, dequantized)


def _normalized_sum(
    inputs: Inputs, attrs: Attrs, positions: Expr | None, real: Callable[[int, Expr], Expr]
) -> Expr:
    """The normalised sum of rows, how many tokens each sequence has, and the sum.

    Parameters
    ----------
    positions
        Indices of the table of positions; None for 0, 1, 2, ...
    real
        (position among the inputs, what is gathered of it) -> numbers.
    """
    ids, segments = inputs[0], inputs[1]
    if rank_of(ids) != 2:
        raise ValueError(f"its input has the shape {sizes_text(plain_dims(ids))}, not two axes")
    length = plain_dims(ids)[1]
    positions = viewed(counted(length), 1, length) if positions is None else positions

    def rows(place: int, indices: Expr) -> Expr:
        return real(place, apply("Gather", inputs[place], indices, axis=0))

    total = apply("Add", rows(2, ids), rows(3, positions))
    if segments is not None:
        total = apply("Add", total, rows(4, segments))
    affine = [real(place, inputs[place]) for place in (5, 6)]
    epsilon = attrs.get("epsilon", 1e-12)
    y = apply("LayerNormalization", total, *affine, axis=-1, epsilon=epsilon)
    count = _count(inputs[7], dims_of(ids)[0], attrs) if any(attrs[OUTPUTS][1:2]) else y
    return relax.Tuple([y, count, total])


def _count(mask: Expr | None, batch: Expr, attrs: Attrs) -> Expr:
    """mask_index: how many tokens each sequence has."""
    kind = attrs.get("mask_index_type", 1)
    if kind != 1:
        raise ValueError(f"its attribute mask_index_type ({kind}) is not supported; 1 is")
    if mask is None:
        return broadcast(literal(np.array(0, np.int32)), [batch])
    is_one = apply("Equal", cast(mask, "int32"), literal(np.array(1, np.int32)))
    return apply("ReduceSum", cast(is_one, "int32"), literal(np.array([1])), keepdims=0)
