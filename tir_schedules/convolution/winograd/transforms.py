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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs, packed_words_tile
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.vector.expressions import Expr, bind, cast, like
from microkernels.vector.placeholders import Placeholder
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region

from . import transforms, word_transforms

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


def transformed_weight(weight: np.ndarray) -> np.ndarray:
    """G g G^T in float64, [6, 6, C, OC] of [3, 3, C, OC]."""
    found = np.tensordot(G, weight.astype(np.float64), (1, 0))
    return np.tensordot(G, found, (1, 1)).swapaxes(0, 1)


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


def expected_error(channels: int) -> float:
    """The largest error to expect of any result, over the root mean square of the results.

    A sum of C products, each added with one rounding, has C / 2 errors of the size of the whole sum
    (partial sums grow like a random walk). They are independent and of either sign, so they add up
    as squares; those of the 36 sums come together by `WORST_GROWTH`. Measured on normal data,
    images of 7x7 to 160x160 and 32 to 512 channels: 0.65 to 0.9 times this (9.8e-6 at 64 channels,
    1.5e-5 at 256, 1.9e-5 at 512), on positive data less; without Winograd, a quarter of this.
    """
    errors = _ROUNDING * _UNIT * np.sqrt(channels / 2 + _OWN_ROUNDINGS)
    return float(_DEVIATIONS * WORST_GROWTH * errors)


Transform = Callable[[Sequence[Expr]], list[Expr]]


@dataclass(frozen=True, eq=False)
class Algorithm:
    """Algorithm: in what numbers, and by what tiles, Winograd's products are computed.

    f32                  F(4x4, 3x3), products of f32      transforms.py
    8-bit integers       F(2x2, 3x3), products of words    word_transforms.py; exact

    How tiles are transformed and multiplied.

    Attributes
    ----------
    tile, reach : int
        Results of a tile along an axis, and positions of x that they need.
    element, total : str
        Types of what is multiplied, and of the sums.
    input_transform, output_transform : callable
        Along one axis.
    transformed_weight : callable
        [3, 3, C, OC] -> [reach, reach, C, OC].
    g, g_inverse : ndarray
        What transforms the weight along one axis, and what undoes it.
    zero : int
        x's zero point.
    shift : int
        Results are sums without so many of their lowest bits, which are 0.
    """

    tile: int
    reach: int
    element: str
    total: str
    input_transform: Transform
    output_transform: Transform
    transformed_weight: Callable[[np.ndarray], np.ndarray]
    g: np.ndarray
    g_inverse: np.ndarray
    zero: int | Placeholder = 0
    shift: int = 0

    @staticmethod
    def of(region: Region) -> Algorithm:
        """That of a convolution."""
        if is_integer(region):
            return _words(region.integer("a_zero_point", 0))
        return FLOATS

    @property
    def products(self) -> int:
        """Products of a tile."""
        return self.reach * self.reach

    @property
    def bytes(self) -> int:
        """Of an element."""
        return 2 if self.element == "int16" else 4

    def kernels(self, isa: Isa) -> tuple[Microkernel, ...]:
        """The kernels that configurations name."""
        if self.element == "float32":
            return kernels_for(isa, "float32", "float32")
        return tuple(filter(has_pairs, kernels_for(isa, "uint8", "int8")))

    def kernel(self, named: Microkernel) -> Microkernel:
        """What multiplies in the place of the kernel that a configuration names."""
        return named if self.element == "float32" else packed_words_tile(named)

    def taken(self, value: Expr) -> Expr:
        """Elements of x as they are transformed."""
        value = cast(self.element, value)
        return (
            value
            if isinstance(self.zero, int) and not self.zero
            else value - like(self.zero, value)
        )

    def given(self, value: Expr) -> Expr:
        """Transformed sums as results."""
        return value >> like(self.shift, value) if self.shift else value


FLOATS = Algorithm(
    transforms.TILE,
    transforms.REACH,
    "float32",
    "float32",
    transforms.input_transform,
    transforms.output_transform,
    lambda weight: transforms.transformed_weight(weight).astype(np.float32),
    transforms.G,
    transforms.G_INVERSE,
)


def _words(zero: int | Placeholder) -> Algorithm:
    return Algorithm(
        word_transforms.TILE,
        word_transforms.REACH,
        "int16",
        "int32",
        word_transforms.input_transform,
        word_transforms.output_transform,
        word_transforms.transformed_weight,
        word_transforms.G,
        word_transforms.G_INVERSE,
        zero,
        word_transforms.SHIFT,
    )
