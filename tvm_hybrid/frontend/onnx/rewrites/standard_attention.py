"""Attention of opset 23 in smaller operators.

Attention(q, k, v, attn_mask, past_key, past_value)
    ->  attention (attention_parts.py); heads of k and v are repeated where fewer than q has

The standard's function body scales q and k by the root of the scale, which reads and writes both
once more; here the scale follows the product. What is rare is left to the function body: the
output qk_matmul_output, windows of later opsets, a softmax of another precision, float64.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError

from ..graph.graph import Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    counted,
    extents_of,
    known,
    minus,
    optional_input,
    plus,
    shape_text,
    value_of,
)
from ..reader.check_model import type_name
from .attention_parts import (
    Heads,
    Scores,
    append,
    as_float,
    attend,
    expect_shape,
    head_size,
    heads_of,
    join_heads,
    keys_up_to,
    refuse,
    repeat_heads,
    split_heads,
)
from .expand_function import expand_function
from .loop import Body
from .registry import rewrites

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rewrites("Attention")
def standard_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Heads, past, masks, attention; what is rare as ONNX defines it."""
    build = NodeBuilder(graph, node)
    attributes = attributes_of(node)
    q, k, v, joined = _heads(build)
    before: Extent = 0
    past = [optional_input(node, 4), optional_input(node, 5)]
    if any(past) and not all(past):
        raise ModelError(f"{describe(node)} has only one of past_key and past_value")
    if past[0]:
        shape = extents_of(build, past[0])
        before = shape[2] if len(shape) == 4 else 0
    keys = plus(build, before, k.length)
    mask = optional_input(node, 3)
    if _is_rare(node, graph):
        return expand_function(node, graph)
    k, v = (_with_past(build, past[i], before, value, 1 + i) for i, value in enumerate((k, v)))
    is_causal, lengths = bool(attributes.get("is_causal")), optional_input(node, 6)
    causal = keys_up_to(build, q.length, keys, before) if is_causal and not lengths else []
    blind = bool(lengths)
    if mask:
        blind |= _may_hide_a_row(graph, mask, q.length, keys, before, bool(causal))
    is_bool = bool(mask) and graph.elem_type(mask) == TensorProto.BOOL
    if mask:
        mask = _as_long_as(build, mask if is_bool else as_float(build, mask), is_bool, keys)
    added = [mask, *causal] if mask and not is_bool else causal
    seen = [mask] if is_bool else []
    if lengths:
        seen.append(_within_lengths(build, lengths, q, keys, is_causal))
    scores = Scores(attributes.get("scale"), attributes.get("softcap", 0.0), added, seen)
    k, v = (repeat_heads(build, value, q.heads) for value in (k, v))
    elem_type, output = graph.elem_type(node.input[0]), "" if joined else node.output[0]
    result = attend(build, q, k, v, scores, elem_type, "" if blind else output)
    if blind:
        masks = [mask] if mask and not is_bool else []
        result = _zero_where_nothing_is_seen(build, result, seen, masks, causal, output)
    if joined:
        join_heads(build, result, node.output[0])
    return build.nodes


def _heads(build: NodeBuilder) -> tuple[Heads, Heads, Heads, bool]:
    """q, k, v, and whether the result is to have three axes as they have."""
    node = build.source
    attributes = attributes_of(node)
    shapes = [extents_of(build, name) for name in node.input[:3]]
    ranks = [len(shape) for shape in shapes]
    if ranks == [4, 4, 4]:
        q, k, v = (heads_of(build, *pair) for pair in zip(node.input[:3], "QKV", strict=True))
    elif ranks == [3, 3, 3]:
        names = ("q_num_heads", "kv_num_heads", "kv_num_heads")
        q, k, v = (
            _split(build, value, shape, attributes.get(name) or 0, name)
            for value, shape, name in zip(node.input[:3], shapes, names, strict=True)
        )
    else:
        texts = ", ".join(map(shape_text, shapes))
        raise ModelError(f"{describe(node)}: Q, K and V have the shapes {texts}")
    expect_shape(node, "K", k.shape, q.batch, k.heads, k.length, q.size)
    expect_shape(node, "V", v.shape, q.batch, k.heads, k.length, v.size)
    if q.heads % max(1, k.heads):
        raise ModelError(f"{describe(node)}: {q.heads} heads of Q do not share {k.heads} of K")
    return q, k, v, ranks == [3, 3, 3]


