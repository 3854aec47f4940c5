"""ONNX Runtime's MultiHeadAttention in standard operators.

MultiHeadAttention(q, k, v, bias, key_padding_mask, attention_bias, past_key, past_value)
    ->  attention (attention_parts.py) of q + bias, k + bias, v + bias

q may hold keys and values too ([batch, length, heads, 3, size]), or k the values ([.., 2, size]);
or k and v may be heads already ([batch, heads, length, size]), as those of a cache are.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from microkernels.base.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import Extent, NodeBuilder, attributes_of, optional_input
from ..node_extents import extents_of, known, shape_text
from .attention_parts import (
    HIDDEN,
    Heads,
    Scores,
    append,
    as_float,
    attend,
    expect_shape,
    head_size,
    heads_of,
    join_heads,
    refuse,
    refuse_inputs,
    refuse_outputs,
    split_heads,
)
from .causal_mask import unidirectional
from .packed_attention import mask_of_index, scale_of
from .quantized import MICROSOFT
from .registry import rewrites


@rewrites("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Heads of q, k and v, what came before, attention."""
    refuse_inputs(node, {8: "past_sequence_length", 9: "cache_indirection"})
    refuse_outputs(node, 3)
    build = NodeBuilder(graph, node)
    attributes = attributes_of(node)
    q, k, v = _heads(build, attributes["num_heads"])
    expect_shape(node, "k", k.shape, q.batch, q.heads, k.length, q.size)
    expect_shape(node, "v", v.shape, q.batch, q.heads, k.length, v.size)
    before: Extent = 0
    past_key, past_value = optional_input(node, 6), optional_input(node, 7)
    if bool(past_key) != bool(past_value):
        raise ModelError(f"{describe(node)} has only one of past_key and past_value")
    presents = [node.output[i] if i < len(node.output) else "" for i in (1, 2)]
    if past_key:
        shape = extents_of(build, past_key)
        before = shape[2] if len(shape) == 4 else 0
        expect_shape(node, "past_key", shape, k.batch, k.heads, before, k.size)
        found = extents_of(build, past_value)
        expect_shape(node, "past_value", found, v.batch, v.heads, before, v.size)
        k = append(build, past_key, before, k, presents[0])
        v = append(build, past_value, before, v, presents[1])
    else:
        for value, output in zip((k, v), presents, strict=True):
            if output:
                build.add("Identity", value.name, output=output)
    hidden = attributes.get("mask_filter_value", HIDDEN)
    padded = optional_input(node, 4)
    added = mask_of_index(build, padded, q.batch, q.length, k.length, hidden)
    bias = [as_float(build, node.input[5])] if optional_input(node, 5) else []
    if attributes.get("unidirectional"):
        added = unidirectional(build, q.length, k.length, before, added, hidden, bias)
    else:
        added += bias
    scores = Scores(scale_of(attributes), added=added)
    result = attend(build, q, k, v, scores, graph.elem_type(node.input[0]))
    join_heads(build, result, node.output[0])
    return build.nodes


def _heads(build: NodeBuilder, heads: int) -> tuple[Heads, Heads, Heads]:
    """q, k and v with their biases."""
    node = build.source
    names = [optional_input(node, position) for position in range(3)]
    shapes = [extents_of(build, name) if name else () for name in names]
    ranks = tuple(map(len, shapes))
    cached: list[Heads] = []
    if ranks == (5, 0, 0):
        rows = _unpack(build, names[0], shapes[0], heads, 3)
    elif ranks == (3, 5, 0):
        rows = [_rows(build, names[0], shapes[0], heads)]
        rows += _unpack(build, names[1], shapes[1], heads, 2)
    elif ranks == (3, 3, 3):
        rows = [_rows(build, *value, heads) for value in zip(names, shapes, strict=True)]
    elif ranks == (3, 4, 4):
        rows = [_rows(build, names[0], shapes[0], heads)]
        cached = [heads_of(build, names[i], "kv"[i - 1]) for i in (1, 2)]
    else:
        texts = ", ".join(map(shape_text, shapes))
        raise refuse(node, f"query, key and value of the shapes {texts} are not supported")
    if optional_input(node, 3):
        rows = _biased(build, rows, cached)
    split = [split_heads(build, x.name, x.batch, x.length, x.heads, x.size) for x in rows]
    q, k, v = [*split, *cached]
    return q, k, v


def _rows(build: NodeBuilder, name: str, shape: tuple[Extent, ...], heads: int) -> Heads:
    """The heads in [batch, length, heads * size], which is what the name is of."""
    columns = known(build, shape[2], f"the columns of {name!r}")
    size = head_size(build.source, repr(name), columns, heads)
    return Heads(name, shape[0], heads, shape[1], size)


def _unpack(
    build: NodeBuilder, name: str, shape: tuple[Extent, ...], heads: int, count: int
) -> list[Heads]:
    """The rows of the values side by side in [batch, length, heads, count, size]."""
    batch, length, size = shape[0], shape[1], known(build, shape[4], f"the heads of {name!r}")
    expect_shape(build.source, repr(name), shape, batch, length, heads, count, size)
    parts = build.split(name, [1] * count, 3)
    rows = [build.reshape(part, [batch, length, heads * size]) for part in parts]
    return [Heads(part, batch, heads, length, size) for part in rows]


def _biased(build: NodeBuilder, rows: list[Heads], cached: list[Heads]) -> list[Heads]:
    """Rows with their parts of the bias [sum of columns] added; those of a cache have theirs."""
    node, name = build.source, build.source.input[3]
    sizes = [part.heads * part.size for part in (*rows, *cached)]
    expect_shape(node, f"bias ({name!r})", extents_of(build, name), sum(sizes))
    biases = build.split(name, sizes, 0)
    return [
        replace(part, name=build.add("Add", part.name, bias))
        for part, bias in zip(rows, biases, strict=False)
    ]
