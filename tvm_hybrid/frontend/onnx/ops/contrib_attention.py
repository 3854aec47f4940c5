"""Attention of ONNX Runtime: its forms of q, k and v, its caches and its masks.

    MultiHeadAttention(q, k, v, bias, key_padding_mask, attention_bias, past_key, past_value)
        ->  attend(q + bias, k + bias, v + bias)
    Attention(x, weights, bias, mask_index, past, attention_bias)
        ->  attend(Split(MatMul(x, weights) + bias))
    QAttention(x, weights, bias, x_scale, weights_scale, mask_index, x_zero, weights_zero, past)
        ->  the same graph with a product of 8-bit integers
    GroupQueryAttention(q, k, v, past_key, past_value, seqlens_k, total_sequence_length, cos, sin)
        ->  attend(q, past and k, past and v), causal, with q and k rotated

If GroupQueryAttention's total_sequence_length is a number and holds for every sequence (one
sequence, or no past), all positions are known. Otherwise each sequence has seqlens_k + 1 keys, and
its new keys follow its own past.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, te, tirx

from relay_passes.lower.in_place import ROW_UPDATE

from ... import expressions as ex
from ...expressions import OUTPUTS, Attrs, Expr, Place
from ..graph.elements import known_elements
from ..graph.graph import CONTRIB_DOMAIN
from ..graph.kernels import fields, size_in
from ..graph.requests import broadcast, check_equal, differ, expect_shape, sizes_text, viewed
from ..graph.sizes import counted, dims_of, holds, index, plain_dims, plus, simplified, vector_of
from ..operators import apply, operator
from . import attention
from .attention import Scores, Size, gathered, head_size, refuse_attributes, rotate, with_heads

HIDDEN = -10000.0  # added to the scores of masked keys
_LOWEST = float(np.finfo(np.float32).min)
_FAR = -(2.0**126)  # a mask value at least this high stays far above the lowest number


@operator("MultiHeadAttention", domain=CONTRIB_DOMAIN)
def _multi_head_attention(*given: Expr, **attrs: Any) -> Any:
    """MultiHeadAttention; q may hold keys and values too ([batch, length, heads, 3, size]), or k
    the values; or k and v may be split into heads ([batch, heads, length, size]), as in a cache."""
    q, k, v, bias, mask, added, *past, length, indirection = [*given, *[None] * 9][:10]
    _refuse(past_sequence_length=length, cache_indirection=indirection)
    q, k, v = _heads([q, k, v], bias, attrs["num_heads"])
    attention.check_heads(q, k, v)
    k, v, before = attention.appended(k, v, past)
    added = _masks(mask, added, attrs, q, k, before)
    return relax.Tuple([_attended(q, k, v, attrs, added=added), k, v])


def _attended(q: Expr, k: Expr, v: Expr, attrs: Attrs, **scores: Any) -> Expr:
    """Runs `attend` and joins the heads; a scale of 0 means the default."""
    form = Scores(attrs.get("scale") or None, **scores)
    return attention.join_heads(attention.attend(q, k, v, form)[0])


def _refuse(**inputs: Expr) -> None:
    for name, value in inputs.items():
        if value is not None:
            raise ValueError(f"its input {name} is not supported")


def _heads(given: Sequence[Expr], bias: Expr, heads: int) -> list[Expr]:
    """q, k and v with biases added, split into heads."""
    ranks = tuple(0 if each is None else ex.rank_of(each) for each in given)
    if ranks == (5, 0, 0):
        rows = _unpacked(given[0], heads, 3)
    elif ranks == (3, 5, 0):
        rows = [given[0], *_unpacked(given[1], heads, 2)]
    elif ranks in ((3, 3, 3), (3, 4, 4)):
        rows = [*given]
    else:
        shapes = ", ".join("()" if x is None else sizes_text(plain_dims(x)) for x in given)
        raise ValueError(f"query, key and value of the shapes {shapes} are not supported")
    split = 1 if ranks == (3, 4, 4) else 3
    if bias is not None:
        sizes = [_columns(each) for each in rows]
        expect_shape("bias", bias, sum(sizes))
        rows[:split] = map(partial(apply, "Add"), rows[:split], _parts(bias, sizes, 0))
    rows[:split] = map(attention.split_heads, "qkv", rows[:split], [heads] * split)
    return rows


def _columns(rows: Expr) -> int:
    """Columns of [batch, length, columns]; over all heads, of [batch, heads, length, size]."""
    dims = plain_dims(rows)
    columns = dims[2] if len(dims) == 3 else dims[1] * dims[3]
    if not isinstance(columns, int):
        raise ValueError("the columns of query, key and value must be known")
    return columns


def _unpacked(value: Expr, heads: int, count: int) -> list[Expr]:
    """The `count` values that are packed in [batch, length, heads, count, size]."""
    batch, length, *_, size = plain_dims(value)
    expect_shape("what is packed", value, batch, length, heads, count, size)
    return [viewed(part, batch, length, heads * size) for part in _parts(value, [1] * count, 3)]


def _parts(value: Expr, sizes: Sequence[int], axis: int) -> list[Expr]:
    """Splits a value along an axis."""
    check_equal(dims_of(value)[axis], index(sum(sizes)))
    ends = [int(end) for end in np.cumsum(sizes)[:-1]]
    return fields(ex.emit(relax.op.split(value, ends, axis)))


@operator("Attention", domain=CONTRIB_DOMAIN)
def _packed_attention(x: Expr, weights: Expr, *given: Expr, **attrs: Any) -> Any:
    """Attention; one product computes q, k and v."""
    bias, mask, past, added, length = [*given, *[None] * 5][:5]
    _refuse(past_sequence_length=length)
    projected = apply("MatMul", x, weights)
    projected = projected if bias is None else apply("Add", projected, bias)
    return _of_projection(projected, mask, past, added, attrs)


@operator("QAttention", domain=CONTRIB_DOMAIN)
def _quantized_attention(*given: Expr, **attrs: Any) -> Any:
    """QAttention; the projection multiplies 8-bit integers, the rest is in floats."""
    x, w, bias, sx, sw, mask, zx, zw, past = [*given, *[None] * 9][:9]
    projected = apply("MatMulIntegerToFloat", x, w, sx, sw, zx, zw, bias, domain=CONTRIB_DOMAIN)
    return _of_projection(projected, mask, past, None, attrs)


def _of_projection(projected: Expr, mask: Expr, past: Expr, bias: Expr, attrs: Attrs) -> Expr:
    """Attention, given q, k and v side by side in [batch, length, columns]."""
    refuse_attributes(attrs, "do_rotary", "past_present_share_buffer")
    if ex.rank_of(projected) != 3:
        raise ValueError(f"it projects to the shape {sizes_text(plain_dims(projected))}")
    columns, heads = _columns(projected), attrs["num_heads"]
    sizes = attrs.get("qkv_hidden_sizes") or [columns // 3] * 3
    if len(sizes) != 3 or sum(sizes) != columns or sizes[0] != sizes[1]:
        raise ValueError(f"weights of {columns} columns do not make q, k and v of {sizes}")
    q, k, v = map(attention.split_heads, "qkv", _parts(projected, sizes, 2), [heads] * 3)
    before: Size = 0
    if past is not None:  # [2, batch, heads, before, size]
        if sizes[2] != sizes[1]:
            raise ValueError(f"k and v of {sizes[1:]} columns have no common past")
        batch, _, _, size = plain_dims(k)
        before = plain_dims(past)[3] if ex.rank_of(past) == 5 else 0
        expect_shape("past", past, 2, batch, heads, before, size)
        both = [apply("Gather", past, ex.literal(np.array(place)), axis=0) for place in (0, 1)]
        k, v, before = attention.appended(k, v, both)
    added = _masks(mask, bias, attrs, q, k, before)
    result = _attended(q, k, v, attrs, added=added)
    if not any(attrs[OUTPUTS][1:]):
        return result
    both = [viewed(each, 1, *plain_dims(each)) for each in (k, v)]
    return relax.Tuple([result, apply("Concat", *both, axis=0)])


def _masks(mask: Expr, bias: Expr, attrs: Attrs, q: Expr, k: Expr, before: Size) -> list[Expr]:
    """The masks that are added to the scores."""
    batch, _, queries, _ = plain_dims(q)
    keys, hidden = plain_dims(k)[2], attrs.get("mask_filter_value", HIDDEN)
    padding = [] if mask is None else [_padding(mask, batch, queries, keys, hidden)]
    biases = [] if bias is None else [bias]
    sees_all = isinstance(before, int) and isinstance(keys, int) and before >= keys - 1
    # By its documentation, the attribute `unidirectional` lets a token see only earlier tokens. The
    # details follow ONNX Runtime's CPU kernel (PrepareMask). The last query sees all keys. A single
    # query of a decoder, to which all keys so far are given as new keys, needs it.
    if not attrs.get("unidirectional") or queries == 1 or sees_all:
        return [*padding, *biases]
    # Query i sees the keys j <= i + `before`: the diagonal begins after the past, even if there are
    # more keys than queries (MultiHeadAttention with keys of another length).
    if holds(index(0) + queries + before >= keys):
        # With as many new keys as queries, the last query sees all keys anyhow.
        (causal,) = attention.keys_up_to(queries, keys, before)
    else:
        others = attention.keys_up_to(plus(queries, -1), keys, before)
        causal = apply("Concat", *others, attention.filled(0.0, 1, keys), axis=0)
    # If all other numbers are far higher, -inf has the effect of the lowest number, and is faster.
    if not biases and (not padding or hidden >= _FAR):
        return [*padding, causal]
    # For a later key, the lowest float32 number replaces the padding mask. A query whose keys all
    # have numbers as low (by `mask_filter_value` or `attention_bias`) sees later keys, too.
    zero, lowest = (ex.literal(np.array(each, np.float32)) for each in (0.0, _LOWEST))
    return [apply("Where", apply("Less", causal, zero), lowest, *(padding or [zero])), *biases]


def _padding(mask: Expr, batch: Size, queries: Size, keys: Size, hidden: float) -> Expr:
    """The float32 mask, 0 or `hidden`, for a mask_index or key_padding_mask of integers.

    Its forms:
    [batch]                  number of keys that each sequence has
    [2 * batch]              where its keys end, then where they begin
    [3 * batch + 2]          number of keys first, then what only packed kernels need
    [batch, keys]            positive where a key exists
    [batch, queries, keys]   positive where a key exists for a query
    [batch, 1, max, max]     positive where a key exists, for each position of the longest sequence
    """
    shape = plain_dims(mask)

    def fits(*wanted: Size) -> bool:
        return len(shape) == len(wanted) and not any(map(differ, shape, wanted))

    longest = shape[-1]
    is_short = isinstance(longest, int) and isinstance(keys, int) and longest < keys
    if len(shape) == 1 and not (isinstance(batch, int) and isinstance(longest, int)):
        raise ValueError("a mask of one axis, and a number of sequences that is not known")
    if len(shape) == 1 and longest in (batch, 2 * batch, 3 * batch + 2):
        # Where the keys of each sequence end, and begin if the mask says so too.
        places = viewed(ex.cast(counted(keys), "int32"), 1, 1, 1, keys)
        bounds = [mask] if longest == batch else _parts(mask, [batch, longest - batch], 0)
        end, *begin = (ex.cast(each, "int32") for each in bounds)
        seen = apply("Less", places, viewed(end, batch, 1, 1, 1))
        if longest == 2 * batch:
            early = apply("Less", places, viewed(begin[0], batch, 1, 1, 1))
            seen = apply("And", seen, apply("Not", early))
    else:
        if fits(batch, 1, longest, longest) and not is_short:
            first, last = vector_of(plus(keys, -queries), 0), vector_of(keys, keys)
            mask = apply("Slice", mask, first, last, ex.literal(np.array([2, 3])))
        elif not fits(batch, keys) and not fits(batch, queries, keys):
            forms = ", ".join(map(sizes_text, ((batch,), (batch, keys), (batch, queries, keys))))
            found, forms = sizes_text(shape), f"{forms}, (2 * batch,) nor (batch, 1, max, max)"
            raise ValueError(f"the mask has the shape {found}, which fits neither {forms}")
        rows = 1 if len(shape) == 2 else queries
        valid = viewed(ex.cast(mask, "int32"), batch, 1, rows, keys)
        seen = apply("Greater", valid, ex.literal(np.array(0, np.int32)))
    return apply("Where", seen, *(ex.literal(np.array(each, np.float32)) for each in (0.0, hidden)))


@operator("GroupQueryAttention", domain=CONTRIB_DOMAIN)
def _group_query_attention(*given: Expr, **attrs: Any) -> Any:
    """GroupQueryAttention; several heads of q share one head of k and v."""
    rows, others = given[:3], [*given[3:], *[None] * 14]
    past, (lengths, total, *caches, positions, bias, sink) = others[:2], others[2:9]
    names = ("q_norm_weight", "k_norm_weight", "query_seqlens")
    _refuse(**dict(zip(names, others[11:14], strict=True)))
    refuse_attributes(attrs, "qk_output", "sliding_window_cache")
    if not attrs.get("causal", 1):
        raise ValueError("its attribute causal (0) is not supported")
    q, k, v = _shared_heads(rows, attrs)
    batch, length, heads, _ = plain_dims(q)
    cache = _cache_of(past[0], lengths, total, batch, length)
    if attrs.get("do_rotary"):
        if any(each is None for each in caches):
            raise ValueError("do_rotary needs cos_cache and sin_cache")
        if positions is not None:
            expect_shape("position_ids", positions, batch, length)
        elif isinstance(cache.before, int):
            positions = viewed(counted(length, cache.before), 1, length)
        else:
            positions = apply("Add", cache.before, viewed(counted(length), 1, length))
        rotation = gathered(positions, caches)
        interleaved = bool(attrs.get("rotary_interleaved"))
        q, k = (rotate(each, rotation, interleaved, heads_axis=2) for each in (q, k))
    q, k, v = (apply("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, k, v))
    attention.check_past(past)
    dtype = ex.dtype_of(q)
    scales = _cache_scales(past, others[9:11], attrs, plain_dims(k))
    stored = [_as_stored(*each) for each in zip((k, v), past, scales, strict=True)]
    (k, present_key), (v, present_value) = (
        _with_past(old, cache, new) for old, new in zip(past, stored, strict=True)
    )
    # The scales of an 8-bit cache multiply q and the result, so the cache is read as integers.
    if scales[0] is not None:
        q = apply("Mul", ex.cast(q, "float32"), attention.repeated(scales[0], heads))
    if ex.dtype_of(k) != ex.dtype_of(q):
        k, v = ex.cast(k, "float32"), ex.cast(v, "float32")
        q = ex.cast(q, "float32")
    if sink is not None:
        expect_shape("head_sink", sink, heads)
        sink = ex.cast(sink, "float32")
    elif attrs.get("smooth_softmax", 0) > 0:
        sink = ex.literal(np.array([0.0], np.float32))
    window, seen = attrs.get("local_window_size", -1), list[Expr]()
    added = [] if bias is None else [bias]
    if bias is not None:
        expect_shape("attention_bias", bias, *plain_dims(bias)[:2], length, cache.keys)
    if isinstance(cache.before, int):
        added += attention.keys_up_to(length, cache.keys, cache.before)
        if window > 0:
            added += attention.keys_from(length, cache.keys, cache.before - window + 1)
    else:
        rows = viewed(counted(length), 1, 1, length, 1)
        keys = viewed(counted(cache.keys), 1, 1, 1, cache.keys)
        position = apply("Add", viewed(cache.before, batch, 1, 1, 1), rows)
        seen.append(apply("Not", apply("Less", position, keys)))
        if window > 0:
            first = apply("Add", position, ex.literal(np.array(1 - window)))
            seen.append(apply("Not", apply("Less", keys, first)))
    form = {"softcap": attrs.get("softcap", 0.0), "added": added, "seen": seen, "sink": sink}
    result = attention.attend(q, k, v, Scores(attrs.get("scale") or None, **form))[0]
    if scales[1] is not None:
        result = apply("Mul", result, attention.repeated(scales[1], heads))
    result = attention.join_heads(ex.cast(result, dtype))
    return relax.Tuple([result, present_key, present_value])


def _cache_scales(
    past: Sequence[Expr | None], given: Sequence[Expr], attrs: Attrs, heads: Sequence[Size]
) -> list[Expr | None]:
    """The scales of 8-bit keys and values, [1, groups, 1, size]; None for caches of floats."""
    found: list[Expr | None] = []
    for name, cache, scale in zip("kv", past, given, strict=True):
        kind = attrs.get(f"{name}_quant_type", "NONE")
        if kind == "NONE":
            _refuse(**{f"{name}_scale": scale})
            found.append(None)
            continue
        bits = attrs.get("kv_cache_bit_width", 0)
        if bits != 8 or cache is None or ex.dtype_of(cache) != "int8":
            dtype = None if cache is None else ex.dtype_of(cache)
            raise ValueError(f"a cache of {bits} bits in {dtype} is not supported; int8 of 8 is")
        if scale is None:
            raise ValueError(f"its attribute {name}_quant_type ({kind}) needs {name}_scale")
        _, groups, _, size = heads
        sizes = (1, 1, 1, 1) if kind == "PER_TENSOR" else (1, groups, 1, size)
        whole = [index(0) + each for each in (1, groups, 1, size)]
        found.append(broadcast(viewed(scale, *sizes), whole))
    return found


def _as_stored(new: Expr, past: Expr | None, scale: Expr | None) -> Expr:
    """New keys or values in the cache's type, rounded to 8 bits if the cache has a scale."""
    if scale is None:
        return new if past is None else ex.cast(new, ex.dtype_of(past))
    steps = apply("Round", apply("Div", ex.cast(new, "float32"), scale))
    low, high = (ex.literal(np.array(each, np.float32)) for each in (-128, 127))
    return ex.cast(apply("Clip", steps, low, high), "int8")


