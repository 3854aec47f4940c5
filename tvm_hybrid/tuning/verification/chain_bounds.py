"""Random arguments for chains of regions and attentions, and error bounds of correct kernels.

Arguments are drawn part by part, given the results of the parts before, so that no part gets values
that are too small or too large. Each part may be off by the tolerance that bounds.py gives it
alone. The effect on later parts is found by trying: the chain is evaluated with every result off by
its tolerance, up, down and at random. The largest difference at the end is allowed twice, as errors
may have other signs, and everywhere, as chance decides which element it hits. If no part may be
off, neither may the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microkernels.base.arrays import RANGES
from tir_schedules.attention.problem import SINK, AttentionProblem
from tir_schedules.chains.parts import chain_reference, sources_of
from tir_schedules.core.product_plan import product_types
from tir_schedules.core.region import EpilogueOp, Region
from tir_schedules.core.template import Template, template_for
from tir_schedules.epilogue.epilogue import epilogue_reference, is_exact, region_result

from . import bounds

RANDOM_TRIALS = 3


def chain_arguments(region: Region, seed: int) -> list[np.ndarray]:
    """Draws unpacked inputs of a chain that expose a wrong kernel."""
    given: dict[int, np.ndarray] = {}
    results: list[np.ndarray] = []
    for number, (part, sources) in enumerate(zip(region.parts, sources_of(region), strict=True)):
        tensors = part.tensors[:-1]
        known = {
            position: (results if source.part else given)[source.number].reshape(tensor.shape)
            for position, (source, tensor) in enumerate(zip(sources, tensors, strict=True))
            if source.part or source.number in given
        }
        arrays = bounds.random_arguments(part, template_for(part.op), seed + number, known)
        for source, array in zip(sources, arrays, strict=True):
            if not source.part:
                shape = region.inputs[source.number].shape
                given.setdefault(source.number, array.reshape(shape))
        results.append(region_result(part, arrays))
    return [given[number] for number in range(len(region.inputs))]


def expected_of_chain(region: Region, arrays: list[np.ndarray], seed: int) -> bounds.Expected:
    """Computes the chain's result and its tolerance; `seed` is that of the random errors."""
    rng = np.random.default_rng(seed)
    tolerances: list[np.ndarray] = []

    def off(sign: float | None) -> np.ndarray:
        """Evaluates the chain with each part off by its tolerance (None: with random signs)."""
        tolerances.clear()

        def evaluate(part: Region, given: list[np.ndarray]) -> np.ndarray:
            expected = bounds.expected_result(part, template_for(part.op), given)
            tolerances.append(expected.tolerance)
            signs = rng.choice((-1.0, 1.0), expected.value.shape) if sign is None else sign
            with np.errstate(invalid="ignore"):
                value = expected.value + signs * expected.tolerance
            dtype = bounds.element_type(part.output.dtype)
            if dtype.kind in "iu":
                value = np.clip(value, np.iinfo(dtype).min, np.iinfo(dtype).max)
            return value.astype(dtype)

        with np.errstate(all="ignore"):
            return chain_reference(region, arrays, evaluate).astype(np.float64)

    value = off(0.0)
    own = tolerances[-1].reshape(value.shape)
    spread = 0.0
    if any(tolerance.any() for tolerance in tolerances):
        for sign in (-1.0, 1.0, *[None] * RANDOM_TRIALS):
            difference = np.abs(off(sign) - value)
            spread = max(spread, difference[np.isfinite(difference)].max(initial=0.0))
    return bounds.Expected(value, own + 2 * spread)


