"""Estimates hold against measurements of other people's kernels on eight CPUs, and of our own."""

from __future__ import annotations

import pytest

from microkernels.machines.description import describe
from tools.machine_fit import Fit, fitted_numbers, product_fits, tile_fits, vector_fits

VECTORS, TILES, PRODUCTS = [*vector_fits()], [*tile_fits()], [*product_fits()]


def name_of(fit: Fit) -> str:
    return f"{fit.machine} {fit.types}"


def test_every_cpu_was_measured() -> None:
    names = {fit.machine for fit in VECTORS if fit.types == "float32"}
    assert names == {
        *("haswell", "broadwell", "cascadelake", "sapphirerapids", "graniterapids"),
        *("znver2", "znver3", "znver4"),
    }
    assert {fit.machine for fit in TILES} == {"sapphirerapids", "graniterapids"}


@pytest.mark.parametrize("fit", VECTORS, ids=name_of)
def test_an_estimate_is_right_at_the_clock_of_one_core(fit: Fit) -> None:
    """One core alone runs faster than all of them, by a third at most."""
    assert 0.98 * fit.stated <= fit.clock <= 1.35 * fit.stated
    assert fit.error < 0.23


@pytest.mark.parametrize("fit", PRODUCTS, ids=name_of)
def test_products_on_tiles_are_predicted_a_third_too_fast_at_most(fit: Fit) -> None:
    assert 0.7 * fit.stated <= fit.clock <= fit.stated
    assert fit.error < 0.4


@pytest.mark.parametrize("fit", TILES, ids=name_of)
def test_tiles_take_their_cycles(fit: Fit) -> None:
    assert 0.98 * fit.stated <= fit.clock <= 1.35 * fit.stated
    assert fit.error < 0.23


def test_descriptions_state_what_was_fitted() -> None:
    found = [*fitted_numbers()]
    assert {name for name, _, _ in found} == {"sapphirerapids", "znver4"}
    for name, number, fitted in found:
        stated = describe(name).numbers[number]
        assert (stated.value, stated.kind, stated.source) == (fitted.value, "fitted", fitted.source)
        assert stated.error == pytest.approx(fitted.error, abs=0.001)
