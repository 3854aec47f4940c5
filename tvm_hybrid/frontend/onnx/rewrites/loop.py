"""Writes out the iterations of Loop and Scan until the condition ends them; a loop that cannot be
written out becomes a Repeat, which stays a loop.

    Loop(M, condition, state, body)
        ->  a copy of the body, and a Loop of our own domain for the iterations after it
        ->  ...
        ->  Concat of the iterations' results

    Scan(state, x [steps, ...], body)
        ->  Loop(steps, state, Gather(x, step) and the body), whose rows are joined along any axis

    Loop(limit, condition, states..., body)
        ->  Repeat(limit, condition, states..., captured..., body)

Whether there is a next iteration is decided after the last iteration was folded: a condition that
is computed from constants is then a constant. States may change their shapes between iterations. A
loop with too many iterations, or whose number of iterations depends on data, becomes a Repeat, an
operator of our own domain that lists all values that its body reads.

Before opset 9 the values of a Scan have a leading axis of batches, and each batch is scanned
separately; if their number is dynamic, by an outer Scan along batches whose body is that Scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph import graph as graphs
from ..graph import node_builder
from ..graph.freeze_shapes import declared_dims
from ..graph.graph import OWN_DOMAIN, Graph, describe, is_standard, rename_values
from ..graph.node_builder import NodeBuilder, attributes_of, extents_of, optional_input
from ..graph.parameters import require_value
from .table import rewrites

MAX_LIMIT = 2**31  # a larger limit means that the condition ends the loop
MAX_NODES = 1024  # most nodes that iterations are written out to
WITHOUT_BATCHES = 9  # first opset whose Scan has no batches


@rewrites("Loop")
def loop(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Starts a loop, before its first iteration."""
    build, states = NodeBuilder(graph, node), node.input[2:]
    body = Body(build, attributes_of(node)["body"], 2 + len(states), 1 + len(node.output))
    condition = optional_input(node, 1) or build.constant(True)
    _start(build, body, [optional_input(node, 0), condition, *states], {"most": body.most})
    return build.nodes


