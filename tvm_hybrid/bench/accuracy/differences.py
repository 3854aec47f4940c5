"""Says of results that differ by too much: by how much, where, and why, if that can be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .compare import Distance, Tolerance, describe


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
