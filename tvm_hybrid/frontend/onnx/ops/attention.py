"""Attention: two products with a softmax between them, and masks in front of it.

    Attention(q, k, v, attn_mask, past_key, past_value)
        ->  attend(q, Concat(past_key, k), Concat(past_value, v))

    attend(q, k, v)  =  MatMul(Softmax(MatMul(q, Transpose(k)) * scale + masks), v)

Heads are [batch, heads, length, size]; batch and length may be dynamic. Those of ONNX Runtime's
operators are made in contrib_attention.py. Scores are float32 from the first product to the
softmax, whatever the type of q, k and v (float64 of float64), and the scale follows the product: q
and k are read as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import relax

from ... import expressions as ex
from ...expressions import Attrs, Expr, Inputs
from ..apply import apply
from ..graph.graph import OWN_DOMAIN
from ..graph.requests import broadcast, check, expect_shape, sizes_text, viewed
from ..graph.sizes import counted, holds, index, plain_dims, plus, vector_of
from ..operators import operator
from .embeddings import with_heads

Size = Expr | int


@dataclass(frozen=True)
class Scores:
    """What happens to the scores before the softmax, in this order.

    Attributes
    ----------
    scale : float or None
        Factor; 1 / sqrt(head size) if None.
    softcap : float
        c in c * tanh(scores / c); 0 for none.
    added : sequence of Expr
        Values to add, as they broadcast to [batch, heads, queries, keys].
    seen : sequence of Expr
        bool values; scores are -inf where one is false.
    sink : Expr or None
        A value [heads] or of one element: the score of one more key, whose value is 0. It is in no
        mask.
    """

    scale: float | None = None
    softcap: float = 0.0
    added: Sequence[Expr] = ()
    seen: Sequence[Expr] = ()
    sink: Expr | None = None


def attend(q: Expr, k: Expr, v: Expr, scores: Scores, wide: str = "float32") -> list[Expr]:
    """The result; and the scores as products, capped, masked, and as shares of a row.

    Heads of k and v are repeated where q has more. `wide` is the type of the scores.
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
    for seen in scores.seen:
        masked = apply("Where", seen, masked, ex.number(product, -np.inf))
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
    turned = apply("Transpose", _repeated(k, plain_dims(q)[1]), perm=[0, 1, 3, 2])
    return ex.cast(apply("MatMul", q, turned), wide)


def _mixed(shares: Expr, v: Expr) -> Expr:
    return apply("MatMul", ex.cast(shares, ex.dtype_of(v)), _repeated(v, plain_dims(shares)[1]))


