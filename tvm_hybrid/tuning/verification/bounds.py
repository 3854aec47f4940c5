"""Is a candidate right? A region's meaning, and how far off a correct kernel may be.

A float anchor sums n products, each rounded to u = 2^-24. Probabilistic analysis (Higham and
Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, section 3) puts the error of
such a sum below lambda * sqrt(n) * u * sum |products|, with lambda a small constant; for data of
mixed sign, as here, the sum of magnitudes is itself about sqrt(n) times the result's size, and
partial sums of random signs lose a further sqrt(n) less. We allow 8 * sqrt(n) * u * max |result|.
The epilogue then amplifies or damps this: it is evaluated at the result plus and minus that error.
On top come 64 u of the largest output for the epilogue's own roundings, and one unit in the last
place of an output that is narrower than f32.

An integer product is exact, and so are most steps after it, each rounded by itself: then there is
no tolerance at all. Functions that kernels approximate (FUSIBLE_OPS other than `EXACT`) are within
`FUNCTION_ERROR` of their value or argument: the epilogue is evaluated with them that much larger,
and smaller. So an integer may be off by one only where such a difference decides its rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tir_schedules.core.region import Region, Step
from tir_schedules.core.template import Template
from tir_schedules.epilogue.epilogue import SPECIAL_STEPS, epilogue_reference, is_exact
from tir_schedules.product.zero_points import own_range

from .arguments import FLOATS, anchor_result, element_type, terms_of_a_sum

F32_UNIT = 2.0**-24
NARROW_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

# Rounded alike by every kernel, as long as no multiplication and addition become one.
EXACT = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "abs", "relu"),
    *("sqrt", "where", "less", "less_equal", "greater", "greater_equal"),
}
# microkernels.vector.vector_math: at most 8.2 units in the last place, more only where the function
# is much smaller than its argument. A unit is at most 2^-23 of the value.
FUNCTION_ERROR = 16 * 2.0**-23


@dataclass(frozen=True)
class Expected:
    """What the region yields, and how far a right kernel may be from it, element by element."""

    value: np.ndarray
    tolerance: np.ndarray

    def difference(self, actual: np.ndarray) -> str | None:
        """None if `actual`, as stored, is right, else a sentence about the first wrong element."""
        if actual.shape != self.value.shape:
            return f"the result has shape {actual.shape}, not {self.value.shape}"
        expected, found = self.value, actual.astype(self.value.dtype)
        with np.errstate(invalid="ignore"):
            near = (np.abs(found - expected) <= self.tolerance) | np.isinf(self.tolerance)
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        wrong = np.argwhere(~(near | same))
        if not len(wrong):
            return None
        index = tuple(map(int, wrong[0]))
        return (
            f"{len(wrong)} of {expected.size} elements are wrong; the first at {index}: "
            f"{found[index]:.9g}, should be {expected[index]:.9g} "
            f"within {self.tolerance[index]:.2g}"
        )


def expected_result(region: Region, template: Template[Any], arrays: list[np.ndarray]) -> Expected:
    """The region's meaning on these arguments.

    Parameters
    ----------
    region : Region
        The region.
    template : Template
        Its template, whose `reference` defines the anchor.
    arrays : list of numpy.ndarray
        Inputs and operands, constants unpacked.
    """
    inputs = arrays[: len(region.inputs)]
    result = anchor_result(region, template, inputs)
    # A reference in float64 is one whose sums are rounded; others are what every kernel finds.
    error = 0.0
    if result.dtype == np.float64:
        largest = np.abs(result[np.isfinite(result)]).max(initial=0.0)
        error = 8 * math.sqrt(terms_of_a_sum(region)) * F32_UNIT * largest
    operands = arrays[len(region.inputs) :]
    found = after_epilogue(region, result, error, operands, own_range(region, inputs))
    return Expected(as_stored(region, found.value), as_stored(region, found.tolerance))


def after_epilogue(
    region: Region,
    result: np.ndarray,
    error: float | np.ndarray,
    operands: Sequence[np.ndarray],
    own: np.ndarray | None = None,
) -> Expected:
    """What the epilogue makes of an anchor's result that is off by at most `error`.

    Parameters
    ----------
    region : Region
        The region.
    result : numpy.ndarray
        Of its anchor, in the shape of the output; float64 if sums are rounded.
    error : float or numpy.ndarray
        How far a right kernel's anchor may be from it; of every element, or element by element.
    operands : sequence of numpy.ndarray
        What the epilogue reads besides.
    own : numpy.ndarray or None
        Scale and zero point that the kernel finds itself.
    """
    evaluation = _Evaluation(region, result, operands, own)
    dtype = region.output.dtype
    off = np.asarray(error) != 0
    # Without integers, what is allowed for the epilogue's roundings covers the functions' errors.
    pushed = evaluation.inexact and (evaluation.exact or not off.any())
    with np.errstate(all="ignore"):
        value = evaluation.value()
        tolerance = np.zeros(value.shape)
        for sign, push in itertools.product(
            (-1, 1) if off.any() else (0,), (-1, 0, 1) if pushed else (0,)
        ):
            neighbour = evaluation.value(sign * error, push)
            spread = np.where(value == neighbour, 0.0, np.abs(neighbour - value))
            both_nan = np.isnan(value) & np.isnan(neighbour)
            # Where the neighbourhood leaves the function's domain, any value is as good as another.
            spread = np.where(both_nan, 0.0, np.where(np.isnan(spread), np.inf, spread))
            tolerance = np.maximum(tolerance, spread)
        if dtype in FLOATS:
            largest = np.abs(value[np.isfinite(value)]).max(initial=0.0)
            last_place = 2 * NARROW_UNIT.get(dtype, 0.0) * np.abs(value)
            own_roundings = 64 * F32_UNIT * largest + np.where(np.isnan(value), 0, last_place)
            tolerance += np.where(off | pushed, own_roundings, 0.0)
    return Expected(value, tolerance)


class _Evaluation:
    """A region's epilogue, at the anchor's result or near it."""

    def __init__(
        self,
        region: Region,
        result: np.ndarray,
        operands: Sequence[np.ndarray],
        own: np.ndarray | None,
    ) -> None:
        self.region, self.result, self.own = region, result, own
        self.exact = is_exact(region)
        self.inexact = any(self._is_inexact(step) for step in region.epilogue)
        self.operands = [
            x.astype(np.float64)
            if x.dtype.name in FLOATS and not (self.exact or result.dtype == np.float32)
            else x
            for x in operands
        ]

    def value(self, error: float | np.ndarray = 0.0, push: int = 0) -> np.ndarray:
        """What is stored, in float64, if the anchor is off by `error` and functions err by `push`
        times what they may."""
        result = self.result + error if np.any(error) else self.result

        def pushed(step: Step, arguments: Sequence[np.ndarray], value: np.ndarray) -> np.ndarray:
            if not self._is_inexact(step) or value.dtype == bool:
                return value
            size = np.abs(value)
            for argument in arguments:
                size = np.maximum(size, np.abs(argument))
            return (value + push * FUNCTION_ERROR * size).astype(value.dtype)

        found = epilogue_reference(
            self.region, result, self.operands, self.own, pushed if push else None
        )
        stored = found.astype(element_type(self.region.output.dtype))
        return stored.astype(np.float64)

    def _is_inexact(self, step: Step) -> bool:
        """Whether kernels may find another value than numpy."""
        if step.op in SPECIAL_STEPS:
            return False
        return step.op not in EXACT or (not self.exact and step.op in ("add", "subtract"))


def as_stored(region: Region, value: np.ndarray) -> np.ndarray:
    """A result of the region's shape in the order of dimensions in which kernels store it."""
    return value.transpose(region.numbers("out_axes", range(value.ndim)))
