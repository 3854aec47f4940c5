"""Computes the coefficients of `vector_math`: minimax fits, rounded to float32.

`python -m tools.vector_math.fit` prints every table with its largest error. The fits are
Lawson's (iteratively reweighted least squares; C. L. Lawson, "Contributions to the theory of
linear least maximum approximation", 1961), linearised for rationals by the last denominator
(Barrodale and Mason, "Two simple algorithms for discrete rational approximation", 1970).
Coefficients are rounded one at a time, lowest first, and all later ones are fitted again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_POINTS = 600
_ROUNDS = 150
# Errors are given in units of half an ulp of a float32 near 1.
UNIT = 2.0**-24


@dataclass(frozen=True)
class Fit:
    """The coefficients of a function."""

    coefficients: dict[str, tuple[float, ...]]  # polynomials of float32, lowest power first
    error: float  # largest weighted error, of rounded coefficients in exact arithmetic, in UNIT


def _nodes(low: float, high: float, count: int = _POINTS) -> Array:
    """Chebyshev nodes: dense at the ends, where minimax errors peak."""
    return low + (high - low) * (1 - np.cos(np.pi * (np.arange(count) + 0.5) / count)) / 2


def _powers(x: Array, degrees: Sequence[int]) -> Array:
    return np.stack([x**degree for degree in degrees], axis=1)


def _solve(matrix: Array, target: Array) -> Array:
    scale = np.abs(matrix).max(axis=0)
    return np.asarray(np.linalg.lstsq(matrix / scale, target, rcond=None)[0] / scale)


def _update(weights: Array, error: Array, power: float) -> Array:
    weights = weights * (error / error.max()) ** power
    return np.asarray(np.maximum(weights / weights.sum(), 1e-25))


def _minimax(matrix: Array, target: Array, weight: Array) -> Array:
    """The coefficients that minimise max |matrix @ c - target| * weight."""
    weights: Array = np.ones(len(target))
    best: Array = np.zeros(matrix.shape[1])
    best_error = math.inf
    for _ in range(_ROUNDS):
        scale = np.sqrt(weights) * weight
        found = _solve(matrix * scale[:, None], target * scale)
        error = np.abs(matrix @ found - target) * weight
        if error.max() < best_error:
            best, best_error = found, float(error.max())
        if best_error < 1e-13:
            break
        weights = _update(weights, error, 1.0)
    return best


def fit_polynomial(x: Array, target: Array, weight: Array, degrees: Sequence[int]) -> list[float]:
    """Minimax polynomial with the given powers (lowest first) and float32 coefficients.

    `x` has sample points, `target` the values there, `weight` the weights of errors there.
    """
    rounded: list[float] = []
    for position, degree in enumerate(degrees):
        found = _minimax(_powers(x, degrees[position:]), target, weight)
        rounded.append(float(np.float32(found[0])))
        target = target - rounded[-1] * x**degree
    return rounded


def fit_rational(
    u: Array, target: Array, weight: Array, degrees: tuple[int, int], fixed: float | None = None
) -> tuple[list[float], list[float]]:
    """Minimax quotient P(u) / Q(u) with float32 coefficients and Q(0) = 1.

    `u` has sample points, `target` the values there, `weight` the weights of errors there.
    `degrees` are those of P and Q; `fixed` is P(0) if that must be exact.
    """
    low = 0 if fixed is None else 1
    upper, lower = range(low, degrees[0] + 1), range(1, degrees[1] + 1)
    constant = 0.0 if fixed is None else fixed
    denominator: Array = np.ones(len(u))
    weights: Array = np.ones(len(u))
    best: Array = np.zeros(len(lower))
    best_error = math.inf
    matrix = np.concatenate([_powers(u, upper), -target[:, None] * _powers(u, lower)], axis=1)
    for turn in range(2 * _ROUNDS):
        scale = np.sqrt(weights) * weight / denominator
        found = _solve(matrix * scale[:, None], (target - constant) * scale)
        denominator = 1 + _powers(u, lower) @ found[len(upper) :]
        value = (constant + _powers(u, upper) @ found[: len(upper)]) / denominator
        error = np.abs(value - target) * weight
        if error.max() < best_error:
            best, best_error = found[len(upper) :], float(error.max())
        if turn > 5:  # the first turns only settle the denominator
            weights = _update(weights, error, 0.7)
    q = [1.0] + [float(np.float32(value)) for value in best]
    denominator = polynomial(q, u)
    p = fit_polynomial(u, target * denominator - constant, weight / denominator, upper)
    return ([] if fixed is None else [fixed]) + p, q


def polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Value of a polynomial, lowest power first, in float64."""
    return np.asarray(np.polynomial.polynomial.polyval(x, np.asarray(coefficients)))


def _each(function: Callable[[float], float], x: Array) -> Array:
    return np.array([function(float(value)) for value in x])


