"""Checks a compiled model against ONNX Runtime, and finds the first region that differs.

The reference is ONNX Runtime without graph optimisation and without kernels that saturate (see
`onnx_runtime.literal_session`): exactly what the model says, on every CPU. The report also shows
how far optimised ONNX Runtime is from that, which decides nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import onnx

from microkernels.base.errors import ModelError, TvmHybridError
from relay_passes.ir.decisions import Decision

from ..report.timing import ContestantError
from .compare import Distance, Tolerance, describe, distance
from .peers.onnx_runtime import literal_session, optimised_session, outputs_of, why_products_differ

Feeds = Mapping[str, np.ndarray]
Evaluate = Callable[[onnx.ModelProto, Feeds], "tuple[list[np.ndarray], Sequence[Decision]]"]


class OutputReport(msgspec.Struct, frozen=True):
    """One output: our distance from the reference, and that of optimised ONNX Runtime.

    Attributes
    ----------
    optimised : Distance or None
        None if ONNX Runtime cannot run the model with optimisation.
    allowed : float
        Largest `max_rel` of ours that passes.
    note : str
        How and why optimised ONNX Runtime differs, if it is beyond the tolerance.
    """

    name: str
    ours: Distance
    optimised: Distance | None
    allowed: float
    passed: bool
    note: str = ""


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first node with a wrong result.

    Attributes
    ----------
    node, op : str
        The ONNX node, and its operator.
    regions : list of Decision
        Regions of the model up to this node that the model before the node does not have.
    """

    node: str
    op: str
    regions: list[Decision]

    def __str__(self) -> str:
        text = f"the first node that differs is {self.op} {self.node!r}"
        regions = ", ".join(
            f"{region.op} ({region.kernel or 'generic schedule'})" for region in self.regions
        )
        return f"{text}, compiled as {regions}" if regions else text


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check.

    Attributes
    ----------
    tolerance : float
        Largest difference relative to each output's largest value.
    steps : int
        Largest difference of 8-bit integers.
    """

    outputs: list[OutputReport]
    tolerance: float
    steps: int = 0
    first_difference: FirstDifference | None = None

    @property
    def passed(self) -> bool:
        """Whether every output is within the tolerance."""
        return all(output.passed for output in self.outputs)


def verify(
    model: onnx.ModelProto, ours: Sequence[np.ndarray], feeds: Feeds, tolerance: Tolerance
) -> VerifyReport:
    """Compares our outputs with ONNX Runtime's.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, all weights inside it.
    ours : sequence of numpy.ndarray
        Our outputs, in the model's order.
    feeds : mapping
        The inputs that they were computed from.
    tolerance : Tolerance
        See `compare.tolerance_for`.

    Raises
    ------
    ContestantError
        If onnxruntime is not installed or refuses the model.
    """
    literal = outputs_of(literal_session(model), feeds)
    optimised: list[np.ndarray] = []
    with contextlib.suppress(ContestantError):  # some models run only without optimisation
        optimised = outputs_of(optimised_session(model.SerializeToString()), feeds)
    why = why_products_differ(model)
    outputs = []
    for place, (value, mine, reference) in enumerate(
        zip(model.graph.output, ours, literal, strict=True)
    ):
        far = distance(np.asarray(mine), reference)
        own = distance(optimised[place], reference) if optimised else None
        note, allowed, passed = "", far.allowed(tolerance), far.within(tolerance)
        if own is not None and not own.within(tolerance):
            note = f"ONNX Runtime optimised differs {describe(own, why)}"
        outputs.append(OutputReport(value.name, far, own, allowed, passed, note))
    return VerifyReport(outputs=outputs, tolerance=tolerance.relative, steps=tolerance.steps)


def locate(
    model: onnx.ModelProto, feeds: Feeds, tolerance: Tolerance, evaluate: Evaluate
) -> FirstDifference | None:
    """Finds the first node, and its regions, at which we differ from ONNX Runtime.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with wrong results.
    feeds : mapping
        Inputs that show them.
    tolerance : Tolerance
        See `verify`.
    evaluate : callable
        (model, feeds) -> (our outputs, decisions); a library error counts as a difference.
    """

    def agrees(prefix: onnx.ModelProto) -> bool:
        wanted = outputs_of(literal_session(prefix), feeds)
        try:
            got, _ = evaluate(prefix, feeds)
        except TvmHybridError:
            return False
        pairs = zip(got, wanted, strict=True)
        return all(distance(np.asarray(g), w).within(tolerance) for g, w in pairs)

    culprit = find_first_difference(model, agrees)
    if culprit is None:
        return None

    def decisions(prefix: onnx.ModelProto | None) -> Sequence[Decision]:
        with contextlib.suppress(TvmHybridError):
            return () if prefix is None else evaluate(prefix, feeds)[1]
        return ()

    known = {(each.op, each.workload) for each in decisions(culprit.before)}
    after = decisions(culprit.after)
    regions = [each for each in after if (each.op, each.workload) not in known]
    return FirstDifference(node=culprit.node, op=culprit.op, regions=regions)


# Finds the first node of an ONNX model at which two runtimes differ.
#
# The model is cut after node i: the prefix keeps nodes 0..i, and every tensor that a later node or
# the caller reads becomes an output. Bisection over i finds the first prefix whose outputs differ.
# It uses prefixes because their fusion equals that of the whole model, up to the cut.


Agrees = Callable[[onnx.ModelProto], bool]


@dataclass(frozen=True)
class Culprit:
    """The first node that differs.

    Attributes
    ----------
    node : str
        Name of the node, or of its first output if it has no name.
    op : str
        Operator of the node.
    index : int
        Position of the node in the model.
    before, after : onnx.ModelProto or None
        The longest prefix that agrees (None if there is none) and the shortest that does not.
    """

    node: str
    op: str
    index: int
    before: onnx.ModelProto | None
    after: onnx.ModelProto


def find_first_difference(model: onnx.ModelProto, agrees: Agrees) -> Culprit | None:
    """Bisects a model whose results differ; returns None if it has no nodes.

    `agrees` says whether the two runtimes agree on a prefix. The model must have all weights
    inside.

    Raises
    ------
    ModelError
        If the model's types cannot be inferred.
    """
    cuts = _Cuts(model)
    last = len(model.graph.node) - 1
    if last < 0:
        return None
    # Possible cuts: the prefix must have outputs, all with known types.
    lives = ((index, cuts.live(index)) for index in range(last))
    places = [index for index, live in lives if live and cuts.types.keys() >= {*live}]
    places.append(last)
    # Invariant: the cut at places[low] agrees (-1: the empty prefix), the one at `high` does not.
    low, high = -1, len(places) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if agrees(cuts.prefix(places[middle])):
            low = middle
        else:
            high = middle
    index = places[high]
    node = model.graph.node[index]
    name = node.name or next(iter(node.output), "")
    before = cuts.prefix(places[low]) if low >= 0 else None
    return Culprit(name, node.op_type, index, before, cuts.prefix(index))


class _Cuts:
    """Makes prefixes of one model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            inferred = onnx.shape_inference.infer_shapes(model)
        except Exception as error:
            raise ModelError(f"the types of the model's tensors are unknown: {error}") from error
        self._model = model
        values = (*inferred.graph.value_info, *inferred.graph.output)
        tensors = (value for value in values if value.type.HasField("tensor_type"))
        self.types = {each.name: each for each in tensors if each.type.tensor_type.elem_type}
        self._wanted = {value.name for value in model.graph.output}
        self._last_use: dict[str, int] = {}
        for index, node in enumerate(model.graph.node):
            for name in _names_read(node):
                self._last_use[name] = index

    def live(self, index: int) -> list[str]:
        """Tensors of a prefix that are read after it, in the order of their computation."""
        nodes = self._model.graph.node[: index + 1]
        made = (name for node in nodes for name in node.output if name)
        return [n for n in made if n in self._wanted or self._last_use.get(n, -1) > index]

    def prefix(self, index: int) -> onnx.ModelProto:
        """The model up to and including a node."""
        if index == len(self._model.graph.node) - 1:
            return self._model
        graph = self._model.graph
        nodes = graph.node[: index + 1]
        read = {name for node in nodes for name in _names_read(node)}
        cut = onnx.ModelProto()
        cut.CopyFrom(self._model)
        made = read.union(*(node.output for node in nodes))
        kept: dict[str, list[Any]] = {  # all inputs stay, so that feeds fit every prefix
            "node": list(nodes),
            "initializer": [tensor for tensor in graph.initializer if tensor.name in read],
            "value_info": [value for value in graph.value_info if value.name in made],
            "output": [self.types[name] for name in self.live(index)],
        }
        for field, parts in kept.items():
            del getattr(cut.graph, field)[:]
            getattr(cut.graph, field).extend(parts)
        return cut


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the tensors that a node reads, including those of its subgraphs."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _names_read(inner)
