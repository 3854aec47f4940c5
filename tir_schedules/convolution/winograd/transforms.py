"""The transforms of Winograd's F(4x4, 3x3), and what they do to rounding errors.

A tile of 4x4 results needs 36 products instead of 144 (Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", arXiv 1509.09308, section 4):

    Y = A^T [ (G g G^T) * (B^T d B) ] A        d: 6x6 of x, g: 3x3 of the weight, * elementwise

The matrices interpolate polynomials at 0, infinity and two pairs of opposite points; any four
points do. Lavin and Gray take +-1 and +-2. Errors depend on the points (Barabasz et al., "Error
analysis and improving the accuracy of Winograd convolution", arXiv 1803.10986, section 5): rounding
errors of the products grow by `GROWTH` on their way to the result, 10.8 with +-1 and +-2, 4.8 with
the points here, which were searched among multiples of 1/8 for the least growth of the worst of the
16 results. Sums of 9 products have a growth of 3 in this measure. All entries of A and B are exact
in f32, and opposite points keep the transforms as short as they are with +-1 and +-2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from microkernels.vector.expressions import Expr, bind, like

TILE, TAPS = 4, 3  # results and taps of a tile along an axis
REACH = TILE + TAPS - 1  # positions of x that they need
PRODUCTS = REACH * REACH
NEAR, FAR = 5 / 8, 13 / 8  # the points are 0, +-NEAR, +-FAR and infinity
POINTS = (0.0, NEAR, -NEAR, FAR, -FAR)


def _matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A^T, G, B^T) of Toom and Cook's interpolation, in float64."""
    a = np.zeros((TILE, REACH))
    g = np.zeros((REACH, TAPS))
    b = np.zeros((REACH, REACH))
    for number, point in enumerate(POINTS):
        others = [other for other in POINTS if other != point]
        a[:, number] = point ** np.arange(TILE)
        g[number] = point ** np.arange(TAPS) / np.prod([point - other for other in others])
        b[number, :-1] = np.poly(others)[::-1]
    a[-1, -1] = g[-1, -1] = 1.0  # infinity
    b[-1] = np.poly(POINTS)[::-1]
    return a, g, b


A_T, G, B_T = _matrices()
G_INVERSE = np.linalg.pinv(G)  # G_INVERSE @ G = 1

_SQUARES = A_T**2 @ np.diag((G**2).sum(1) * (B_T**2).sum(1))
_ROWS = _SQUARES.sum(1) / TAPS
GROWTH = float(_ROWS.mean())
"""Root mean square, over the 16 results, of the errors that independent relative errors of the
products' sums become, for independent x and g of variance 1, over the size of the results."""
WORST_GROWTH = float(_ROWS.max())
"""The same of the result with the largest errors."""

_UNIT = 2.0**-24
_ROUNDING = 0.42  # root mean square of a rounding error in units, over a binade's mantissas
_OWN_ROUNDINGS = 5.0  # what the transforms' own roundings add, as terms of the sum
_DEVIATIONS = 9.0  # the largest of some 100000; large sums have large errors, so there are outliers


def input_transform(d: Sequence[Expr]) -> list[Expr]:
    """B^T d along one axis: six vectors of six, in twelve instructions."""
    near, far = NEAR**2, FAR**2
    even_far, odd_far = bind(d[4] - c(far, d[2])), bind(d[3] - c(far, d[1]))
    even_near, odd_near = bind(d[4] - c(near, d[2])), bind(d[3] - c(near, d[1]))
    found = [
        c(near * far, d[0]) + (d[4] - c(near + far, d[2])),
        even_far + c(NEAR, odd_far),
        even_far - c(NEAR, odd_far),
        even_near + c(FAR, odd_near),
        even_near - c(FAR, odd_near),
        c(near * far, d[1]) + (d[5] - c(near + far, d[3])),
    ]
    return [bind(value) for value in found]


def output_transform(m: Sequence[Expr]) -> list[Expr]:
    """A^T m along one axis: four vectors of six, in twelve instructions."""
    even_near, odd_near = bind(m[1] + m[2]), bind(m[1] - m[2])
    even_far, odd_far = bind(m[3] + m[4]), bind(m[3] - m[4])
    found = [
        m[0] + even_near + even_far,
        c(NEAR, odd_near) + c(FAR, odd_far),
        c(NEAR**2, even_near) + c(FAR**2, even_far),
        c(NEAR**3, odd_near) + (c(FAR**3, odd_far) + m[5]),
    ]
    return [bind(value) for value in found]


def c(number: float, value: Expr) -> Expr:
    """A vector times a number."""
    return like(number, value) * value


def expected_error(channels: int, growth: float = WORST_GROWTH) -> float:
    """The largest error to expect of any result, over the root mean square of the results.

    A sum of C products, each added with one rounding, has C / 2 errors of the size of the whole sum
    (partial sums grow like a random walk). They are independent and of either sign, so they add up
    as squares; those of all sums of a tile come together by `growth`. Measured on normal data,
    images of 7x7 to 160x160 and 32 to 512 channels: 0.65 to 0.9 times this (9.8e-6 at 64 channels,
    1.5e-5 at 256, 1.9e-5 at 512), on positive data less; without Winograd, a quarter of this.
    """
    errors = _ROUNDING * _UNIT * np.sqrt(channels / 2 + _OWN_ROUNDINGS)
    return float(_DEVIATIONS * growth * errors)
