"""Which nodes of an ONNX model the kernels of a program come from.

    ONNX        x -> conv1 (Conv) -> bn1 (BatchNormalization) -> relu1 (Relu) -> fc (Gemm) -> y
    program     relu_n2_ = conv2d(x)                             from conv1, bn1, relu1
                gv = matmul(relu_n2_)                            from fc

A kernel comes from the nodes that make what it writes, and from those before them that no other
kernel writes the value of. Nodes that are constant when the model is compiled are in no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from relay_passes.ir.decisions import Decision

from .call_decisions import decisions_of
from .model_nodes import ModelNodes, numbers_in
from .program_graph import KernelCall, ProgramGraph


def with_origins(
    graph: ProgramGraph, names: Sequence[Sequence[str]], nodes: ModelNodes
) -> ProgramGraph:
    """A program's graph whose calls say which nodes they come from.

    Parameters
    ----------
    graph : ProgramGraph
    names : sequence of sequence of str
        The variables of each of its values, those of views of it too.
    nodes : ModelNodes
        The model's; without any, the graph stays as it is.
    """
    if not nodes.nodes:
        return graph
    roots = [[n for n in numbers_in(each) if n in nodes.nodes] for each in names]
    for value, maker in zip(graph.outputs, nodes.outputs, strict=False):
        if maker is not None and maker in nodes.nodes:
            roots[value].append(maker)
    written = {n for call in graph.calls for value in call.writes for n in roots[value]}
    found = [
        _before([n for value in call.writes for n in roots[value]], written, nodes)
        for call in graph.calls
    ]
    _fill(graph, found)
    calls = [
        replace(call, origins=tuple(nodes.nodes[n].text for n in sorted(each)))
        for call, each in zip(graph.calls, found, strict=True)
    ]
    return replace(graph, calls=tuple(calls))


def decisions_with_origins(
    decisions: Sequence[Decision], graph: ProgramGraph, nodes: ModelNodes
) -> list[Decision]:
    """Decisions that say which nodes they are about: those of their calls, or of their value."""
    texts: dict[int, dict[str, None]] = {}
    for call, decision in zip(graph.calls, decisions_of(graph.calls, decisions), strict=True):
        if decision is not None:
            texts.setdefault(id(decision), {}).update(dict.fromkeys(call.origins))
    return [
        replace(each, origins=tuple(texts.get(id(each)) or _named(each.node, nodes)))
        for each in decisions
    ]


def _named(variable: str, nodes: ModelNodes) -> list[str]:
    return [nodes.nodes[n].text for n in numbers_in([variable]) if n in nodes.nodes]


def _before(roots: Iterable[int], written: set[int], nodes: ModelNodes) -> set[int]:
    """Nodes, and those before them whose values no kernel writes."""
    found = {*roots}
    left = list(found)
    while left:
        for maker in nodes.nodes[left.pop()].makers:
            if maker not in found and maker not in written:
                found.add(maker)
                left.append(maker)
    return found


def _fill(graph: ProgramGraph, found: list[set[int]]) -> None:
    """Gives a call whose variables tell nothing the nodes of those that read what it writes; where
    there are none either, of those that write what it reads."""
    readers: dict[int, list[int]] = {}
    writers: dict[int, int] = {}
    for place, call in enumerate(graph.calls):
        for value in call.reads:
            readers.setdefault(value, []).append(place)
        writers.update(dict.fromkeys(call.writes, place))
    for place in reversed(range(len(found))):
        if not found[place]:
            found[place] = _union(graph.calls[place], found, readers)
    for place, call in enumerate(graph.calls):
        if not found[place]:
            found[place] = {n for v in call.reads if v in writers for n in found[writers[v]]}


def _union(call: KernelCall, found: Sequence[set[int]], readers: dict[int, list[int]]) -> set[int]:
    return {n for value in call.writes for place in readers.get(value, ()) for n in found[place]}
