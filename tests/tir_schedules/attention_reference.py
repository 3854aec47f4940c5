"""Attention by its definition in float64, and how far a kernel may be from it.

Written from the words of `Attention`, not from the attributes of the region. 8-bit attention is
computed operator by operator (`tests.onnx_reference.arithmetic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.onnx_reference.arithmetic import integer_product, quantize
from tests.tir_schedules.attention_regions import Attention, B
from tests.tir_schedules.run_region import dtype_named

UNIT = 2.0**-24  # unit roundoff of f32
BF16_UNIT = 2.0**-8
TINY = 2.0**-126
# Relative error of 2^x (microkernels.vector.vector_math): full, and where powers become bfloat16.
EXP2, SHORT_EXP2 = 5 * UNIT, 7.6e-5


@dataclass(frozen=True)
class Expected:
    """What a kernel shall compute.

    Attributes
    ----------
    value : ndarray
        The result in float64, or in the 8-bit type of the output; as it is stored.
    bound : ndarray
        How far an element may be from it; 0: nothing but this value is right. NaN where `value` is.
    """

    value: np.ndarray
    bound: np.ndarray


def logical(attention: Attention, name: str, stored: np.ndarray) -> np.ndarray:
    """A stored tensor as [batch, heads of q, length, size]."""
    heads, length, size = attention.extents(name)
    layout = attention.layout(name)
    if layout == "packed":
        start = attention.offset(name)
        stored, layout = stored[..., start : start + heads * size], "bshd"
    if layout == "bshd":
        result = stored.reshape(attention.batch, length, heads, size).swapaxes(1, 2)
    else:
        result = stored if layout == "bhsd" else stored.swapaxes(2, 3)
    return np.repeat(result, attention.heads // heads, axis=1)


def as_stored(attention: Attention, result: np.ndarray) -> np.ndarray:
    """[batch, heads, queries, size] in the layout of the stored result."""
    if attention.layout("out") == "bshd":
        result = result.swapaxes(1, 2)
    elif attention.layout("out") == "bhds":
        result = result.swapaxes(2, 3)
    return result.reshape(attention.stored("out"))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax along the last axis, with NaN where NumPy has it."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)


def expected(attention: Attention, arrays: Sequence[np.ndarray]) -> Expected:
    """The result by definition, with its bound.

    Scores are off by delta = (D + 2) u scale |q| |k| (Higham, "Accuracy and Stability of Numerical
    Algorithms", section 3.1) + 4 u (|score| + |mask| + |score - max|) (scaling, adding, the
    difference to the maximum, its product with log2 e). That multiplies a probability by e^delta,
    and, through the sum of a row, by e^(mean delta), the mean weighted by probabilities. On top
    come the error of 2^x, above and below the line, and of the sum of N terms: N u, and, where
    sums are carried from block to block of keys, three roundings for each of at least 16 keys.
    """
    if attention.kind == "int8":
        return _integer(attention, arrays)
    with np.errstate(invalid="ignore", over="ignore"):
        return _real(attention, arrays)


def _real(attention: Attention, arrays: Sequence[np.ndarray]) -> Expected:
    names, rounded = ("q", "k", "v"), attention.kind != "f32"
    q, k, v = (
        _rounded(logical(attention, name, x), rounded)
        for name, x in zip(names, arrays, strict=False)
    )
    raw, magnitude = q @ k.swapaxes(-1, -2), np.abs(q) @ np.abs(k).swapaxes(-1, -2)
    factor = 1 / np.float64(attention.factor) if attention.divided else float(attention.factor)
    scores, masks = _masked(attention, raw * factor, arrays[3:])
    p = softmax(scores)
    sums = (attention.d + 2) * UNIT * factor * magnitude
    if rounded:  # instructions for bfloat16 may take subnormal numbers for zero
        sums = sums + attention.d * TINY * factor * max(_largest(q), _largest(k))
    spread = relative_error(p, scores, sums, masks) + (BF16_UNIT + 2 * SHORT_EXP2) * rounded
    # Rounding probabilities, the product's N terms, and carrying them from block to block.
    terms = 1.2 * attention.n * UNIT
    value, bound = p @ v, (p * (spread + terms)) @ np.abs(v)
    bound = bound + attention.n * TINY * _largest(v)
    return _finished(attention, value, bound, arrays)


def _integer(attention: Attention, arrays: Sequence[np.ndarray]) -> Expected:
    """Operator by operator; integers are exact unless a probability lies next to a tie.

    Next to a tie it may be the neighbouring integer: the product moves by at most |v - zero
    point| for each such key, and a quantised result by one step more.
    """
    zeros = attention.zeros
    q, k, v = (
        logical(attention, name, x).astype(np.int64) - zeros[i]
        for name, x, i in zip(("q", "k", "v"), arrays, (0, 1, 3), strict=False)
    )
    product = integer_product(q, k.swapaxes(-1, -2)).astype(np.float32)
    scores32 = product / attention.factor if attention.divided else product * attention.factor
    if attention.score_scale:
        levels = quantize(scores32, attention.score_scale, np.uint8(130)).astype(np.float32)
        scores32 = (levels - np.float32(130)) * np.float32(attention.score_scale)
    scores, masks = _masked(attention, scores32, arrays[3:])
    p = softmax(scores)
    with np.errstate(invalid="ignore"):
        error = relative_error(p, scores, np.zeros_like(p), masks)
        steps = p / np.float64(np.float32(attention.p_scale))
        levels = quantize(p, attention.p_scale, np.array(zeros[2], attention.types[2]))
        to_tie = np.abs(steps - np.floor(steps) - 0.5)
        unsure = (to_tie <= steps * (error + 2 * UNIT)).astype(np.int64)
    total = integer_product(levels.astype(np.int64) - zeros[2], v).astype(np.float32)
    moved = np.matmul(unsure.astype(np.float64), np.abs(v).astype(np.float64))
    value = total * attention.product_factor
    assert value.dtype == np.float32
    bound = moved * float(attention.product_factor)
    bound = bound + np.where(bound > 0, 2 * UNIT * (np.abs(value) + bound), 0)
    return _finished(attention, value, bound, arrays)


def relative_error(
    p: np.ndarray, scores: np.ndarray, sums: np.ndarray, masks: np.ndarray
) -> np.ndarray:
    """Relative error of probabilities, whose scores' products are off by `sums`."""
    finite = np.isfinite(scores) & (p > 0)
    # A mask above 2^26 times the scores absorbs them in f32.
    kept = finite & (np.abs(scores - masks) >= UNIT / 4 * np.abs(masks))
    below = scores.max(axis=-1, keepdims=True) - scores
    delta = sums + 4 * UNIT * (np.abs(scores) + np.abs(masks) + below)
    delta = np.where(kept, delta, 0)
    mean = np.where(finite, p * delta, 0).sum(axis=-1, keepdims=True)
    return np.expm1(delta + mean) + 2 * EXP2 + 1.2 * p.shape[-1] * UNIT + 4 * UNIT