# Arguments for an attention, and error bounds of its correct kernels.
#
#     s = epilogue(q k)    p = softmax(s)    out = epilogue(p v)
#
# Kernels store powers or probabilities (or neither) in the type that the second product multiplies,
# and divide before or after it, so only an analysis of the whole says what is right. The value is
# that of exact sums and, for floats, of unrounded probabilities. With u = 2^-24, per element:
#
# - A score is off by (d + 2) u |q| |k| (Higham, "Accuracy and Stability of Numerical Algorithms",
#   2002, section 3.1); its epilogue is evaluated at both ends of that, and with the rounding of
#   every single step. 4 u of its distance to the largest score of its row are added, for the
#   exponent.
# - A score's error delta multiplies its power by e^delta and, through the sum of the row, every
#   probability by at most e^(mean delta), the mean weighted by the probabilities.
# - A sum of n powers, and the product with v, are off by 8 sqrt(n) u (see bounds.py) of the sum of
#   the magnitudes.
# - Floats that are narrower than f32 (of unit h) round each probability, or its power, separately.
#   A rounding is uniform in [-h, h] of the probability at most, so the sum of n of them is beyond
#   5 sqrt(sum (h p v)^2) with a probability of 2 e^-37 (Hoeffding, "Probability inequalities for
#   sums of bounded random variables", 1963, by the bound on moments in section 4; a uniform number
#   in [-a, a] is subgaussian with variance a^2 / 3), and never beyond h sum |p v|: the smaller of
#   both is allowed.
# - Probabilities that are rounded to integers are exact except next to a tie, where they may be the
#   other integer: that moves the product by |v - zero point|.
#
# The second epilogue's effect on this is found as in bounds.py.


# Relative errors of 2^x (microkernels.vector.vector_math): with the polynomial of degree 5, and
# with that of degree 3, which serves powers that are rounded to bfloat16.
_EXP2, _SHORT_EXP2 = 5 * bounds.F32_UNIT, 7.6e-5
_STEP_ROUNDING = 2 * bounds.F32_UNIT
_ROUNDED_STEPS = {"add", "subtract", "multiply", "divide", "sqrt"}
_FUSED_BELOW = 2.0**20
"""Kernels subtract a row's largest score, if it is below this, in one multiply-add."""

Bounded = tuple[np.ndarray, np.ndarray]
"""Values and their error bounds."""

SPREAD = (1.0, 3.0)
"""Standard deviation of scores: keys differ, and no key outweighs all others."""


def attention_arguments(region: Region, seed: int) -> list[np.ndarray]:
    """Draws inputs of an attention that expose a wrong kernel.

    Inputs of each part are drawn as for a single region, given the results of the parts before. q
    is scaled until the scores' standard deviation lies in `SPREAD`.
    """
    problem = AttentionProblem(region)
    scores, softmax, product = region.parts
    q, k, *masks = bounds.random_arguments(scores, template_for(scores.op), seed)
    given = {"q": _stored(problem, "q", q), "k": _narrowed(problem, "k", k.swapaxes(-1, -2))}
    q, k = _queries(problem, given["q"]), _keys(problem, given["k"])
    found = region_result(scores, [q, k, *masks])
    spread = float(found.std(where=np.isfinite(found)))
    if np.isfinite(spread) and spread > 0:
        factor = float(np.clip(spread, *SPREAD)) / spread
        # Scale the distance from the zero point, in q's type.
        dtype, zero = given["q"].dtype, scores.integer("a_zero_point", 0)
        moved = given["q"].astype(np.float64) * factor
        if dtype.name not in bounds.FLOATS:
            moved = np.rint((given["q"].astype(np.float64) - zero) * factor) + zero
            moved = np.clip(moved, np.iinfo(dtype).min, np.iinfo(dtype).max)
        given["q"] = moved.astype(dtype)
        q = _queries(problem, given["q"])
    visible = _visible(problem, region_result(scores, [q, k, *masks]))
    known = {0: region_result(softmax, [visible])}
    _, v, *further = bounds.random_arguments(product, template_for(product.op), seed + 1, known)
    arrays = [given["q"], given["k"], _narrowed(problem, "v", v), *masks, *further]
    sinks = region.inputs[len(arrays) :]
    rng = np.random.default_rng(seed + 2)
    return [*arrays, *(rng.standard_normal(each.shape).astype(each.dtype) for each in sinks)]


