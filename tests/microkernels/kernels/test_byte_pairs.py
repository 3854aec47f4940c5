"""Which weights can be added in pairs of 16 bits, and the three forms of an integer tile."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.isa import isa_named
from microkernels.kernels.byte_pairs import (
    byte_tile,
    halves_tile,
    has_pairs,
    pairs_fit,
    split_pairs,
    word_tile,
)
from microkernels.registry import kernels_for


@pytest.mark.parametrize(
    ("pair", "fits"),
    [((64, 64), True), ((-64, 64), True), ((65, 64), False), ((-128, 0), True), ((-128, 1), False)],
)
def test_the_largest_pairs(pair: tuple[int, int], fits: bool) -> None:
    """255 times both weights fits in 16 bits exactly for pairs that count as fitting."""
    packed = np.zeros(64, np.int8)
    packed[6:8] = pair
    assert pairs_fit(packed) is fits
    assert (255 * np.abs(pair).sum() <= 32767) == fits


def test_elements_of_two_pairs_are_not_added_first() -> None:
    packed = np.array([0, 127, 127, 0], np.int8)
    assert pairs_fit(packed) and not pairs_fit(packed[[0, 3, 1, 2]])


def test_both_parts_of_a_split_weight_fit() -> None:
    """For every pair of bytes; pairs that fit are not split."""
    every = np.arange(-128, 128, dtype=np.int8)
    weight = np.stack(np.meshgrid(every, every), axis=-1)
    within, rest = split_pairs(weight)
    assert within.dtype == rest.dtype == np.int8
    np.testing.assert_array_equal(within.astype(int) + rest, weight)
    assert pairs_fit(within) and pairs_fit(rest)
    fits = np.abs(weight.astype(int)).sum(axis=-1) <= 128
    np.testing.assert_array_equal(~rest.any(axis=-1), fits)


@pytest.mark.parametrize(
    ("isa", "pairs"),
    [("scalar", False), ("avx2", True), ("avx2_vnni", False), ("avx512", True), ("amx", False)],
)
def test_only_cpus_without_vnni_have_pairs(isa: str, pairs: bool) -> None:
    kernels = [k for k in kernels_for(isa_named(isa), "uint8", "int8") if k.isa_name == isa]
    assert {has_pairs(kernel) for kernel in kernels} <= {pairs}


def test_the_forms_share_a_packed_weight() -> None:
    kernel = kernels_for(isa_named("avx512"), "uint8", "int8")[0]
    words = word_tile(kernel)
    for found in (byte_tile(kernel), halves_tile(kernel)):
        assert (found.mr, found.nr, found.kr, found.lanes) == (kernel.mr, kernel.nr, 4, 16)
        assert found.name not in (kernel.name, words.name)
    assert (words.mr, words.nr, words.kr, words.lanes) == (kernel.mr, kernel.nr, 2, 16)
    assert len({each.name for each in (kernel, byte_tile(kernel), halves_tile(kernel), words)}) == 4
