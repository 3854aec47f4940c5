"""ONNX Runtime's GroupQueryAttention in standard operators.

GroupQueryAttention(q, k, v, past_key, past_value, seqlens_k, total_sequence_length, cos, sin)
    ->  rotary embedding of q and k, keys and values appended to those of the past, and causal
        attention (attention_parts.py) of which several heads of q share one of k and v

If the number of keys, total_sequence_length, is a number, and that of every sequence (one sequence,
or nothing but new tokens), all positions are known too. Otherwise each sequence has seqlens_k + 1
keys, and its new ones are put where its own past ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError

from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    counted,
    element_of,
    extents_of,
    known,
    larger,
    minus,
    optional_input,
    shape_text,
    value_of,
)
from .attention_parts import (
    Heads,
    Scores,
    append,
    as_float,
    attend,
    expect_shape,
    head_size,
    join_heads,
    keys_from,
    keys_up_to,
    refuse,
    refuse_inputs,
    refuse_outputs,
    repeat_heads,
    split_heads,
)
from .multi_head_attention import scale_of
from .quantized import MICROSOFT
from .registry import rewrites
from .rotary_embedding import Rotation, gathered, rotate

_SINK = 11  # the input head_sink
_NEW_INPUTS = {12: "k_scale", 13: "v_scale"}


@dataclass(frozen=True)
class Rows:
    """A value [batch, length, heads * size]."""

    name: str
    heads: int


@rewrites("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Rotary embedding, the cache, the masks, attention."""
    refuse_inputs(node, _NEW_INPUTS)
    refuse_outputs(node, 3)
    attributes = attributes_of(node)
    for name in ("qk_output", "kv_cache_bit_width"):
        if attributes.get(name, 0) > 0:
            raise refuse(node, f"its attribute {name} is not supported")
    for name in ("k_quant_type", "v_quant_type"):
        if attributes.get(name, "NONE") != "NONE":
            raise refuse(node, f"its attribute {name} ({attributes[name]}) is not supported")
    build = NodeBuilder(graph, node)
    q_heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
    if kv_heads < 1 or q_heads % kv_heads:
        raise ModelError(
            f"{describe(node)}: num_heads {q_heads} is no multiple of kv_num_heads {kv_heads}"
        )
    batch, length, size, rows = _rows(build, q_heads, kv_heads)
    cache = cache_of(build, batch, length)
    if attributes.get("do_rotary"):
        interleaved = bool(attributes.get("rotary_interleaved"))
        rotation = _rotation(build, cache, batch, length, interleaved)
        rotated = [_rotated(build, part, (batch, length), size, rotation) for part in rows[:2]]
        rows = [*rotated, rows[2]]
    q, k, v = (split_heads(build, part.name, batch, length, part.heads, size) for part in rows)
    elem_type = graph.elem_type(node.input[0])
    k = with_past(build, cache, k, 0)
    cache = replace(cache, keys=k.length, present=k.length if cache.is_ragged else cache.present)
    v = with_past(build, cache, v, 1)
    scores = _scores(build, cache, batch, length)
    k, v = (repeat_heads(build, value, q_heads) for value in (k, v))
    join_heads(build, attend(build, q, k, v, scores, elem_type), node.output[0])
    return build.nodes


def _rows(
    build: NodeBuilder, q_heads: int, kv_heads: int
) -> tuple[Extent, Extent, int, list[Rows]]:
    """(batch, length, head size, [q, k, v])."""
    node = build.source
    names = [optional_input(node, position) for position in range(3)]
    shapes = [extents_of(build, name) if name else () for name in names]
    ranks = tuple(map(len, shapes))
    if ranks not in ((3, 3, 3), (3, 0, 0)):
        texts = ", ".join(map(shape_text, shapes))
        raise refuse(node, f"query, key and value of the shapes {texts} are not supported")
    batch, length = shapes[0][:2]
    columns = known(build, shapes[0][2], "the columns of query")
    packed = not names[1]
    size = head_size(node, "q", columns, q_heads + 2 * kv_heads if packed else q_heads)
    if packed:
        names = build.split(names[0], [count * size for count in (q_heads, kv_heads, kv_heads)], 2)
    else:
        for what, shape in zip("kv", shapes[1:], strict=True):
            expect_shape(node, what, shape, batch, length, kv_heads * size)
    counts = (q_heads, kv_heads, kv_heads)
    return batch, length, size, [Rows(n, c) for n, c in zip(names, counts, strict=True)]


