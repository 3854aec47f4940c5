"""Checks a compiled model against ONNX Runtime, and finds the first region that differs.

The reference is ONNX Runtime without graph optimisation and without kernels that saturate (see
`onnx_runtime.literal_session`): the literal meaning of the model, on every CPU. The report
also shows how far optimised ONNX Runtime is from that; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx

from microkernels.base.errors import TvmHybridError
from relay_passes.ir.decisions import Decision

from ...report.timing import ContestantError
from ..peers.onnx_runtime import literal_session, optimised_session, outputs_of, why_products_differ
from .bisect import find_first_difference
from .compare import Distance, Tolerance, describe, distance

Feeds = Mapping[str, np.ndarray]
Evaluate = Callable[[onnx.ModelProto, Feeds], "tuple[list[np.ndarray], Sequence[Decision]]"]


class OutputReport(msgspec.Struct, frozen=True, kw_only=True):
    """One output: our distance from the reference, and that of ONNX Runtime's optimised run.

    Attributes
    ----------
    optimised : Distance or None
        None if ONNX Runtime cannot run the model with optimisation.
    allowed : float
        Largest `max_rel` of ours that passes.
    note : str
        By how much ONNX Runtime's optimised run differs, and why, if it differs by more than that.
    """

    name: str
    ours: Distance
    optimised: Distance | None
    allowed: float
    passed: bool
    note: str = ""


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Where results begin to differ.

    Attributes
    ----------
    node, op : str
        The first ONNX node with a wrong result.
    regions : list of Decision
        What was compiled for the model up to this node and not for the model before it.
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
        Relative to each output's largest value.
    steps : int
        By how much 8-bit integers may differ.
    """

    outputs: list[OutputReport]
    tolerance: float
    steps: int = 0
    first_difference: FirstDifference | None = None

    @property
    def passed(self) -> bool:
        """Whether every output is near enough."""
        return all(output.passed for output in self.outputs)


def verify(
    model: onnx.ModelProto,
    ours: Sequence[np.ndarray],
    feeds: Feeds,
    tolerance: Tolerance,
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
        As `compare.tolerance_for` derives it.

    Raises
    ------
    ContestantError
        If onnxruntime is not installed or refuses the model.
    """
    literal = outputs_of(literal_session(model), feeds)
    optimised = _optimised(model, feeds)
    why = why_products_differ(model)
    outputs = []
    for place, (value, mine, reference) in enumerate(
        zip(model.graph.output, ours, literal, strict=True)
    ):
        far = distance(np.asarray(mine), reference)
        own = distance(optimised[place], reference) if optimised else None
        outputs.append(
            OutputReport(
                name=value.name,
                ours=far,
                optimised=own,
                allowed=far.allowed(tolerance),
                passed=far.within(tolerance),
                note=_note(own, tolerance, why),
            )
        )
    return VerifyReport(outputs=outputs, tolerance=tolerance.relative, steps=tolerance.steps)


def _note(optimised: Distance | None, tolerance: Tolerance, why: str) -> str:
    if optimised is None or optimised.within(tolerance):
        return ""
    return f"ONNX Runtime optimised differs {describe(optimised, why)}"


def _optimised(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """Its outputs, or none if it cannot run the model."""
    try:
        return outputs_of(optimised_session(model.SerializeToString()), feeds)
    except ContestantError:
        return []


def locate(
    model: onnx.ModelProto, feeds: Feeds, tolerance: Tolerance, evaluate: Evaluate
) -> FirstDifference | None:
    """The first node, and the regions, at which we differ from ONNX Runtime.

    Parameters
    ----------
    model : onnx.ModelProto
        A model that differs.
    feeds : mapping
        Inputs for which it does.
    tolerance : Tolerance
        As for `verify`.
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
    before = _decisions(culprit.before, feeds, evaluate)
    known = {(decision.op, decision.workload) for decision in before}
    regions = [
        decision
        for decision in _decisions(culprit.after, feeds, evaluate)
        if (decision.op, decision.workload) not in known
    ]
    return FirstDifference(node=culprit.node, op=culprit.op, regions=regions)


def _decisions(prefix: Any, feeds: Feeds, evaluate: Evaluate) -> list[Decision]:
    if prefix is None:
        return []
    try:
        return list(evaluate(prefix, feeds)[1])
    except TvmHybridError:
        return []
