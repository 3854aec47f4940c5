"""The cache of keys and values of GroupQueryAttention: how many there are, and new ones in it.

past, new [batch, heads, n, size], seqlens_k, total_sequence_length
    ->  Concat(past, new)                   where all sequences have past as it is before them
    ->  UpdateCache(new, before, N, past)   where each has its own: an operator of the front end
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError

from ..graph import OWN_DOMAIN, describe
from ..node_builder import Extent, NodeBuilder, optional_input
from ..node_extents import element_of, extents_of, larger, minus, value_of
from .attention_parts import Heads, append, expect_shape


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
