"""Attention under every form of mask, and where scores are infinite, huge or not a number."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.tir_schedules.attention_checks import best, check, kernel_of, result_of
from tests.tir_schedules.attention_reference import UNIT, assert_near, expected, logical
from tests.tir_schedules.attention_regions import Attention, case, of_kind, values
from tests.tir_schedules.run_region import ISAS, machine_for
from tir_schedules.attention.tiled.scores import affine
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import BFLOAT16

MASKS = ("keys", "rows", "square", "heads", "where", "where_not")
LOWEST = float(np.finfo(np.float32).min)
KINDS = ("f32", "bf16", "rounded")


@pytest.mark.sampled
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    """Lengths with and without a tail; masks are added to scaled and to divided scores."""
    number = MASKS.index(mask)
    base = case(batch=2, heads=2, m=11, mask=mask, divided=number % 2 == 0)
    base = replace(base, n=(48, 37)[number % 2], d=(17, 32)[number % 2])
    for absent in (-np.inf,) if base.conditional else (-np.inf, LOWEST, -1e9, -1e4):
        attention = replace(base, absent=absent)
        check(attention, at_end=absent == -np.inf)
    if number % 2:
        check(of_kind(replace(base, n=64, absent=LOWEST), KINDS[1 + (number == 1)]), at_end=False)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("m", "n", "causal"),
    [(40, 40, 0), (7, 100, 93), (1, 90, 89), (90, 33, 0), (130, 130, 0), (9, 9, 50)],
)
def test_causal(m: int, n: int, causal: int) -> None:
    """Keys that no query of a block sees are skipped; the diagonal may lie anywhere."""
    attention = case(batch=1, m=m, n=n, d=32, causal=causal)
    for kind in ("f32", "bf16") if m in (7, 130) else ("f32",):
        check(of_kind(attention, kind), at_end=m % 2 == 0)


@pytest.mark.parametrize(("m", "n", "causal"), [(50, 33, -17), (5, 3, -5)])
def test_queries_that_see_no_key(m: int, n: int, causal: int) -> None:
    """The softmax of scores that are all -inf is NaN; other rows are unaffected."""
    attention = case(batch=1, m=m, n=n, d=16, causal=causal)
    result, _ = check(attention)
    blind = np.isnan(logical(attention, "out", result)).all(axis=(0, 1, 3))
    np.testing.assert_array_equal(blind, np.arange(m) < -causal)


def test_a_negative_scale() -> None:
    """The scale is applied before the maximum: the largest product is not the largest score."""
    for causal in (0, None):
        attention = case(batch=1, m=64, n=64, d=16, scale=-0.25, causal=causal)
        assert affine(attention.region.parts[0]) is None
        check(attention)


@pytest.mark.parametrize("mask", ["heads", "where"])
def test_causal_with_another_mask(mask: str) -> None:
    check(case(batch=2, m=21, n=40, d=16, mask=mask, causal=19))


def masked_fully(attention: Attention, value: float) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs whose mask hides all keys from every second row, and the numbers of these rows."""
    arrays = values(attention)
    rows = np.arange(attention.m) % 2 == 0
    arrays[3][..., rows, :] = value
    return arrays, rows


@pytest.mark.parametrize("isa", ISAS)
def test_rows_without_any_key_are_nan(isa: str) -> None:
    attention = case(batch=2, m=9, n=37, d=16, mask="rows")
    arrays, rows = masked_fully(attention, -np.inf)
    result, _ = check(attention, isa, arrays)
    undefined = np.isnan(logical(attention, "out", result)).all(axis=(0, 1, 3))
    np.testing.assert_array_equal(undefined, rows)


def test_rows_whose_first_block_of_keys_is_hidden() -> None:
    """The running maximum is -inf: the number subtracted from it must be finite."""
    attention = case(batch=1, m=9, n=80, d=16, mask="rows")
    arrays, rows = masked_fully(attention, 0.0)
    arrays[3][..., rows, :32] = -np.inf
    default = template_for(attention.region.op).default_config(
        attention.region, machine_for("avx2")
    )
    config = msgspec.structs.replace(default, key_block=32, query_block=16, skinny=False)
    result, _ = check(attention, "avx2", arrays, config=config)
    assert np.isfinite(result).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_any_key_whatever_the_type(kind: str) -> None:
    """-inf gives NaN; finfo.min absorbs every f32 score, so the probabilities are equal."""
    attention = of_kind(case(batch=2, m=8, n=37, d=16, mask="rows"), kind)
    arrays, _ = masked_fully(attention, -np.inf)
    check(attention, arrays=arrays)
    for isa in (best(kind), "avx2") if kind == "f32" else (best(kind),):
        for lowest in (LOWEST, -1e30):
            arrays, rows = masked_fully(attention, lowest)
            result, _ = check(attention, isa, arrays)
            v = logical(attention, "v", arrays[2]).astype(np.float64)
            mean = np.broadcast_to(v.mean(axis=2, keepdims=True), (2, 2, 8, 16))
            got = logical(attention, "out", result).astype(np.float64)
            # N + 8 roundings of terms |v| / N each; bfloat16 rounds v, probabilities, results.
            error = 45 * UNIT if kind == "f32" else 3.1 * 2.0**-8
            bound = error * np.abs(v).mean(axis=2, keepdims=True) + 0 * mean
            assert (np.abs(got - mean)[:, :, rows] <= bound[:, :, rows]).all()


