"""Epilogue: what happens to an accumulator before it is stored; one emitter for every template.

A template works on a matrix of rows (all leading dimensions of the output, flattened) and columns
(its last dimension). `Epilogue` turns a region's steps into a function of (vector, row, column)
whose result the template stores. Operands broadcast as in numpy; their addresses follow from
their shapes, so that a scalar, a channel vector, a column of rows, a full tensor and anything
between them are read in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.errors import ConfigError
from microkernels.vectors import (
    Expr,
    bind,
    cast,
    constant,
    element_of,
    parameter,
    ramp,
    splat,
    vector_type,
)

from .fusible_ops import FUSIBLE_OPS
from .region import Region, Tensor


@dataclass(frozen=True)
class Columns:
    """A vector of consecutive columns: `start`, `lanes`, of which the first `valid` exist."""

    start: Expr | int
    lanes: int
    valid: int

    @property
    def mask(self) -> Expr | None:
        """The lanes that exist, or None if all do."""
        if self.valid == self.lanes:
            return None
        return tirx.LT(ramp(0, self.lanes), constant(self.valid, "int32", self.lanes))


def unflatten(index: Expr, shape: Sequence[int]) -> list[Expr]:
    """The multi-index of a flat row-major index."""
    indices: list[Expr] = []
    for extent in reversed(shape[1:]):
        indices.append(tirx.const(0, "int32") if extent == 1 else I.floormod(index, extent))
        index = index if extent == 1 else I.floordiv(index, extent)
    if shape:
        indices.append(index)
    return indices[::-1]


def load_vector(buffer: Expr, dtype: str, leading: Sequence[Expr], columns: Columns) -> Expr:
    """Consecutive elements of a row of a buffer; lanes that do not exist are not touched."""
    lanes, mask = columns.lanes, columns.mask
    if mask is None:
        return buffer[(*leading, ramp(columns.start, lanes))]
    if columns.valid == 1:
        return splat(buffer[(*leading, columns.start)], lanes)
    return I.masked_load(
        vector_type(dtype, lanes), buffer, *leading, ramp(columns.start, lanes), mask
    )


def store_vector(buffer: Expr, value: Expr, leading: Sequence[Expr], columns: Columns) -> None:
    """Stores consecutive elements of a row; lanes that do not exist are not touched."""
    index = ramp(columns.start, columns.lanes)
    if columns.mask is None:
        I.buffer_store(buffer, value, [*leading, index])
    else:
        I.evaluate(I.masked_store(buffer, value, *leading, index, columns.mask))


def operand_parameters(region: Region) -> list[Expr]:
    """The parameters for a region's operands, added to the PrimFunc under construction."""
    return [
        parameter(f"operand{i}", tensor.shape, tensor.dtype)
        for i, tensor in enumerate(region.operands)
    ]


class Epilogue:
    """A region's steps, ready to be emitted.

    Parameters
    ----------
    region : Region
        Its operands, output and epilogue.
    buffers : sequence of buffers
        The kernel's parameters for `region.operands`.
    """

    def __init__(self, region: Region, buffers: Sequence[Expr]) -> None:
        self.region = region
        self.buffers = tuple(buffers)
        for step in region.epilogue:
            if step.op not in ("constant", "cast") and step.op not in FUSIBLE_OPS:
                raise ConfigError(f"{step.op!r} is not a fusible operator, in {region.key}")

    @property
    def cost(self) -> int:
        """Instructions for one vector, roughly."""
        steps = (step.op for step in self.region.epilogue)
        return sum(FUSIBLE_OPS[op].cost if op in FUSIBLE_OPS else 1 for op in steps)

    def __call__(self, value: Expr, row: Expr, columns: Columns) -> Expr:
        """What to store for one vector of the anchor's result.

        Parameters
        ----------
        value : Expr
            f32, `columns.lanes` lanes.
        row : Expr
            Flat index over the output's leading dimensions.
        columns : Columns
            Where in the last dimension the vector lies.
        """
        region = self.region
        values: list[Expr | None] = [value] + [None] * len(region.operands)
        for step in region.epilogue:
            if step.op == "constant":
                values.append(constant(step.value or 0.0, step.dtype, columns.lanes))
                continue
            for argument in step.args:
                if values[argument] is None:
                    values[argument] = bind(self._operand(argument - 1, row, columns))
            arguments = [values[argument] for argument in step.args]
            if step.op == "cast":
                emitted = cast(step.dtype, arguments[0])
            else:
                emitted = FUSIBLE_OPS[step.op].emit(*arguments)
            # TVM's analyzer fails on a named vector of conditions; it is one instruction anyway.
            values.append(emitted if element_of(emitted) == "bool" else bind(emitted))
        result = values[-1] if region.epilogue else value
        assert result is not None
        return result

    def _operand(self, number: int, row: Expr, columns: Columns) -> Expr:
        tensor, buffer = self.region.operands[number], self.buffers[number]
        if not tensor.shape:
            return splat(buffer[()], columns.lanes)
        leading = broadcast_leading(row, self.region.output.shape, tensor.shape)
        if tensor.shape[-1] == 1 and self.region.output.shape[-1] != 1:
            return splat(buffer[(*leading, tirx.const(0, "int32"))], columns.lanes)
        return load_vector(buffer, tensor.dtype, leading, columns)


def broadcast_leading(row: Expr, output: Sequence[int], operand: Sequence[int]) -> list[Expr]:
    """Leading indices of an operand for a flat row of the output it broadcasts to."""
    indices = unflatten(row, output[:-1])
    shape = operand[:-1]
    aligned = indices[len(indices) - len(shape) :]
    return [
        tirx.const(0, "int32") if extent == 1 else index
        for extent, index in zip(shape, aligned, strict=True)
    ]


def epilogue_reference(
    region: Region, result: np.ndarray, operands: Sequence[np.ndarray]
) -> np.ndarray:
    """The epilogue by numpy, in the precision of `result`; for tests and verification."""
    values: list[np.ndarray] = [result, *operands]
    for step in region.epilogue:
        if step.op == "constant":
            values.append(np.asarray(step.value, dtype=result.dtype))
        elif step.op == "cast":
            values.append(values[step.args[0]].astype(step.dtype))
        else:
            values.append(FUSIBLE_OPS[step.op].numpy(*(values[i] for i in step.args)))
    return np.broadcast_to(values[-1] if region.epilogue else result, region.output.shape)


def rows_and_columns(tensor: Tensor) -> tuple[int, int]:
    """A tensor as a matrix: leading dimensions flattened, last dimension."""
    if not tensor.shape:
        return 1, 1
    return math.prod(tensor.shape[:-1]), tensor.shape[-1]
