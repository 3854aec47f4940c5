"""Attention of 8-bit integers equals the quantised model, except at ties of probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tir_schedules.attention_checks import ISAS_OF, check
from tests.tir_schedules.attention_regions import Attention, case, of_kind, values

pytestmark = pytest.mark.turns

SHARE = 0.99  # smallest share of results that equal those of the single operators

# Types of q, k, probabilities and v, with zero points at the ends and between; pairwise.
TYPES = [
    (("uint8", "uint8", "uint8", "uint8"), (128, 121, 0, 131)),
    (("int8", "int8", "int8", "int8"), (0, 0, -128, 0)),
    (("uint8", "int8", "uint8", "int8"), (0, 0, 0, 0)),
    (("int8", "uint8", "int8", "uint8"), (127, 0, -128, 255)),
    (("uint8", "int8", "int8", "uint8"), (255, -128, 0, 0)),
    (("int8", "uint8", "uint8", "uint8"), (-128, 255, 3, 128)),
]
SIZES = [
    (1, 1, 16),
    (7, 7, 17),
    (127, 127, 20),
    (40, 1000, 64),
    (129, 33, 96),
    (13, 129, 128),
    (20, 40, 256),
]


def check_integers(attention: Attention, isa: str | None = None, **options: Any) -> None:
    """Results are within the bound, and enough of them are equal over enough inputs."""
    rows = attention.batch * attention.heads * attention.m
    equal = []
    for seed in range(min(30, max(1, 400 // rows))):
        result, wanted = check(attention, isa, arrays=values(attention, seed), **options)
        equal.append(np.mean(result == wanted.value))
    assert np.mean(equal) >= SHARE, f"only {np.mean(equal):.1%} of the results are equal"


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(TYPES)), ids=["-".join(x[0]) for x in TYPES])
def test_types_and_zero_points(number: int) -> None:
    types, zeros = TYPES[number]
    attention = of_kind(case(types=types, zeros=zeros, m=13, n=40, d=24), "int8")
    scale = 1 / 127 if types[2] == "int8" and zeros[2] == 0 else 1 / 255
    attention = replace(attention, p_scale=scale, output=("uint8", "int8")[number % 2], out_zero=5)
    check_integers(attention, at_end=number % 2 == 0)


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(SIZES)), ids=map(str, SIZES))
def test_lengths_and_head_sizes(number: int) -> None:
    m, n, d = SIZES[number]
    attention = of_kind(case(batch=1, m=m, n=n, d=d, mask=("", "keys")[number % 2]), "int8")
    check_integers(attention, at_end=True)
    check(attention, at_end=False)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("output", "p_scale"),
    [("float32", 0.0029), ("bfloat16", 1 / 255), ("uint8", 1 / 2000), ("int8", 1 / 255)],
)
def test_outputs(output: str, p_scale: float) -> None:
    """Coarse and odd output scales, and one at which the largest probabilities saturate."""
    base = of_kind(case(m=9, n=33, d=32, p_scale=p_scale), "int8")
    check_integers(replace(base, output=output, out_zero=-2 if output == "int8" else 140))


@pytest.mark.parametrize("score_scale", [0.04, 0.31])
def test_scores_that_are_integers_in_between(score_scale: float) -> None:
    """Quantisers write it so: scores are quantised and dequantised, then masked."""
    base = case(m=9, n=50, d=32, mask="keys", absent=-1e4, score_scale=score_scale)
    more = score_scale > 0.1
    check_integers(of_kind(replace(base, divided=more, residual=more), "int8"))


def test_layouts_and_groups() -> None:
    check_integers(of_kind(case(heads=4, group=2, m=19, n=19, d=32, layout="packed"), "int8"))
    transposed = ("bshd", "bhds", "bhds", "bhsd")
    check_integers(of_kind(case(m=17, n=35, d=18, layouts=transposed), "int8"), at_end=False)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS_OF["int8"])
def test_every_isa(isa: str) -> None:
    types, zeros, n = [
        (("uint8", "int8", "uint8", "int8"), (3, -7, 0, 9), 37),
        (("int8", "uint8", "int8", "uint8"), (-4, 130, -128, 120), 64),
    ][ISAS_OF["int8"].index(isa) % 2]
    attention = case(batch=1, m=13, n=n, d=20, types=types, zeros=zeros)
    check_integers(of_kind(attention, "int8"), isa, at_end=n == 37)


@pytest.mark.parametrize("n", [17, 300])
def test_decoding(n: int) -> None:
    check_integers(of_kind(case(batch=2, heads=4, group=2, m=1, n=n, d=64), "int8"))


def test_threads_give_the_same_bits() -> None:
    attention = of_kind(case(batch=1, heads=3, m=90, n=140, d=64), "int8")
    arrays = values(attention)
    alone, shared = (check(attention, arrays=arrays, threads=threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(alone, shared)
