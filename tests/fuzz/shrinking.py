"""Cuts a case to a small one that ends in an equal state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from .case import Case
from .drawing import described
from .examine import Outcome
from .oracle import Oracle
from .run_node import NodeError
from .settings import Settings

Array = NDArray[Any]
MOST_TRIES = 120


def shrink(case: Case, outcome: Outcome, examine: Callable[[Case], Outcome]) -> Case:
    """Returns a smaller case that ends in an equal state; a crash stays a crash.

    Each try costs a compilation, so whole parts of the graph are cut before single nodes.
    """
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            tries += 1
            if tries > MOST_TRIES:
                return case
            if examine(candidate).state == outcome.state:
                case, smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Candidates to try next, the largest cuts first."""
    try:
        values = Oracle(case.model, case.feeds).plain
    except NodeError:
        return
    yield from _fewer_outputs(case)
    yield from _cut_before(case, values)
    yield from _cut_behind(case, values)
    yield from _without_a_node(case, values)
    yield from _plainer_settings(case)


def _fewer_outputs(case: Case) -> Iterator[Case]:
    outputs = list(case.model.graph.output)
    if len(outputs) > 1:
        for output in outputs:
            yield _pruned(case, [output])


def _cut_before(case: Case, values: dict[str, Array]) -> Iterator[Case]:
    """Turns values into inputs, those late in the graph first."""
    for node in reversed(case.model.graph.node):
        for name in node.output:
            if name and name not in {each.name for each in case.model.graph.output}:
                yield _fed(case, name, values[name])


def _fed(case: Case, name: str, array: Array) -> Case:
    """The case with a value fed as an input."""
    model = _copy(case.model)
    for node in model.graph.node:
        node.output[:] = ["" if each == name else each for each in node.output]
    model.graph.input.append(described(name, array))
    return _pruned(
        replace(case, model=model, feeds={**case.feeds, name: array}), list(model.graph.output)
    )


def _cut_behind(case: Case, values: dict[str, Array]) -> Iterator[Case]:
    """Makes an inner value the only output, those early in the graph first."""
    outputs = {each.name for each in case.model.graph.output}
    for node in case.model.graph.node:
        for name in node.output:
            if name and name not in outputs:
                yield _pruned(case, [described(name, values[name])])


def _without_a_node(case: Case, values: dict[str, Array]) -> Iterator[Case]:
    """Replaces a node's result by one of the node's operands."""
    outputs = {each.name for each in case.model.graph.output}
    for place, node in enumerate(case.model.graph.node):
        if len(node.output) != 1 or node.output[0] in {"", *outputs}:
            continue
        result = values[node.output[0]]
        for name in node.input:
            if name and values[name].shape == result.shape and values[name].dtype == result.dtype:
                model = _copy(case.model)
                del model.graph.node[place]
                for other in model.graph.node:
                    other.input[:] = [
                        name if each == node.output[0] else each for each in other.input
                    ]
                yield _pruned(replace(case, model=model), list(model.graph.output))


def _plainer_settings(case: Case) -> Iterator[Case]:
    for check in case.checks:
        yield replace(case, checks=tuple(each for each in case.checks if each != check))
    plain = Settings()
    for field in msgspec.structs.fields(Settings):
        value = getattr(plain, field.name)
        if getattr(case.settings, field.name) != value:
            yield case.with_settings(msgspec.structs.replace(case.settings, **{field.name: value}))


def _pruned(case: Case, outputs: list[onnx.ValueInfoProto]) -> Case:
    """The case with these outputs, and only the nodes and inputs that they need."""
    model = _copy(case.model)
    graph = model.graph
    needed = {each.name for each in outputs}
    nodes = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
    constants = [each for each in graph.initializer if each.name in needed]
    inputs = [each for each in graph.input if each.name in needed]
    pruned = helper.make_graph(list(reversed(nodes)), graph.name, inputs, outputs, constants)
    model.graph.CopyFrom(pruned)
    feeds = {name: array for name, array in case.feeds.items() if name in needed}
    return replace(case, model=model, feeds=feeds)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def text_of(case: Case) -> str:
    """The graph as text, one node per line, for a report."""
    shapes = {each.name: numpy_helper.to_array(each) for each in case.model.graph.initializer}
    shapes.update(case.feeds)
    lines = [str(case.settings), *(f"check {check}" for check in case.checks)]
    for name, array in shapes.items():
        content = f" = {array.tolist()}" if array.size <= 8 else ""
        lines.append(f"  {name}: {array.dtype}{list(array.shape)}{content}")
    for node in case.model.graph.node:
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        call = f"{node.op_type}({', '.join(node.input)})"
        lines.append(f"  {', '.join(node.output)} = {call} {attributes or ''}")
    return "\n".join(lines)