def _rotation(
    build: NodeBuilder, cache: Cache, batch: Extent, length: Extent, interleaved: bool
) -> Rotation:
    node = build.source
    caches = [optional_input(node, position) for position in (7, 8)]
    if not all(caches):
        raise ModelError(f"{describe(node)}: do_rotary needs cos_cache and sin_cache")
    positions, rows = optional_input(node, 9), (batch, length)
    if positions:
        found = extents_of(build, positions)
        expect_shape(node, f"position_ids ({positions!r})", found, batch, length)
    elif isinstance(cache.before, int):
        positions = build.reshape(counted(build, length, cache.before), [1, length])
        rows = (1, length)
    else:
        numbers = build.reshape(counted(build, length), [1, length])
        positions = build.add("Add", cache.before, numbers)
    return gathered(build, positions, rows, caches, interleaved)


def _rotated(
    build: NodeBuilder, part: Rows, rows: tuple[Extent, Extent], size: int, rotation: Rotation
) -> Rows:
    apart = (*rows, part.heads, size)
    rotated = rotate(build, build.reshape(part.name, apart), apart, rotation, heads_axis=2)
    return Rows(build.reshape(rotated, [*rows, part.heads * size]), part.heads)


def _scores(build: NodeBuilder, cache: Cache, batch: Extent, length: Extent) -> Scores:
    """Scale, softcap and masks."""
    node = build.source
    attributes = attributes_of(node)
    added: list[str] = []
    seen: list[str] = []
    if optional_input(node, 10):
        bias = node.input[10]
        found = extents_of(build, bias)
        expect_shape(node, f"attention_bias ({bias!r})", found, *found[:2], length, cache.keys)
        added.append(as_float(build, bias))
    window = attributes.get("local_window_size", -1)
    if isinstance(cache.before, int):
        added += keys_up_to(build, length, cache.keys, cache.before)
        if window > 0:
            added += keys_from(build, length, cache.keys, cache.before - window + 1)
    else:
        rows = build.reshape(counted(build, length), [1, 1, length, 1])
        keys = build.reshape(counted(build, cache.keys), [1, 1, 1, cache.keys])
        before = build.reshape(cache.before, [batch, 1, 1, 1])
        position = build.add("Add", before, rows)
        seen.append(build.add("Not", build.add("Less", position, keys)))
        if window > 0:
            first = build.add("Add", position, build.constant(1 - window, np.int64))
            seen.append(build.add("Not", build.add("Less", keys, first)))
    return Scores(scale_of(attributes), attributes.get("softcap", 0.0), added, seen, _sink(build))


def _sink(build: NodeBuilder) -> str:
    """What every row of scores has one more of; "" if nothing."""
    node, attributes = build.source, attributes_of(build.source)
    sink = optional_input(node, _SINK)
    if sink:
        found, heads = extents_of(build, sink), attributes["num_heads"]
        expect_shape(node, f"head_sink ({sink!r})", found, heads)
        return as_float(build, sink)
    return build.constant([0.0], np.float32) if attributes.get("smooth_softmax", 0) > 0 else ""


# The cache of keys and values of GroupQueryAttention: how many there are, and new ones in it.
#
# past, new [batch, heads, n, size], seqlens_k, total_sequence_length
#     ->  Concat(past, new)                   where all sequences have past as it is before them
#     ->  UpdateCache(new, before, N, past)   where each has its own: an operator of the front end


