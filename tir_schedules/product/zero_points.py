"""Zero points of an integer product: the accumulators start with the corrections that they need.

    sum over k of (A - zA) * (B - zB) = AB - zA * colsum(B) - zB * rowsum(A) + K * zA * zB

Vector kernels multiply u8 by s8. So a signed A is shifted by +128 and an unsigned B by -128, with
their zero points. AMX tiles multiply either sign as it is. Constant terms are computed when the
weight is packed, and stored after it; see oneDNN Graph Compiler (Li et al., arXiv 2301.01333),
low-precision optimisation. `core.product_plan` reads a region's attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from microkernels.base.arrays import RANGES, SHIFT
from microkernels.kernels.byte_pairs import LARGEST_PAIR, pairs_fit
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, Index, cast, constant, ramp, scalar, splat
from microkernels.vector.placeholders import Placeholder, as_real
from tir_schedules.core import product_plan
from tir_schedules.core.arrays import A
from tir_schedules.core.region import Region
from tir_schedules.epilogue.quantize_steps import Number, quantize_reference
from tir_schedules.rows.quantization_range import dynamic_range, least_scale_of

from .tile_products import Beginning


@dataclass(frozen=True)
class ZeroPoints:
    """Shifted zero points: numbers, or 0 for those that are known at run time only.

    Attributes
    ----------
    a, b : int
        Numbers known at compile time.
    a_runtime : bool
        Whether A's is known at run time only.
    b_columns : bool
        Whether B has one for each column.
    """

    a: int
    b: int
    a_runtime: bool
    b_columns: bool

    @staticmethod
    def of(region: Region, kernel: Microkernel) -> ZeroPoints:
        """The zero points of an integer product, as a kernel multiplies it."""
        unknown = [isinstance(region.attrs.get(f"{name}_zero_point"), str) for name in "ab"]
        shifts = a_shift_of(region, kernel), b_shift_of(region, kernel)
        a, b = (
            0 if at_run_time else region.integer(f"{name}_zero_point", 0) + shift
            for name, at_run_time, shift in zip("ab", unknown, shifts, strict=True)
        )
        return ZeroPoints(a, b, *unknown)

    @staticmethod
    def of_either_order(region: Region, a_dtype: str, b_dtype: str) -> tuple[bool, ZeroPoints]:
        """Whether A is the unsigned operand of u8 by s8, and the static zero points.

        A's type is chosen so that its zero point becomes 0 if possible: then the column sums of B
        are not needed. The zero points are 0 if B is no 8-bit type.
        """
        if b_dtype not in RANGES:
            return True, ZeroPoints(0, 0, False, False)
        a, b = (region.integer(f"{name}_zero_point", 0) for name in "ab")
        unsigned = a + shift_of(a_dtype, "int8") != 0
        a_type, b_type = ("uint8", "int8") if unsigned else ("int8", "uint8")
        a, b = a + shift_of(a_dtype, a_type), b + shift_of(b_dtype, b_type)
        return unsigned, ZeroPoints(a, b, False, False)

    @property
    def needs_column_sums(self) -> bool:
        """Whether initial accumulators have a term for each column."""
        return self.a_runtime or self.a != 0

    @property
    def needs_row_sums(self) -> bool:
        """Whether initial accumulators have a term for each row."""
        return self.b_columns or self.b != 0

    @property
    def needed(self) -> bool:
        """Whether the accumulators start with anything but zeros."""
        return self.needs_column_sums or self.needs_row_sums

    def column_terms(self, weight: A, counted: np.ndarray) -> A:
        """int32 [classes, N]: the terms of the columns that follow a packed, shifted B.

        A class is a group of positions of a convolution at which one set of taps lies within the
        image.

        Parameters
        ----------
        weight : ndarray or relax.Expr
            B as [taps, IC, N]; without a zero point if it is an expression.
        counted : ndarray
            bool [classes, taps]: which taps lie within the image.
        """
        chosen = counted.astype(np.int32) * np.int32(1 if self.a_runtime else -self.a)
        if isinstance(weight, np.ndarray):
            zeros = np.int64(self.a * self.b * weight.shape[0] * weight.shape[1])
            terms = np.matmul(chosen, weight.sum(axis=1, dtype=np.int32)) + zeros
            return terms.astype(np.int32)  # wraps as the accumulators do
        assert self.b == 0 and not self.b_columns  # kernels of convolutions know no others
        sums = relax.op.sum(relax.op.astype(weight, "int32"), axis=1)
        return relax.op.matmul(relax.const(chosen), sums, out_dtype="int32")


def correction(
    a: Index, b: Index, k: Index, column_sums: Expr | None, row_sum: Expr | None, lanes: int
) -> Expr:
    """-a * column sums + b * (k * a - row sum), as int32 lanes.

    Parameters
    ----------
    a : int or Expr
        A's zero point, a number or an int32 scalar.
    b : int or Expr
        B's, a number or int32 lanes.
    k : int or Expr
        Terms of each sum; an int32 scalar if it is an expression.
    column_sums, row_sum : Expr or None
        int32 lanes and an int32 scalar; None if the other zero point is 0.
    lanes : int
        Of the result.
    """
    value = constant(0, "int32", lanes)
    if column_sums is not None and isinstance(a, (int, Placeholder)):
        value = column_sums * constant(-a, "int32", lanes)
    elif column_sums is not None:
        value = column_sums * splat(tirx.const(0, "int32") - a, lanes)
    if row_sum is None:
        return value
    if isinstance(a, (int, Placeholder)) and isinstance(k, int):
        rows = scalar(k * a, "int32") - row_sum
    else:
        if isinstance(a, Placeholder):
            a = scalar(a, "int32")
        rows = a * (tirx.const(k, "int32") if isinstance(k, int) else k) - row_sum
    if isinstance(b, (int, Placeholder)):
        return value + splat(rows * scalar(b, "int32"), lanes)
    return value + b * splat(rows, lanes)


def shift_of(dtype: str, multiplied: str) -> int:
    """The number added to 8-bit integers of one type to multiply them as another."""
    return {("int8", "uint8"): SHIFT, ("uint8", "int8"): -SHIFT}.get((dtype, multiplied), 0)


def a_shift_of(region: Region, kernel: Microkernel) -> int:
    """The number that a kernel adds to the elements of A."""
    return shift_of(product_plan.quantized_dtype(region), kernel.a_dtype)


def b_shift_of(region: Region, kernel: Microkernel) -> int:
    """The number added to the elements of B."""
    return shift_of(region.inputs[1].dtype, kernel.b_dtype)


@dataclass
class Start(Beginning):
    """Initial accumulators of an integer product.

    Attributes
    ----------
    region : Region
        The product.
    kernel : Microkernel
        Its microkernel.
    inputs : dict
        `named_inputs` of the region.
    k : int or Expr
        Terms of each sum.
    column_term : callable
        Vector of columns -> int32 lanes: `ZeroPoints.column_terms`; the columns' sums if B is not
        constant.
    row_sum : callable
        Row -> int32 sum of A's elements.
    column_address : callable or None
        Vector of columns -> address of the term of a constant B.
    """

    region: Region
    kernel: Microkernel
    inputs: Mapping[str, Expr]
    k: Index
    column_term: Callable[[Index], Expr]
    row_sum: Callable[[Any], Expr]
    column_address: Callable[[Index], Address] | None = None

    def __post_init__(self) -> None:
        self.zero_points = ZeroPoints.of(self.region, self.kernel)

    @property
    def needed(self) -> bool:
        """Whether the accumulators start with anything but zeros."""
        return self.zero_points.needed

    @property
    def by_column(self) -> bool:
        """Whether all rows start with equal values that are not 0."""
        return self.needed and not self.zero_points.needs_row_sums

    def columns(self, vector: Index) -> Expr | Address:
        """See `Beginning.columns`."""
        known = not self.zero_points.a_runtime and self.region.inputs[1].constant
        if known and self.column_address is not None:
            return self.column_address(vector)
        return self(tirx.const(0, "int32"), vector)

    def of_tile(
        self, row: Index, vector: Index
    ) -> tuple[Callable[[Index, int], Expr] | None, Callable[[int], Expr | Address] | None]:
        """`init` and `columns` of `Microkernel.emit` for the tile from a row and a vector on."""
        if self.by_column and self.kernel.by_tiles:
            return None, lambda j: self.columns(vector + j)
        return lambda i, j: self(row + i, vector + j), None

    def a_zero_point(self) -> Expr:
        """A's shifted zero point; int32."""
        found = self.region.attrs.get("a_zero_point")
        if found in ("range", "dynamic"):
            value = cast("int32", self.inputs["range"][tirx.const(1, "int32")])
        else:
            tensor = self.region.inputs[2 + product_plan.zero_point_inputs(self.region).index("a")]
            zeros = (tirx.const(0, "int32"),) * len(tensor.shape)
            value = cast("int32", self.inputs["a"][zeros])
        shift = a_shift_of(self.region, self.kernel)
        return value + tirx.const(shift, "int32") if shift else value

    def __call__(self, row: Index, vector: Index) -> Expr:
        """The accumulators of one row and one vector of columns before the first product."""
        points, lanes = self.zero_points, self.kernel.lanes
        columns = self.column_term(vector) if points.needs_column_sums else None
        row_sum = self.row_sum(row) if points.needs_row_sums else None
        b: Index = points.b
        if points.b_columns:
            b = self.inputs["b"][ramp(vector * lanes, lanes)]
        if points.a_runtime:
            return correction(self.a_zero_point(), b, self.k, columns, row_sum, lanes)
        if not self.region.inputs[1].constant:
            return correction(points.a, b, self.k, columns, row_sum, lanes)
        # The packed column term includes A's zero point and its product with a static one of B.
        a = points.a if points.b_columns else 0
        term = correction(a, b, self.k, None, row_sum, lanes)
        return term if columns is None else columns + term


