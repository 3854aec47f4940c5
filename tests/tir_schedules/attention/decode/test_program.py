"""Attention of few queries against its definition: sizes, ISAs, layouts, masks, splits of keys.

`attention_reference` states the definition and derives the bounds. Every kernel runs twice: its
buffers end at an unmapped page, then begin after one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from microkernels.isa import isa_named
from tests.guard import guarded
from tests.tir_schedules.attention_reference import assert_near, expected
from tests.tir_schedules.attention_regions import Attention, case, of_kind, values
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    ISAS,
    compiled,
    dtype_named,
    machine_for,
)
from tir_schedules.attention.config import default_shares, reads_in_place
from tir_schedules.attention.decode.program import build_decode
from tir_schedules.attention.problem import AttentionProblem, sets_side_by_side
from tvm_hybrid.runtime.feeds import tensor_of

pytestmark = pytest.mark.turns

BEST = {"f32": ISAS[-1], "bf16": BF16_ISAS[-1], "rounded": BF16_ISAS[-1]}
BEST["int8"] = INTEGER_ISAS[-1]
SIGNED = ("int8", "int8", "int8", "int8")


@dataclass(frozen=True)
class Shares:
    """What `build_decode` reads of a configuration."""

    parallel: bool = False
    key_shares: int = 1
    threads: int = 0
    key_sets: int = 0


def check(
    attention: Attention,
    isa: str = "",
    shares: Shares = Shares(),
    arrays: Sequence[np.ndarray] | None = None,
) -> None:
    """Builds and runs one attention, and compares it with its definition."""
    region, isa = attention.region, isa or BEST[attention.kind]
    assert reads_in_place(region)
    kernel = compiled(build_decode(region, shares, isa_named(isa)), isa)
    arrays = values(attention) if arrays is None else arrays
    wanted = expected(attention, arrays)
    for at_end in (True, False):
        output = np.zeros(region.output.shape, dtype_named(region.output.dtype))
        output[...] = 85 if output.dtype.kind in "iu" else np.nan
        output = guarded(output, at_end)
        kernel(*(tensor_of(guarded(x, at_end)) for x in arrays), tensor_of(output))
        assert_near(attention, output, wanted)


def small(kind: str, **fields: Any) -> Attention:
    return of_kind(case(**{"batch": 1, "m": 1, "layout": "bhsd", **fields}), kind)


@pytest.mark.parametrize(
    ("kind", "isa"),
    [
        *itertools.product(["f32"], ISAS),
        *itertools.product(["bf16"], BF16_ISAS),
        *itertools.product(["int8"], INTEGER_ISAS),
    ],
)
def test_every_isa(kind: str, isa: str) -> None:
    check(small(kind, m=2, n=21, d=20, group=2, mask="rows"), isa)


@pytest.mark.sampled
@pytest.mark.parametrize("n", [1, 7, 127, 129, 1000])
def test_any_number_of_keys(n: int) -> None:
    for kind in ("f32", "bf16", "int8") if n in (7, 129) else ("f32",):
        check(small(kind, n=n, d=16))


@pytest.mark.sampled
@pytest.mark.parametrize(("d", "e"), [(1, 2), (16, 96), (64, 128), (256, 256), (33, 80)])
def test_any_size_of_a_head(d: int, e: int) -> None:
    kind = {1: "int8", 16: "int8", 64: "bf16", 256: "f32", 33: "rounded"}[d]
    check(small(kind, n=50, d=d, e=e))


@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
def test_many_rows_share_keys_and_values(kind: str) -> None:
    check(small(kind, m=4, heads=8, group=8, n=70, d=128, residual=True))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "types", [("uint8", "int8", "uint8", "uint8"), SIGNED, ("int8", "uint8", "int8", "int8")]
)
def test_zero_points_of_every_type(types: tuple[str, str, str, str]) -> None:
    for zeros in ((3, 4, 5, 6), (0, 0, 0, 0)) if types == SIGNED else ((128, 7, 0, 100),):
        attention = small("int8", m=2, n=37, d=24, types=types, zeros=zeros, p_scale=1 / 120)
        check(attention)


@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
def test_keys_stored_next_to_each_other(kind: str) -> None:
    layouts = ("bhds", "bhds", "bhsd", "bshd")
    check(small(kind, m=2, n=150, d=19, e=32, layouts=layouts, layout=None))


@pytest.mark.sampled
@pytest.mark.parametrize("mask", ["keys", "heads", "where", "where_not"])
def test_masks(mask: str) -> None:
    check(small("f32", m=3, heads=4, group=2, n=33, d=16, mask=mask, batch=2, layout="bshd"))


@pytest.mark.sampled
@pytest.mark.parametrize("causal", [-2, 0, 29, 60])
def test_causal(causal: int) -> None:
    """Causal masks; rows whose keys are all hidden are NaN."""
    check(small("f32", m=3, n=40, d=16, causal=causal, layout="packed"))


def test_infinite_scores_are_as_numpy_has_them() -> None:
    attention = small("f32", m=3, n=40, d=16, mask="rows")
    arrays = values(attention)
    arrays[3][..., 0, 5] = np.inf
    arrays[3][..., 1, :] = -np.inf
    check(attention, arrays=arrays)
    assert np.isnan(expected(attention, arrays).value[..., :2, :]).all()


@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
def test_keys_shared_among_threads(kind: str) -> None:
    for n, shares in ((150, 2), (144, 3)):
        attention = small(kind, m=2, n=n, d=32, mask="keys", zeros=(3, 4, 5, 6))
        check(attention, shares=Shares(parallel=True, key_shares=shares))


def test_a_share_of_which_every_key_is_hidden() -> None:
    attention = small("f32", m=2, n=96, d=16, mask="rows")
    arrays = values(attention)
    arrays[3][..., 0, 48:] = -np.inf
    arrays[3][..., 1, :48] = -np.inf
    check(attention, shares=Shares(key_shares=2), arrays=arrays)


@pytest.mark.parametrize(("kind", "shares"), [("f32", 1), ("bf16", 2), ("int8", 1)])
def test_heads_stored_side_by_side(kind: str, shares: int) -> None:
    keys = {"f32": 1030, "bf16": 2065, "int8": 4098}[kind]
    attention = small(kind, heads=4, group=2, n=keys, d=64, layout="bshd")
    assert sets_side_by_side(AttentionProblem(attention.region)) == 2
    check(attention, shares=Shares(shares > 1, shares))


@pytest.mark.sampled
@pytest.mark.parametrize("together", [1, 2, 4])
def test_some_of_the_heads_side_by_side(together: int) -> None:
    attention = small("f32", batch=1, heads=4, n=1030, d=64, layout="bshd")
    assert sets_side_by_side(AttentionProblem(attention.region)) == 4
    check(attention, shares=Shares(True, 3, key_sets=together))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["f32", "int8"])
@pytest.mark.parametrize("threads", [3, 7, 53, 112])
def test_any_number_of_threads(kind: str, threads: int) -> None:
    attention = small(kind, batch=1, heads=6, group=2, m=2, n=700, d=16)
    check(attention, shares=Shares(True, min(threads, 40), threads=threads))


def test_which_regions_fit() -> None:
    assert reads_in_place(case(m=4, n=100).region)
    assert not reads_in_place(case(m=5, n=100).region)
    assert not reads_in_place(case(m=4, heads=16, group=16, n=100).region)
    assert reads_in_place(case(m=1, layouts=("bhsd", "bhds", "bhsd", "bhsd")).region)
    assert not reads_in_place(case(m=1, layouts=("bhsd", "bhsd", "bhds", "bhsd")).region)


def test_work_is_shared_where_that_pays() -> None:
    one, two = machine_for(ISAS[-1]), machine_for(ISAS[-1], 2)
    alone = {"parallel": False, "key_shares": 1}

    def shared(shares: int) -> dict[str, int]:
        return {"parallel": True, "threads": 0, "key_shares": shares, "key_sets": 0}

    assert default_shares(small("f32", n=64, d=16).region, two) == alone
    assert default_shares(small("f32", heads=8, n=1024, d=64).region, two) == shared(1)
    assert default_shares(small("f32", heads=1, n=4096, d=64).region, two) == shared(2)
    assert default_shares(small("f32", heads=1, n=300, d=64).region, two) == alone
    assert default_shares(small("f32", n=4096, d=64).region, one) == alone
    together = small("f32", heads=8, n=4096, d=64, layout="bshd")
    assert default_shares(together.region, two) == shared(2)