@dataclass(frozen=True)
class Cache:
    """Where keys are.

    Attributes
    ----------
    past, keys, present : int or str
        Keys that the past has room for, keys that queries may see, keys that are returned.
    before : int or str
        How many stand before the new ones: a number, or a value int64 [batch, 1].
    """

    past: Extent
    keys: Extent
    present: Extent
    before: int | str

    @property
    def is_ragged(self) -> bool:
        """Whether sequences differ in where their new keys go."""
        return isinstance(self.before, str)


def cache_of(build: NodeBuilder, batch: Extent, length: Extent) -> Cache:
    """The cache of a node, whose queries are of so many sequences and tokens."""
    node = build.source
    total = element_of(build, node.input[6])
    past: Extent = 0
    if optional_input(node, 3):
        shape = extents_of(build, node.input[3])
        past = shape[2] if len(shape) == 4 else 0
    present = larger(build, past, total)
    if isinstance(total, int) and isinstance(length, int) and isinstance(past, int):
        before = total - length
        if not 0 <= before <= past:
            raise ModelError(
                f"{describe(node)}: {length} new tokens and a past of {past} do not make "
                f"total_sequence_length, {total}"
            )
        # A buffer that is partly filled gets new keys where seqlens_k says, in place if bound.
        if (batch == 1 and before == past) or not before:
            return Cache(past, total, present, before)
    ends = build.add("Cast", build.reshape(node.input[5], [batch, 1]), to=TensorProto.INT64)
    start = minus(build, 1, length)
    place = build.add("Add", ends, value_of(build, start))
    # Sequences of a prompt may be shorter than its rows: seqlens_k counts their tokens alone.
    place = build.add("Max", place, build.constant(0, np.int64))
    return Cache(past, present, present, place)


def with_past(build: NodeBuilder, cache: Cache, new: Heads, index: int) -> Heads:
    """The keys (index 0) or values (1) that queries may see; also writes the present ones."""
    node = build.source
    output = node.output[1 + index] if 1 + index < len(node.output) else ""
    past = optional_input(node, 3 + index)
    if bool(past) != bool(optional_input(node, 3)):
        raise ModelError(f"{describe(node)} has only one of past_key and past_value")
    if past:
        found = extents_of(build, past)
        expect_shape(node, f"past ({past!r})", found, new.batch, new.heads, cache.past, new.size)
    if not isinstance(cache.before, int):
        return _scattered(build, cache, new, past, output)
    rest = cache.present != cache.keys
    end = "" if rest else output
    if cache.before:
        keys = append(build, past, cache.before, new, end)
    elif end:
        keys = Heads(build.add("Identity", new.name, output=end), *new.shape)
    else:
        keys = new
    if rest and output:  # a buffer longer than what it holds: the end stays as it was
        tail = _cut(build, past, cache.keys, cache.past)
        build.add("Concat", keys.name, tail, axis=2, output=output)
    return keys


def _cut(build: NodeBuilder, past: str, begin: Extent, end: Extent) -> str:
    bounds = [value_of(build, extent) for extent in (begin, end, 2)]
    return build.add("Slice", past, *bounds)


def _scattered(build: NodeBuilder, cache: Cache, new: Heads, past: str, output: str) -> Heads:
    """The past of every sequence with its new keys where it ends."""
    inputs = [new.name, str(cache.before), build.shape([cache.present]), *filter(None, [past])]
    name = build.add("UpdateCache", *inputs, domain=OWN_DOMAIN, output=output)
    shape = (new.batch, new.heads, cache.present, new.size)
    dims = [extent if isinstance(extent, int) else None for extent in shape]
    elem_type = build.graph.elem_type(build.source.input[0])
    build.graph.types[name] = helper.make_tensor_type_proto(elem_type, dims)
    present = cache.present
    if isinstance(present, str):  # what depends on data is one size for all that reads the keys
        present = build.add("Gather", build.add("Shape", name), build.constant([2], np.int64))
    return Heads(name, new.batch, new.heads, present, new.size)