def _shared_heads(given: Sequence[Expr], attrs: Attrs) -> list[Expr]:
    """q, k and v as [batch, length, heads, size]."""
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    if groups < 1 or heads % groups:
        raise ValueError(f"num_heads {heads} is no multiple of kv_num_heads {groups}")
    rows = [each for each in given if each is not None]
    if len(rows) == 2 or any(ex.rank_of(each) != 3 for each in rows):
        shapes = ", ".join(sizes_text(plain_dims(each)) for each in rows)
        raise ValueError(f"query, key and value of the shapes {shapes} are not supported")
    batch, length, columns = plain_dims(rows[0])
    counts = [heads, groups, groups]
    if len(rows) == 1:
        size = head_size("q", columns, sum(counts))
        rows = _parts(rows[0], [count * size for count in counts], 2)
    size = head_size("q", plain_dims(rows[0])[2], heads)
    for what, each in zip("kv", rows[1:], strict=True):
        expect_shape(what, each, batch, length, groups * size)
    return [with_heads(*each) for each in zip("qkv", rows, counts, strict=True)]


class _Cache(NamedTuple):
    """Numbers of keys in a cache, and the positions of the new keys.

    Attributes
    ----------
    past, keys, present : int or Expr
        Keys that the past has room for, keys that queries may see, keys that are returned.
    before : int or Expr
        Keys before the new ones: a number, or a tensor int64 [batch, 1].
    """

    past: Size
    keys: Size
    present: Size
    before: Any


