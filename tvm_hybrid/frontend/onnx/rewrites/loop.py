"""Loop with its iterations written out, as many as there are before the condition ends it.

    Loop(M, condition, state, body)
        ->  a copy of the body, and a Loop of our own domain for the iterations after it
        ->  ...
        ->  Concat of what the iterations made

Whether there is a next iteration is decided when the one before it has been folded: a condition
that is computed from constants is one. States may change their shapes on the way. A loop with too
many iterations, or with a number of them that depends on data, stays a loop (`repeat`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.freeze_shapes import declared_dims
from ..graph.graph import (
    OWN_DOMAIN,
    Graph,
    captured_names,
    describe,
    inline,
    is_standard,
    rename_values,
    subgraphs,
)
from ..graph.node_builder import NodeBuilder, attributes_of, constant_value, optional_input
from ..graph.parameters import require_value
from .registry import rewrites

# A limit of more says that the condition ends the loop.
MAX_LIMIT = 2**31


@rewrites("Loop")
def loop(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The loop before its first iteration."""
    build, states = NodeBuilder(graph, node), node.input[2:]
    body = Body(build, attributes_of(node)["body"], 2 + len(states), 1 + len(node.output))
    limit = optional_input(node, 0)
    condition = optional_input(node, 1) or build.constant(True)
    start = [limit, condition, *states]
    count = _known(limit, graph)
    if count is not None and count <= MAX_LIMIT and not body.fits(count):
        write_repeat(build, body.proto, start)
    else:
        _rest(build, body, 0, [*start, condition, *states])
    return build.nodes


