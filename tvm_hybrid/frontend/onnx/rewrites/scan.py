"""Scan with its steps written out, or as a Loop where they are many, or their number is open.

    Scan(state, x [steps, ...], body)
        ->  per step Gather(x, step) and a copy of the body,
            Concat of what the steps make, in the order that the node's directions ask for
        ->  Loop(steps, state, Gather(x, step) and the body)

Before opset 9 the values have an axis of batches in front, and each batch is scanned by itself;
where their number is open, by a scan along them whose body is that scan.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import OWN_DOMAIN, Graph, describe, is_standard, rename_values
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    counted,
    extents_of,
    minus,
    optional_input,
    value_of,
)
from .loop import Body
from .registry import rewrites

WITHOUT_BATCHES = 9
WITHOUT_STATES = 11  # Loop may be; before, that of our own domain is written


@rewrites("Scan")
@rewrites("Scan", domain=OWN_DOMAIN)
def scan(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the steps out; those of our own domain are without batches in every opset."""
    if is_standard(node) and graph.opset < WITHOUT_BATCHES:
        return _batches(node, graph)
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    count = attributes["num_scan_inputs"]
    if not 0 < count <= len(node.input):
        raise ModelError(
            f"{describe(node)} has {len(node.input)} inputs, of which num_scan_inputs={count} "
            "cannot be scanned"
        )
    split = len(node.input) - count
    current, scanned = list(node.input[:split]), list(node.input[split:])
    body = Body(build, attributes["body"], len(node.input), len(node.output))
    axes = _listed(node, "scan_input_axes", count)
    backward = _listed(node, "scan_input_directions", count)
    lengths = [extents_of(build, name)[axis] for name, axis in zip(scanned, axes, strict=True)]
    numbers = {length for length in lengths if isinstance(length, int)}
    if len(numbers) > 1:
        raise ModelError(f"{describe(node)}: its scanned inputs differ in length: {numbers}")
    steps = numbers.pop() if numbers else lengths[0]
    scanned = [
        name if length == steps else _of_length(build, name, axis, steps)
        for name, axis, length in zip(scanned, axes, lengths, strict=True)
    ]
    scans = list(zip(scanned, axes, backward, strict=True))
    outputs = node.output[split:]
    axes = _listed(node, "scan_output_axes", len(outputs))
    prepend = _listed(node, "scan_output_directions", len(outputs))
    if isinstance(steps, str) or not body.fits(steps):
        rows = _loop(build, body, current, scans, steps)
        for output, row, axis, reverse in zip(outputs, rows, axes, prepend, strict=True):
            if reverse:
                last = value_of(build, minus(build, steps, 1))
                back = build.add("Sub", last, counted(build, steps))
                row = build.add("Gather", row, back, axis=0)
            build.add("MoveFirstAxis", row, output=output, domain=OWN_DOMAIN, to=axis)
        return build.nodes
    made: list[list[str]] = []
    for step in range(steps):
        parts = [
            build.take(name, steps - 1 - step if reverse else step, axis)
            for name, axis, reverse in scans
        ]
        results = body.write([*current, *parts])
        current, column = results[:split], results[split:]
        made.append(column)
    for value, output in zip(current, node.output, strict=False):
        build.add("Identity", value, output=output)
    for index, (output, axis, reverse) in enumerate(zip(outputs, axes, prepend, strict=True)):
        column = [row[index] for row in made]
        body.stack(split + index, column[::-1] if reverse else column, axis, output)
    return build.nodes


def _of_length(build: NodeBuilder, name: str, axis: int, steps: Extent) -> str:
    """A scanned input whose length is open: the program checks that it is the number of steps."""
    shape = list(extents_of(build, name))
    shape[axis] = steps
    return build.reshape(name, shape)


