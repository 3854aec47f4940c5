"""ONNX Runtime's MultiHeadAttention in standard operators.

MultiHeadAttention(q, k, v, bias, key_padding_mask, attention_bias, past_key, past_value)
    ->  attention (attention_parts.py) of q + bias, k + bias, v + bias

q may hold keys and values too ([batch, length, heads, 3, size]), or k the values ([.., 2, size]);
or k and v may be heads already ([batch, heads, length, size]), as those of a cache are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError

from ..graph.graph import Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    counted,
    differ,
    extents_of,
    known,
    minus,
    optional_input,
    shape_text,
)
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
    padding,
    refuse,
    refuse_inputs,
    refuse_outputs,
    split_heads,
    unidirectional,
)
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


# ONNX Runtime's Attention, whose projections are one product, in standard operators.
#
# Attention(x, weights, bias, mask_index, past, attention_bias)
#     ->  q, k, v = Split(MatMul(x, weights) + bias), then attention (attention_parts.py)
# QAttention(x, weights, bias, x_scale, weights_scale, mask_index, x_zero, weights_zero, past)
#     ->  the same with MatMulIntegerToFloat(x, weights, ...)
#
# TVM's own converter knows neither scale, unidirectional nor past, and adds a mask [B, S] without
# the axes of heads and queries.


@rewrites("Attention", domain=MICROSOFT)
def packed_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Projects, cuts the projection in three, attends."""
    refuse_inputs(node, {6: "past_sequence_length"})
    build = NodeBuilder(graph, node)
    projected = build.add("MatMul", node.input[0], node.input[1])
    if optional_input(node, 2):
        projected = build.add("Add", projected, node.input[2])
    return _attention(build, projected, 3, 4, optional_input(node, 5))


@rewrites("QAttention", domain=MICROSOFT)
def quantized_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The same; the projection is of 8-bit integers, everything after it of floats."""
    build = NodeBuilder(graph, node)
    inputs = [*node.input[:2], *node.input[3:5], *(optional_input(node, i) for i in (6, 7, 2))]
    projected = build.add("MatMulIntegerToFloat", *inputs, domain=MICROSOFT)
    return _attention(build, projected, 5, 8, "")


def _attention(
    build: NodeBuilder, projected: str, mask: int, past: int, bias: str
) -> list[onnx.NodeProto]:
    """Everything after the projection; `mask` and `past` are positions of inputs."""
    node = build.source
    attributes = attributes_of(node)
    for name in ("do_rotary", "past_present_share_buffer"):
        if attributes.get(name):
            raise refuse(node, f"its attribute {name} is not supported")
    heads = attributes["num_heads"]
    shape, weights = (extents_of(build, name) for name in node.input[:2])
    if len(shape) != 3 or len(weights) != 2:
        raise ModelError(
            f"{describe(node)}: its input has the shape {shape_text(shape)}, weights "
            f"{shape_text(weights)}"
        )
    batch, length = shape[:2]
    columns = known(build, weights[1], "the columns of its weights")
    sizes = attributes.get("qkv_hidden_sizes") or [columns // 3] * 3
    if len(sizes) != 3 or sum(sizes) != columns or sizes[0] != sizes[1]:
        raise ModelError(
            f"{describe(node)}: weights of {columns} columns do not make q, k and v of {sizes}"
        )
    parts = [
        split_heads(build, part, batch, length, heads, head_size(node, what, size, heads))
        for part, size, what in zip(
            build.split(projected, sizes, 2), sizes, ("q", "k", "v"), strict=True
        )
    ]
    q, k, v = parts
    before: Extent = 0
    if optional_input(node, past):
        k, v, before = _with_past(build, node.input[past], k, v)
    if len(node.output) > 1 and node.output[1]:
        stacked = [build.reshape(value.name, [1, *value.shape]) for value in (k, v)]
        build.add("Concat", *stacked, axis=0, output=node.output[1])
    hidden = attributes.get("mask_filter_value", HIDDEN)
    added = mask_of_index(build, optional_input(node, mask), batch, length, k.length, hidden)
    biases = [as_float(build, bias)] if bias else []
    if attributes.get("unidirectional"):
        added = unidirectional(build, length, k.length, before, added, hidden, biases)
    else:
        added += biases
    scores = Scores(scale_of(attributes), added=added)
    elem_type = _type_of_floats(build)
    result = attend(build, q, k, v, scores, elem_type)
    join_heads(build, result, node.output[0])
    return build.nodes


def _type_of_floats(build: NodeBuilder) -> int:
    """The type of the projected values."""
    found = build.graph.elem_type(build.source.input[0])
    return TensorProto.FLOAT if found in (TensorProto.UINT8, TensorProto.INT8) else found


def scale_of(attributes: dict[str, Any]) -> float | None:
    """The factor of the scores; ONNX Runtime's 0 stands for the default."""
    return attributes.get("scale") or None