def _split(
    build: NodeBuilder, value: str, shape: tuple[Extent, ...], heads: int, attribute: str
) -> Heads:
    if not heads:
        raise ModelError(f"{describe(build.source)}: inputs of three axes need {attribute}")
    columns = known(build, shape[2], f"the columns of {value!r}")
    size = head_size(build.source, repr(value), columns, heads)
    return split_heads(build, value, shape[0], shape[1], heads, size)


def _is_rare(node: onnx.NodeProto, graph: Graph) -> bool:
    """Whether the function body is to stand in."""
    attributes = attributes_of(node)
    wanted = len(node.output) > 3 and node.output[3]
    windowed = any(attributes.get(f"{side}_window_size", -1) >= 0 for side in ("left", "right"))
    precise = attributes.get("softmax_precision", TensorProto.FLOAT) in (0, *_FLOATS)
    elem_type = graph.elem_type(node.input[0])
    if elem_type not in (*_FLOATS, TensorProto.DOUBLE):
        raise refuse(node, "only floats are supported")
    types = {graph.elem_type(name) for name in node.input[:3]}
    is_double = elem_type == TensorProto.DOUBLE
    return bool(wanted or windowed or is_double or not precise or len(types) > 1)


def _as_long_as(build: NodeBuilder, mask: str, is_bool: bool, keys: Extent) -> str:
    """A mask that also says that keys beyond its end are hidden; one of open length has none."""
    shape = extents_of(build, build.source.input[3])
    missing = minus(build, keys, shape[-1]) if shape and isinstance(shape[-1], int) else 0
    if not shape or (isinstance(missing, int) and missing < 0):
        raise ModelError(
            f"{describe(build.source)}: attn_mask has the shape {shape_text(shape)}; there are "
            f"{keys} keys"
        )
    if not missing:
        return mask
    end = build.constant(False if is_bool else np.float32(-np.inf))
    tail = build.add("Expand", end, build.shape([*shape[:-1], missing]))
    return build.add("Concat", mask, tail, axis=len(shape) - 1)


def _with_past(build: NodeBuilder, past: str, before: Extent, new: Heads, position: int) -> Heads:
    """Keys or values after those of the past; writes the output for the next step."""
    node = build.source
    output = node.output[position] if position < len(node.output) else ""
    if past:
        found = extents_of(build, past)
        expect_shape(node, repr(past), found, new.batch, new.heads, before, new.size)
        return append(build, past, before, new, output)
    if output:
        build.add("Identity", new.name, output=output)
    return new


def _may_hide_a_row(
    graph: Graph, mask: str, queries: Extent, keys: Extent, before: Extent, causal: bool
) -> bool:
    """Whether a query might see no key at all, as far as is known now."""
    array = graph.constants.get(mask)
    if array is None or not (
        isinstance(queries, int) and isinstance(keys, int) and isinstance(before, int)
    ):
        return True
    seen = array if array.dtype == np.bool_ else array.astype(np.float32) > -np.inf
    if causal:
        seen = seen & np.tri(queries, keys, before, dtype=np.bool_)[:, : seen.shape[-1]]
    return not seen.any(-1).all()


def _within_lengths(
    build: NodeBuilder, lengths: str, q: Heads, keys: Extent, is_causal: bool
) -> str:
    """Which keys of a cache are there, of [batch, 1, queries or 1, keys]; causally, the last query
    sees all of them."""
    count = build.add("Cast", build.reshape(lengths, [q.batch, 1, 1, 1]), to=TensorProto.INT64)
    if is_causal:
        rows = build.reshape(counted(build, q.length, 1), [1, 1, q.length, 1])
        before = build.add("Sub", count, value_of(build, q.length))
        count = build.add("Add", before, rows)
    return build.add("Less", build.reshape(counted(build, keys), [1, 1, 1, keys]), count)


