"""The transforms of Winograd's F(m, r) along one axis, for kernels of r taps in a line.

A tile of m results needs m + r - 1 products instead of m * r (Lavin and Gray, arXiv 1509.09308,
section 4.1):

    Y = A^T [ (G g) * (B^T d) ]        d: m + r - 1 positions of x, g: the taps

    taps               2        3        4        5        6        7
    tile             F(5, 2)  F(4, 3)  F(3, 4)  F(4, 5)  F(3, 6)  F(2, 7)
    products saved    1.67     2        2        2.5      2.25     1.75

Few taps have tiles of six positions, with the points of transforms.py; more taps have tiles of
eight positions, with 0, infinity, +-1/2, +-1 and +-2. The points were searched among multiples of
1/8 for the least growth of rounding errors of the worst result: 2.8 with three taps, 5.5 with five,
less than the 7.8 of the tiles of transforms.py. All entries of A and B are exact in f32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from microkernels.vector.expressions import Expr, bind

from .transforms import FAR, NEAR, c

Transform = Callable[[Sequence[Expr]], list[Expr]]

REACHES = {2: 6, 3: 6, 4: 6, 5: 8, 6: 8, 7: 8}
"""Positions of x that a tile needs, by the number of taps."""
PAIRS = {6: (NEAR, FAR), 8: (0.5, 1.0, 2.0)}
"""The points are 0, infinity, and these with both signs."""


@dataclass(frozen=True, eq=False)
class TransformAxis:
    """How tiles are transformed along one axis.

    Attributes
    ----------
    tile, taps : int
        Results of a tile, and of the kernel.
    input_transform, output_transform : callable
        Of `reach` vectors.
    g, g_inverse : ndarray
        What transforms the weight, and what undoes it.
    growth : float
        What relative rounding errors of the products become, in the worst result of a tile.
    """

    tile: int
    taps: int
    input_transform: Transform
    output_transform: Transform
    g: np.ndarray
    g_inverse: np.ndarray
    growth: float = 1.0

    @property
    def reach(self) -> int:
        """Positions of x that a tile needs."""
        return self.tile + self.taps - 1


def matrices(taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A^T, G, B^T) of Toom and Cook's interpolation for a line of taps, in float64."""
    reach = REACHES[taps]
    tile = reach - taps + 1
    points = [0.0, *(sign * point for point in PAIRS[reach] for sign in (1, -1))]
    a, g, b = np.zeros((tile, reach)), np.zeros((reach, taps)), np.zeros((reach, reach))
    for number, point in enumerate(points):
        others = [other for other in points if other != point]
        a[:, number] = point ** np.arange(tile)
        g[number] = point ** np.arange(taps) / np.prod([point - other for other in others])
        b[number, :-1] = np.poly(others)[::-1]
    a[-1, -1] = g[-1, -1] = 1.0  # infinity
    b[-1] = np.poly(points)[::-1]
    return a, g, b


def _input_transform(pairs: Sequence[float], d: Sequence[Expr]) -> list[Expr]:
    """B^T d for points of both signs: even and odd powers apart, for each pair of points.

    The polynomial of a point p of a pair is x (x + p) Q(x^2), where Q has the other pairs as roots:
    even powers x^2 Q and odd powers p x Q. Those of 0 and of infinity have all pairs as roots.
    """

    def powers(squares: Sequence[float], first: int) -> Expr:
        """The polynomial with these squares as roots of its square, from x^first on."""
        factors = np.poly([square**2 for square in squares])[::-1]
        terms = [
            d[first + 2 * power] if factor == 1 else c(float(factor), d[first + 2 * power])
            for power, factor in enumerate(factors)
        ]
        return bind(functools.reduce(lambda total, term: total + term, terms[:-1], terms[-1]))

    found = [powers(pairs, 0)]
    for point in pairs:
        others = [other for other in pairs if other != point]
        even, odd = powers(others, 2), powers(others, 1)
        odd = odd if point == 1 else bind(c(point, odd))
        found += [even + odd, even - odd]
    return [bind(value) for value in [*found, powers(pairs, 1)]]


def _output_transform(pairs: Sequence[float], tile: int, m: Sequence[Expr]) -> list[Expr]:
    """A^T m for points of both signs: sums for even powers of the points, differences for odd."""
    firsts = range(1, len(m) - 1, 2)
    of_pairs = [(bind(m[at] + m[at + 1]), bind(m[at] - m[at + 1])) for at in firsts]
    found = []
    for power in range(tile):
        terms = [
            halves[power % 2] if point**power == 1 else c(point**power, halves[power % 2])
            for point, halves in zip(pairs, of_pairs, strict=True)
        ]
        terms += [m[0]] if power == 0 else []
        terms += [m[-1]] if power == tile - 1 else []
        found.append(bind(functools.reduce(lambda total, term: total + term, terms)))
    return found


def growth_of(a: np.ndarray, g: np.ndarray, b: np.ndarray) -> float:
    """Root mean square error of the worst result, for independent errors of the products."""
    squares = a**2 @ np.diag((g**2).sum(1) * (b**2).sum(1))
    return float(np.sqrt(squares.sum(1).max() / g.shape[1]))


@functools.cache
def line_axis(taps: int) -> TransformAxis:
    """The axis of a line of 2 to 7 taps."""
    a, g, b = matrices(taps)
    pairs, tile = PAIRS[REACHES[taps]], a.shape[0]
    return TransformAxis(
        tile,
        taps,
        functools.partial(_input_transform, pairs),
        functools.partial(_output_transform, pairs, tile),
        g,
        np.linalg.pinv(g),
        growth_of(a, g, b),
    )