def start_of(region: Region, *arguments: Any) -> Start | None:
    """`Start` of an integer product; None for floats, or if accumulators start with zeros."""
    start = Start(region, *arguments) if product_plan.is_integer(region) else None
    return start if start is not None and start.needed else None


def named_inputs(region: Region, buffers: Sequence[Expr]) -> dict[str, Expr]:
    """The kernel's parameters for the inputs after A and B, by `zero_point_inputs`."""
    return dict(zip(product_plan.zero_point_inputs(region), buffers, strict=True))


def quantize_parameters(
    region: Region, kernel: Microkernel, inputs: Mapping[str, Expr]
) -> tuple[Number, Number] | None:
    """Scale and zero point with which A becomes the kernel's type; None if it does not."""
    if "a_quantize" not in region.attrs:
        return None
    if region.attrs["a_scale"] in ("range", "dynamic"):
        source = inputs["range"]
        return source[tirx.const(0, "int32")], source[tirx.const(1, "int32")]
    zero_point = region.integer("a_zero_point", 0) + a_shift_of(region, kernel)
    return region.real("a_scale"), as_real(zero_point)


def own_range(region: Region, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """A's scale and zero point by numpy; None unless the kernel finds them itself."""
    own = product_plan.quantizes_dynamically(region)
    return dynamic_range(inputs[0], least_scale_of(region)) if own else None


def integer_reference(region: Region, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The product by numpy, wrapped to int32; float64 sums, exact below 2^53, for their speed."""
    product = np.matmul(*centred_inputs(region, inputs))
    return product.astype(np.int64).astype(np.int32)


def centred_inputs(region: Region, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A, quantised if the kernel does that, and B, both less their zero points; float64."""
    further = dict(zip(product_plan.zero_point_inputs(region), inputs[2:], strict=True))
    a, b = inputs[:2]
    found = own_range(region, inputs)
    if found is not None:
        further["range"] = found
    a_zero_point: Any = region.attrs.get("a_zero_point", 0)
    b_zero_point: Any = region.attrs.get("b_zero_point", 0)
    if a_zero_point in ("range", "dynamic"):
        a_zero_point = int(further["range"][1])
    if a_zero_point == "input":
        a_zero_point = int(further["a"].reshape(()))
    if "a_quantize" in region.attrs:
        scale: Any = region.attrs["a_scale"]
        known = np.float32(further["range"][0] if scale in ("range", "dynamic") else scale)
        dtype = str(region.attrs["a_quantize"])
        a = quantize_reference(dtype, a, np.asarray(known), np.array(a_zero_point))
    columns = further["b"].astype(np.float64) if b_zero_point == "input" else int(b_zero_point)
    return a.astype(np.float64) - int(a_zero_point), b.astype(np.float64) - columns


def pairs_answer(packed: A, count: int) -> A:
    """int32 [1]: whether `byte_pairs.pairs_fit` holds for the first `count` packed bytes."""
    if isinstance(packed, np.ndarray):
        return np.array([pairs_fit(packed)], np.int32)
    op = relax.op
    pairs = op.reshape(op.abs(op.astype(packed, "int32")), (count // 2, 2))
    largest = op.max(op.sum(pairs, axis=1), axis=0, keepdims=True)
    return op.astype(op.less_equal(largest, relax.const(LARGEST_PAIR, "int32")), "int32")
