"""The operands of batch_matmul: logical shapes, where elements are stored, packing of B."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from microkernels.vector.expressions import (
    Expr,
)
from tir_schedules.core.region import Region, Tensor
from tir_schedules.epilogue.epilogue import unflatten

from .activations import InPlace

_SIGN = 0x80
_LEAST_PIECE = 8  # rows, where vectors have less lanes


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
        self.batch_shape = list(region.output.shape[:-2])
        # With one B for all batches they are only more rows.
        self.shared = all(extent == 1 for extent in self.b_shape[:-2])
        self.batches = 1 if self.shared else math.prod(self.batch_shape)
        rows = region.output.shape[:-1]
        self.m = math.prod(rows) if self.shared else rows[-1]

    def stored(
        self, axes: Sequence[int], shape: Sequence[int], logical: Sequence[Any]
    ) -> list[Expr]:
        """Index into a stored operand from a logical index of the output's rank."""
        aligned = logical[len(logical) - len(shape) :]
        index: list[Expr] = [tirx.const(0, "int32")] * len(shape)
        for axis, extent, value in zip(axes, shape, aligned, strict=True):
            index[axis] = tirx.const(0, "int32") if extent == 1 else value
        return index

    def stored_b(self, buffer: Expr, batch: Expr) -> StoredOperand:
        """B of one batch."""
        zeros: list[Expr] = [tirx.const(0, "int32")] * len(self.batch_shape)
        leading = zeros if self.shared else unflatten(batch, self.batch_shape)
        contiguous = self.b_axes.index(len(self.b_axes) - 1) - len(self.b_axes)
        return StoredOperand(
            buffer,
            self.region.inputs[1].dtype,
            self.k,
            self.n,
            lambda k, column: self.stored(self.b_axes, self.b_shape, [*leading, k, column]),
            {-1: "columns", -2: "steps"}.get(contiguous, ""),
        )

    def rows_in_place(
        self, buffer: Expr, logical_row: Callable[[Expr], list[Expr]]
    ) -> InPlace | None:
        """A's rows where they are, if the same distance lies between all; else None.

        `logical_row` maps a row of a batch to the leading logical indices of the output.
        """
        a = self.region.inputs[0]
        if self.shared:
            folds = self.a_axes == sorted(self.a_axes)
            folds = folds and self.a_shape[:-1] == list(self.region.output.shape[:-1])
            pitch = self.k if folds else 0
        else:
            pitch = math.prod(a.shape[self.a_axes[-2] + 1 :])
        if not pitch:
            return None
        return InPlace(
            buffer,
            lambda row, column: self.stored(self.a_axes, self.a_shape, [*logical_row(row), column]),
            pitch,
        )

    @property
    def out_pitch(self) -> int:
        """Elements from one row of the stored output to the next; 0 if that differs."""
        rows = self.out_axes.index(len(self.out_axes) - 2)
        if self.shared and self.out_axes != sorted(self.out_axes):
            return 0
        return math.prod(self.output_tensor().shape[rows + 1 :])

    def output_tensor(self) -> Tensor:
        """The output as it is stored."""
        shape = self.region.output.shape
        return Tensor(tuple(shape[axis] for axis in self.out_axes), self.region.output.dtype)


@dataclass(frozen=True)
class StoredOperand:
    """A [K, N] operand in memory.

    Attributes
    ----------
    buffer : buffer
        Where its elements are.
    dtype : str
        Their type.
    k, n : int
        Extents.
    index : callable
        (k, column) -> index of an element.
    contiguous : str
        What lies next to each other: "columns", "steps" (of K) or "" (neither).
    """

    buffer: Expr
    dtype: str
    k: int
    n: int
    index: Callable[[Expr | int, Expr | int], list[Expr]]
    contiguous: str