def _cache_of(past_key: Expr, lengths: Expr, keys: Expr, batch: Size, length: Size) -> _Cache:
    """The cache for queries of `batch` sequences with `length` tokens each."""
    is_given = past_key is not None and ex.rank_of(past_key) == 4
    past: Size = plain_dims(past_key)[2] if is_given else 0
    known = known_elements(keys)
    if known is None:
        total = viewed(ex.cast(keys, "int64"), 1)
        present = size_in(total if past == 0 else apply("Max", vector_of(past), total))
    else:
        total = known.item()
        numbers = isinstance(total, int) and isinstance(past, int)
        largest = te.max(index(0) + past, index(0) + total)
        present = max(past, total) if numbers else simplified(largest)
    if all(isinstance(size, int) for size in (total, length, past)):
        before = total - length
        if not 0 <= before <= past:
            what = f"{length} new tokens and a past of {past}"
            raise ValueError(f"{what} do not make total_sequence_length, {total}")
        # Otherwise new keys go into a partly filled buffer by seqlens_k, in place if it is bound.
        if (batch == 1 and before == past) or not before:
            return _Cache(past, total, present, before)
    ends = ex.cast(viewed(lengths, batch, 1), "int64")
    whole = isinstance(length, int)
    start = vector_of(1 - length) if whole else apply("Sub", vector_of(1), vector_of(length))
    # A prompt's sequences may be shorter than its rows; seqlens_k counts only their tokens.
    place = apply("Max", apply("Add", ends, start), ex.literal(np.array(0)))
    return _Cache(past, present, present, place)