def test_conditions_that_hide_everything() -> None:
    """NaN if the hidden score is -inf, the mean of the values if it is finite."""
    for absent in (-np.inf, LOWEST):
        attention = case(batch=1, m=6, n=20, d=16, mask="where", absent=absent)
        arrays, rows = masked_fully(attention, True)
        result, _ = check(attention, arrays=arrays)
        hidden = logical(attention, "out", result)[:, :, rows]
        assert np.isnan(hidden).all() == np.isinf(absent)
        if np.isfinite(absent):
            v = logical(attention, "v", arrays[2]).astype(np.float64)
            np.testing.assert_allclose(
                hidden, v.mean(axis=2, keepdims=True) + 0 * hidden, 1e-5, 1e-6
            )


@pytest.mark.parametrize(("kind", "n"), [("f32", 37), ("bf16", 64)])
def test_infinities_and_nan(kind: str, n: int) -> None:
    """One at a time in q, k, v and the mask: NaN exactly where NumPy has NaN."""
    attention = of_kind(case(batch=1, heads=2, m=6, n=n, d=16, mask="rows"), kind)
    kernel = kernel_of(attention, best(kind))
    for number, place in [
        (0, (0, 2, 5)),
        (1, (0, n - 1, 20)),
        (2, (0, 0, 3)),
        (3, (0, 0, 3, n // 2)),
    ]:
        for value in (np.inf, -np.inf, np.nan):
            arrays = values(attention)
            arrays[number][place] = value
            result = result_of(attention, kernel, arrays, at_end=False)
            assert_near(attention, result, expected(attention, arrays))


@pytest.mark.parametrize("kind", KINDS[:2])
def test_large_scores(kind: str) -> None:
    """Scores of some 1e4; of 1e36 one key takes all, unless the next is within rounding."""
    attention = of_kind(case(batch=1, m=12, n=45, d=16), kind)
    check(attention, arrays=values(attention, spread=1e4))
    arrays = values(attention, spread=1e36)
    result = result_of(attention, kernel_of(attention, best(kind)), arrays, at_end=True)
    q, k, v = (logical(attention, name, x) for name, x in zip("qkv", arrays, strict=True))
    q, k = ((x if kind == "f32" else x.astype(BFLOAT16)).astype(np.float64) for x in (q, k))
    scores, sizes = q @ k.swapaxes(-1, -2) / 4, np.abs(q) @ np.abs(k).swapaxes(-1, -2) / 4
    second, first = np.moveaxis(np.sort(scores)[..., -2:], -1, 0)
    clear = first - second > 2 * (16 + 4) * UNIT * sizes.max(axis=-1) + 110
    assert clear.mean() > 0.8
    winners = np.take_along_axis(v, scores.argmax(axis=-1)[..., None], axis=2).astype(np.float32)
    got = logical(attention, "out", result).astype(np.float32)
    # bfloat16 rounds the probability and the result.
    error = 4 * UNIT if kind == "f32" else 2.1 * 2.0**-8
    assert (np.abs(got - winners) <= error * np.abs(winners))[clear].all()


def test_integers_under_masks() -> None:
    """A row that finfo.min hides has equal probabilities, also as integers."""
    attention = of_kind(case(batch=1, m=8, n=40, d=16, mask="rows", absent=LOWEST), "int8")
    arrays, rows = masked_fully(attention, LOWEST)
    result, wanted = check(attention, arrays=arrays)
    assert (wanted.bound[:, rows] == 0).all()  # 255 / 40 is no tie
    assert (result == wanted.value).mean() >= 0.97
    check(of_kind(case(batch=1, m=20, n=33, d=16, causal=13), "int8"))
    check(of_kind(case(batch=2, m=5, n=70, d=32, mask="where", absent=-1e4), "int8"))
