"""Winograd's matrices compute a convolution, exactly in f32; how errors grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tir_schedules.winograd_regions import error_bound, magnitudes
from tir_schedules.convolution.winograd.algorithm import (
    SQUARE,
    WORST_GROWTH,
    Algorithm,
    expected_error,
    matrices,
)

A_T, G, B_T = matrices(3)
G_INVERSE = SQUARE.g_inverse
# Root mean square of the errors that errors of the products cause, over all results of a tile.
GROWTH = float((A_T**2 @ np.diag((G**2).sum(1) * (B_T**2).sum(1))).sum(1).mean() / SQUARE.taps)

SQUARES = Algorithm((SQUARE, SQUARE), "float64", "float64")


def correlated(d: np.ndarray, g: np.ndarray) -> np.ndarray:
    """4x4 results of 6x6 and 3x3 numbers by definition."""
    return np.array([[(d[i : i + 3, j : j + 3] * g).sum() for j in range(4)] for i in range(4)])


@given(st.integers(0, 2**32 - 1))
def test_the_transforms_compute_a_convolution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, g = rng.standard_normal((6, 6)), rng.standard_normal((3, 3))
    found = A_T @ ((G @ g @ G.T) * (B_T @ d @ B_T.T)) @ A_T.T
    # 36 products in float64, whose errors grow by at most |A| |G| |B| |..| < 5000.
    np.testing.assert_allclose(found, correlated(d, g), rtol=0, atol=5000 * 64 * 2.0**-53)


def test_what_is_applied_at_run_time_is_exact_in_f32() -> None:
    for matrix in (A_T, B_T):
        np.testing.assert_array_equal(matrix, matrix.astype(np.float32).astype(np.float64))


def test_the_weight_is_transformed_channel_by_channel_and_back() -> None:
    weight = np.random.default_rng(0).standard_normal((3, 3, 2, 5)).astype(np.float32)
    found = SQUARES.transformed_weight(weight, 10).reshape(6, 6, 2, 5)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found[:, :, 1, 3], G @ weight[:, :, 1, 3] @ G.T, rtol=1e-12)
    back = np.einsum("ij,jkco,lk->ilco", G_INVERSE, found, G_INVERSE)
    np.testing.assert_allclose(back, weight, rtol=0, atol=1e-12)


def growth(a: np.ndarray, g: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Measured on random data: the mean and worst result of relative errors of the 36 products."""
    rng = np.random.default_rng(1)
    d, w = rng.standard_normal((20000, 6, 6)), rng.standard_normal((20000, 3, 3))
    products = (g @ w @ g.T) * (b @ d @ b.T)
    errors = a @ (products * rng.standard_normal(products.shape)) @ a.T
    squares = (errors**2).mean(0)
    return float(np.sqrt(squares.mean()) / 3), float(np.sqrt(squares.max()) / 3)


def test_errors_grow_as_stated_and_less_than_with_the_usual_points() -> None:
    mean, worst = growth(A_T, G, B_T)
    # Root mean squares of 20000 products with outliers: within a few percent.
    assert mean == pytest.approx(GROWTH, rel=0.1) and worst == pytest.approx(WORST_GROWTH, rel=0.1)
    usual_a = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0]])
    usual_a = np.vstack([usual_a, [0, 1, -1, 8, -8, 1]])
    third = [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]
    usual_b = [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0]]
    usual_b += [[0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]]
    usual = growth(usual_a, np.array(third) / 24, np.array(usual_b))
    assert usual[0] > 2 * mean and usual[1] > 3 * worst


def test_the_bound_holds_in_f32_and_the_estimate_grows_with_channels() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 6, 6, 8)).astype(np.float32)
    weight = rng.standard_normal((3, 3, 8, 4)).astype(np.float32)
    a, b = A_T.astype(np.float32), B_T.astype(np.float32)
    v = np.einsum("ij,tjkc,lk->tilc", b, x, b)
    u = SQUARES.transformed_weight(weight, 32).reshape(6, 6, 8, 4).astype(np.float32)
    found = np.einsum("pi,tilo,ql->tpqo", a, np.einsum("tilc,ilco->tilo", v, u), a)
    wide = x.astype(np.float64)
    exact = np.stack(
        [
            sum(correlated_all(tile, weight.astype(np.float64), channel) for channel in range(8))
            for tile in wide
        ]
    )
    bound = error_bound(8, magnitudes(x, weight))
    assert (np.abs(found - exact) <= bound).all() and (bound < 1e-2).all()
    assert expected_error(16) < 1e-5 < expected_error(64) < expected_error(1024) < 5e-5


def correlated_all(tile: np.ndarray, weight: np.ndarray, channel: int) -> np.ndarray:
    """One channel's part of the results of a tile, [4, 4, OC]."""
    kernels = range(weight.shape[-1])
    parts = [correlated(tile[:, :, channel], weight[:, :, channel, oc]) for oc in kernels]
    return np.stack(parts, axis=-1)