@rewrites("Loop", domain=OWN_DOMAIN)
def iterate(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """One iteration and the loop after it, or the results if there is no further iteration.

    Its inputs are those of Loop, then the current condition and states, and the results of the
    iterations so far.
    """
    build, form = NodeBuilder(graph, node), attributes_of(node)
    proto, done = form["body"], form["iteration"]
    count = len(proto.input) - 2
    start, now = node.input[: 2 + count], node.input[2 + count :]
    condition, states, made = now[0], now[1 : 1 + count], now[1 + count :]
    body = Body(build, proto, 2 + count, 1 + len(node.output))
    limit, goes_on = _known(start[0], graph), _known(condition, graph)
    if limit is not None and (done >= limit or goes_on == 0):
        for value, output in zip(states, node.output, strict=False):
            build.add("Identity", value, output=output)
        width = len(node.output) - count
        for index, (output, axis, backward) in enumerate(_rows(build, form, count)):
            column = made[index::width]
            body.stack(1 + count + index, column[::-1] if backward else column, axis, output)
    elif limit is None or goes_on is None or done >= form["most"]:
        # From the start: nothing reads the iterations written out so far, so they are dropped.
        _repeat(build, proto, start, form)
    else:
        counter, going = (
            build.constant(np.full(declared_dims(item.type) or (), value))
            for item, value in zip(proto.input, (np.int64(done), True), strict=False)
        )
        condition, *results = body.write([counter, going, *states])
        states, row = results[:count], results[count:]
        _rest(build, body, [*start, condition, *states, *made, *row], form, done + 1)
    return build.nodes


def _start(build: NodeBuilder, body: Body, inputs: list[str], form: dict[str, Any]) -> None:
    """Writes a Loop of our own domain before its first iteration.

    Parameters
    ----------
    inputs
        The limit or ``""``, the condition, the states.
    form
        ``most``, the number of iterations that may be written out; ``axes`` along which rows are
        joined, and ``backward`` flags, if they differ from Loop's.
    """
    count = _known(inputs[0], build.graph)
    if count is not None and form["most"] < count <= MAX_LIMIT:
        _repeat(build, body.proto, inputs, form)
    else:
        _rest(build, body, [*inputs, *inputs[1:]], form, 0)


def _rest(
    build: NodeBuilder, body: Body, inputs: list[str], form: dict[str, Any], done: int
) -> None:
    """Writes the loop that remains after `done` iterations."""
    form = {**form, "body": body.proto, "iteration": done}
    build.add_many("Loop", *inputs, outputs=build.source.output, domain=OWN_DOMAIN, **form)
    build.nodes[-1].name = build.prefix  # the model's name, for messages


def _rows(build: NodeBuilder, form: dict[str, Any], states: int) -> list[tuple[str, int, int]]:
    """The outputs after the states, with the axis that joins their rows and a backward flag."""
    outputs = build.source.output[states:]
    zeros = [0] * len(outputs)
    axes, backward = form.get("axes", zeros), form.get("backward", zeros)
    return list(zip(outputs, axes, backward, strict=True))


def _known(name: str, graph: Graph) -> int | None:
    """The number or truth value in a constant; None if it depends on data."""
    if not name:
        # An absent limit counts as larger than all limits.
        return MAX_LIMIT + 1
    value = graph.constants.get(name)
    return int(value.item()) if value is not None and value.size == 1 else None


def _repeat(
    build: NodeBuilder, proto: onnx.GraphProto, inputs: Sequence[str], form: dict[str, Any]
) -> None:
    """Writes a Repeat, in whose body the condition is constant."""
    if listed := [name for name in inputs if name in build.graph.sequences]:
        for name in filter(None, inputs[:2]):
            require_value(describe(build.source), name, build.graph)
        raise UnsupportedOperatorError(
            f"{describe(build.source)}: its state {listed[0]!r} is a sequence, and the number of "
            f"iterations is not known when the model is compiled, or more than {MAX_NODES} nodes"
        )
    body = onnx.GraphProto.FromString(proto.SerializeToString())
    counter, going = body.input[0], body.input[1]
    # The body only runs while the condition holds.
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
    captured = sorted(graphs.captured_names(helper.make_node("Repeat", [], [], body=body)))
    body.input.extend(onnx.ValueInfoProto(name=name) for name in captured)
    count = len(inputs) - 2
    outputs = [name or build.graph.fresh("unused") for name in build.source.output]
    rows = _rows(build, form, count)
    moved = {place: row for place, row in enumerate(rows, count) if row[0] and any(row[1:])}
    for place, (output, _, _) in moved.items():
        outputs[place] = build.graph.fresh(output)
    build.add_many(
        "Repeat", *inputs, *captured, outputs=outputs, domain=OWN_DOMAIN, body=body, states=count
    )
    build.nodes[-1].name = build.prefix  # the model's name, for messages
    for place, (output, axis, backward) in moved.items():
        row = outputs[place]
        if backward:
            one = build.constant(1, np.int64)
            number = build.add("Range", build.constant(0, np.int64), inputs[0], one)
            back = build.add("Sub", build.add("Sub", inputs[0], one), number)
            row = build.add("Gather", row, back, axis=0)
        build.add("MoveFirstAxis", row, output=output, domain=OWN_DOMAIN, to=axis)


@rewrites("MoveFirstAxis", domain=OWN_DOMAIN)
def move_first_axis(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Becomes a Transpose once the rank is known."""
    build = NodeBuilder(graph, node)
    rank = len(extents_of(build, node.input[0]))
    order = list(range(1, rank))
    order.insert(attributes_of(node)["to"] % rank, 0)
    build.add("Transpose", node.input[0], output=node.output[0], perm=order)
    return build.nodes


@rewrites("Scan")
@rewrites("Scan", domain=OWN_DOMAIN)
def scan(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Scan as a Loop that gathers a slice of every scanned input; a Scan of our own domain has no
    batches in any opset."""
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
    states, scanned = node.input[:split], list(node.input[split:])
    body = Body(build, attributes["body"], len(node.input), len(node.output))
    axes = _listed(node, "scan_input_axes", count)
    directions = _listed(node, "scan_input_directions", count)
    shapes = [list(extents_of(build, name)) for name in scanned]
    lengths = [shape[axis] for shape, axis in zip(shapes, axes, strict=True)]
    numbers = {length for length in lengths if isinstance(length, int)}
    if len(numbers) > 1:
        raise ModelError(f"{describe(node)}: its scanned inputs differ in length: {numbers}")
    steps = numbers.pop() if numbers else lengths[0]
    counter, going, back = (graph.fresh(name) for name in ("step", "going", "step"))
    limit = build.reshape(steps, []) if isinstance(steps, str) else build.constant(steps, np.int64)
    nodes = []
    if any(directions):
        last = build.add("Sub", limit, build.constant(1, np.int64))
        nodes.append(helper.make_node("Sub", [last, counter], [back]))
    # Fresh names: a body may name its slice like the whole input outside.
    parts = {item.name: graph.fresh(item.name) for item in body.proto.input[split:]}
    for place, part in enumerate(parts.values()):
        name, axis = scanned[place], axes[place]
        if lengths[place] != steps:  # dynamic: the program checks that it equals the steps
            shapes[place][axis] = steps
            name = build.reshape(name, shapes[place])
        index = back if directions[place] else counter
        nodes.append(helper.make_node("Gather", [name, index], [part], axis=axis))
    for inner in body.proto.node:
        rename_values(inner, parts)
    proto = onnx.GraphProto(name=body.proto.name, node=[*nodes, *body.proto.node])
    for name, kind in ((counter, onnx.TensorProto.INT64), (going, onnx.TensorProto.BOOL)):
        proto.input.append(helper.make_tensor_value_info(name, kind, []))
    proto.input.extend(body.proto.input[:split])
    proto.output.extend([proto.input[1], *body.proto.output])
    for item in proto.output:
        item.name = parts.get(item.name, item.name)
    form: dict[str, Any] = {"most": body.most}
    width = len(node.output) - split
    if width:
        form["axes"] = _listed(node, "scan_output_axes", width)
        form["backward"] = _listed(node, "scan_output_directions", width)
    looped = Body(build, proto, 2 + split, 1 + len(node.output))
    _start(build, looped, [limit, build.constant(True), *states], form)
    return build.nodes


def _batches(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """A Scan before opset 9 as a Scan per batch of inputs [batch, ...] and [batch, steps, ...]."""
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
    if isinstance(batches, str):  # an outer scan along batches, whose body scans one batch
        inputs = [graph.fresh(name) for name in node.input[1:]]
        outputs = [graph.fresh(name or "output") for name in node.output]
        inner = helper.make_node("Scan", inputs, outputs, build.prefix, domain=OWN_DOMAIN, **forms)
        body = onnx.GraphProto(name=f"{build.prefix}/batch", node=[inner])
        body.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
        body.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        outer = {"body": body, "num_scan_inputs": len(inputs)}
        build.add_many("Scan", *node.input[1:], outputs=node.output, domain=OWN_DOMAIN, **outer)
        return build.nodes
    rows = [
        build.add_many(
            "Scan",
            *(build.add("Gather", name, number, axis=0) for name in node.input[1:]),
            outputs=[""] * len(node.output),
            domain=OWN_DOMAIN,
            **forms,
        )
        for number in (build.constant(batch, np.int64) for batch in range(batches))
    ]
    for output, column in zip(node.output, zip(*rows, strict=True), strict=True):
        build.stack(column, 0, output)
    return build.nodes


def _listed(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    """An attribute with one number per value; zeros if it is absent."""
    numbers: list[int] = attributes_of(node).get(name, [0] * count)
    if len(numbers) != count:
        raise ModelError(f"{describe(node)}: {name} has {len(numbers)} numbers, not {count}")
    return numbers


class Body:
    """A body of a node, to be copied into the graph.

    Parameters
    ----------
    build
        The NodeBuilder that writes the copies.
    proto
        The body. Its constants are added to the graph, so that all copies share them.
    inputs, outputs
        Expected numbers of inputs and outputs; a ModelError if the body has others.

    Attributes
    ----------
    proto
        The body without constants.
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
        # Copies read the body's initialisers and Constants from the surrounding graph.
        self.proto = onnx.GraphProto(name=proto.name, input=proto.input, output=proto.output)
        names: dict[str, str] = {}

        def share(name: str, array: np.ndarray) -> None:
            names[name] = build.graph.fresh(f"{build.prefix}/{name}")
            build.graph.add_constant(names[name], array)

        for tensor in proto.initializer:
            share(tensor.name, numpy_helper.to_array(tensor))
        for node in proto.node:
            if node.op_type == "Constant" and is_standard(node):
                share(node.output[0], node_builder.constant_value(node, build.graph))
            else:
                self.proto.node.append(node)
                rename_values(self.proto.node[-1], names)
        for item in self.proto.output:
            item.name = names.get(item.name, item.name)

    @property
    def most(self) -> int:
        """How many copies may be written out; more nodes would take long to compile."""
        return MAX_NODES // max(sum(map(_size, self.proto.node)), 1)

    def write(self, inputs: Sequence[str]) -> list[str]:
        """Writes a copy that reads `inputs`; returns the names of its outputs."""
        names = dict(zip((item.name for item in self.proto.input), inputs, strict=True))
        build = self._build
        build.nodes += graphs.inline(self.proto.node, names, build.graph, build.prefix)
        # An output may be an input of the body, or an outer value.
        return [names.get(item.name, item.name) for item in self.proto.output]

    def stack(self, position: int, values: Sequence[str], axis: int, output: str) -> None:
        """Joins one output of several copies along a new axis."""
        if not output:
            return
        if values:
            self._build.stack(values, axis, output)
            return
        # Without a copy the shape comes from the declaration, with 0 for dynamic sizes.
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


def _size(node: onnx.NodeProto) -> int:
    """The number of nodes in a node, those of nested bodies included."""
    return 1 + sum(_size(inner) for body in graphs.subgraphs(node) for inner in body.node)
