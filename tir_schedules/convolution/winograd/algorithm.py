"""Winograd's algorithm for a convolution: the tiles of each axis, and their types."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs, packed_words_tile
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.vector.expressions import Expr, cast, like
from microkernels.vector.placeholders import Placeholder
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region

from . import transforms, word_transforms
from .line_transforms import REACHES, TransformAxis, line_axis

ALONE = TransformAxis(1, 1, list, list, np.ones((1, 1)), np.ones((1, 1)))
"""The axis of a single tap: nothing is transformed."""
SQUARE = TransformAxis(
    transforms.TILE,
    transforms.TAPS,
    transforms.input_transform,
    transforms.output_transform,
    transforms.G,
    transforms.G_INVERSE,
    math.sqrt(transforms.WORST_GROWTH),
)
"""Each axis of a 3x3 kernel of f32."""
WORDS = TransformAxis(
    word_transforms.TILE,
    word_transforms.TAPS,
    word_transforms.input_transform,
    word_transforms.output_transform,
    word_transforms.G,
    word_transforms.G_INVERSE,
)
"""Each axis of a 3x3 kernel of 8-bit integers."""


@dataclass(frozen=True, eq=False)
class Algorithm:
    """Algorithm: in what numbers, and by what tiles, Winograd's products are computed.

    f32, 3x3                F(4x4, 3x3), products of f32      transforms.py
    f32, a line of taps     F(m, r), products of f32          line_transforms.py
    8-bit integers, 3x3     F(2x2, 3x3), products of words    word_transforms.py; exact

    How tiles are transformed and multiplied.

    Attributes
    ----------
    axes : tuple of TransformAxis
        Along lines and columns.
    element, total : str
        Types of what is multiplied, and of the sums.
    zero : int
        x's zero point.
    shift : int
        Results are sums without so many of their lowest bits, which are 0.
    """

    axes: tuple[TransformAxis, TransformAxis]
    element: str
    total: str
    zero: int | Placeholder = 0
    shift: int = 0

    @staticmethod
    def of(region: Region) -> Algorithm:
        """That of a convolution."""
        if is_integer(region):
            zero = region.integer("a_zero_point", 0)
            return Algorithm((WORDS, WORDS), "int16", "int32", zero, word_transforms.SHIFT)
        return _of_floats(region.inputs[1].shape[:-2])

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
        """Of an element."""
        return 2 if self.element == "int16" else 4

    @property
    def growth(self) -> float:
        """What relative rounding errors of the products become, in the worst result of a tile."""
        return self.axes[0].growth * self.axes[1].growth

    def transformed_weight(self, weight: np.ndarray) -> np.ndarray:
        """[reach, reach, C, OC] of [*kernel, C, OC], computed in float64 or int64."""
        lines, columns = self.axes
        wide = weight.astype(np.int64 if self.element == "int16" else np.float64)
        wide = wide.reshape(lines.taps, columns.taps, *weight.shape[-2:])
        found = np.tensordot(lines.g, wide, (1, 0))
        return np.tensordot(columns.g, found, (1, 1)).swapaxes(0, 1).astype(self.element)

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


@functools.cache
def _of_floats(kernel: tuple[int, ...]) -> Algorithm:
    if kernel == (transforms.TAPS, transforms.TAPS):
        return Algorithm((SQUARE, SQUARE), "float32", "float32")
    lines, columns = (ALONE if taps == 1 else line_axis(taps) for taps in (1, *kernel)[-2:])
    return Algorithm((lines, columns), "float32", "float32")


def kernel_reason(region: Region) -> str | None:
    """Why no tiles are known for the kernel of a region, or None."""
    kernel = tuple(region.inputs[1].shape[:-2])
    if kernel == (transforms.TAPS, transforms.TAPS):
        return None
    lines = [taps for taps in kernel if taps != 1]
    if len(kernel) > 2 or len(lines) != 1 or lines[0] not in REACHES or is_integer(region):
        return f"a kernel of {'x'.join(map(str, kernel))}, not 3x3 or a line of 2 to 7 taps"
    return None
