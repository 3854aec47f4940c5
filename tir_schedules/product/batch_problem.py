"""What a batch_matmul region is: its sizes, where its operands lie, and its configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from microkernels.vector.expressions import Expr, Index, materialise
from tir_schedules.core.extents import extent
from tir_schedules.core.product_plan import ProductPlan, TileConfig
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.stored_operand import StoredOperand, strided_operand
from tir_schedules.epilogue.epilogue import Columns, load_vector, unflatten

from .activations import InPlace, Read, read_flat


class BatchMatmulConfig(TileConfig, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    row_shares : int
        Tasks into which the rows of one batch are cut.
    packs_first : bool
        Whether all B are packed before the first task, by all threads; otherwise each task packs
        its own.
    parallel : bool
        Whether the tasks run on several threads.
    threads : int
        Number of threads; 0: all.
    alone_flops : int
        Up to this many operations, if sizes are dynamic, one thread runs all tasks.
    column_shares : int
        Tasks into which the columns of one batch are cut. They pack B panel by panel, each panel
        right before it is multiplied by all rows. 0: B is packed whole.
    """

    row_shares: int = 1
    packs_first: bool = False
    parallel: bool = False
    threads: int = 0
    alone_flops: int = 0
    column_shares: int = 0


def plan_of(problem: BatchProblem, config: BatchMatmulConfig) -> ProductPlan:
    """How a configuration cuts the product of one batch."""
    sizes, threads_n = (problem.m, problem.n, problem.k), max(1, config.column_shares)
    return ProductPlan.of(config, *sizes, threads_m=config.row_shares, threads_n=threads_n)


class BatchProblem:
    """Logical shapes of a region: batches over which B varies, rows, columns, K."""

    def __init__(self, region: Region) -> None:
        self.region = region
        a, b = region.inputs[:2]
        self.a_axes = list(region.numbers("a_axes", range(len(a.shape))))
        self.b_axes = list(region.numbers("b_axes", range(len(b.shape))))
        self.out_axes = list(region.numbers("out_axes", range(len(region.output.shape))))
        self.a_shape = [a.shape[axis] for axis in self.a_axes]
        self.b_shape = [b.shape[axis] for axis in self.b_axes]
        self.n, self.k = self.b_shape[-1], self.b_shape[-2]
        # Whether the elements of a row of A are contiguous.
        self.contiguous = self.a_axes[-1] == len(self.a_axes) - 1
        self.batch_shape = list(region.output.shape[:-2])
        # If all batches share one B, they are only more rows.
        self.shared = all(size == 1 for size in self.b_shape[:-2])
        self.batches = 1 if self.shared else math.prod(self.batch_shape)
        rows = region.output.shape[:-1]
        self.m = math.prod(rows) if self.shared else rows[-1]

    def stored(self, axes: Sequence[int], shape: Sequence[int], logical: list[Any]) -> list[Expr]:
        """Index into a stored operand from a logical index of the output's rank."""
        aligned = logical[len(logical) - len(shape) :]
        index: list[Expr] = [tirx.const(0, "int32")] * len(shape)
        for axis, size, value in zip(axes, shape, aligned, strict=True):
            index[axis] = tirx.const(0, "int32") if size == 1 else value
        return index

    def logical_row(self, batch: Expr, row: Expr) -> list[Expr]:
        """Leading logical indices of a row of a batch."""
        if self.shared:
            return unflatten(row, self.region.output.shape[:-1])
        return [*unflatten(batch, self.batch_shape), row]

    def read_a(self, buffer: Expr, batch: Expr) -> Read:
        """How elements of A of one batch are read."""

        def read(row: Expr, columns: Columns) -> Expr:
            place = [*self.logical_row(batch, row), columns.start]
            index = self.stored(self.a_axes, self.a_shape, place)
            if columns.lanes == 1:
                return buffer[tuple(index)]
            return load_vector(buffer, self.region.inputs[0].dtype, index[:-1], columns)

        return read

    def stored_b(self, buffer: Expr, batch: Expr) -> StoredOperand:
        """B of one batch."""
        contiguous = self.b_axes.index(len(self.b_axes) - 1) - len(self.b_axes)
        order = {-1: "columns", -2: "steps"}.get(contiguous, "")
        leading = unflatten(batch, self.batch_shape)  # without effect on one B for all batches

        def index(k: Index, column: Index) -> list[Expr]:
            return self.stored(self.b_axes, self.b_shape, [*leading, k, column])

        dtype = self.region.inputs[1].dtype
        return StoredOperand(buffer, dtype, self.k, self.n, index, order)

    def rows_in_place(self, buffer: Expr, batch: Expr) -> InPlace | None:
        """A's rows of a batch in place; None if sizes are dynamic or rows not equally far apart."""
        a = self.region.inputs[0]
        if self.shared:
            folds = self.a_axes == sorted(self.a_axes)
            folds = folds and self.a_shape[:-1] == list(self.region.output.shape[:-1])
            pitch = self.k if folds else 0
        else:
            pitch = math.prod(a.shape[self.a_axes[-2] + 1 :])
        if not pitch or self.region.is_dynamic:
            return None

        def index(row: Expr, column: Index) -> list[Expr]:
            place = [*self.logical_row(batch, row), column]
            return self.stored(self.a_axes, self.a_shape, place)

        return InPlace(buffer, index, pitch)

    @property
    def out_pitch(self) -> int:
        """Elements from one row of the stored output to the next; 0 if distances differ."""
        rows = self.out_axes.index(len(self.out_axes) - 2)
        if self.shared and self.out_axes != sorted(self.out_axes):
            return 0
        return math.prod(self.output_tensor().shape[rows + 1 :])

    def output_tensor(self) -> Tensor:
        """The output as it is stored."""
        shape = self.region.output.shape
        return Tensor(tuple(shape[axis] for axis in self.out_axes), self.region.output.dtype)


