"""Extents and strides of a product of two activations whose sizes are known at run time only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from microkernels.vector.expressions import Expr, materialise
from tir_schedules.core.extents import extent
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SymbolicSize

from .batch_operands import BatchProblem


@dataclass(frozen=True)
class Strides:
    """Where the elements of an operand lie, in elements.

    Attributes
    ----------
    batch : tuple of int
        From one index of a batch dimension to the next; 0 where all share the operand.
    row, column : int
        Of the last two dimensions.
    """

    batch: tuple[int, ...]
    row: int
    column: int

    @staticmethod
    def of(stored: Tensor, axes: Sequence[int], batch: Sequence[int]) -> Strides:
        """Of a stored tensor whose logical dimensions are `axes`, aligned with a batch."""
        steps = [math.prod(stored.shape[axis + 1 :]) for axis in axes]
        sizes = [stored.shape[axis] for axis in axes]
        own = [
            0 if size == 1 and not isinstance(size, SymbolicSize) else step
            for size, step in zip(sizes[:-2], steps[:-2], strict=True)
        ]
        missing = [0] * (len(batch) - len(own))
        return Strides((*missing, *own), steps[-2], steps[-1])

    def base(self, index: Sequence[Expr]) -> Expr:
        """Where a batch begins."""
        found: Expr = tirx.const(0, "int32")
        for number, step in zip(index, self.batch, strict=True):
            found = found + number * extent(step)
        return materialise(found)


class OpenBatchProblem:
    """Extents and strides of a region; one B for all batches makes them only more rows.

    Attributes
    ----------
    batch : tuple of int
        Batch dimensions.
    m, n, k : int
        Rows of a batch, columns, and what is summed.
    a, b, c : Strides
        Of the stored operands and the stored result.
    """

    def __init__(self, region: Region) -> None:
        problem = BatchProblem(region)
        self.n, self.k, self.m = problem.n, problem.k, region.output.shape[-2]
        self.batch = tuple(problem.batch_shape)
        self.stored = (*region.inputs[:2], problem.output_tensor())
        # A logical dimension of the result is where `out_axes` puts it.
        places = [problem.out_axes.index(axis) for axis in range(len(problem.out_axes))]
        orders = (problem.a_axes, problem.b_axes, places)
        self.a, self.b, self.c = (
            Strides.of(tensor, axes, self.batch)
            for tensor, axes in zip(self.stored, orders, strict=True)
        )
        plain = all(list(axes) == sorted(axes) for axes in (problem.a_axes, places))
        alike = problem.a_shape[:-1] == list(region.output.shape[:-1])
        if problem.shared and plain and alike:
            self.m = math.prod(region.output.shape[:-1])
            self.batch = ()
            self.a, self.b, self.c = (
                Strides((), each.row, each.column) for each in (self.a, self.b, self.c)
            )
