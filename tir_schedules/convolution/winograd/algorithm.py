"""Winograd's algorithm for a convolution: number types, tile sizes, matrices and errors.

    f32, 3x3                F(4x4, 3x3)    36 products instead of 144
    f32, a line of taps     F(m, r)        m + r - 1 products instead of m * r
    8-bit integers, 3x3     F(2x2, 3x3)    16 products of words instead of 36; exact

(Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308, section 4):

    Y = A^T [ (G g G^T) * (B^T d B) ] A        d: tile of x, g: the weight, * elementwise

    taps of a line     2        3        4        5        6        7
    tile             F(5, 2)  F(4, 3)  F(3, 4)  F(4, 5)  F(3, 6)  F(2, 7)
    products saved    1.67     2        2        2.5      2.25     1.75

The matrices of f32 interpolate polynomials at 0, infinity and pairs of opposite points; any points
do. Lavin and Gray take +-1 and +-2. Errors depend on the points (Barabasz et al., "Error analysis
and improving the accuracy of Winograd convolution", arXiv 1803.10986, section 5). For 3x3, rounding
errors of the products grow by 10.8 on their way to the result with +-1 and +-2, and by 4.8 with the
points here, which were searched among multiples of 1/8 for the least growth of the worst result:
7.8 for 3x3, 2.8 for a line of three taps, 5.5 for five. Sums of 9 products have a growth of 3 in
this measure. All entries of A and B are exact in f32; opposite points keep the transforms short.

With twice Lavin and Gray's G of F(2x2, 3x3) there are integers only, and the sums are four times
the results. |d| <= 255 (x less its zero point), so |B^T d B| <= 1020; |g| <= 128, so |G g G^T| <=
1152: both are words, and vpmaddwd adds two of their products in 32 bits. Sums may wrap on their
way, 4 Y must not: `MOST_CHANNELS`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs, packed_words_tile
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.vector.expressions import Expr, bind, cast, like
from microkernels.vector.placeholders import Placeholder
from tir_schedules.core.arrays import A, as_type, product, reshaped
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region

Transform = Callable[[Sequence[Expr]], list[Expr]]

REACHES = {2: 6, 3: 6, 4: 6, 5: 8, 6: 8, 7: 8}
"""Positions of x that a tile needs, for each number of taps."""
NEAR, FAR = 5 / 8, 13 / 8
PAIRS = {6: (NEAR, FAR), 8: (0.5, 1.0, 2.0)}
"""The interpolation points are 0, infinity, and these numbers with both signs."""
MOST_CHANNELS = (2**31 - 1) // (4 * 3 * 3 * 255 * 128)
"""Most channels of 8-bit integers whose sums stay within 32 bits."""
_SHIFT = 2  # sums of integers are the results shifted left by this many bits


@dataclass(frozen=True, eq=False)
class TransformAxis:
    """How tiles are transformed along one axis."""

    tile: int  # results of a tile
    taps: int
    input_transform: Transform  # takes `reach` vectors
    output_transform: Transform  # takes `reach` vectors
    g: np.ndarray  # transforms the weight
    g_inverse: np.ndarray  # undoes `g`
    growth: float = 1.0  # of the products' relative rounding errors, in a tile's worst result

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
    """B^T d for points of both signs, from sums of even and of odd powers for each pair."""

    def powers(squares: Sequence[float], first: int) -> Expr:
        """The polynomial whose roots are +-s for each of `squares`, times x^first."""
        factors = np.poly([square**2 for square in squares])[::-1]
        terms = [c(float(factor), d[first + 2 * at]) for at, factor in enumerate(factors)]
        return bind(functools.reduce(operator.add, terms[:-1], terms[-1]))

    # The polynomial of a point p of a pair is x (x + p) Q(x^2), where Q has the other pairs as
    # roots: even powers x^2 Q and odd powers p x Q. Those of 0 and of infinity have all pairs as
    # roots.
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
        pairs_of = zip(pairs, of_pairs, strict=True)
        terms = [c(point**power, halves[power % 2]) for point, halves in pairs_of]
        terms += [m[0]] if power == 0 else []
        terms += [m[-1]] if power == tile - 1 else []
        found.append(bind(functools.reduce(operator.add, terms)))
    return found


def _square_input(d: Sequence[Expr]) -> list[Expr]:
    """B^T d of SQUARE along one axis: six vectors of six, in twelve instructions."""
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


def _square_output(m: Sequence[Expr]) -> list[Expr]:
    """A^T m of SQUARE along one axis: four vectors of six, in twelve instructions."""
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
    return value if number == 1 else like(number, value) * value


@functools.cache
def line_axis(taps: int) -> TransformAxis:
    """The axis of a line of 2 to 7 taps."""
    a, g, b = matrices(taps)
    pairs, tile = PAIRS[REACHES[taps]], a.shape[0]
    # Root mean square error of the worst result, for independent errors of the products.
    squares = a**2 @ np.diag((g**2).sum(1) * (b**2).sum(1))
    growth = float(np.sqrt(squares.sum(1).max() / taps))
    forward = functools.partial(_input_transform, pairs)
    back = functools.partial(_output_transform, pairs, tile)
    return TransformAxis(tile, taps, forward, back, g, np.linalg.pinv(g), growth)


def _word_input(d: Sequence[Expr]) -> list[Expr]:
    """B^T d of WORDS along one axis: four vectors of four."""
    return [bind(value) for value in (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3])]


def _word_output(m: Sequence[Expr]) -> list[Expr]:
    """A^T m of WORDS along one axis: two vectors of four."""
    return [bind(m[0] + m[1] + m[2]), bind(m[1] - m[2] - m[3])]


ALONE = TransformAxis(1, 1, list, list, np.ones((1, 1)), np.ones((1, 1)))
"""The axis of a single tap: nothing is transformed."""
SQUARE = replace(line_axis(3), input_transform=_square_input, output_transform=_square_output)
"""Each axis of a 3x3 kernel of f32."""
_WORDS_G = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])
_WORDS_INVERSE = np.array([[1, 0, 0, 0], [0, 1, -1, 0], [0, 0, 0, 1]]) / 2
WORDS = TransformAxis(2, 3, _word_input, _word_output, _WORDS_G, _WORDS_INVERSE)
"""Each axis of a 3x3 kernel of 8-bit integers."""
WORST_GROWTH = SQUARE.growth * SQUARE.growth
"""Root mean square error of the worst of the 16 results of a 3x3 tile, over the size of the
results: for independent relative errors of the products' sums, and independent x and g of
variance 1."""

_UNIT = 2.0**-24
_ROUNDING = 0.42  # root mean square of a rounding error in units, over a binade's mantissas
_OWN_ROUNDINGS = 5.0  # roundings of the transforms themselves, counted as terms of the sum
_DEVIATIONS = 9.0  # the largest of some 100000; large sums have large errors, so there are outliers


def expected_error(channels: int, growth: float = WORST_GROWTH) -> float:
    """The largest expected error of any result, over the root mean square of the results.

    A sum of C products, each added with one rounding, has C / 2 errors of the size of the whole sum
    (partial sums grow like a random walk). They are independent and of either sign, so they add up
    as squares; those of all sums of a tile come together by `growth`. Measured on normal data,
    images of 7x7 to 160x160 and 32 to 512 channels: 0.65 to 0.9 times this (9.8e-6 at 64 channels,
    1.5e-5 at 256, 1.9e-5 at 512), on positive data less; without Winograd, a quarter of this.
    """
    errors = _ROUNDING * _UNIT * np.sqrt(channels / 2 + _OWN_ROUNDINGS)
    return float(_DEVIATIONS * growth * errors)


@dataclass(frozen=True, eq=False)
class Algorithm:
    """How tiles are transformed and multiplied."""

    axes: tuple[TransformAxis, TransformAxis]  # lines, columns
    element: str  # type of the numbers that are multiplied
    total: str  # type of the sums
    zero: int | Placeholder = 0  # zero point of x
    shift: int = 0  # bits that sums are shifted right by to give results; those bits are 0

    @staticmethod
    def of(region: Region) -> Algorithm:
        """The algorithm for a convolution."""
        if is_integer(region):
            zero = region.integer("a_zero_point", 0)
            return Algorithm((WORDS, WORDS), "int16", "int32", zero, _SHIFT)
        kernel = region.inputs[1].shape[:-2]
        if kernel == (3, 3):
            return Algorithm((SQUARE, SQUARE), "float32", "float32")
        lines, columns = (ALONE if taps == 1 else line_axis(taps) for taps in (1, *kernel)[-2:])
        return Algorithm((lines, columns), "float32", "float32")

    @property
    def results(self) -> int:
        """Results of a tile."""
        return self.axes[0].tile * self.axes[1].tile

    @property
    def products(self) -> int:
        """Products of a tile."""
        return self.axes[0].reach * self.axes[1].reach

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return 2 if self.element == "int16" else 4

    @property
    def growth(self) -> float:
        """Growth of the products' relative rounding errors, in the worst result of a tile."""
        return self.axes[0].growth * self.axes[1].growth

    def transformed_weight(self, weight: A, inside: int) -> A:
        """The weight [*kernel, C, OC] as [reach, reach, inside], float64; `inside` is C * OC."""
        lines, columns = self.axes
        wide = reshaped(as_type(weight, "float64"), (lines.taps, columns.taps * inside))
        half = reshaped(product(lines.g, wide), (lines.reach, columns.taps, inside))
        return product(columns.g, half)

    def kernels(self, isa: Isa) -> tuple[Microkernel, ...]:
        """The kernels that configurations may name."""
        if self.element == "float32":
            return kernels_for(isa, "float32", "float32")
        return tuple(filter(has_pairs, kernels_for(isa, "uint8", "int8")))

    def kernel(self, named: Microkernel) -> Microkernel:
        """The kernel that multiplies, for the kernel that a configuration names."""
        return named if self.element == "float32" else packed_words_tile(named)

    def taken(self, value: Expr) -> Expr:
        """Elements of x in the type of the transform, less the zero point."""
        value = cast(self.element, value)
        is_zero = isinstance(self.zero, int) and not self.zero
        return value if is_zero else value - like(self.zero, value)

    def given(self, value: Expr) -> Expr:
        """The results of transformed sums."""
        return value >> like(self.shift, value) if self.shift else value


def kernel_reason(region: Region) -> str | None:
    """Why there are no tiles for the kernel of a region, or None."""
    kernel = tuple(region.inputs[1].shape[:-2])
    if kernel == (3, 3):
        return None
    lines = [taps for taps in kernel if taps != 1]
    if len(kernel) > 2 or len(lines) != 1 or lines[0] not in REACHES or is_integer(region):
        return f"a kernel of {'x'.join(map(str, kernel))}, not 3x3 or a line of 2 to 7 taps"
    return None
