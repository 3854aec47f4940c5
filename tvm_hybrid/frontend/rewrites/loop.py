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

import numpy as np
import onnx

from ..freeze_shapes import declared_dims
from ..graph import OWN_DOMAIN, Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .body import Body
from .registry import rewrites
from .repeat import write_repeat

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
