"""Estimates agree with measurements of other projects' kernels on eight CPUs, and of ours."""

from __future__ import annotations

import pytest

from microkernels.machines.description import describe
from tools.machine_fit import Fit, TileFit, fitted_numbers, product_fits, tile_fits, vector_fits

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
    """One core alone has a higher clock than all cores together, by a third at most."""
    assert 0.98 * fit.stated <= fit.clock <= 1.35 * fit.stated
    assert fit.error < 0.23


@pytest.mark.parametrize("fit", PRODUCTS, ids=name_of)
def test_whole_products_are_predicted_within_a_fifth(fit: Fit) -> None:
    """Whole products, which the factor is not fitted to, take 1.17 times as long as estimated."""
    assert fit.rows >= 20 and fit.error <= 0.2
    assert 1.1 <= fit.stated / fit.clock <= 1.2


@pytest.mark.parametrize("fit", TILES, ids=lambda fit: fit.machine)
def test_calls_on_tiles_are_predicted_within_a_fifth(fit: TileFit) -> None:
    """Held-out public measurements of Golden Cove and Redwood Cove are predicted."""
    assert fit.rows >= 30 and fit.error <= 0.2
    assert 50 < fit.call_ns < 100 and 10 < fit.block_ns < 40
    assert 2600 < fit.clock < 3800


def test_descriptions_state_what_was_fitted() -> None:
    found = [*fitted_numbers()]
    assert {name for name, _, _ in found} == {"sapphirerapids", "graniterapids", "znver4"}
    for name, number, fitted in found:
        stated = describe(name).numbers[number]
        assert (stated.value, stated.kind, stated.source) == (fitted.value, "fitted", fitted.source)
        assert stated.error == pytest.approx(fitted.error, abs=0.001)
