"""Judges the contestants of a benchmark: whose results are right, and by how much others differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from microkernels.base.errors import TvmHybridError

from ...frontend.read_model import read_model
from ..peers.onnx_runtime import literal_session, outputs_of, why_products_differ
from .compare import Distance, Tolerance, describe, distance

logger = logging.getLogger("tvm_hybrid")


class Verdict(msgspec.Struct, frozen=True):
    """What a judge says of a contestant's results.

    Attributes
    ----------
    complaint : str
        What is wrong with them; "" if nothing is.
    max_rel : float
        The largest difference of all outputs, as `Distance.max_rel`.
    """

    complaint: str
    max_rel: float


class Judge:
    """Knows what a model's outputs are.

    Parameters
    ----------
    outputs : sequence of numpy.ndarray
        The right ones.
    tolerance : Tolerance
        How far others may be from them.
    why : str
        As `onnx_runtime.why_products_differ` tells it of the model.
    names : sequence of str
        What the outputs are called, if that is known.
    """

    def __init__(
        self,
        outputs: Sequence[Any],
        tolerance: Tolerance,
        why: str = "",
        names: Sequence[str] = (),
    ) -> None:
        self._outputs, self._tolerance, self._why = outputs, tolerance, why
        self._names = names or [""] * len(outputs)

    @staticmethod
    def of(
        path: Path, feeds: Mapping[str, np.ndarray], tolerance: Tolerance, ours: Sequence[Any]
    ) -> Judge:
        """ONNX Runtime without optimisation; where it cannot run the model, ours are the right."""
        try:
            model = read_model(path)
            outputs = outputs_of(literal_session(model), feeds)
        except TvmHybridError as error:
            logger.warning("nobody judges our own results: %s", error)
            return Judge(ours, tolerance)
        names = [output.name for output in model.graph.output]
        return Judge(outputs, tolerance, why_products_differ(model), names)

    def verdict(
        self, outputs: Sequence[Any], multiplies_bytes_fast: bool, precision: str = "auto"
    ) -> Verdict:
        """What is to be said of outputs; of several that are wrong, of the one furthest off.

        Parameters
        ----------
        outputs : sequence of numpy.ndarray
            All outputs of a contestant.
        multiplies_bytes_fast : bool
            Whether it is one of those that `onnx_runtime.why_products_differ` is about.
        precision : str
            What it computes float products in, if that is not what the model says.
        """
        if len(outputs) != len(self._outputs):
            few = f"gives {len(outputs)} outputs instead of {len(self._outputs)}"
            return Verdict(few, float("inf"))
        reasons = [self._why] if self._why and multiplies_bytes_fast else []
        reasons += ["its products are of bfloat16"] if precision == "bf16" else []
        furthest, complaint, complained = 0.0, "", -1.0
        for name, theirs, right in zip(self._names, outputs, self._outputs, strict=True):
            result, wanted = np.asarray(theirs), np.asarray(right)
            apart = distance(result, wanted)
            furthest = max(furthest, apart.max_rel)
            if not apart.within(self._tolerance) and apart.max_rel > complained:
                complained = apart.max_rel
                text = difference(name, result, wanted, apart, self._tolerance, reasons)
                complaint = f"differs {text}"
        return Verdict(complaint, furthest)


def difference(
    name: str,
    result: np.ndarray,
    right: np.ndarray,
    apart: Distance,
    tolerance: Tolerance,
    reasons: Sequence[str] = (),
) -> str:
    """What to say, after the word "differs", of an output that is further off than is allowed.

    Parameters
    ----------
    name : str
        The output; "" if it is not known.
    result, right : numpy.ndarray
        What it is and what it should be.
    apart : Distance
        How far apart they are.
    tolerance : Tolerance
        How far they may be.
    reasons : sequence of str
        What is known of whoever computed it, and would make it differ.
    """
    what = f"output {name!r}" if name else "the output"
    if result.shape != right.shape:
        return f"in shape: {what} has {result.shape} instead of {right.shape}"
    if result.dtype != right.dtype:
        return f"in type: {what} is {result.dtype} instead of {right.dtype}"
    scalar = not result.ndim
    result, right = np.atleast_1d(result), np.atleast_1d(right)
    got, wanted = _numbers(result), _numbers(right)
    odd = (got != wanted) & ~(np.isnan(got) & np.isnan(wanted))
    odd &= ~(np.isfinite(got) & np.isfinite(wanted))
    if odd.any():
        where = tuple(int(each[0]) for each in np.nonzero(odd))
        text = f"where it is finite: {_at(what, where, scalar, result, right)}"
        text += f", one of {int(odd.sum())} such elements of {odd.size}"
        return _with_reasons(text, [*_overflow(result, where), *reasons])
    with np.errstate(invalid="ignore"):
        distances = np.abs(got - wanted)
    distances[np.isnan(distances)] = 0
    where = tuple(map(int, np.unravel_index(int(np.argmax(distances)), distances.shape)))
    limit = _limit(apart, right, tolerance)
    many = int((distances > limit).sum())
    text = f"{describe(apart)}; most at {_at(what, where, scalar, result, right)}; {many} of "
    text += f"{odd.size} "
    text += f"elements by more than the {_allowed(apart, tolerance)} that rounding explains"
    return _with_reasons(text, reasons)


def _numbers(array: np.ndarray) -> np.ndarray:
    """In a type that has all of them, and inf and NaN."""
    return array.astype(np.float64)


def _at(
    what: str, where: tuple[int, ...], scalar: bool, result: np.ndarray, right: np.ndarray
) -> str:
    place = "" if scalar else f"[{', '.join(map(str, where))}]"
    return f"{what}{place}, which is {result[where]} instead of {right[where]}"


def _overflow(result: np.ndarray, where: tuple[int, ...]) -> list[str]:
    """That an infinity is more than the type holds, if that is what it is."""
    if not np.isinf(float(result[where])) or result.dtype != np.float16:
        return []
    return [f"numbers above {np.finfo(np.float16).max:.0f} do not fit into float16"]


def _limit(apart: Distance, right: np.ndarray, tolerance: Tolerance) -> float:
    """The largest difference of an element that is allowed."""
    if apart.in_steps:
        return tolerance.steps
    if right.dtype.kind in "iub":
        return 0.0
    finite = _numbers(right)[np.isfinite(_numbers(right))]
    return tolerance.relative * float(np.abs(finite).max(initial=0.0))


def _allowed(apart: Distance, tolerance: Tolerance) -> str:
    if apart.in_steps:
        return f"{tolerance.steps} steps"
    return f"{tolerance.relative:.1e}" if np.isfinite(apart.max_rel) else "0"


def _with_reasons(text: str, reasons: Sequence[Any]) -> str:
    return f"{text}: {'; '.join(reasons)}" if reasons else text
