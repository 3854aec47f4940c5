"""Checks a compiled model against ONNX Runtime, and finds the first region that differs.

The reference is ONNX Runtime without graph optimisation: the literal meaning of the model. How far
ONNX Runtime is from itself once it optimises stands beside our own distance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx

from microkernels.errors import TvmHybridError
from relay_passes.decisions import Decision

from .bisect import find_first_difference
from .compare import Distance, distance
from .onnx_runtime import literal_session, optimised_session

Feeds = Mapping[str, np.ndarray]
Evaluate = Callable[[onnx.ModelProto, Feeds], "tuple[list[np.ndarray], Sequence[Decision]]"]


class OutputReport(msgspec.Struct, frozen=True, kw_only=True):
    """One output: our distance from the reference, and that of ONNX Runtime's optimised run.

    Attributes
    ----------
    allowed : float
        Largest `max_rel` of ours that passes.
    """

    name: str
    ours: Distance
    optimised: Distance
    allowed: float
    passed: bool


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
    """The result of a check; `tolerance` is relative to each output's largest value."""

    outputs: list[OutputReport]
    tolerance: float
    first_difference: FirstDifference | None = None

    @property
    def passed(self) -> bool:
        """Whether every output is near enough."""
        return all(output.passed for output in self.outputs)


def verify(
    model: onnx.ModelProto,
    ours: Sequence[np.ndarray],
    feeds: Feeds,
    tolerance: float,
    threads: int = 1,
    *,
    steps: bool = False,
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
    tolerance : float
        As `compare.tolerance_for` derives it.
    threads : int
        Threads for ONNX Runtime.
    steps : bool
        Whether values are quantised on the way. Right implementations then differ by steps, and
        as much is allowed as ONNX Runtime's own optimisation moves the result, if that is more.

    Raises
    ------
    ContestantError
        If onnxruntime is not installed or refuses the model.
    """
    literal = literal_session(model, threads).run(None, dict(feeds))
    optimised = optimised_session(model.SerializeToString(), threads).run(None, dict(feeds))
    outputs = []
    for value, mine, reference, other in zip(
        model.graph.output, ours, literal, optimised, strict=True
    ):
        far, own = distance(np.asarray(mine), reference), distance(other, reference)
        more = steps and np.isfinite(own.max_rel)
        allowed = max(tolerance, own.max_rel) if more else tolerance
        outputs.append(
            OutputReport(
                name=value.name,
                ours=far,
                optimised=own,
                allowed=allowed,
                passed=far.within(allowed),
            )
        )
    return VerifyReport(outputs=outputs, tolerance=tolerance)


def locate(
    model: onnx.ModelProto, feeds: Feeds, tolerance: float, evaluate: Evaluate
) -> FirstDifference | None:
    """The first node, and the regions, at which we differ from ONNX Runtime.

    Parameters
    ----------
    model : onnx.ModelProto
        A model that differs.
    feeds : mapping
        Inputs for which it does.
    tolerance : float
        As for `verify`.
    evaluate : callable
        (model, feeds) -> (our outputs, decisions); a library error counts as a difference.
    """

    def agrees(prefix: onnx.ModelProto) -> bool:
        wanted = literal_session(prefix)
        try:
            got, _ = evaluate(prefix, feeds)
        except TvmHybridError:
            return False
        pairs = zip(got, wanted.run(None, dict(feeds)), strict=True)
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
