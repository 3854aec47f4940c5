"""A loop that stays a loop: Repeat, of our own domain, which says all that its body reads.

    Loop(limit, condition, states..., body)
        ->  Repeat(limit, condition, states..., captured..., body)

Its body runs only while the condition holds, so there the condition is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from ..freeze_shapes import declared_dims
from ..graph import OWN_DOMAIN, captured_names
from ..inline import rename_values
from ..node_builder import NodeBuilder


def write_repeat(build: NodeBuilder, proto: onnx.GraphProto, inputs: Sequence[str]) -> None:
    """Writes the loop with the body `proto` of a Loop; it has all outputs of the source node.

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