def _repeated(value: Expr, heads: int) -> Expr:
    """Every head as often as queries share it: [h0, h0, h1, h1, ...]."""
    batch, groups, length, size = plain_dims(value)
    if groups == heads:
        return value
    sizes = [index(0) + each for each in (batch, groups, heads // groups, length, size)]
    repeated = broadcast(viewed(value, batch, groups, 1, length, size), sizes)
    return viewed(repeated, batch, heads, length, size)


def split_heads(what: str, value: Expr, heads: int) -> Expr:
    """[batch, length, heads * size] as heads."""
    return apply("Transpose", with_heads(what, value, heads), perm=[0, 2, 1, 3])


def join_heads(value: Expr) -> Expr:
    """Heads as [batch, length, heads * size]."""
    batch, heads, length, size = plain_dims(value)
    return viewed(apply("Transpose", value, perm=[0, 2, 1, 3]), batch, length, heads * size)


def check_heads(q: Expr, k: Expr, v: Expr) -> None:
    """Raises a ValueError unless heads of k and v are shared by those of q."""
    (batch, heads, _, size), (_, groups, length, _), (*_, width) = map(plain_dims, (q, k, v))
    if not all(isinstance(each, int) for each in (heads, size, groups, width)):
        raise ValueError("the number of heads and their sizes must be known")
    expect_shape("K", k, batch, groups, length, size)
    expect_shape("V", v, batch, groups, length, width)
    if groups < 1 or heads % groups:
        raise ValueError(f"{heads} heads of Q do not share {groups} of K")


def check_past(past: Sequence[Expr | None]) -> None:
    """Raises a ValueError if keys or values alone are given."""
    if (past[0] is None) != (past[1] is None):
        raise ValueError("it has only one of past_key and past_value")


def appended(k: Expr, v: Expr, past: Sequence[Expr | None]) -> tuple[Expr, Expr, Size]:
    """Keys and values after those of the past, if there is one; how many came before."""
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


# Masks of triangles are R.triu and R.tril of one number and never constants: the square of a long
# sequence is no data of a model, and a fused attention visits only the keys that a query sees.


def keys_up_to(rows: Size, columns: Size, last: Size) -> list[Expr]:
    """The mask of queries i that see keys j <= i + `last`: 0, else -inf; none if they see all."""
    if isinstance(last, int) and isinstance(columns, int) and last >= columns - 1:
        return []
    return [ex.normalize(relax.op.triu(filled(-np.inf, rows, columns), last + 1))]


def keys_from(rows: Size, columns: Size, first: Size) -> list[Expr]:
    """The mask of queries i that see keys j >= i + `first`; none if they see all."""
    if isinstance(first, int) and isinstance(rows, int) and rows - 1 + first <= 0:
        return []
    return [ex.normalize(relax.op.tril(filled(-np.inf, rows, columns), first - 1))]


def filled(value: float, *sizes: Size) -> Expr:
    """float32 numbers; TVM 0.27 cannot lower R.full of infinities."""
    return broadcast(ex.literal(np.array(value, np.float32)), [index(0) + size for size in sizes])


@operator("Attention")
def _attention(inputs: Inputs, attrs: Attrs) -> Any:
    """Rows that see no key are 0, where the softmax makes NaN."""
    joined, dtype = ex.rank_of(inputs[0]) == 3, ex.dtype_of(inputs[0])
    wide = _type_of_scores(dtype, attrs)
    q, k, v = _heads(inputs, attrs)
    k, v, before = appended(k, v, (inputs[4], inputs[5]))
    queries, keys = plain_dims(q)[2], plain_dims(k)[2]
    behind, ahead = (attrs.get(f"{side}_window_size", -1) for side in ("left", "right"))
    ahead = 0 if attrs.get("is_causal") else ahead
    mask, lengths, triangles = inputs[3], inputs[6], list[Expr]()
    seen, added = list[Expr](), list[Expr]()
    if mask is not None:
        are_flags = ex.dtype_of(mask) == "bool"
        mask = mask if are_flags else ex.cast(mask, wide)
        *sizes, length = plain_dims(mask)
        if isinstance(length, int) and length != keys:  # what is beyond its end is hidden
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
    rows = _seeing_rows(mask, queries, keys, before, behind, ahead) if lengths is None else None
    if rows is None or not rows.all():
        if rows is not None:
            some = ex.literal(rows)
        else:
            # Numbers above -inf: an imported module may be compiled by TVM alone, to which no
            # maximum is less than the least finite number.
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
    shown = [*steps, shares][attrs.get("qk_matmul_output_mode", 0)]
    return relax.Tuple([join_heads(result) if joined else result, k, v, ex.cast(shown, dtype)])


def _type_of_scores(dtype: str, attrs: Attrs) -> str:
    """The type that scores and softmax are computed in."""
    precision = attrs.get("softmax_precision", 0) or TensorProto.FLOAT
    other = str(helper.tensor_dtype_to_np_dtype(precision))
    if "float" not in dtype or "float" not in other:
        raise ValueError(f"a softmax_precision of {other} for {dtype}; only floats are supported")
    return "float64" if "float64" in (dtype, other) else "float32"


def _heads(inputs: Inputs, attrs: Attrs) -> Sequence[Expr]:
    """q, k and v as heads."""
    values = inputs[:3]
    ranks = [ex.rank_of(each) for each in values]
    names = ("q_num_heads", "kv_num_heads", "kv_num_heads")
    counts = [int(attrs.get(name) or 0) for name in names]
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
    """Which keys of a cache are there and in a window, of [batch, 1, queries or 1, keys].

    The last query is the last token of its sequence.
    """
    count = ex.cast(lengths, "int64")
    places = viewed(counted(keys), 1, 1, 1, keys)
    rows = viewed(counted(queries, 1), 1, 1, queries, 1)
    first = apply("Add", apply("Sub", count, vector_of(queries)), rows)  # behind each query
    seen = [apply("Less", places, count)] if ahead else []
    if ahead >= 0:
        end = apply("Add", first, ex.literal(np.array(ahead))) if ahead else first
        seen.append(apply("Less", places, end))
    if behind >= 0:
        start = apply("Sub", first, ex.literal(np.array(behind + 1)))
        seen.append(apply("Not", apply("Less", places, start)))
    return seen


def _seeing_rows(
    mask: Expr | None, queries: Size, keys: Size, before: Size, behind: int, ahead: int
) -> np.ndarray | None:
    """Which queries see a key, bool [..., queries or 1, 1]; None if that is not known."""
    if mask is None and (behind < 0 or holds(index(0) + before + queries - behind <= keys)):
        return np.array(True)
    if not (isinstance(queries, int) and isinstance(keys, int) and isinstance(before, int)):
        return None
    array = np.ones(keys, np.bool_) if mask is None else ex.constant(mask)
    if array is None:
        return None
    seen = array if array.dtype == np.bool_ else array.astype(np.float32) > -np.inf
    if ahead >= 0:
        seen = seen & np.tri(queries, keys, before + ahead, np.bool_)[:, : array.shape[-1]]
    if behind >= 0:
        seen = seen & ~np.tri(queries, keys, before - behind - 1, np.bool_)[:, : array.shape[-1]]
    return np.asarray(seen.any(-1, keepdims=True))


# FlexAttention, whose scores and shares bodies change (rewrites/loop.py), in two parts.


@operator("FlexScores", domain=OWN_DOMAIN)
def _flex_scores(inputs: Inputs, attrs: Attrs) -> Any:
    q, k, _ = _heads(inputs, {})
    product = _products(q, k, _type_of_scores(ex.dtype_of(q), attrs))
    scale = attrs.get("scale", 1.0 / math.sqrt(plain_dims(q)[3]))
    return apply("Mul", product, ex.number(product, scale))


operator("FlexMix", domain=OWN_DOMAIN)(lambda inputs, attrs: _mixed(*inputs))