def _loop(
    build: NodeBuilder,
    body: Body,
    states: list[str],
    scans: list[tuple[str, int, int]],
    steps: Extent,
) -> list[str]:
    """Writes the scan as a Loop that takes its own part of every scanned input.

    Returns the rows of all outputs; the final states have their names already.
    """
    counter, going = build.graph.fresh("step"), build.graph.fresh("going")
    nodes, back = [], build.graph.fresh("step")
    if any(reverse for _, _, reverse in scans):
        last = build.reshape(value_of(build, minus(build, steps, 1)), [])
        nodes.append(helper.make_node("Sub", [last, counter], [back]))
    # Names of their own: a body may call its part as the whole is called outside.
    parts = {item.name: build.graph.fresh(item.name) for item in body.proto.input[len(states) :]}
    for (name, axis, reverse), part in zip(scans, parts.values(), strict=True):
        index = back if reverse else counter
        nodes.append(helper.make_node("Gather", [name, index], [part], axis=axis))
    for node in body.proto.node:
        rename_values(node, parts)
    loop = onnx.GraphProto(name=body.proto.name, node=[*nodes, *body.proto.node])
    for name, kind in ((counter, onnx.TensorProto.INT64), (going, onnx.TensorProto.BOOL)):
        loop.input.append(helper.make_tensor_value_info(name, kind, []))
    loop.input.extend(body.proto.input[: len(states)])
    loop.output.extend([loop.input[1], *body.proto.output])
    for item in loop.output:
        item.name = parts.get(item.name, item.name)
    limit = build.reshape(value_of(build, steps), [])
    finals = build.source.output[: len(states)]
    outputs = [*finals, *[""] * (len(build.source.output) - len(finals))]
    if states or build.graph.opset >= WITHOUT_STATES:
        made = build.add_many("Loop", limit, "", *states, outputs=outputs, body=loop)
        return made[len(states) :]
    yes = build.constant(True)
    form = {"domain": OWN_DOMAIN, "body": loop, "iteration": 0}
    return build.add_many("Loop", limit, yes, yes, outputs=outputs, **form)


@rewrites("MoveFirstAxis", domain=OWN_DOMAIN)
def move_first_axis(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """A transpose, once the rank is known."""
    build = NodeBuilder(graph, node)
    rank = len(extents_of(build, node.input[0]))
    order = list(range(1, rank))
    order.insert(attributes_of(node)["to"] % rank, 0)
    build.add("Transpose", node.input[0], output=node.output[0], perm=order)
    return build.nodes


def _batches(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """A scan for each batch, of what has [batch, ...] and [batch, steps, ...] before opset 9."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    batches, steps = extents_of(build, node.input[-1])[:2]
    lengths = optional_input(node, 0)
    given = graph.constants.get(lengths)
    if lengths and (isinstance(steps, str) or given is None or (given != steps).any()):
        count = "known" if isinstance(steps, str) else steps
        raise UnsupportedOperatorError(
            f"{describe(node)}: its sequence_lens {lengths!r} must be constant and {count}, the "
            "number of steps"
        )
    if not batches:
        raise UnsupportedOperatorError(f"{describe(node)}: it has no batches")
    forms = {
        "body": attributes["body"],
        "num_scan_inputs": attributes["num_scan_inputs"],
        "scan_input_directions": _listed(node, "directions", attributes["num_scan_inputs"]),
    }
    if isinstance(batches, str):
        _scan_of_scans(build, forms)
        return build.nodes
    rows = [
        build.add_many(
            "Scan",
            *(build.take(name, batch, axis=0) for name in node.input[1:]),
            outputs=[""] * len(node.output),
            domain=OWN_DOMAIN,
            **forms,
        )
        for batch in range(batches)
    ]
    for output, column in zip(node.output, zip(*rows, strict=True), strict=True):
        build.stack(column, 0, output)
    return build.nodes


def _scan_of_scans(build: NodeBuilder, forms: dict[str, Any]) -> None:
    """Writes a scan along the batches, whose body scans one of them."""
    node, fresh = build.source, build.graph.fresh
    inputs = [fresh(name) for name in node.input[1:]]
    outputs = [fresh(name or "output") for name in node.output]
    inner = helper.make_node("Scan", inputs, outputs, build.prefix, domain=OWN_DOMAIN, **forms)
    body = onnx.GraphProto(name=f"{build.prefix}/batch", node=[inner])
    body.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
    body.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    outer = {"body": body, "num_scan_inputs": len(inputs)}
    build.add_many("Scan", *node.input[1:], outputs=node.output, domain=OWN_DOMAIN, **outer)


def _listed(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    """An attribute of one number per value, zeros if it is absent."""
    numbers: list[int] = attributes_of(node).get(name, [0] * count)
    if len(numbers) != count:
        raise ModelError(f"{describe(node)}: {name} has {len(numbers)} numbers, not {count}")
    return numbers