def expected_of_attention(region: Region, arrays: Sequence[np.ndarray]) -> bounds.Expected:
    """Computes the attention's result and its tolerance; the comment above derives the bounds."""
    problem = AttentionProblem(region)
    of_scores, of_product, sink = problem.split(arrays[3:])
    with np.errstate(all="ignore"):
        score, delta = _scores(problem, arrays[0], arrays[1], of_scores)
        p, error = _probabilities(problem, score, delta, sink)
        v = problem.multiplied("v", arrays[2]).reshape(problem.product.inputs[1].shape)
        multiplied = _integers if problem.softmax.output.dtype in RANGES else _floats
        result, moved = multiplied(problem, p, error, v)
        found = bounds.after_epilogue(problem.product, result, moved, of_product)
    return bounds.Expected(
        _stored(problem, "out", found.value), _stored(problem, "out", found.tolerance)
    )


def _scores(
    problem: AttentionProblem, q: np.ndarray, k: np.ndarray, operands: Sequence[np.ndarray]
) -> Bounded:
    """Computes the scores and their error bounds."""
    part = problem.scores
    q, k = _queries(problem, q), _keys(problem, k)
    result = template_for(part.op).reference(part, [q, k]).reshape(part.output.shape)
    if result.dtype == np.float64:
        size = np.abs(q.astype(np.float64)) @ np.abs(k.astype(np.float64))
        sums = (problem.d + 2) * bounds.F32_UNIT * size.reshape(result.shape)
        if not is_exact(part):
            operands = bounds.widened(operands)
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
    """Disturbs one step: the n-th of those that kernels may round differently."""

    def __init__(self, exact: bool, number: int) -> None:
        self.exact, self.left, self.met = exact, number, False

    def __call__(
        self, step: EpilogueOp, arguments: Sequence[np.ndarray], value: np.ndarray
    ) -> np.ndarray:
        if step.op in bounds.EXACT and (self.exact or step.op not in _ROUNDED_STEPS):
            return value
        self.left -= 1
        if self.left != -1:
            return value
        self.met = True
        if step.op in bounds.EXACT:
            return value + _STEP_ROUNDING * np.abs(value)
        size = bounds.largest_of(value, *arguments)
        return (value + bounds.FUNCTION_ERROR * size).astype(value.dtype)


