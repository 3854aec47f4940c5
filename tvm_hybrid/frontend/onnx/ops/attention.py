"""Attention: two products with a softmax between them, and masks in front of it.

    Attention(q, k, v, attn_mask, past_key, past_value)
        ->  attend(q, Concat(past_key, k), Concat(past_value, v))

    attend(q, k, v)  =  MatMul(Softmax(MatMul(q, Transpose(k)) * scale + masks), v)

Heads are [batch, heads, length, size]; batch and length may be dynamic. contrib_attention.py
converts ONNX Runtime's operators. Scores are float32 from the first product to the softmax for any
type of q, k and v, except float64 for float64. The scale is applied after the product, so q and k
are read unscaled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper
from tvm import relax

from ... import expressions as ex
from ...expressions import Attrs, Expr
from ..evaluate import computed
from ..graph.graph import CONTRIB_DOMAIN, OWN_DOMAIN
from ..graph.requests import broadcast, check, expect_shape, sizes_text, viewed
from ..graph.sizes import counted, holds, index, plain_dims, plus, vector_of
from ..operators import apply, operator

Size = Expr | int


class Scores(NamedTuple):
    """The operations on the scores before the softmax, in this order.

    Attributes
    ----------
    scale : float or None
        Factor; 1 / sqrt(head size) if None.
    softcap : float
        c in c * tanh(scores / c); 0 for no cap.
    added : sequence of Expr
        Values to add; they broadcast to [batch, heads, queries, keys].
    seen : sequence of Expr
        bool masks; a score becomes -inf where one of them is false.
    sink : Expr or None
        The score, [heads] or one element, of an additional key whose value is 0. No mask applies
        to it.
    """

    scale: float | None = None
    softcap: float = 0.0
    added: Sequence[Expr] = ()
    seen: Sequence[Expr] = ()
    sink: Expr | None = None


def attend(q: Expr, k: Expr, v: Expr, scores: Scores, wide: str = "float32") -> list[Expr]:
    """The result of attention, then the scores: scaled, capped, masked, and after the softmax.

    Heads of k and v are repeated if q has more heads. `wide` is the type of the scores.
    """
    product = _products(q, k, wide)
    scale = 1.0 / math.sqrt(plain_dims(q)[3]) if scores.scale is None else scores.scale
    scaled = capped = product if scale == 1.0 else apply("Mul", product, ex.number(product, scale))
    if scores.softcap:
        bent = apply("Tanh", apply("Mul", product, ex.number(product, scale / scores.softcap)))
        capped = apply("Mul", bent, ex.number(product, scores.softcap))
    masked = capped
    for mask in scores.added:
        masked = apply("Add", masked, ex.cast(mask, wide))
    if scores.seen:  # a single mask, so that a kernel can find the first and last visible key
        flags = functools.reduce(functools.partial(apply, "And"), scores.seen)
        masked = apply("Where", flags, masked, ex.number(product, -np.inf))
    if scores.sink is None:
        shares = apply("Softmax", masked, axis=3)
    else:
        *sizes, _ = plain_dims(masked)
        sink = viewed(scores.sink, *plain_dims(scores.sink), 1, 1)
        column = broadcast(sink, [index(0) + size for size in (*sizes, 1)])
        shares = apply("Softmax", apply("Concat", masked, column, axis=3), axis=3)
        shares = apply("Slice", shares, *(ex.literal(np.array([each])) for each in (0, -1, 3)))
    return [ex.cast(_mixed(shares, v), ex.dtype_of(q)), scaled, capped, masked, shares]


def _products(q: Expr, k: Expr, wide: str) -> Expr:
    q, k = _factor(q), _factor(k)
    turned = apply("Transpose", repeated(k, plain_dims(q)[1]), perm=[0, 1, 3, 2])
    return ex.cast(apply("MatMul", q, turned), wide)


def _mixed(shares: Expr, v: Expr) -> Expr:
    v = _factor(v)
    return apply("MatMul", ex.cast(shares, ex.dtype_of(v)), repeated(v, plain_dims(shares)[1]))


def _factor(value: Expr) -> Expr:
    """An operand of a product; float16 becomes float32, so the softmax is not rounded to it."""
    return ex.cast(value, "float32") if ex.dtype_of(value) == "float16" else value


def repeated(value: Expr, heads: int) -> Expr:
    """Repeats every head for the queries that share it: [h0, h0, h1, h1, ...]."""
    batch, groups, length, size = plain_dims(value)
    if groups == heads:
        return value
    sizes = [index(0) + each for each in (batch, groups, heads // groups, length, size)]
    repeated = broadcast(viewed(value, batch, groups, 1, length, size), sizes)
    return viewed(repeated, batch, heads, length, size)


def split_heads(what: str, value: Expr, heads: int) -> Expr:
    """Splits [batch, length, heads * size] into heads."""
    return apply("Transpose", with_heads(what, value, heads), perm=[0, 2, 1, 3])


def join_heads(value: Expr) -> Expr:
    """Joins heads to [batch, length, heads * size]."""
    batch, heads, length, size = plain_dims(value)
    return viewed(apply("Transpose", value, perm=[0, 2, 1, 3]), batch, length, heads * size)


def check_heads(q: Expr, k: Expr, v: Expr) -> None:
    """Raises a ValueError unless the heads of q are a multiple of those of k and v."""
    (batch, heads, _, size), (_, groups, length, _), (*_, width) = map(plain_dims, (q, k, v))
    if not all(isinstance(each, int) for each in (heads, size, groups, width)):
        raise ValueError("the number of heads and their sizes must be known")
    expect_shape("K", k, batch, groups, length, size)
    expect_shape("V", v, batch, groups, length, width)
    if groups < 1 or heads % groups:
        raise ValueError(f"{heads} heads of Q do not share {groups} of K")


def check_past(past: Sequence[Expr | None]) -> None:
    """Raises a ValueError if only one of past keys and past values is given."""
    if (past[0] is None) != (past[1] is None):
        raise ValueError("it has only one of past_key and past_value")


def appended(k: Expr, v: Expr, past: Sequence[Expr | None]) -> tuple[Expr, Expr, Size]:
    """Keys and values appended to the past, if any; and the length of the past."""
    check_past(past)
    if past[0] is None:
        return k, v, 0
    before = plain_dims(past[0])[2] if ex.rank_of(past[0]) == 4 else 0
    both = []
    for what, old, new in zip(("past_key", "past_value"), past, (k, v), strict=True):
        batch, heads, _, size = plain_dims(new)
        expect_shape(what, old, batch, heads, before, size)
        both.append(apply("Concat", old, new, axis=2))
    return both[0], both[1], before


# Causal and window masks are R.triu and R.tril of one number, never constants: the square of a long
# sequence would be too large, and a fused attention only visits the keys that a query sees.


def keys_up_to(rows: Size, columns: Size, last: Size) -> list[Expr]:
    """The mask for queries i that see keys j <= i + `last`: 0, else -inf; none if all are seen."""
    if isinstance(last, int) and isinstance(columns, int) and last >= columns - 1:
        return []
    return [ex.normalize(relax.op.triu(filled(-np.inf, rows, columns), last + 1))]


def keys_from(rows: Size, columns: Size, first: Size) -> list[Expr]:
    """The mask for queries i that see keys j >= i + `first`; none if all are seen."""
    if isinstance(first, int) and isinstance(rows, int) and rows - 1 + first <= 0:
        return []
    return [ex.normalize(relax.op.tril(filled(-np.inf, rows, columns), first - 1))]


def filled(value: float, *sizes: Size) -> Expr:
    """A float32 tensor filled with a value; TVM 0.27 cannot lower R.full of infinities."""
    return broadcast(ex.literal(np.array(value, np.float32)), [index(0) + size for size in sizes])


@operator("Attention")
def _attention(q: Expr, k: Expr, v: Expr, mask: Expr, *others: Expr, **attrs: Any) -> Expr:
    """Attention of the standard; rows that see no key are 0, where the softmax gives NaN."""
    joined, dtype = ex.rank_of(q) == 3, ex.dtype_of(q)
    wide = _type_of_scores(dtype, attrs)
    q, k, v = _heads([q, k, v], attrs)
    *past, lengths = [*others, None, None, None][:3]
    k, v, before = appended(k, v, past)
    queries, keys = plain_dims(q)[2], plain_dims(k)[2]
    behind, ahead = (attrs.get(f"{side}_window_size", -1) for side in ("left", "right"))
    ahead = 0 if attrs.get("is_causal") else ahead
    seen, added, triangles = list[Expr](), list[Expr](), list[Expr]()
    if mask is not None:
        are_flags = ex.dtype_of(mask) == "bool"
        mask = mask if are_flags else ex.cast(mask, wide)
        *sizes, length = plain_dims(mask)
        if isinstance(length, int) and length != keys:  # keys beyond the mask's end are hidden
            what = f"attn_mask has the shape {sizes_text([*sizes, length])}"
            check(index(0) + keys >= length, f"{what}; there are {keys} keys")
            rest = [index(0) + size for size in (*sizes, plus(keys, -length))]
            tail = broadcast(ex.number(mask, 0 if are_flags else -np.inf), rest)
            mask = apply("Concat", mask, tail, axis=len(sizes))
        (seen if are_flags else added).append(mask)
    if lengths is not None:
        seen += _within(viewed(lengths, plain_dims(q)[0], 1, 1, 1), queries, keys, behind, ahead)
    else:
        triangles += keys_up_to(queries, keys, plus(before, ahead)) if ahead >= 0 else []
        triangles += keys_from(queries, keys, plus(before, -behind)) if behind >= 0 else []
    scores = Scores(attrs.get("scale"), attrs.get("softcap", 0.0), [*added, *triangles], seen)
    result, *steps, shares = attend(q, k, v, scores, wide)
    # bool [..., queries or 1, 1]: whether each query sees a key; None if not known.
    rows: np.ndarray | None = None
    is_free = lengths is None and mask is None
    known = all(isinstance(each, int) for each in (queries, keys, before)) and lengths is None
    array = np.ones(keys, np.bool_) if known and mask is None else ex.constant(mask)
    if is_free and (behind < 0 or holds(index(0) + before + queries - behind <= keys)):
        rows = np.array(True)
    elif known and array is not None:
        shown = array if array.dtype == np.bool_ else array.astype(np.float32) > -np.inf
        for last, is_seen in ((ahead, True), (-behind - 1, False)):
            if (ahead if is_seen else behind) >= 0:
                part = np.tri(queries, keys, before + last, np.bool_)[:, : array.shape[-1]]
                shown = shown & (part == is_seen)
        rows = np.asarray(shown.any(-1, keepdims=True))
    if rows is None or not rows.all():
        if rows is not None:
            some = ex.literal(rows)
        else:
            # Flags are 1, 0 or -inf, not scores: an imported module may be compiled by TVM alone,
            # whose maximum is never less than the least finite number.
            value, zero = (ex.literal(np.array(each, np.float32)) for each in (1, 0))
            finite = [apply("Greater", each, ex.number(each, -np.inf)) for each in added]
            for flags in (*seen, *finite):
                value = apply("Where", flags, value, zero)
            for triangle in triangles:
                value = apply("Add", value, triangle)
            most = apply("ReduceMax", value, ex.literal(np.array([-1])), keepdims=1)
            some = apply("Greater", most, zero)
        result = apply("Where", some, result, ex.number(result, 0))
        shares = apply("Where", some, shares, ex.number(shares, 0))
    scores_shown = ex.cast([*steps, shares][attrs.get("qk_matmul_output_mode", 0)], dtype)
    return relax.Tuple([join_heads(result) if joined else result, k, v, scores_shown])


def _type_of_scores(dtype: str, attrs: Attrs) -> str:
    """The type of scores and softmax."""
    precision = attrs.get("softmax_precision", 0) or TensorProto.FLOAT
    other = str(helper.tensor_dtype_to_np_dtype(precision))
    if "float" not in dtype or "float" not in other:
        raise ValueError(f"a softmax_precision of {other} for {dtype}; only floats are supported")
    return "float64" if "float64" in (dtype, other) else "float32"


def _heads(values: Sequence[Expr], attrs: Attrs) -> Sequence[Expr]:
    """q, k and v split into heads."""
    ranks = [ex.rank_of(each) for each in values]
    counts = [int(attrs.get(f"{each}_num_heads") or 0) for each in ("q", "kv", "kv")]
    if ranks == [3, 3, 3] and all(counts):
        values = [split_heads(*each) for each in zip("QKV", values, counts, strict=True)]
    elif ranks != [4, 4, 4]:
        shapes = ", ".join(sizes_text(plain_dims(each)) for each in values)
        raise ValueError(
            f"Q, K and V have the shapes {shapes}; they have four axes, or three and q_num_heads "
            "and kv_num_heads"
        )
    check_heads(*values)
    return values


def _within(lengths: Expr, queries: Size, keys: Size, behind: int, ahead: int) -> list[Expr]:
    """Masks [batch, 1, queries or 1, keys] of the keys that a cache holds and the window shows."""
    count = ex.cast(lengths, "int64")
    places = viewed(counted(keys), 1, 1, 1, keys)
    rows = viewed(counted(queries, 1), 1, 1, queries, 1)
    # The last query is the last token of its sequence.
    first = apply("Add", apply("Sub", count, vector_of(queries)), rows)  # position after each query
    seen = [apply("Less", places, count)] if ahead else []
    if ahead >= 0:
        end = apply("Add", first, ex.literal(np.array(ahead))) if ahead else first
        seen.append(apply("Less", places, end))
    if behind >= 0:
        start = apply("Sub", first, ex.literal(np.array(behind + 1)))
        seen.append(apply("Not", apply("Less", places, start)))
    return seen


# FlexAttention in two parts: bodies change its scores and softmax in between (rewrites/loop.py).


@operator("FlexScores", domain=OWN_DOMAIN)
def _flex_scores(*values: Expr, **attrs: Any) -> Expr:
    q, k, _ = _heads(values, {})
    product = _products(q, k, _type_of_scores(ex.dtype_of(q), attrs))
    scale = attrs.get("scale", 1.0 / math.sqrt(plain_dims(q)[3]))
    return apply("Mul", product, ex.number(product, scale))


@operator("FlexMix", domain=OWN_DOMAIN)
def _flex_mix(shares: Expr, v: Expr) -> Expr:
    return ex.cast(_mixed(shares, v), ex.dtype_of(v))


# Rotary position embeddings.
#
#     RotaryEmbedding(x, position_ids, cos_cache, sin_cache)    of ONNX Runtime
#     RotaryEmbedding(x, cos_cache, sin_cache, position_ids)    of opset 23
#         ->  Concat(x1 * cos - x2 * sin, x1 * sin + x2 * cos, the other elements of x)
#
# x1 and x2 are the halves of each head's rotated part, or its even and odd elements if they are
# interleaved (arXiv 2104.09864, section 3.4.2).


@operator("RotaryEmbedding", domain=CONTRIB_DOMAIN)
def _contrib_rotary_embedding(x: Expr, positions: Expr, cos: Expr, sin: Expr, **attrs: Any) -> Expr:
    """RotaryEmbedding of ONNX Runtime; positions are given for every token, or the first token."""
    refuse_attributes(attrs, "is_packed_batching")
    if attrs.get("scale", 1.0) != 1.0:
        raise ValueError("its attribute scale is not supported")
    batch, length = _tokens(x)
    if ex.rank_of(positions) == 1:
        expect_shape("position_ids", positions, 1)
        positions = apply("Add", viewed(counted(length), 1, length), positions)
    else:
        expect_shape("position_ids", positions, batch, length)
    return _rotary_embedding(x, cos, sin, positions, **attrs)


@operator("RotaryEmbedding")
def _rotary_embedding(x: Expr, cos: Expr, sin: Expr, positions: Expr, **attrs: Any) -> Expr:
    """RotaryEmbedding of opset 23; each token has a position, or its own cosines and sines."""
    if positions is None:
        expect_shape("cos_cache", cos, *_tokens(x), plain_dims(cos)[-1])
    rotation = [cos, sin] if positions is None else gathered(positions, [cos, sin])
    rotated, columns = attrs.get("rotary_embedding_dim", 0) or 0, plain_dims(rotation[0])[-1]
    if rotated and rotated != 2 * columns:
        raise ValueError(f"caches of {columns} columns do not rotate {rotated} elements")
    interleaved = bool(attrs.get("interleaved"))
    # x is [batch, heads, length, size], or else [batch, length, heads * size].
    if ex.rank_of(x) == 4:
        return rotate(x, rotation, interleaved, heads_axis=1)
    heads, shape = attrs.get("num_heads", 0), plain_dims(x)
    if not heads and rotated:
        raise ValueError("rotary_embedding_dim needs num_heads")
    heads = heads or head_size("x", shape[2], 2 * columns)
    return viewed(rotate(with_heads("x", x, heads), rotation, interleaved, heads_axis=2), *shape)


def _tokens(x: Expr) -> tuple[Any, Any]:
    """(batch, length) of [batch, length, columns] or [batch, heads, length, size]."""
    dims = plain_dims(x)
    if len(dims) not in (3, 4):
        raise ValueError(f"its input has {len(dims)} axes, not 3 or 4")
    return dims[0], dims[-2]


def gathered(positions: Expr, caches: Sequence[Expr]) -> list[Expr]:
    """The rows of cosines and sines for the positions; constants if all inputs are constant."""
    return [computed("Gather", cache, positions, axis=0) for cache in caches]


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
    """Rotates a value of four axes whose last axis is a head.

    Parameters
    ----------
    rotation
        Cosines and sines [batch or 1, length, half]; elements of a head beyond 2 * half stay.
    interleaved
        Whether elements 2 i and 2 i + 1 form a pair, instead of i and half + i.
    heads_axis
        The axis of heads, 1 or 2; the other one is the axis of positions.
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
    """Slices the last of four axes."""
    return apply("Slice", value, *(ex.literal(np.array([each])) for each in (begin, end, 3, step)))


def refuse_attributes(attrs: Attrs, *names: str) -> None:
    """Raises a ValueError if an attribute is set."""
    for name in names:
        if attrs.get(name):
            raise ValueError(f"its attribute {name} is not supported")
