"""Runs one case: compares our results with the oracle, and with each other."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from microkernels.base.errors import CompileError, TvmHybridError
from tvm_hybrid.bench.peers.onnx_runtime import literal_session, outputs_of
from tvm_hybrid.report.timing import ContestantError

from .case import Case
from .comparing import difference, wrong_elements
from .metamorphic import CHECKS, DiffersError, names, run_case
from .oracle import Expected, Oracle
from .run_node import NodeError

Array = NDArray[Any]


class State(str, Enum):
    """How a case ended; the last six states are findings."""

    OK = "ok"
    REFUSED = "refused"  # our error states the reason
    DOUBTFUL = "doubtful"  # our results are ONNX Runtime's, and not those of onnx's reference
    UNJUDGED = "unjudged"  # no reference computes the graph
    WRONG = "wrong"
    DIFFERS = "differs"  # between two of our own programs
    FAILED = "failed"  # a CompileError, although the model is valid
    UNTYPED = "untyped"
    CRASH = "crash"
    HANG = "hang"

    @property
    def is_finding(self) -> bool:
        return self in FINDINGS


FINDINGS = frozenset(
    {State.WRONG, State.DIFFERS, State.FAILED, State.UNTYPED, State.CRASH, State.HANG}
)


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a case.

    Attributes
    ----------
    state : State
        How the case ended.
    message : str
        What is wrong, or why the case was refused.
    checks : int
        Number of metamorphic checks that ran.
    """

    state: State
    message: str = ""
    checks: int = 0


def examine(case: Case) -> Outcome:
    """Compiles and runs a case, and compares the results."""
    settings = case.settings
    try:
        oracle = Oracle(case.model, case.feeds, settings.precision, settings.fast_math)
        expected = oracle.outputs()
    except (NodeError, ValueError) as error:  # no reference has a node, or noise changes a shape
        return Outcome(State.UNJUDGED, str(error))
    like = [oracle.plain[name] for name in names(case)]
    try:
        results = run_case(case)
        wrong = _wrong(case, results, expected, like)
        if wrong is not None:
            return wrong
        for check in case.checks:
            CHECKS[check](case, results, expected)
    except DiffersError as error:
        return Outcome(State.DIFFERS, str(error))
    except TvmHybridError as error:
        state = State.FAILED if isinstance(error, CompileError) else State.REFUSED
        return Outcome(state, f"{type(error).__name__}: {error}")
    except Exception as error:  # any other exception is a finding
        return Outcome(State.UNTYPED, _described(error))
    return Outcome(State.OK, checks=len(case.checks))


def _wrong(
    case: Case, results: Sequence[Array], expected: Sequence[Expected], like: Sequence[Array]
) -> Outcome | None:
    """The outcome of the first wrong result, or of one on which the references disagree."""
    found = [
        (place, text)
        for place, (got, wanted, other) in enumerate(zip(results, expected, like, strict=True))
        if (text := difference(got, wanted, other))
    ]
    if not found:
        return None
    place, text = found[0]
    message = f"{names(case)[place]}: {text}"
    try:
        theirs = outputs_of(literal_session(case.model), case.feeds)
    except ContestantError:
        return Outcome(State.WRONG, message)
    if all(_as_runtime(results[n], theirs[n], expected[n]) for n, _ in found):
        return Outcome(State.DOUBTFUL, message)
    return Outcome(State.WRONG, message)


def _as_runtime(got: Array, theirs: Array, expected: Expected) -> bool:
    """Whether our result is ONNX Runtime's wherever it differs from the expected value."""
    if got.shape != theirs.shape or got.dtype != theirs.dtype:
        return False
    if got.shape != expected.value.shape:
        return True
    wide = theirs if theirs.dtype.kind in "biu" else theirs.astype(np.float64)
    with np.errstate(all="ignore"):
        least = 1e-6 * np.abs(wide) if wide.dtype.kind == "f" else 0.0
        room = np.maximum(expected.tolerance, np.where(np.isfinite(least), least, 0.0))
    return not wrong_elements(got, Expected(wide, room, expected.signed)).any()


def _described(error: Exception) -> str:
    """The error, and the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if "tests/fuzz" not in each.filename]
    place = f"{ours[-1].filename.rsplit('/', 1)[-1]}:{ours[-1].name}" if ours else ""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__} in {place}: {lines[-1] if lines else ''}"
