"""Symbolic sizes: which operations keep symbols, equality, and their text."""

from __future__ import annotations

import math
import pickle

import pytest

from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import (
    SAMPLE,
    SymbolicSize,
    evaluated,
    is_dynamic,
    quotient,
    size_from,
    size_text,
)

N, B = SymbolicSize.of("n"), SymbolicSize.of("b")


def test_it_is_equal_to_itself_alone() -> None:
    assert SymbolicSize.of("n") == N
    assert hash(SymbolicSize.of("n")) == hash(N)
    assert N != B
    assert int(N) == SAMPLE
    assert N != SAMPLE
    assert SAMPLE != N
    assert N not in (1, SAMPLE, B)


def test_sums_and_products_keep_symbols() -> None:
    assert B * N == N * B
    assert str(math.prod((B, N, 384))) == "384*b*n"
    assert 3 + N == N + 3
    assert int(N + 3) == SAMPLE + 3
    assert (N + 1) * (N + 1) == N * N + 2 * N + 1
    assert N * 0 == 0
    assert not isinstance(N * 0, SymbolicSize)


@pytest.mark.parametrize(
    ("size", "by", "expected"),
    [
        (N * 384, 384, N),
        (N * 384, N, 384),
        (B * N * 32, B * 8, N * 4),
        (N + N * B, N, B + 1),
        (N, 2, None),
        (N, B, None),
        (N, N + 1, None),
        (N + 1, N + 1, 1),
        ((N + 1) * (B + 2) * 6, (B + 2) * 3, (N + 1) * 2),
        ((N + 1) * (N + -1), N + -1, N + 1),
        ((N + 1) * (B + 2) + 1, B + 2, None),
        (0, N, 0),
        (N, 0, None),
        ((N + B) * 64, N + B, 64),
        ((N + B) * (N + 1) * 8, (N + 1) * 4, (N + B) * 2),
        ((N + B) * (B + 1), N + B, B + 1),
        (N * N + B * B, N + B, None),
        ((N + B) * 3, (N + B) * 2, None),
        (12, 4, 3),
        (12, 5, None),
        (12, N, None),
    ],
)
def test_quotient_is_whole_for_all_values_or_none(size: int, by: int, expected: int | None) -> None:
    assert quotient(size, by) == expected


@pytest.mark.parametrize("size", [7, N, B * N * 3, N * N + 2 * B + 5, N + -3, B + N * -1])
def test_text_is_read_again(size: int) -> None:
    assert size_from(size_text(size)) == size
    assert pickle.loads(pickle.dumps(size)) == size


def test_other_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="is no size"):
        size_from("n//2")


def test_it_is_evaluated() -> None:
    assert evaluated(B * N * 3 + 1, {"b": 2, "n": 5}) == 31
    assert evaluated(8, {}) == 8


def test_regions_carry_it() -> None:
    region = Region(
        op="attention",
        inputs=(Tensor((B, N, 64), "float32"),),
        output=Tensor((B, N, 64), "float32"),
        attrs={"batch": (B, 2), "q_strides": (N * 64, 32, 64, 1)},
    )
    again = Region.from_json(region.to_json())
    assert again == region
    assert again.key == region.key
    assert "float32[bxnx64]" in region.key
    assert region.is_dynamic
    static = region.sampled()
    assert not static.is_dynamic
    assert static.inputs[0].shape == (SAMPLE, SAMPLE, 64)
    assert region.with_sizes({"b": 3, "n": 5}).inputs[0].shape == (3, 5, 64)
    assert not is_dynamic(static.numbers("q_strides"))