def _with_past(build: NodeBuilder, past: str, k: Heads, v: Heads) -> tuple[Heads, Heads, Extent]:
    """Keys and values after those of `past` [2, batch, heads, length, size]."""
    node = build.source
    shape = extents_of(build, past)
    before = shape[3] if len(shape) == 5 else 0
    expect_shape(node, f"past ({past!r})", shape, 2, k.batch, k.heads, before, k.size)
    if v.size != k.size:
        raise ModelError(f"{describe(node)}: k and v of {k.size} and {v.size} have no common past")
    old_k, old_v = (build.take(past, index, 0) for index in (0, 1))
    return append(build, old_k, before, k), append(build, old_v, before, v), before


def mask_of_index(
    build: NodeBuilder, name: str, batch: Extent, queries: Extent, keys: Extent, hidden: float
) -> list[str]:
    """What a mask_index (or key_padding_mask) adds to the scores; nothing if `name` is ``""``.

    The forms, all of integers:
    [batch]                  number of keys that each sequence has
    [2 * batch]              where its keys end, then where they begin
    [3 * batch + 2]          number of keys first, then what only packed kernels need
    [batch, keys]            positive where a key exists
    [batch, queries, keys]   the same for each query
    [batch, 1, max, max]     the same for every position of the longest sequence
    """
    if not name:
        return []
    node, graph = build.source, build.graph
    shape = extents_of(build, name)
    if len(shape) == 1:
        if not (isinstance(batch, int) and isinstance(shape[0], int)):
            raise refuse(node, f"a mask of one axis ({name!r}) and an open number of sequences")
        if shape[0] in (batch, 2 * batch, 3 * batch + 2):
            return [_lengths(build, name, shape[0], batch, keys, hidden)]
    if len(shape) == 2 and not any(map(differ, shape, (batch, keys))):
        return [padding(build, name, (batch, 1, 1, keys), hidden)]
    if len(shape) == 3 and not any(map(differ, shape, (batch, queries, keys))):
        return [padding(build, name, (batch, 1, queries, keys), hidden)]
    longest = shape[2] if len(shape) == 4 and not differ(shape[2], shape[3]) else 0
    fits = not (isinstance(longest, int) and isinstance(keys, int) and longest < keys)
    if len(shape) == 4 and not any(map(differ, shape[:2], (batch, 1))) and fits:
        starts, ends = build.shape([minus(build, keys, queries), 0]), build.shape([keys, keys])
        part = build.add("Slice", name, starts, ends, build.constant([2, 3], np.int64))
        if graph.elem_type(name) != TensorProto.INT32:
            part = build.add("Cast", part, to=TensorProto.INT32)
        return [padding(build, part, (batch, 1, queries, keys), hidden)]
    forms = ((batch,), (batch, keys), (batch, queries, keys))
    raise ModelError(
        f"{describe(node)}: the mask {name!r} has the shape {shape_text(shape)}, which fits "
        f"neither {', '.join(map(shape_text, forms))}, (2 * batch,) nor (batch, 1, max, max)"
    )


def _lengths(
    build: NodeBuilder, name: str, count: int, batch: int, keys: Extent, hidden: float
) -> str:
    """A mask of where the keys of each sequence end, and begin if it says so too."""
    places = build.add("Cast", counted(build, keys), to=TensorProto.INT32)
    positions = build.reshape(places, [1, 1, 1, keys])
    bounds = [name]
    if count != batch:
        rest = [count - batch] if count != 2 * batch else [batch]
        bounds = build.split(name, [batch, *rest], 0)
    if build.graph.elem_type(name) != TensorProto.INT32:
        bounds = [build.add("Cast", bound, to=TensorProto.INT32) for bound in bounds]
    end = build.reshape(bounds[0], [batch, 1, 1, 1])
    seen = build.add("Less", positions, end)
    if count == 2 * batch:
        begin = build.reshape(bounds[1], [batch, 1, 1, 1])
        seen = build.add("And", seen, build.add("Not", build.add("Less", positions, begin)))
    numbers = [build.constant(number, np.float32) for number in (0.0, hidden)]
    return build.add("Where", seen, *numbers)