def _with_past(past: Expr | None, cache: _Cache, new: Expr) -> tuple[Expr, Expr]:
    """The keys or values that queries may see, and those that are returned."""
    batch, heads, _, size = plain_dims(new)
    if past is not None:
        expect_shape("the past", past, batch, heads, cache.past, size)
    if isinstance(cache.before, int):
        keys = apply("Concat", past, new, axis=2) if cache.before else new
        if past is None or cache.present == cache.keys:
            return keys, keys
        # The buffer is longer than its content: its end stays as it was.
        tail = relax.op.strided_slice(past, [2], [cache.keys], [cache.past])
        return keys, apply("Concat", keys, tail, axis=2)
    sizes, given = dims_of(new), [] if past is None else [past]
    for each in given:
        for axis in (0, 1, 3):
            check_equal(sizes[axis], dims_of(each)[axis])

    # If positions are not known, a kernel writes the new keys after each sequence's past:
    # out[b, h, j] = new[b, h, j - before[b]] if there is such a row, else past[b, h, j].
    def element(at: Place, new: te.Tensor, before: te.Tensor, *past: te.Tensor) -> Expr:
        b, h, j, d = at
        place = j - before[b, 0]
        is_new = tirx.all(place >= 0, place < new.shape[2])
        kept = nothing = tirx.const(0, new.dtype)
        if past:
            kept = tirx.if_then_else(j < past[0].shape[2], past[0][b, h, j, d], nothing)
        return tirx.if_then_else(is_new, new[b, h, place, d], kept)

    shape, own = (*sizes[:2], cache.present, sizes[3]), {ROW_UPDATE: [*range(2 + len(given))]}
    given = [new, cache.before, *given]
    return (ex.emit_each("cache", shape, element, *given, hint="update_cache", **own),) * 2
