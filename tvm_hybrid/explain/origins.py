"""Maps kernels to the ONNX nodes that they come from, and decisions to kernel calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from relay_passes.ir.decisions import Decision

from .program_graph import KernelCall, ProgramGraph

# The ONNX nodes that the kernels of a program come from.
#
#     ONNX        x -> conv1 (Conv) -> bn1 (BatchNormalization) -> relu1 (Relu) -> fc (Gemm) -> y
#     program     relu_n2_ = conv2d(x)                             from conv1, bn1, relu1
#                 gv = matmul(relu_n2_)                            from fc
#
# A kernel comes from the nodes that make the values it writes, and from earlier nodes whose values
# no kernel writes. Nodes that are constant at compile time are in no kernel.


def with_origins(
    graph: ProgramGraph, names: Sequence[Sequence[str]], nodes: ModelNodes
) -> ProgramGraph:
    """Adds to each call in a program's graph the ONNX nodes that it comes from.

    Parameters
    ----------
    graph : ProgramGraph
    names : sequence of sequence of str
        The variables of each value of the graph, those of its views included.
    nodes : ModelNodes
        The nodes of the model; if there are none, the graph is returned unchanged.
    """
    if not nodes.nodes:
        return graph
    roots = [[n for n in numbers_in(each) if n in nodes.nodes] for each in names]
    for value, maker in zip(graph.outputs, nodes.outputs, strict=False):
        if maker is not None and maker in nodes.nodes:
            roots[value].append(maker)
    written = {n for call in graph.calls for value in call.writes for n in roots[value]}
    made = ([n for value in call.writes for n in roots[value]] for call in graph.calls)
    found = [_before(each, written, nodes) for each in made]
    _fill(graph, found)
    calls = []
    for call, each in zip(graph.calls, found, strict=True):
        calls.append(replace(call, origins=tuple(nodes.nodes[n].text for n in sorted(each))))
    return replace(graph, calls=tuple(calls))


def decisions_with_origins(
    decisions: Sequence[Decision], graph: ProgramGraph, nodes: ModelNodes
) -> list[Decision]:
    """Adds ONNX nodes to decisions: those of their calls, or else of their variables."""
    texts: dict[int, dict[str, None]] = {}
    for call, decision in zip(graph.calls, decisions_of(graph.calls, decisions), strict=True):
        if decision is not None:
            texts.setdefault(id(decision), {}).update(dict.fromkeys(call.origins))
    found = [tuple(texts.get(id(each)) or texts_in(each.node, nodes)) for each in decisions]
    return [replace(each, origins=o) for each, o in zip(decisions, found, strict=True)]


def _before(roots: Iterable[int], written: set[int], nodes: ModelNodes) -> set[int]:
    """Nodes and their predecessors, up to nodes whose values a kernel writes."""
    found = {*roots}
    left = list(found)
    while left:
        for maker in nodes.nodes[left.pop()].makers:
            if maker not in found and maker not in written:
                found.add(maker)
                left.append(maker)
    return found


def _fill(graph: ProgramGraph, found: list[set[int]]) -> None:
    """Gives a call without nodes the nodes of the calls that read its results, or else of the calls
    that write its arguments."""
    readers: dict[int, list[int]] = {}
    writers: dict[int, int] = {}
    for place, call in enumerate(graph.calls):
        for value in call.reads:
            readers.setdefault(value, []).append(place)
        writers.update(dict.fromkeys(call.writes, place))
    for place in reversed(range(len(found))):
        if not found[place]:
            after = (each for value in graph.calls[place].writes for each in readers.get(value, ()))
            found[place] = {n for reader in after for n in found[reader]}
    for place, call in enumerate(graph.calls):
        if not found[place]:
            found[place] = {n for v in call.reads if v in writers for n in found[writers[v]]}


# The nodes of an ONNX model, and the names of variables that carry a node's number.
#
#     ONNX                                   Relax
#     /encoder/0/MatMul (MatMul)             matmul_n17_ = R.matmul(...)
#     /encoder/0/Add (Add)                   add_n18_ = R.add(matmul_n17_, ...)
#
# The importer names a node's variable after the operator and the node's number. Passes keep the
# variables between kernels; new values on the way to a variable get its name or a name without a
# number. So `with_origins` finds the nodes of each kernel by names in the finished program.


_NUMBER = re.compile(r"(?<=_)n(\d+)(?=_)")
_NO_LETTERS = re.compile(r"\W")


class ModelNode(msgspec.Struct, frozen=True):
    """A node of a model.

    Attributes
    ----------
    text : str
        Its name, or its first output's name if it has none, and its operator: "conv1 (Conv)".
    makers : tuple of int
        Numbers of the nodes that compute its inputs.
    """

    text: str
    makers: tuple[int, ...]


class ModelNodes(msgspec.Struct, frozen=True):
    """The nodes of a model that compute at run time, by number.

    Attributes
    ----------
    nodes : mapping of int to ModelNode
    outputs : tuple of int or None
        The node that computes each output of the model; None if no such node runs.
    """

    nodes: Mapping[int, ModelNode]
    outputs: tuple[int | None, ...]


NO_NODES = ModelNodes({}, ())


def variable_name(number: int, operator: str) -> str:
    """The name of the variable for a node's value."""
    return f"{_NO_LETTERS.sub('', operator).lower()}_n{number}_"