def _masked(
    attention: Attention, scores: np.ndarray, operands: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Scores after the masks (f32 sums if both are f32), and the numbers added or put in place."""
    added = np.zeros_like(scores)
    if attention.mask:
        mask = operands[0]
        if attention.flat and attention.mask != "square":
            mask = np.broadcast_to(mask, (*attention.lead, *mask.shape[1:]))
            mask = mask.reshape(attention.batch, attention.heads, *mask.shape[1:])
        if attention.conditional:
            hidden = mask == (attention.mask == "where")
            added = np.where(hidden, scores.dtype.type(attention.absent), added)
            scores = np.where(hidden, added, scores)
        else:
            added = np.broadcast_to(mask, scores.shape)
            scores = scores + added
    if attention.causal is not None:
        queries, keys = np.ogrid[: attention.m, : attention.n]
        scores = np.where(keys <= queries + attention.causal, scores, -np.inf)
    return scores.astype(np.float64), added.astype(np.float64)


def _finished(
    attention: Attention, value: np.ndarray, bound: np.ndarray, arrays: Sequence[np.ndarray]
) -> Expected:
    """The result after the operators that follow the product."""
    if attention.residual:
        further = arrays[-1].reshape(value.shape)
        value = value + further  # a rounded f32 sum, if both are f32
        if attention.kind != "int8":
            bound = bound + UNIT * np.abs(value)
        else:
            bound = np.where(bound > 0, bound + 2 * UNIT * np.abs(value), 0)
    if attention.output == B:
        value = value.astype(np.float32)
        nearest = value.astype(dtype_named(B)).astype(np.float64)
        exact = attention.kind == "int8"
        half_step = BF16_UNIT * (np.abs(value) + bound)
        bound = bound + (np.where(bound > 0, 2 * half_step, 0) if exact else half_step)
        value = nearest if exact else value.astype(np.float64)
    elif attention.output != "float32":
        zero = np.array(attention.out_zero, attention.output)
        value = quantize(value, attention.out_scale, zero)
        bound = np.where(bound > 0, bound / attention.out_scale + 1, 0)
    bound = np.where(np.isnan(np.asarray(value, np.float64)), np.nan, bound)
    return Expected(as_stored(attention, value), as_stored(attention, bound))


def _largest(x: np.ndarray) -> float:
    """The largest finite magnitude; at least 1."""
    return float(np.abs(x).max(initial=1.0, where=np.isfinite(x)))


def _rounded(x: np.ndarray, to_bfloat16: bool) -> np.ndarray:
    """An operand as the kernel multiplies it, in float64."""
    return (x.astype(dtype_named(B)) if to_bfloat16 else x).astype(np.float64)


def in_single_precision(
    attention: Attention, arrays: Sequence[np.ndarray], flaw: float = 0, drop: bool = False
) -> np.ndarray:
    """Attention by NumPy in float32, wrong by a relative `flaw`, or without the last key."""
    rounded = attention.kind != "f32"
    q, k, v = (
        _rounded(logical(attention, name, x), rounded).astype(np.float32)
        for name, x in zip(("q", "k", "v"), arrays, strict=False)
    )
    product = q @ k.swapaxes(-1, -2)
    scores = product / attention.factor if attention.divided else product * attention.factor
    scores, _ = _masked(attention, scores, arrays[3:])
    if drop:
        scores[..., -1] = -np.inf
    p = softmax(scores.astype(np.float32))
    p = _rounded(p, rounded).astype(np.float32)
    result = (p @ v) * np.float32(1 + flaw)
    if attention.residual:
        result = result + arrays[-1].reshape(result.shape)
    return as_stored(attention, result).astype(dtype_named(attention.output))


def assert_near(attention: Attention, got: np.ndarray, wanted: Expected) -> None:
    """NaN where NumPy has NaN, and everything else within the bound."""
    assert got.shape == wanted.value.shape and got.dtype == dtype_named(attention.output)
    result, value = got.astype(np.float64), wanted.value.astype(np.float64)
    finite = np.isfinite(value)
    np.testing.assert_array_equal(result[~finite], value[~finite])
    excess = np.abs(result[finite] - value[finite]) - wanted.bound[finite]
    excess[np.isnan(excess)] = np.inf
    assert not (excess > 0).any(), (
        f"{(excess > 0).sum()} of {excess.size} elements beyond the bound, by {excess.max()}, "
        f"in {attention}"
    )
