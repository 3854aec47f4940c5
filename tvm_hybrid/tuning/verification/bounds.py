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

from microkernels.base.arrays import RANGES
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.region import Region, Step
from tir_schedules.core.template import Template, template_for
from tir_schedules.epilogue.epilogue import (
    SPECIAL_STEPS,
    epilogue_reference,
    is_exact,
    region_result,
)
from tir_schedules.product.batch_matmul import product_types
from tir_schedules.product.zero_points import own_range

from .arguments import FLOATS, anchor_result, element_type, random_arguments, terms_of_a_sum

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


@dataclass
class _Evaluation:
    """A region's epilogue, at the anchor's result or near it."""

    region: Region
    result: np.ndarray
    operands: Sequence[np.ndarray]
    own: np.ndarray | None

    def __post_init__(self) -> None:
        self.exact = is_exact(self.region)
        self.inexact = any(self._is_inexact(step) for step in self.region.epilogue)
        if not (self.exact or self.result.dtype == np.float32):
            self.operands = [
                x.astype(np.float64) if x.dtype.name in FLOATS else x for x in self.operands
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


# Arguments for an attention, and how far off a correct kernel of one may be.
#
#     s = epilogue(q k)    p = softmax(s)    out = epilogue(p v)
#
# Kernels keep powers, probabilities or neither of them in the type that the second product
# multiplies and divide before or after it, so nothing less than an analysis of the whole says what
# is right. The value is that of exact sums and, if they are floats, of probabilities that are not
# rounded. With u = 2^-24, element by element:
#
# - A score is off by (d + 2) u |q| |k| (Higham, "Accuracy and Stability of Numerical Algorithms",
#   2002, section 3.1); its epilogue is evaluated at both ends of that, and with the rounding of
#   every
#   single step. 4 u of its distance to the largest score of its row come on top, for the exponent.
# - A score's error delta multiplies its power by e^delta and, through the sum of the row, every
#   probability by at most e^(mean delta), the mean weighted by the probabilities.
# - A sum of n powers, and the product with v, are off by 8 sqrt(n) u (see bounds.py) of the sum of
#   the magnitudes.
# - Floats that are narrower than f32 (of unit h) round each probability, or its power, by itself. A
#   rounding is uniform in [-h, h] of the probability at most, so the sum of n of them is beyond
#   5 sqrt(sum (h p v)^2) with a probability of 2 e^-37 (Hoeffding, "Probability inequalities for
#   sums
#   of bounded random variables", 1963, by the bound on moments in section 4; a uniform number in
#   [-a, a] is subgaussian with variance a^2 / 3), and never beyond h sum |p v|: the smaller of both
#   is allowed.
# - Probabilities that are rounded to integers are exact but next to a tie, where they may be the
#   other integer: that moves the product by |v - zero point|.
#
# What the second epilogue makes of this is found as in bounds.py.


# Relative errors of 2^x (microkernels.vector.vector_math): with the polynomial of degree 5, and
# with that of degree 3, which is for powers that are rounded to bfloat16.
_EXP2, _SHORT_EXP2 = 5 * F32_UNIT, 7.6e-5
_STEP_ROUNDING = 2 * F32_UNIT
_ROUNDED_STEPS = {"add", "subtract", "multiply", "divide", "sqrt"}
_FUSED_BELOW = 2.0**20
"""Largest score with which a kernel takes a row's largest score away in one multiply-add."""

Bounded = tuple[np.ndarray, np.ndarray]
"""Values, and how far off each may be."""

SPREAD = (1.0, 3.0)
"""Standard deviation of scores: keys differ, and none outweighs all others."""


def is_attention(region: Region) -> bool:
    """Whether a region is a merged attention."""
    return region.op == "attention" and len(region.parts) == 3


def attention_arguments(region: Region, seed: int) -> list[np.ndarray]:
    """Inputs of an attention that make a wrong kernel show.

    Each part's are drawn as for a region of its own, for what the parts before really yield. q is
    made louder or quieter until the scores' standard deviation lies in `SPREAD`.

    Parameters
    ----------
    region : Region
        The attention.
    seed : int
        Of the generator.
    """
    problem = AttentionProblem(region)
    scores, softmax, product = region.parts
    q, k, *masks = random_arguments(scores, template_for(scores.op), seed)
    given = {"q": _stored(problem, "q", q), "k": _stored(problem, "k", k.swapaxes(-1, -2))}
    q, k = _queries(problem, given["q"]), _keys(problem, given["k"])
    found = region_result(scores, [q, k, *masks])
    spread = float(found.std(where=np.isfinite(found)))
    if np.isfinite(spread) and spread > 0:
        factor = float(np.clip(spread, *SPREAD)) / spread
        given["q"] = _louder(given["q"], factor, scores.integer("a_zero_point", 0))
        q = _queries(problem, given["q"])
    probabilities = region_result(
        softmax, [_visible(problem, region_result(scores, [q, k, *masks]))]
    )
    known = {0: probabilities}
    _, v, *further = random_arguments(product, template_for(product.op), seed + 1, known)
    return [given["q"], given["k"], _stored(problem, "v", v), *masks, *further]


def expected_of_attention(region: Region, arrays: Sequence[np.ndarray]) -> Expected:
    """The attention's meaning on these arguments; derived at the head of this file.

    Parameters
    ----------
    region : Region
        The attention.
    arrays : sequence of numpy.ndarray
        Its inputs.
    """
    problem = AttentionProblem(region)
    first = 3 + len(problem.scores.operands)
    with np.errstate(all="ignore"):
        score, delta = _scores(problem, arrays[0], arrays[1], arrays[3:first])
        p, error = _probabilities(problem, score, delta)
        v = problem.logical("v", arrays[2]).reshape(problem.product.inputs[1].shape)
        of_product = _integers if problem.softmax.output.dtype in RANGES else _floats
        result, moved = of_product(problem, p, error, v)
        found = after_epilogue(problem.product, result, moved, arrays[first:])
    return Expected(_stored(problem, "out", found.value), _stored(problem, "out", found.tolerance))


def _scores(
    problem: AttentionProblem, q: np.ndarray, k: np.ndarray, operands: Sequence[np.ndarray]
) -> Bounded:
    """The scores, and by how much each may be off."""
    part = problem.scores
    q, k = _queries(problem, q), _keys(problem, k)
    result = template_for(part.op).reference(part, [q, k]).reshape(part.output.shape)
    if result.dtype == np.float64:
        size = np.abs(q.astype(np.float64)) @ np.abs(k.astype(np.float64))
        sums = (problem.d + 2) * F32_UNIT * size.reshape(result.shape)
        if not is_exact(part):
            operands = [x.astype(np.float64) if x.dtype.name in FLOATS else x for x in operands]
    else:
        sums = np.zeros(1, result.dtype)
    value = epilogue_reference(part, result, operands).astype(np.float64)
    ends = [epilogue_reference(part, result + end, operands) for end in (-sums, sums) if sums.any()]
    delta = np.max([_distance(value, end) for end in ends], axis=0) if ends else np.zeros(1)
    for number in range(len(part.epilogue)):
        rounded = _Rounded(is_exact(part), number)
        found = epilogue_reference(part, result, operands, None, rounded)
        if rounded.met:
            delta = delta + _distance(value, found)
    return _visible(problem, value), np.broadcast_to(delta, value.shape)


class _Rounded:
    """Disturbs the step of a number, of those that kernels do not all round alike."""

    def __init__(self, exact: bool, number: int) -> None:
        self.exact, self.left, self.met = exact, number, False

    def __call__(
        self, step: Step, arguments: Sequence[np.ndarray], value: np.ndarray
    ) -> np.ndarray:
        if step.op in EXACT and (self.exact or step.op not in _ROUNDED_STEPS):
            return value
        self.left -= 1
        if self.left != -1:
            return value
        self.met = True
        size = np.abs(value)
        if step.op in EXACT:
            return value + _STEP_ROUNDING * size
        for argument in arguments:
            size = np.maximum(size, np.abs(argument))
        return (value + FUNCTION_ERROR * size).astype(value.dtype)


def _distance(value: np.ndarray, other: np.ndarray) -> np.ndarray:
    """0 where both are the same infinity or not a number."""
    return np.nan_to_num(np.abs(value - other), nan=0.0)


def _probabilities(problem: AttentionProblem, score: np.ndarray, delta: np.ndarray) -> Bounded:
    """The softmax, and the relative error of each probability before it is rounded."""
    largest = score.max(axis=-1, keepdims=True)
    powers = np.exp(score - largest)
    p = powers / powers.sum(axis=-1, keepdims=True)
    counts = p > 0
    taken = np.where(np.abs(largest) < _FUSED_BELOW, np.abs(largest), 0.0)
    delta = np.where(counts, delta + 4 * F32_UNIT * (largest - score + taken), 0.0)
    mean = (p * delta).sum(axis=-1, keepdims=True)
    short = product_types(problem.product)[1] == "bfloat16"
    # Of the power itself and of the sum; of the sum's roundings; of the division.
    own = 2 * (_SHORT_EXP2 if short else _EXP2) + (_summing(problem.n) + 4 * F32_UNIT)
    return p, np.where(counts, np.expm1(delta + mean) + own, 0.0)


def _floats(problem: AttentionProblem, p: np.ndarray, error: np.ndarray, v: np.ndarray) -> Bounded:
    """The product of float probabilities, and how far off it may be."""
    kind = product_types(problem.product)[1]
    v = v.astype(element_type(kind)).astype(np.float64)
    sizes = np.abs(v)
    moved = (p * (error + _summing(problem.n))) @ sizes
    narrow = max(NARROW_UNIT.get(name, 0.0) for name in (kind, problem.softmax.output.dtype))
    if narrow:
        likely = 5 * np.sqrt(np.square(p) @ np.square(v))
        moved = moved + narrow * np.minimum(p @ sizes, likely)
    return p @ v, moved


def _integers(
    problem: AttentionProblem, p: np.ndarray, error: np.ndarray, v: np.ndarray
) -> Bounded:
    """The product of probabilities rounded to integers, and how far off it may be."""
    softmax, product = problem.softmax, problem.product
    scale = softmax.epilogue[softmax.epilogue[-1].args[1] - 1].value
    levels = epilogue_reference(softmax, p.astype(np.float32), [])
    result = template_for(product.op).reference(product, [levels, v])
    steps = p / float(scale or 1.0)
    to_tie = np.abs(steps - np.floor(steps) - 0.5)
    unsure = to_tie <= steps * (error + 4 * F32_UNIT)
    sizes = np.abs(v.astype(np.float64) - product.integer("b_zero_point", 0))
    moved = np.rint(unsure.astype(np.float64) @ sizes).astype(result.dtype)
    return result.reshape(product.output.shape), moved.reshape(product.output.shape)


def _summing(terms: int) -> float:
    """Relative error of a sum of so many terms of one sign."""
    return float(8 * np.sqrt(terms) * F32_UNIT)


def _queries(problem: AttentionProblem, stored: np.ndarray) -> np.ndarray:
    return problem.logical("q", stored).reshape(problem.scores.inputs[0].shape)


def _keys(problem: AttentionProblem, stored: np.ndarray) -> np.ndarray:
    return problem.logical("k", stored).swapaxes(-1, -2).reshape(problem.scores.inputs[1].shape)


def _visible(problem: AttentionProblem, score: np.ndarray) -> np.ndarray:
    """Scores, minus infinity where causality hides a key."""
    if problem.causal is None:
        return score
    return np.where(np.tri(problem.m, problem.n, problem.causal, dtype=bool), score, -np.inf)


def _stored(problem: AttentionProblem, name: str, logical: np.ndarray) -> np.ndarray:
    """A tensor of what it means; elements in between are 0."""
    result = np.zeros(problem.tensors[name].shape, logical.dtype)
    view = problem.logical(name, result)
    view[...] = logical.reshape(view.shape)
    return result


def _louder(stored: np.ndarray, factor: float, zero: int) -> np.ndarray:
    """What differs from the zero point multiplied by a factor, in the same type."""
    if stored.dtype.name in FLOATS:
        return (stored.astype(np.float64) * factor).astype(stored.dtype)
    limits = np.iinfo(stored.dtype)
    moved = np.rint((stored.astype(np.float64) - zero) * factor) + zero
    return np.clip(moved, limits.min, limits.max).astype(stored.dtype)