@dataclass(frozen=True)
class Strides:
    """Strides of an operand, in elements.

    Attributes
    ----------
    batch : tuple of int
        Strides of the batch dimensions; 0 if all their indices share the operand.
    row, column : int
        Strides of the last two dimensions.
    """

    batch: tuple[int, ...]
    row: int
    column: int

    @staticmethod
    def of(stored: Tensor, axes: Sequence[int], batch: Sequence[int]) -> Strides:
        """The strides of a stored tensor with logical dimensions `axes`, aligned with a batch."""
        steps = [math.prod(stored.shape[axis + 1 :]) for axis in axes]
        sizes = [stored.shape[axis] for axis in axes]
        own = [
            0 if size == 1 and not isinstance(size, SymbolicSize) else step
            for size, step in zip(sizes[:-2], steps[:-2], strict=True)
        ]
        missing = [0] * (len(batch) - len(own))
        return Strides((*missing, *own), steps[-2], steps[-1])


class StridedProblem(BatchProblem):
    """A region of dynamic sizes, whose operands are flat buffers.

    TVM would compute the index of an element from dynamic extents in every access; here it is a sum
    of products with strides, which loops carry along. Batches that share one B are only more rows.

    Attributes
    ----------
    tensors : tuple of Tensor
        The stored operands and the stored result.
    a, b, c : Strides
        The strides of A, B and the result.
    """

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.m, self.batches = region.output.shape[-2], math.prod(self.batch_shape)
        self.tensors = (*region.inputs[:2], self.output_tensor())
        # A logical dimension of the result is where `out_axes` puts it.
        places = [self.out_axes.index(axis) for axis in range(len(self.out_axes))]
        pairs = zip(self.tensors, (self.a_axes, self.b_axes, places), strict=True)
        self.a, self.b, self.c = (Strides.of(*each, self.batch_shape) for each in pairs)
        self.contiguous = self.a.column == 1
        plain = all(list(each) == sorted(each) for each in (self.a_axes, places))
        if self.shared and plain and self.a_shape[:-1] == list(region.output.shape[:-1]):
            self.m, self.batches = math.prod(region.output.shape[:-1]), 1
            self.batch_shape, strides = [], (self.a, self.b, self.c)
            self.a, self.b, self.c = (replace(each, batch=()) for each in strides)

    def base(self, strides: Strides, batch: Expr) -> Expr:
        """Where a batch begins in an operand."""
        found: Expr = tirx.const(0, "int32")
        for number, step in zip(unflatten(batch, self.batch_shape), strides.batch, strict=True):
            found = found + number * extent(step)
        return materialise(found)

    def read_a(self, buffer: Expr, batch: Expr) -> Read:
        """See `BatchProblem.read_a`."""
        base, pitch, step = self.base(self.a, batch), extent(self.a.row), extent(self.a.column)
        dtype = self.tensors[0].dtype
        return read_flat(buffer, dtype, lambda row, column: base + row * pitch + column * step)

    def stored_b(self, buffer: Expr, batch: Expr) -> StoredOperand:
        """See `BatchProblem.stored_b`."""
        given = buffer, self.tensors[1].dtype, (extent(self.k), extent(self.n))
        return strided_operand(*given, self.base(self.b, batch), self.b.row, self.b.column)