@rewrites("Loop", domain=OWN_DOMAIN)
def iterate(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """One iteration and the loop after it, or the results if there is no further iteration.

    Its inputs are those of Loop, then the condition and the states now, and what the iterations so
    far have made.
    """
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    proto, done = attributes["body"], attributes["iteration"]
    count = len(proto.input) - 2
    start, now = node.input[: 2 + count], node.input[2 + count :]
    condition, states, made = now[0], now[1 : 1 + count], now[1 + count :]
    body = Body(build, proto, 2 + count, 1 + len(node.output))
    limit, goes_on = _known(start[0], graph), _known(condition, graph)
    if limit is not None and (done >= limit or goes_on == 0):
        _finish(body, build, states, made)
    elif limit is None or goes_on is None or not body.fits(done + 1):
        # From the start: what has been written out so far is read by nothing and dropped.
        write_repeat(build, proto, start)
    else:
        counter, going = (
            build.constant(np.full(declared_dims(item.type) or (), value))
            for item, value in zip(proto.input, (np.int64(done), True), strict=False)
        )
        condition, *results = body.write([counter, going, *states])
        states, row = results[:count], results[count:]
        _rest(build, body, done + 1, [*start, condition, *states, *made, *row])
    return build.nodes


def _finish(body: Body, build: NodeBuilder, states: list[str], made: list[str]) -> None:
    """The outputs, of the states after the last iteration and of all that was made."""
    outputs = build.source.output
    for value, output in zip(states, outputs, strict=False):
        build.add("Identity", value, output=output)
    width = len(outputs) - len(states)
    for index, output in enumerate(outputs[len(states) :]):
        body.stack(1 + len(states) + index, made[index::width], 0, output)


def _rest(build: NodeBuilder, body: Body, done: int, inputs: list[str]) -> None:
    """The loop after some iterations."""
    build.add_many(
        "Loop",
        *inputs,
        outputs=build.source.output,
        domain=OWN_DOMAIN,
        body=body.proto,
        iteration=done,
    )
    build.nodes[-1].name = build.prefix  # the model's, for messages


def _known(name: str, graph: Graph) -> int | None:
    """The number or truth that a value holds, None if it depends on data; without a name a number
    beyond all limits."""
    if not name:
        return MAX_LIMIT + 1
    value = graph.constants.get(name)
    return int(value.item()) if value is not None and value.size == 1 else None


# Rewrites If without control flow.
#
# If(constant)                  ->  the nodes of the branch taken
# If(condition) with two pure   ->  the nodes of both branches, then Where(condition, then, else)
# branches of the same shapes
#
# If the shapes differ, or a branch is not one for the inputs' shapes, the condition's value must be
# known where it comes from inputs; else the result has open sizes (ops/selection.py).
#
# Computing both keeps the whole model one dataflow graph that can be fused and planned; ONNX has no
# side effects, so the branch not taken costs time but changes nothing.


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
    build = NodeBuilder(graph, node)
    branches = {}
    graph.choices.append((f"{build.prefix}/", node.input[0], describe(node)))
    for key in ("then_branch", "else_branch"):
        branches[key] = [graph.fresh(f"{build.prefix}/{key}") for _ in node.output]
        build.nodes += _branch(node, bodies[key], branches[key], graph)
    # The shapes of the branches are known only after these nodes, so the choice is a node too.
    for output, then, other in zip(node.output, *branches.values(), strict=True):
        if output:
            build.add("Select", node.input[0], then, other, output=output, domain=OWN_DOMAIN)
    return build.nodes


@rewrites("Select", domain=OWN_DOMAIN)
def select(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Where, if both sides have the same static shape; else the node stays, its sizes open."""
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
    one, two = (declared_dims(graph.types.get(name, onnx.TypeProto())) for name in (then, other))
    if types[0] != types[1] or one is None or two is None or len(one) != len(two):
        raise UnsupportedOperatorError(
            f"{source}: its condition is not constant, and its branches make different types or "
            f"ranks for {node.output[0]!r}: {shapes[0]} and {shapes[1]}"
        )
    sizes = [a if a == b and isinstance(a, int) else None for a, b in zip(one, two, strict=True)]
    graph.types[node.output[0]] = helper.make_tensor_type_proto(types[0], sizes)
    return None


def _branch(
    node: onnx.NodeProto, body: onnx.GraphProto, outputs: list[str], graph: Graph
) -> list[onnx.NodeProto]:
    """The nodes of a branch, making `outputs`."""
    build = NodeBuilder(graph, node)
    results = Body(build, body, 0, len(outputs)).write([])
    # A branch may give an outer value or a constant, or the same value twice: hence Identity.
    for value, output in zip(results, outputs, strict=True):
        if output:
            build.add("Identity", value, output=output)
    return build.nodes


MAX_NODES = 1024


class Body:
    """A body of a node.

    Parameters
    ----------
    build
        What the copies are written with.
    proto
        The body. Its constants are added to the graph, so that all copies share them.
    inputs, outputs
        How many values go in and come out; a ModelError if the body has other numbers of them.

    Attributes
    ----------
    proto
        The body without constants of its own.
    """

    def __init__(
        self, build: NodeBuilder, proto: onnx.GraphProto, inputs: int, outputs: int
    ) -> None:
        sizes = ("takes", len(proto.input), inputs), ("makes", len(proto.output), outputs)
        for verb, found, wanted in sizes:
            if found != wanted:
                raise ModelError(
                    f"{describe(build.source)}: its body {proto.name!r} {verb} {found} values, "
                    f"not {wanted}"
                )
        self._build = build
        self.proto = _without_constants(proto, build)

    def fits(self, count: int) -> bool:
        """Whether so many copies can be written out: more nodes would take long to compile."""
        return count * sum(map(_size, self.proto.node)) <= MAX_NODES

    def write(self, inputs: Sequence[str]) -> list[str]:
        """Writes a copy that reads `inputs`; returns what the body's outputs are called in it."""
        names = dict(zip((item.name for item in self.proto.input), inputs, strict=True))
        self._build.nodes += inline(self.proto.node, names, self._build.graph, self._build.prefix)
        # An output may also be an input of the body or a value from outside.
        return [names.get(item.name, item.name) for item in self.proto.output]

    def stack(self, position: int, values: Sequence[str], axis: int, output: str) -> None:
        """Joins what several copies made of one of the body's outputs along a new axis."""
        if not output:
            return
        if values:
            self._build.stack(values, axis, output)
            return
        # Without a copy only the declaration tells the shape; sizes that it leaves open are 0.
        item = self.proto.output[position]
        dims = declared_dims(item.type)
        if dims is None:
            raise UnsupportedOperatorError(
                f"{describe(self._build.source)}: it never runs, and its body does not declare "
                f"the shape of its output {item.name!r}"
            )
        shape = [dim if isinstance(dim, int) else 0 for dim in dims]
        shape.insert(axis % (len(shape) + 1), 0)
        dtype = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        self._build.graph.add_constant(output, np.empty(shape, dtype))


def _without_constants(proto: onnx.GraphProto, build: NodeBuilder) -> onnx.GraphProto:
    """A copy of a body that reads its initialisers and Constants from the graph around it."""
    names: dict[str, str] = {}

    def shared(name: str) -> str:
        names[name] = build.graph.fresh(f"{build.prefix}/{name}")
        return names[name]

    copy = onnx.GraphProto(name=proto.name, input=proto.input, output=proto.output)
    for tensor in proto.initializer:
        name = shared(tensor.name)
        build.graph.add_constant(name, numpy_helper.to_array(tensor))
    for node in proto.node:
        inner = onnx.NodeProto.FromString(node.SerializeToString())
        if node.op_type == "Constant" and is_standard(node):
            inner.output[0] = shared(node.output[0])
            build.graph.add_constant(inner.output[0], constant_value(inner, build.graph))
        else:
            rename_values(inner, names)
            copy.node.append(inner)
    for item in copy.output:
        item.name = names.get(item.name, item.name)
    return copy


def _size(node: onnx.NodeProto) -> int:
    """How many nodes a node is, those of bodies inside it included."""
    return 1 + sum(_size(inner) for body in subgraphs(node) for inner in body.node)


def write_repeat(build: NodeBuilder, proto: onnx.GraphProto, inputs: Sequence[str]) -> None:
    """A loop that stays a loop: Repeat, of our own domain, which says all that its body reads.

        Loop(limit, condition, states..., body)
            ->  Repeat(limit, condition, states..., captured..., body)

    Its body runs only while the condition holds, so there the condition is a constant.

    Writes the loop with the body `proto` of a Loop; it has all outputs of the source node.

    Parameters
    ----------
    inputs
        The limit or ``""``, the condition, the states.
    """
    body = onnx.GraphProto.FromString(proto.SerializeToString())
    counter, going = body.input[0], body.input[1]
    names = {going.name: build.constant(True)}
    if declared_dims(counter.type) == (1,):
        names[counter.name] = build.graph.fresh(counter.name)
    for node in body.node:
        rename_values(node, names)
    for item in body.output:
        item.name = names.get(item.name, item.name)
    if counter.name in names:
        vector = build.constant([1], "int64")
        body.node.insert(
            0, helper.make_node("Reshape", [counter.name, vector], [names[counter.name]])
        )
    del body.input[1]
    captured = sorted(captured_names(helper.make_node("Repeat", [], [], body=body)))
    body.input.extend(onnx.ValueInfoProto(name=name) for name in captured)
    build.add_many(
        "Repeat",
        *inputs,
        *captured,
        outputs=[name or build.graph.fresh("unused") for name in build.source.output],
        domain=OWN_DOMAIN,
        body=body,
        states=len(inputs) - 2,
    )
    build.nodes[-1].name = build.prefix  # the model's, for messages


@rewrites("FlexAttention", domain="ai.onnx.preview")
def flex_attention(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Attention whose scores and weights two bodies may change.

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