def _distance(value: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Distance of values; 0 where both are one infinity or one is not a number."""
    return np.nan_to_num(np.abs(value - other), nan=0.0)


def _probabilities(
    problem: AttentionProblem, score: np.ndarray, delta: np.ndarray, sink: Sequence[np.ndarray]
) -> Bounded:
    """Computes the softmax, and each probability's relative error before it is rounded."""
    if sink:  # one more key, whose probability is not multiplied by a value
        column = problem.logical(SINK, sink[0]).reshape(*score.shape[:-1], 1)
        score = np.concatenate([score, column], -1)
        delta = np.concatenate([delta, np.zeros_like(column)], -1)
    largest = score.max(axis=-1, keepdims=True)
    powers = np.exp(score - largest)
    p = powers / powers.sum(axis=-1, keepdims=True)
    counts = p > 0
    taken = np.where(np.abs(largest) < _FUSED_BELOW, np.abs(largest), 0.0)
    delta = np.where(counts, delta + 4 * bounds.F32_UNIT * (largest - score + taken), 0.0)
    mean = (p * delta).sum(axis=-1, keepdims=True)
    short = product_types(problem.product)[1] == "bfloat16"
    # The errors of: the power itself and the sum's powers; the sum's roundings; the division.
    own = 2 * (_SHORT_EXP2 if short else _EXP2) + (_summing(problem.n) + 4 * bounds.F32_UNIT)
    error = np.where(counts, np.expm1(delta + mean) + own, 0.0)
    return p[..., : problem.n], error[..., : problem.n]


def _floats(problem: AttentionProblem, p: np.ndarray, error: np.ndarray, v: np.ndarray) -> Bounded:
    """Computes the product of float probabilities and its error bound."""
    kind = product_types(problem.product)[1]
    v = v.astype(bounds.element_type(kind)).astype(np.float64)
    sizes = np.abs(v)
    moved = (p * (error + _summing(problem.n))) @ sizes
    narrow = max(bounds.NARROW_UNIT.get(name, 0.0) for name in (kind, problem.softmax.output.dtype))
    if narrow:
        likely = 5 * np.sqrt(np.square(p) @ np.square(v))
        moved = moved + narrow * np.minimum(p @ sizes, likely)
    return p @ v, moved


def _integers(
    problem: AttentionProblem, p: np.ndarray, error: np.ndarray, v: np.ndarray
) -> Bounded:
    """Computes the product of probabilities rounded to integers, and its error bound."""
    softmax, product = problem.softmax, problem.product
    scale = softmax.epilogue[softmax.epilogue[-1].args[1] - 1].value
    levels = epilogue_reference(softmax, p.astype(np.float32), [])
    result = template_for(product.op).reference(product, [levels, v])
    steps = p / float(scale or 1.0)
    to_tie = np.abs(steps - np.floor(steps) - 0.5)
    unsure = to_tie <= steps * (error + 4 * bounds.F32_UNIT)
    sizes = np.abs(v.astype(np.float64) - product.integer("b_zero_point", 0))
    moved = np.rint(unsure.astype(np.float64) @ sizes).astype(result.dtype)
    return result.reshape(product.output.shape), moved.reshape(product.output.shape)


def _summing(terms: int) -> float:
    """Relative error of a sum of `terms` terms of equal sign."""
    return float(8 * np.sqrt(terms) * bounds.F32_UNIT)


def _queries(problem: AttentionProblem, stored: np.ndarray) -> np.ndarray:
    return problem.logical("q", stored).reshape(problem.scores.inputs[0].shape)


def _keys(problem: AttentionProblem, stored: np.ndarray) -> np.ndarray:
    return problem.multiplied("k", stored).swapaxes(-1, -2).reshape(problem.scores.inputs[1].shape)


def _visible(problem: AttentionProblem, score: np.ndarray) -> np.ndarray:
    """Sets scores to minus infinity where a causal mask hides the key."""
    if problem.causal is None:
        return score
    return np.where(np.tri(problem.m, problem.n, problem.causal, dtype=bool), score, -np.inf)


def _stored(problem: AttentionProblem, name: str, logical: np.ndarray) -> np.ndarray:
    """Stores logical values in a tensor's layout; padding elements are 0."""
    result = np.zeros(problem.tensors[name].shape, logical.dtype)
    view = problem.logical(name, result)
    view[...] = logical.reshape(view.shape)
    return result


def _narrowed(problem: AttentionProblem, name: str, logical: np.ndarray) -> np.ndarray:
    """`_stored`, converted to the tensor's type."""
    stored = _stored(problem, name, logical)
    dtype = bounds.element_type(problem.tensors[name].dtype)
    return stored.astype(dtype) if problem.widens(name) else stored


def known_case(
    region: Region, template: Template[Any], seed: int
) -> tuple[list[np.ndarray], bounds.Expected]:
    """Draws unpacked inputs and operands of a case; returns them with the expected result."""
    if region.parts and "sources" in region.attrs:  # a chain: sources connect its parts
        arrays = chain_arguments(region, seed)
        return arrays, expected_of_chain(region, arrays, seed)
    if region.op == "attention" and len(region.parts) == 3:
        arrays = attention_arguments(region, seed)
        return arrays, expected_of_attention(region, arrays)
    arrays = bounds.random_arguments(region, template, seed)
    return arrays, bounds.expected_result(region, template, arrays)
