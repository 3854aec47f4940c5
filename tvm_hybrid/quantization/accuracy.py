"""How far a quantised model is from the float32 model that it was made of.

The reference is ONNX Runtime on the float32 model. The error of an output is the root mean square
of the differences, relative to the root mean square of the reference, over all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


class OutputAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """One output of one contestant.

    Attributes
    ----------
    name : str
        The output.
    by : str
        Which model was run by whom.
    error : float
        Root mean square of the differences over that of the reference.
    largest : float
        The largest difference over the reference's largest value.
    cosine : float
        Of the angle between the two as vectors.
    top1 : float or None
        Share of the rows whose largest value is at the same place; None if it is no classifier.
    """

    name: str
    by: str
    error: float
    largest: float
    cosine: float
    top1: float | None = None


def accuracies(
    names: Sequence[str],
    samples: Sequence[Mapping[str, np.ndarray]],
    reference: Run,
    contestants: Mapping[str, Run],
) -> list[OutputAccuracy]:
    """The accuracy of every output of every contestant.

    Parameters
    ----------
    names : sequence of str
        The outputs.
    samples : sequence of mapping
        Inputs.
    reference : callable
        Inputs -> the right outputs.
    contestants : mapping
        The same for others, by name.

    Returns
    -------
    list of OutputAccuracy
        Of floating-point outputs alone, output by output.
    """
    sums = {(name, by): _Sums() for name in names for by in contestants}
    for sample in samples:
        wanted = reference(sample)
        for by, run in contestants.items():
            for name, found, right in zip(names, run(sample), wanted, strict=True):
                sums[name, by].add(name, np.asarray(found), np.asarray(right))
    return [each.accuracy(name, by) for (name, by), each in sums.items() if each.count]


class _Sums:
    """What one output's errors add up to."""

    def __init__(self) -> None:
        self.count = self.rows = self.same = 0
        self.squares = self.found = self.right = self.dot = self.largest = self.scale = 0.0

    def add(self, name: str, found: np.ndarray, right: np.ndarray) -> None:
        """Adds the results of a sample."""
        if right.dtype.kind != "f" or not right.size:
            return
        self.count += 1
        if found.shape != right.shape:
            self.squares = self.largest = math.inf
            return
        a, b = found.astype(np.float64), right.astype(np.float64)
        self.squares += float(np.square(a - b).sum())
        self.found += float(np.square(a).sum())
        self.right += float(np.square(b).sum())
        self.dot += float((a * b).sum())
        self.largest = max(self.largest, float(np.abs(a - b).max()))
        self.scale = max(self.scale, float(np.abs(b).max()))
        if _classifies(name, right.shape):
            self.rows += b[..., 0].size
            self.same += int((a.argmax(-1) == b.argmax(-1)).sum())

    def accuracy(self, name: str, by: str) -> OutputAccuracy:
        """The figures."""
        return OutputAccuracy(
            name=name,
            by=by,
            error=math.sqrt(_ratio(self.squares, self.right)),
            largest=_ratio(self.largest, self.scale),
            cosine=min(1.0, _ratio(self.dot, math.sqrt(self.found * self.right), 1.0)),
            top1=self.same / self.rows if self.rows else None,
        )


def _classifies(name: str, shape: tuple[int, ...]) -> bool:
    """Whether rows of an output look like scores of classes: a matrix, or named logits."""
    return len(shape) > 1 and shape[-1] > 1 and (len(shape) == 2 or "logits" in name)


def _ratio(part: float, whole: float, of_nothing: float = math.inf) -> float:
    if whole == 0.0:
        return of_nothing if part or of_nothing == 1.0 else 0.0
    return part / whole
