"""Rewrites of If, FlexAttention, CastLike and Transpose.

    If(constant)                  ->  the nodes of the branch taken
    If(condition) with two pure   ->  the nodes of both branches, then Where(condition, then, else)
    branches of the same shapes

If the shapes differ, or a branch does not fit the inputs' shapes, and the condition is computed
from inputs, its value must be known; else the result has dynamic sizes (ops/selection.py).

Computing both branches keeps the model one dataflow graph that can be fused and planned; ONNX has
no side effects, so the branch that is not taken costs time but changes nothing.
"""

from __future__ import annotations

import numpy as np
import onnx

from microkernels.base.errors import UnsupportedOperatorError

from ..graph.freeze_shapes import declared_dims
from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.narrow_types import FLOATS
from ..graph.node_builder import NodeBuilder, attributes_of
from ..graph.parameters import require_value
from .loop import Body
from .table import rewrites


@rewrites("If")
def conditional(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Inlines one branch or both."""
    bodies = attributes_of(node)
    if set(bodies) != {"then_branch", "else_branch"}:
        raise UnsupportedOperatorError(f"{describe(node)} must have a then_branch and else_branch")
    condition = graph.constants.get(node.input[0])
    if condition is not None and condition.size == 1:
        taken = bodies["then_branch" if condition.item() else "else_branch"]
        return _branch(node, taken, list(node.output), graph)
    build, branches = NodeBuilder(graph, node), {}
    graph.choices.append((f"{build.prefix}/", node.input[0], describe(node)))
    for key in ("then_branch", "else_branch"):
        branches[key] = [graph.fresh(f"{build.prefix}/{key}") for _ in node.output]
        build.nodes += _branch(node, bodies[key], branches[key], graph)
    # The shapes of the branches are only known after these nodes, so the choice is a node too.
    for output, then, other in zip(node.output, *branches.values(), strict=True):
        if output:
            build.add("Select", node.input[0], then, other, output=output, domain=OWN_DOMAIN)
    return build.nodes


@rewrites("Select", domain=OWN_DOMAIN)
def select(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Where, if both sides have equal static shapes; else the node stays, with dynamic sizes."""
    condition, then, other = node.input
    source = f"If node {node.name.removesuffix('/Select')!r}"
    types = graph.elem_type(then), graph.elem_type(other)
    shapes = graph.shape(then), graph.shape(other)
    if types[0] == types[1] and shapes[0] is not None and shapes[0] == shapes[1]:
        build = NodeBuilder(graph, node)
        if graph.shape(condition) != ():
            condition = build.reshape(condition, [])
        build.add("Where", condition, then, other, output=node.output[0])
        return build.nodes
    require_value(source, condition, graph)
    if then in graph.sequences or other in graph.sequences:
        raise UnsupportedOperatorError(
            f"{source}: its condition depends on data, and its branches make sequences"
        )
    one, two = (declared_dims(graph.types.get(name, onnx.TypeProto())) for name in (then, other))
    if types[0] != types[1] or one is None or two is None or len(one) != len(two):
        raise UnsupportedOperatorError(
            f"{source}: its condition is not constant, and its branches make different types or "
            f"ranks for {node.output[0]!r}: {shapes[0]} and {shapes[1]}"
        )
    sizes = [a if a == b and isinstance(a, int) else None for a, b in zip(one, two, strict=True)]
    graph.declare(node.output[0], types[0], sizes)
    return None


def _branch(
    node: onnx.NodeProto, body: onnx.GraphProto, outputs: list[str], graph: Graph
) -> list[onnx.NodeProto]:
    """The nodes of a branch; its results get the names `outputs`."""
    build = NodeBuilder(graph, node)
    results = Body(build, body, 0, len(outputs)).write([])
    # A result may be an outer value, a constant, or another result, so Identity gives it its name.
    for value, output in zip(results, outputs, strict=True):
        if output:
            build.add("Identity", value, output=output)
    return build.nodes


@rewrites("FlexAttention", domain="ai.onnx.preview")
def flex_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Attention whose scores and softmax results two bodies may change.

    FlexAttention(q, k, v, score_mod, prob_mod)
        ->  FlexMix(prob_mod(Softmax(score_mod(FlexScores(q, k, v)))), v)
    """
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    bodies = {name: attributes.pop(name, None) for name in ("score_mod", "prob_mod")}

    def changed(name: str, value: str) -> str:
        body = bodies[name]
        return value if body is None else Body(build, body, 1, 1).write([value])[0]

    scores = build.add("FlexScores", *node.input, domain=OWN_DOMAIN, **attributes)
    shares = build.add("Softmax", changed("score_mod", scores), axis=3)
    shares = changed("prob_mod", shares)
    build.add("FlexMix", shares, node.input[2], domain=OWN_DOMAIN, output=node.output[0])
    return build.nodes


# CastLike and Transpose, replaced by what the graph knows of their inputs.


@rewrites("CastLike")
def cast_like(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replaces CastLike by Cast, once types are known; a narrow type is the model's type.

    CastLike(x, like: int32)    ->    Cast(x, to=INT32)
    """
    like = node.input[1]
    elem_type = graph.narrow.get(like) or graph.elem_type(like)
    if not elem_type:
        return None
    build = NodeBuilder(graph, node)
    # Cast has the attributes saturate and round_mode as well.
    build.add("Cast", node.input[0], output=node.output[0], to=elem_type, **attributes_of(node))
    return build.nodes


@rewrites("Transpose")
def transposed_blocks(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Transposes a block-wise quantised constant instead of its dequantized values.

        Transpose(DequantizeLinear(w: int8 [N, K], ..., axis=1, block_size=32))
            ->  DequantizeLinear(constant w^T: int8 [K, N], ..., axis=0, block_size=32)

    Exporters quantise the weight of a linear layer as [N, K] and transpose the floats; products
    need the integers as [K, N].
    """
    source = graph.makers.get(node.input[0])
    if source is None or source.op_type != "DequantizeLinear":
        return None
    how = attributes_of(source)
    names = [name for name in source.input if name]
    arrays = [graph.constants[name] for name in names if name in graph.constants]
    bits = graph.narrow.get(names[0]) in FLOATS
    if not how.get("block_size") or bits or len(arrays) < len(names):
        return None
    rank = arrays[0].ndim
    if any(array.ndim != rank for array in arrays):
        return None
    order = list(attributes_of(node).get("perm") or range(rank)[::-1])
    build = NodeBuilder(graph, node)
    moved = [build.constant(np.ascontiguousarray(array.transpose(order))) for array in arrays]
    how["axis"] = order.index(how.get("axis", 1) % rank)
    build.add("DequantizeLinear", *moved, output=node.output[0], **how)
    return build.nodes
