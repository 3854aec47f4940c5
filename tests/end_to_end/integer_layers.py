"""What the property tests draw: sizes near the tile sizes, types, scales, zero points, layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.onnx_builder import OnnxBuilder

# Sizes one below, equal to and one above the tiles and vectors of all ISAs, and steps of K.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 31, 33)
COLUMNS = (1, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97)
DEPTHS = (1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 63, 64, 65, 127, 130)

rows, columns, depths = (st.sampled_from(sizes) for sizes in (ROWS, COLUMNS, DEPTHS))
# A dequantised weight of one element is a scalar, which is folded to float.
depths_and_columns = st.tuples(depths, columns).filter(lambda sizes: sizes != (1, 1))
byte_types = st.sampled_from(("uint8", "int8"))
seeds = st.integers(0, 2**32 - 1)


@st.composite
def scales(draw: st.DrawFn) -> float:
    """A power of two, which makes ties exact, or an arbitrary number."""
    if draw(st.booleans()):
        return 2.0 ** draw(st.integers(-9, -3))
    return draw(st.floats(2.0**-10, 0.25, width=32))


@dataclass(frozen=True)
class Bytes:
    """How a tensor is quantised.

    Attributes
    ----------
    dtype : str
        "uint8" or "int8".
    scale : float
        Scale of the whole tensor, or a typical scale of its columns.
    zero_point : int or None
        None if the operator's zero point input is absent.
    """

    dtype: str
    scale: float
    zero_point: int | None

    @property
    def zero(self) -> NDArray[Any]:
        """The zero point as an array of the operators' type."""
        return np.array(self.zero_point or 0, self.dtype)

    def parameters(self, g: OnnxBuilder) -> list[str]:
        """Scale and zero point as inputs of the operators."""
        scale = g.constant(self.scale, np.float32)
        # QuantizeLinear without a zero point gives uint8, so int8 needs one.
        if self.zero_point is None and self.dtype == "uint8":
            return [scale]
        return [scale, g.constant(self.zero)]

    def there_and_back(self, g: OnnxBuilder, x: str) -> str:
        """Applies QuantizeLinear and then DequantizeLinear."""
        parameters = self.parameters(g)
        return g.node("DequantizeLinear", g.node("QuantizeLinear", x, *parameters), *parameters)


@st.composite
def byte_formats(draw: st.DrawFn) -> Bytes:
    """uint8 or int8; symmetric, asymmetric or without a zero point."""
    dtype = draw(byte_types)
    limits = np.iinfo(dtype)
    some = st.integers(int(limits.min), int(limits.max))
    zero = draw(st.one_of(st.none(), st.just(0), some))
    return Bytes(dtype, draw(scales()), zero)


@dataclass(frozen=True)
class Weight:
    """A constant operand of a product.

    Attributes
    ----------
    format : Bytes
        Type, scale and zero point of the weight.
    per_column : bool
        Whether each column has its own scale and, if it is asymmetric, zero point.
    transposed : bool
        Whether it is stored [N, K].
    """

    format: Bytes
    per_column: bool
    transposed: bool = False

    def emit(self, g: OnnxBuilder, rng: np.random.Generator, shape: tuple[int, ...]) -> str:
        """Writes the dequantised weight: [..., K, N], or [..., N, K] if it is transposed."""
        kind = self.format
        limits = np.iinfo(kind.dtype)
        values = rng.integers(limits.min, limits.max, shape, kind.dtype, endpoint=True)
        if self.transposed:
            values = np.ascontiguousarray(np.swapaxes(values, -1, -2))
        if not self.per_column:
            return g.node("DequantizeLinear", g.constant(values), *kind.parameters(g))
        parameters = self.column_parameters(rng, shape[-1])
        axis = values.ndim - (2 if self.transposed else 1)
        names = [g.constant(item) for item in parameters]
        return g.node("DequantizeLinear", g.constant(values), *names, axis=axis)

    def column_parameters(
        self, rng: np.random.Generator, number: int
    ) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """A scale and a zero point for each column; scales are the format's times powers of two."""
        kind = self.format
        scale = np.float32(kind.scale) * np.float32(2) ** rng.integers(-2, 2, number)
        zero = np.zeros(number, kind.dtype)
        if kind.zero_point:
            limits = np.iinfo(kind.dtype)
            zero = rng.integers(limits.min, limits.max, number, kind.dtype, endpoint=True)
        return scale.astype(np.float32), zero


@st.composite
def weights(draw: st.DrawFn, transposed: bool = False) -> Weight:
    """Draws a constant operand of any form."""
    return Weight(draw(byte_formats()), draw(st.booleans()), transposed)