def _zero_where_nothing_is_seen(
    build: NodeBuilder,
    result: Heads,
    seen: list[str],
    added: list[str],
    causal: list[str],
    output: str,
) -> Heads:
    """0 for queries that see no key, as the standard wants it, where the softmax gives NaN."""
    zero, one, lowest = (build.constant(number, np.float32) for number in (0.0, 1.0, -np.inf))
    # In numbers above -inf: an imported module may be compiled by TVM alone, to which no maximum
    # is less than the least finite number.
    value = one
    for mask in [*seen, *(build.add("Greater", mask, lowest) for mask in added)]:
        value = build.add("Where", mask, value, zero)
    for other in causal:
        value = build.add("Add", value, other)
    axes = build.constant([-1], np.int64)
    some = build.add("Greater", build.add("ReduceMax", value, axes, keepdims=1), zero)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(build.graph.elem_type(build.source.input[0]))
    nothing = build.constant(np.zeros(()), dtype)
    return Heads(build.add("Where", some, result.name, nothing, output=output), *result.shape)


_PRECISIONS = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
)


@rewrites("FlexAttention", domain="ai.onnx.preview")
def flex_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """FlexAttention: attention whose scores and weights two bodies may change.

    FlexAttention(q, k, v, score_mod, prob_mod)
        ->  MatMul(prob_mod(Softmax(score_mod(MatMul(q, Transpose(k)) * scale))), v)

    Heads of k and v are repeated where fewer than q has. Without bodies this is plain attention.

    The products, and what is between them in the precision of the softmax.
    """
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    elem_type = graph.elem_type(node.input[0])
    default = TensorProto.DOUBLE if elem_type == TensorProto.DOUBLE else TensorProto.FLOAT
    precision = attributes.get("softmax_precision") or default
    if precision not in _PRECISIONS:
        raise ModelError(f"{describe(node)}: a softmax_precision of {type_name(precision)}")
    q, k, v = _heads_flex(build)
    scale = attributes.get("scale", 1.0 / math.sqrt(q.size))
    scores = build.add("MatMul", q.name, build.add("Transpose", k.name, perm=[0, 1, 3, 2]))
    scores = _as(build, scores, elem_type, precision)
    factor = build.constant(scale, helper.tensor_dtype_to_np_dtype(precision))
    scores = _changed(build, "score_mod", build.add("Mul", scores, factor))
    weights = _changed(build, "prob_mod", build.add("Softmax", scores, axis=3))
    weights = _as(build, weights, precision, elem_type)
    build.add("MatMul", weights, v.name, output=node.output[0])
    return build.nodes


def _heads_flex(build: NodeBuilder) -> tuple[Heads, Heads, Heads]:
    """q, k and v, of as many heads."""
    node = build.source
    shapes = [extents_of(build, name) for name in node.input]
    if [len(shape) for shape in shapes] != [4, 4, 4]:
        texts = ", ".join(map(shape_text, shapes))
        raise ModelError(f"{describe(node)}: Q, K and V have the shapes {texts}, not of rank 4")
    q, k, v = (heads_of(build, *pair) for pair in zip(node.input, "QKV", strict=True))
    expect_shape(node, "K", k.shape, q.batch, k.heads, k.length, q.size)
    expect_shape(node, "V", v.shape, q.batch, k.heads, k.length, v.size)
    if k.heads < 1 or q.heads % k.heads:
        raise ModelError(f"{describe(node)}: {q.heads} heads of Q do not share {k.heads} of K")
    return q, repeat_heads(build, k, q.heads), repeat_heads(build, v, q.heads)


def _as(build: NodeBuilder, value: str, found: int, wanted: int) -> str:
    return value if found == wanted else build.add("Cast", value, to=wanted)


def _changed(build: NodeBuilder, name: str, value: str) -> str:
    """What the body of this name makes of a value; the value if there is no such body."""
    body = attributes_of(build.source).get(name)
    return value if body is None else Body(build, body, 1, 1).write([value])[0]
