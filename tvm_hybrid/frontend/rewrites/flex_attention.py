"""FlexAttention: attention whose scores and weights two bodies may change.

FlexAttention(q, k, v, score_mod, prob_mod)
    ->  MatMul(prob_mod(Softmax(score_mod(MatMul(q, Transpose(k)) * scale))), v)

Heads of k and v are repeated where fewer than q has. Without bodies this is plain attention.
"""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError

from ..check_model import type_name
from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of
from ..node_extents import extents_of, shape_text
from .attention_parts import Heads, expect_shape, heads_of, repeat_heads
from .body import Body
from .registry import rewrites

_PRECISIONS = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
)


@rewrites("FlexAttention", domain="ai.onnx.preview")
def flex_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The products, and what is between them in the precision of the softmax."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    elem_type = graph.elem_type(node.input[0])
    default = TensorProto.DOUBLE if elem_type == TensorProto.DOUBLE else TensorProto.FLOAT
    precision = attributes.get("softmax_precision") or default
    if precision not in _PRECISIONS:
        raise ModelError(f"{describe(node)}: a softmax_precision of {type_name(precision)}")
    q, k, v = _heads(build)
    scale = attributes.get("scale", 1.0 / math.sqrt(q.size))
    scores = build.add("MatMul", q.name, build.add("Transpose", k.name, perm=[0, 1, 3, 2]))
    scores = _as(build, scores, elem_type, precision)
    factor = build.constant(scale, helper.tensor_dtype_to_np_dtype(precision))
    scores = _changed(build, "score_mod", build.add("Mul", scores, factor))
    weights = _changed(build, "prob_mod", build.add("Softmax", scores, axis=3))
    weights = _as(build, weights, precision, elem_type)
    build.add("MatMul", weights, v.name, output=node.output[0])
    return build.nodes


def _heads(build: NodeBuilder) -> tuple[Heads, Heads, Heads]:
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