def numbers_in(names: Sequence[str]) -> list[int]:
    """The node numbers in names of variables, each once."""
    return list(dict.fromkeys(int(each) for name in names for each in _NUMBER.findall(name)))


def texts_in(message: str, nodes: ModelNodes) -> list[str]:
    """The nodes whose variables a message names.

    >>> texts_in("pass FuseTIR fails at add_n3_", ModelNodes({3: ModelNode("/Add (Add)", ())}, ()))
    ['/Add (Add)']
    """
    return [nodes.nodes[n].text for n in numbers_in([message]) if n in nodes.nodes]


def decisions_of(
    calls: Sequence[KernelCall], decisions: Sequence[Decision]
) -> list[Decision | None]:
    """The decision about each call: by its variable, else the next one about its kernel."""
    about = by_function(decisions)
    count = Counter(call.function for call in calls)
    named = {(each.node, each.function): each for each in reversed(decisions)}
    seen: Counter[str] = Counter()
    found: list[Decision | None] = []
    for call in calls:
        mine = about.get(call.function, [])
        position = seen[call.function]
        seen[call.function] += 1
        same = named.get((call.node, call.function))
        if len(mine) == count[call.function] or same is None:
            found.append(mine[min(position, len(mine) - 1)] if mine else None)
        else:
            found.append(same)
    return found


def by_function(decisions: Sequence[Decision]) -> dict[str, list[Decision]]:
    """The decisions about each kernel, in the order of its calls."""
    found: dict[str, list[Decision]] = {}
    for each in decisions:
        if each.function:
            found.setdefault(each.function, []).append(each)
    return found


def origins_in_run(
    functions: Sequence[str], about: Mapping[str, Sequence[Decision]]
) -> list[tuple[str, ...]]:
    """The model's nodes that each call of a run comes from.

    Parameters
    ----------
    functions : sequence of str
        The kernels that a run called, in order.
    about : mapping
        The result of `by_function`. If a kernel is not called once for each of its decisions, as
        with branches, each of its calls gets the nodes of all its decisions.
    """
    count, seen = Counter(functions), Counter[str]()
    found = []
    for name in functions:
        mine = about.get(name, ())
        if len(mine) == count[name]:
            mine = mine[seen[name] : seen[name] + 1]
        seen[name] += 1
        found.append(together(mine))
    return found


_MOST = 4


def short(origins: Sequence[str]) -> str:
    """The first nodes as text, and the number of further nodes."""
    more = len(origins) - _MOST
    return ", ".join(origins[:_MOST]) + (f" and {more} more" if more > 0 else "")


def together(decisions: Iterable[Decision]) -> tuple[str, ...]:
    """The nodes of several decisions, each once."""
    return tuple(dict.fromkeys(each for decision in decisions for each in decision.origins))