def _exp() -> Fit:
    end = math.log(2) / 2 + 1e-5
    x = _nodes(-end, end)
    found = [1.0, 1.0, *fit_polynomial(x, np.exp(x) - 1 - x, np.exp(-x), range(2, 7))]
    error = np.abs(polynomial(found, x) * np.exp(-x) - 1)
    return Fit({"EXP": tuple(found)}, float(error.max() / UNIT))


def _exp2() -> Fit:
    x = _nodes(-0.5, 0.5)
    found = [1.0, *fit_polynomial(x, np.exp2(x) - 1, np.exp2(-x), range(1, 6))]
    error = np.abs(polynomial(found, x) * np.exp2(-x) - 1)
    return Fit({"EXP2": tuple(found)}, float(error.max() / UNIT))


def _log() -> Fit:
    x = _nodes(math.sqrt(0.5) - 1, math.sqrt(2) - 1)
    weight = 1 / np.abs(np.log1p(x))
    found = [0.0, 1.0, -0.5, *fit_polynomial(x, np.log1p(x) - x + x * x / 2, weight, range(3, 11))]
    error = np.abs(polynomial(found, x) - np.log1p(x)) * weight
    return Fit({"LOG": tuple(found)}, float(error.max() / UNIT))


def _log1p() -> Fit:
    x = _nodes(0, 1)
    found = [0.0, 1.0, *fit_polynomial(x, np.log1p(x) - x, 1 / np.log1p(x), range(2, 11))]
    error = np.abs(polynomial(found, x) / np.log1p(x) - 1)
    return Fit({"LOG1P": tuple(found)}, float(error.max() / UNIT))


def _tanh() -> Fit:
    x = _nodes(0, 9.02)
    target = np.tanh(x) / x
    p, q = fit_rational(x * x, target, 1 / target, (4, 4), fixed=1.0)
    error = np.abs(polynomial(p, x * x) / polynomial(q, x * x) / target - 1)
    return Fit({"TANH_P": tuple(p), "TANH_Q": tuple(q)}, float(error.max() / UNIT))


def _erf() -> Fit:
    x = _nodes(0, 4)
    target = _each(math.erf, x) / x
    p, q = fit_rational(x * x, target, 1 / target, (5, 5))
    error = np.abs(polynomial(p, x * x) / polynomial(q, x * x) / target - 1)
    return Fit({"ERF_P": tuple(p), "ERF_Q": tuple(q)}, float(error.max() / UNIT))


def _odd(name: str, function: Callable[[Array], Array], end: float, count: int) -> Fit:
    """x + x^3 P(x^2) on [-end, end], where P has `count` coefficients."""
    x = _nodes(0, end)
    square, target = x * x, function(x)
    found = fit_polynomial(square, (target - x) / (x * square), x * square / target, range(count))
    error = np.abs((x + x * square * polynomial(found, square)) / target - 1)
    return Fit({name: tuple(found)}, float(error.max() / UNIT))


def _cos() -> Fit:
    x = _nodes(0, 0.8)
    square = x * x
    weight = square**2 / np.cos(x)
    target = (np.cos(x) - 1 + square / 2) / square**2
    found = fit_polynomial(square, target, weight, range(3))
    error = np.abs(polynomial(found, square) - target) * weight
    return Fit({"COS": tuple(found)}, float(error.max() / UNIT))


def _normal_tail() -> Fit:
    # An error of log2 is a relative error of the tail. It may grow as the logarithm's own rounding
    # error does, and faster from x = 5 on, where the tail is negligible in any sum.
    x = _nodes(0, 13)
    target = _each(lambda t: math.log2(math.erfc(t / math.sqrt(2)) / 2), x)
    weight = math.log(2) / (1 + x**3 / 3 + (x / 5) ** 16)
    found = fit_polynomial(x, target, weight, range(13))
    error = np.abs(polynomial(found, x) - target) * weight
    return Fit({"NORMAL_TAIL": tuple(found)}, float(error.max() / UNIT))


FITS: dict[str, Callable[[], Fit]] = {
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "log1p": _log1p,
    "tanh": _tanh,
    "erf": _erf,
    "normal_tail": _normal_tail,
    "sin": lambda: _odd("SIN", np.sin, 0.8, 3),
    "cos": _cos,
    "tan": lambda: _odd("TAN", np.tan, 0.8, 6),
    "asin": lambda: _odd("ASIN", np.arcsin, 0.5, 5),
    "atan": lambda: _odd("ATAN", np.arctan, 1.0, 8),
    "sinh": lambda: _odd("SINH", np.sinh, 1.0, 3),
}


def main() -> None:
    """Prints every table."""
    for name, fit in FITS.items():
        result = fit()
        print(f"# {name}: largest error {result.error:.2f} * 2**-24")
        for table, values in result.coefficients.items():
            digits = ", ".join(np.format_float_scientific(np.float32(v)) for v in values)
            print(f"{table} = ({digits})")


if __name__ == "__main__":
    main()
