"""Algorithm: in what numbers, and by what tiles, Winograd's products are computed.

f32                  F(4x4, 3x3), products of f32      transforms.py
8-bit integers       F(2x2, 3x3), products of words    word_transforms.py; exact
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs, packed_words_tile
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.vector.expressions import Expr, cast, like
from microkernels.vector.placeholders import Placeholder
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.region import Region

from . import transforms, word_transforms

Transform = Callable[[Sequence[Expr]], list[Expr]]


@dataclass(frozen=True, eq=False)
class Algorithm:
    """How tiles are transformed and multiplied.

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
