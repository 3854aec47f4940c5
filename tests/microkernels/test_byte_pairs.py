"""Which weights can be added in pairs of 16 bits, and the three forms of an integer tile."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.isa import isa_named
from microkernels.kernels.byte_pairs import byte_tile, has_pairs, pairs_fit, word_tile
from microkernels.registry import kernels_for


@pytest.mark.parametrize(
    ("pair", "fits"),
    [((64, 64), True), ((-64, 64), True), ((65, 64), False), ((-128, 0), True), ((-128, 1), False)],
)
def test_the_largest_pairs(pair: tuple[int, int], fits: bool) -> None:
    """255 times both is within 16 bits exactly for those that fit."""
    packed = np.zeros(64, np.int8)
    packed[6:8] = pair
    assert pairs_fit(packed) is fits
    assert (255 * np.abs(pair).sum() <= 32767) == fits


def test_elements_of_two_pairs_are_not_added_first() -> None:
    packed = np.array([0, 127, 127, 0], np.int8)
    assert pairs_fit(packed) and not pairs_fit(packed[[0, 3, 1, 2]])


@pytest.mark.parametrize(
    ("isa", "pairs"),
    [("scalar", False), ("avx2", True), ("avx2_vnni", False), ("avx512", True), ("amx", False)],
)
def test_only_cpus_without_vnni_have_pairs(isa: str, pairs: bool) -> None:
    kernels = [k for k in kernels_for(isa_named(isa), "uint8", "int8") if k.isa_name == isa]
    assert {has_pairs(kernel) for kernel in kernels} <= {pairs}


def test_the_forms_share_a_packed_weight() -> None:
    kernel = kernels_for(isa_named("avx512"), "uint8", "int8")[0]
    found, words = byte_tile(kernel), word_tile(kernel)
    assert (found.mr, found.nr, found.kr, found.lanes) == (kernel.mr, kernel.nr, 4, 16)
    assert (words.mr, words.nr, words.kr, words.lanes) == (kernel.mr, kernel.nr, 2, 16)
    assert len({kernel.name, found.name, words.name}) == 3
