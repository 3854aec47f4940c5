"""Loop with its iterations written out, as many as there are before the condition ends it.

    Loop(M, condition, state, body)
        ->  a copy of the body, and a Loop of our own domain for the iterations after it
        ->  ...
        ->  Concat of what the iterations made

Whether there is a next iteration is decided when the one before it has been folded: a condition
that is computed from constants is one. States may change their shapes on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from microkernels.errors import UnsupportedOperatorError

from ..freeze_shapes import declared_dims
from ..graph import OWN_DOMAIN, Graph, describe
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .body import Body
from .registry import rewrites


@rewrites("Loop")
def loop(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The loop before its first iteration."""
    build, states = NodeBuilder(graph, node), node.input[2:]
    body = Body(build, attributes_of(node)["body"], 2 + len(states), 1 + len(node.output))
    limit = optional_input(node, 0)
    condition = optional_input(node, 1) or build.constant(True)
    _rest(build, body, 0, [limit, condition, *states])
    return build.nodes


@rewrites("Loop", domain=OWN_DOMAIN)
def iterate(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """One iteration and the loop after it, or the results if there is no further iteration.

    Its inputs are those of Loop and, after the states, what the iterations so far have made.
    """
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    proto, done = attributes["body"], attributes["iteration"]
    first_made = len(proto.input)
    limit, condition = node.input[:2]
    states, made = node.input[2:first_made], node.input[first_made:]
    body = Body(build, proto, 2 + len(states), 1 + len(node.output))
    if (not limit or done < _known(limit, node, graph)) and _known(condition, node, graph):
        body.check_copies(done + 1)
        counter, going = (
            build.constant(np.full(declared_dims(item.type) or (), value))
            for item, value in zip(proto.input, (np.int64(done), True), strict=False)
        )
        going, *results = body.write([counter, going, *states])
        states, row = results[: len(states)], results[len(states) :]
        _rest(build, body, done + 1, [limit, going, *states, *made, *row])
        return build.nodes
    for value, output in zip(states, node.output, strict=False):
        build.add("Identity", value, output=output)
    width = len(node.output) - len(states)
    for index, output in enumerate(node.output[len(states) :]):
        body.stack(1 + len(states) + index, made[index::width], 0, output)
    return build.nodes


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


def _known(name: str, node: onnx.NodeProto, graph: Graph) -> Any:
    """The number or truth that a value holds; UnsupportedOperatorError if it is not constant."""
    value = graph.constants.get(name)
    if value is None or value.size != 1:
        raise UnsupportedOperatorError(
            f"{describe(node)}: its number of iterations depends on {name!r}, which is not a "
            "constant of one element"
        )
    return value.item()
