"""Scan with its steps written out: their number is static once shapes are known.

    Scan(state, x [steps, ...], body)
        ->  per step Gather(x, step) and a copy of the body,
            Concat of what the steps make, in the order that the node's directions ask for

Before opset 9 the values have an axis of batches in front, and each batch is scanned by itself.
"""

from __future__ import annotations

import onnx

from microkernels.errors import ModelError, UnsupportedOperatorError

from ..graph import OWN_DOMAIN, Graph, describe, is_standard
from ..node_builder import NodeBuilder, attributes_of, known_shape, optional_input
from .body import Body
from .registry import rewrites

WITHOUT_BATCHES = 9


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
    current, scanned = list(node.input[:split]), node.input[split:]
    body = Body(build, attributes["body"], len(node.input), len(node.output))
    axes = _listed(node, "scan_input_axes", count)
    backward = _listed(node, "scan_input_directions", count)
    lengths = {
        known_shape(graph, node, name)[axis] for name, axis in zip(scanned, axes, strict=True)
    }
    if len(lengths) > 1:
        raise ModelError(f"{describe(node)}: its scanned inputs differ in length: {lengths}")
    steps = lengths.pop()
    body.check_copies(steps)
    made: list[list[str]] = []
    for step in range(steps):
        parts = [
            build.take(name, steps - 1 - step if reverse else step, axis)
            for name, axis, reverse in zip(scanned, axes, backward, strict=True)
        ]
        results = body.write([*current, *parts])
        current, row = results[:split], results[split:]
        made.append(row)
    for value, output in zip(current, node.output, strict=False):
        build.add("Identity", value, output=output)
    outputs = node.output[split:]
    axes = _listed(node, "scan_output_axes", len(outputs))
    prepend = _listed(node, "scan_output_directions", len(outputs))
    for index, (output, axis, reverse) in enumerate(zip(outputs, axes, prepend, strict=True)):
        column = [row[index] for row in made]
        body.stack(split + index, column[::-1] if reverse else column, axis, output)
    return build.nodes


def _batches(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """A scan for each batch, of what has [batch, ...] and [batch, steps, ...] before opset 9."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    batches, steps = known_shape(graph, node, node.input[-1])[:2]
    lengths = optional_input(node, 0)
    known = graph.constants.get(lengths)
    if lengths and (known is None or (known != steps).any()):
        raise UnsupportedOperatorError(
            f"{describe(node)}: its sequence_lens {lengths!r} must be constant and {steps}, the "
            "number of steps"
        )
    if not batches:
        raise UnsupportedOperatorError(f"{describe(node)}: it has no batches")
    forms = {
        "body": attributes["body"],
        "num_scan_inputs": attributes["num_scan_inputs"],
        "scan_input_directions": _listed(node, "directions", attributes["num_scan_inputs"]),
    }
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


def _listed(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    """An attribute of one number per value, zeros if it is absent."""
    numbers: list[int] = attributes_of(node).get(name, [0] * count)
    if len(numbers) != count:
        raise ModelError(f"{describe(node)}: {name} has {len(numbers)} numbers, not {count}")
    return numbers
