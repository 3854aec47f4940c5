"""Epilogue: what happens to an accumulator before it is stored, for every template.

A template works on a matrix of rows (all leading dimensions of the output, flattened) and columns
(its last dimension). `Epilogue` turns a region's steps into a function of (vector, row, column)
whose result the template stores. Operands broadcast as in numpy; their addresses follow from
their shapes, so that a scalar, a channel vector, a column of rows, a full tensor and anything
between them are read in place.

Between steps, 8-bit integers are held as int32 lanes and bfloat16 values as f32 lanes. A region
that dequantises rounds every product by itself, so that its integers equal those of single
operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import RANGES
from microkernels.base.errors import ConfigError
from microkernels.vector import bfloat16, placeholders
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from microkernels.vector.ieee import ROUND_BITS, convert
from tir_schedules.core import extents, template
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import is_dynamic

from . import quantize_steps
from .fusible_ops import FUSIBLE_OPS, SPECIAL_STEPS, cost_of
from .lookup_table import LANES as LOOKUP_LANES
from .lookup_table import emit_lookup, find_lookups

Disturb = Callable[[EpilogueOp, Sequence[np.ndarray], np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Columns:
    """A vector of consecutive columns: `start`, `lanes`, of which the first `valid` exist.

    An expression `valid` is from 1 to `lanes`.
    """

    start: Index
    lanes: int
    valid: Index

    @property
    def mask(self) -> Expr | None:
        """The lanes that exist, or None if all do."""
        if not isinstance(self.valid, int):
            return tirx.LT(ex.ramp(0, self.lanes), ex.splat(self.valid, self.lanes))
        if self.valid == self.lanes:
            return None
        return tirx.LT(ex.ramp(0, self.lanes), ex.constant(self.valid, "int32", self.lanes))


def unflatten(index: Expr, shape: Sequence[int]) -> list[Expr]:
    """The multi-index of a flat row-major index."""
    indices: list[Expr] = []
    for size in reversed(shape[1:]):
        if size == 1:
            indices.append(tirx.const(0, "int32"))
            continue
        by = extents.extent(size)
        rest, index = I.floormod(index, by), I.floordiv(index, by)
        if is_dynamic((size,)):
            rest, index = ex.materialise(rest), ex.materialise(index)
        indices.append(rest)
    if shape:
        indices.append(index)
    return indices[::-1]


def load_vector(buffer: Expr, dtype: str, leading: Sequence[Expr], columns: Columns) -> Expr:
    """Consecutive elements of a row of a buffer; lanes that do not exist are not touched.

    A buffer that the kernel allocates holds bfloat16 as bits: TVM fails on bfloat16 buffers.
    """
    if dtype == "bfloat16" and buffer.dtype == "uint16":
        return bfloat16.from_bits(load_vector(buffer, "uint16", leading, columns))
    lanes, mask = columns.lanes, columns.mask
    if mask is None:
        return buffer[(*leading, ex.ramp(columns.start, lanes))]
    if isinstance(columns.valid, int) and columns.valid == 1:
        return ex.splat(buffer[(*leading, columns.start)], lanes)
    return I.masked_load(
        ex.vector_type(dtype, lanes), buffer, *leading, ex.ramp(columns.start, lanes), mask
    )


def store_vector(buffer: Expr, value: Expr, leading: Sequence[Expr], columns: Columns) -> None:
    """Stores consecutive elements of a row; lanes that do not exist are not touched."""
    index = ex.ramp(columns.start, columns.lanes)
    if ex.element_of(value) == "bfloat16" and buffer.dtype == "uint16":
        value = bfloat16.bits_of(value)
    if columns.mask is None:
        I.buffer_store(buffer, value, [*leading, index])
    elif isinstance(columns.valid, int) and columns.valid == 1:
        # LLVM 22 makes a masked store of one narrowed lane a store of its 32 bits.
        first = tirx.Shuffle([value], [tirx.const(0, "int32")])
        I.buffer_store(buffer, first, [*leading, columns.start])
    else:
        I.evaluate(I.masked_store(buffer, value, *leading, index, columns.mask))


class Epilogue:
    """A region's steps, ready to be emitted.

    Parameters
    ----------
    region : Region
        Its operands, output and epilogue.
    buffers : sequence of buffers
        The kernel's parameters for `region.operands`.
    narrow : callable
        f32 -> bfloat16 (uint16 lanes).
    first_row : Expr or None
        Row of the output from which rows are counted; None: row 0.
    local : collection of int
        Numbers of the operands that begin at that row; their buffers are matrices.

    Attributes
    ----------
    own_range : buffer or None
        Scale and zero point that the kernel finds itself, for "range" steps.
    """

    def __init__(
        self,
        region: Region,
        buffers: Sequence[Expr],
        narrow: Callable[[Expr], Expr] = bfloat16.narrow,
        first_row: Expr | None = None,
        local: Collection[int] = (),
    ) -> None:
        self.region = region
        self.first_row, self.local = first_row, local
        self.narrow = narrow
        self.buffers = tuple(buffers)
        for step in region.epilogue:
            if step.op not in SPECIAL_STEPS and step.op not in FUSIBLE_OPS:
                raise ConfigError(f"{step.op!r} is not a fusible operator, in {region.key}")
        self.exact = is_exact(region)
        self.own_range: Expr | None = None
        self.lookups = find_lookups(region)
        self._centred = quantize_steps.centred_steps(region, self.lookups)
        self._tables: dict[int, np.ndarray] = {}

    @property
    def cost(self) -> int:
        """Instructions for one vector, roughly."""
        return sum(cost_of(step.op) for step in self.region.epilogue)

    def zero_point(self, requantize: EpilogueOp) -> int:
        """The zero point that a "requantize" step adds."""
        number = self.region.epilogue[requantize.args[1] - 1 - len(self.region.operands)]
        return placeholders.as_integer(number.number)

    def __call__(
        self, value: Expr, row: Expr, columns: Columns, wide: Callable[..., Expr] | None = None
    ) -> Expr:
        """What to store for one vector of the anchor's result.

        Parameters
        ----------
        value : Expr
            f32 or, of an integer product, int32; `columns.lanes` lanes.
        row : Expr
            Flat index over the output's leading dimensions, from `first_row` on.
        columns : Columns
            Where in the last dimension the vector lies.
        wide : callable or None
            Replaces the last step, which quantises: its arguments -> int32 lanes.
        """
        region = self.region
        values: list[Expr | None] = [value] + [None] * len(region.operands)
        lookups = self.lookups if columns.lanes == LOOKUP_LANES else {}
        skipped = {number for lookup in lookups.values() for number in lookup.inside}
        for number, step in enumerate(region.epilogue, len(values)):
            if number in skipped:
                values.append(None)
                continue
            if step.op == "constant":
                values.append(ex.constant(step.number, step.dtype, columns.lanes))
                continue
            if step.op in ("range", "item"):
                buffer = self.own_range if step.op == "range" else self.buffers[step.args[0] - 1]
                assert buffer is not None
                item = buffer[tirx.const(int(step.value or 0), "int32")]
                values.append(ex.splat(item, columns.lanes))
                continue
            sources = (lookups[number].source,) if number in lookups else step.args
            for argument in sources:
                if values[argument] is None:
                    values[argument] = ex.bind(self.operand(argument - 1, row, columns))
            found = [values[argument] for argument in sources]
            arguments = [argument for argument in found if argument is not None]
            if number in lookups:
                emitted = emit_lookup(arguments[0], self._table(number))
            else:
                last = number == len(region.operands) + len(region.epilogue)
                if last and wide is not None:
                    return ex.bind(wide(*arguments))
                emitted = self._emit(step, arguments, last, number in self._centred)
            # TVM's analyzer fails on a named vector of conditions; it is one instruction anyway.
            values.append(emitted if ex.element_of(emitted) == "bool" else ex.bind(emitted))
        result = values[-1] if region.epilogue else value
        assert result is not None
        dtype, element = region.output.dtype, ex.element_of(result)
        if dtype == "bfloat16" and element == "float32":
            return bfloat16.from_bits(self.narrow(result))
        return ex.cast(dtype, result) if dtype in RANGES and element == "int32" else result

    def _table(self, number: int) -> np.ndarray:
        """The results of a lookup for all 256 bytes."""
        if number not in self._tables:
            meaning = self.lookups[number].meaning
            arguments = np.arange(256, dtype=np.uint8).view(meaning.inputs[0].dtype)
            with np.errstate(all="ignore"):
                entries = epilogue_reference(meaning, arguments, ())
            self._tables[number] = np.asarray(entries)
        return self._tables[number]

    def _emit(self, step: EpilogueOp, arguments: list[Expr], last: bool, centred: bool) -> Expr:
        """The value of one step."""
        if step.op == "cast" and step.dtype == "bfloat16":
            # Between steps the value stays f32; after the last step, the store narrows it.
            wide = convert("float32", arguments[0])
            return wide if last else bfloat16.widen(self.narrow(wide))
        if step.op == "cast":
            converted = convert(step.dtype, arguments[0])
            between = step.dtype in RANGES and not last
            return ex.cast("int32", converted) if between else converted
        if step.op in ("quantize", "dequantize"):
            scale, zero_point = self._numbers(step.args[1:], arguments[1:])
            if step.op == "dequantize":
                return quantize_steps.emit_dequantize(arguments[0], scale, zero_point)
            emit = quantize_steps.emit_centred if centred else quantize_steps.emit_quantize
            return emit(arguments[0], scale, zero_point, step.dtype)
        if step.op == "requantize":
            words = quantize_steps.emit_words(arguments[0], self.zero_point(step), arguments[2:])
            return quantize_steps.saturated(words - ex.like(ROUND_BITS, words), step.dtype)
        entry = FUSIBLE_OPS[step.op]
        emitted = entry.emit(*arguments)
        return quantize_steps.rounded(emitted) if self.exact and step.op == "multiply" else emitted

    def _numbers(self, args: Sequence[int], arguments: Sequence[Expr]) -> list[float | Expr]:
        """Arguments of a step, as numbers if they are known at compile time."""
        first = 1 + len(self.region.operands)
        steps = self.region.epilogue
        return [
            placeholders.as_real(steps[arg - first].number)
            if arg >= first and steps[arg - first].op == "constant"
            else value
            for arg, value in zip(args, arguments, strict=True)
        ]

    def leading(self, number: int, row: Expr) -> list[Expr]:
        """The indices of an operand's row: the output's, along the dimensions that it has."""
        row = row if self.first_row is None else self.first_row + row
        dimensions = self.region.operands[number].shape[:-1]
        indices = unflatten(row, self.region.output.shape[:-1])
        pairs = zip(dimensions, indices[len(indices) - len(dimensions) :], strict=True)
        return [tirx.const(0, "int32") if size == 1 else index for size, index in pairs]

    def operand(self, number: int, row: Expr, columns: Columns) -> Expr:
        """One vector of an operand, in the form that steps use."""
        tensor, buffer = self.region.operands[number], self.buffers[number]
        if not tensor.shape:
            return as_lanes(ex.splat(buffer[()], columns.lanes))
        leading = [row] if number in self.local else self.leading(number, row)
        if tensor.shape[-1] == 1 and self.region.output.shape[-1] != 1:
            columns = Columns(0, columns.lanes, 1)
        return as_lanes(load_vector(buffer, tensor.dtype, leading, columns))


def is_exact(region: Region) -> bool:
    """Whether a region has integers, so that it must round as single operators do."""
    ops = {step.op for step in region.epilogue}
    return not ops.isdisjoint(("quantize", "dequantize")) or (
        len(region.inputs) > 1 and region.inputs[1].dtype in RANGES
    )


def as_lanes(value: Expr) -> Expr:
    """A loaded value in the form that steps use."""
    element = ex.element_of(value)
    if element in RANGES:
        return ex.cast("int32", value)
    if element == "bfloat16":
        return bfloat16.widen(bfloat16.bits_of(value))
    return value


def epilogue_reference(
    region: Region,
    result: np.ndarray,
    operands: Sequence[np.ndarray],
    own_range: np.ndarray | None = None,
    disturb: Disturb | None = None,
) -> np.ndarray:
    """The epilogue by numpy, in the precision of `result`; for tests and verification.

    Parameters
    ----------
    region : Region
        Its operands, output and epilogue.
    result : ndarray
        The anchor's result.
    operands : sequence of ndarray
        The further tensors that the epilogue reads.
    own_range : ndarray or None
        Scale and zero point that the kernel finds itself.
    disturb : callable or None
        (step, its arguments, its value) -> the value to go on with, for every fusible operator;
        shows the effect of an error.
    """
    real = result.dtype if result.dtype.kind == "f" else np.dtype(np.float32)
    values: list[np.ndarray] = [result, *operands]
    for step in region.epilogue:
        arguments = [values[i] for i in step.args]
        if step.op == "constant":
            values.append(np.asarray(step.number, dtype=real))
        elif step.op == "item":
            values.append(arguments[0][int(step.value or 0)])
        elif step.op == "range":
            assert own_range is not None
            values.append(own_range[int(step.value or 0)])
        elif step.op == "cast":
            values.append(arguments[0].astype(step.dtype))
        elif step.op == "quantize":
            values.append(quantize_steps.quantize_reference(step.dtype, *arguments))
        elif step.op == "requantize":
            values.append(quantize_steps.requantize_reference(step.dtype, *arguments))
        elif step.op == "dequantize":
            values.append(quantize_steps.dequantize_reference(*arguments))
        else:
            value = FUSIBLE_OPS[step.op].numpy(*arguments)
            values.append(value if disturb is None else disturb(step, arguments, value))
    return np.broadcast_to(values[-1] if region.epilogue else result, region.output.shape)


def rows_and_columns(tensor: Tensor) -> tuple[int, int]:
    """A tensor as a matrix: leading dimensions flattened, last dimension."""
    if not tensor.shape:
        return 1, 1
    return math.prod(tensor.shape[:-1]), tensor.shape[-1]


# The result of a region by NumPy, with its epilogue, rounded as it is stored.
#
# Only f32 values computed in float64 stay in float64: kernels add in different orders, and their
# reference must be more precise than any of them.


_REAL = ("float32", "float64")


def region_result(region: Region, arrays: list[np.ndarray]) -> np.ndarray:
    """The result of an ordinary region.

    Parameters
    ----------
    region : Region
        Not merged of parts.
    arrays : list of ndarray
        Its inputs and operands; values of type f32 may be float64.
    """
    inputs, operands = arrays[: len(region.inputs)], arrays[len(region.inputs) :]
    result = template.template_for(region.op).reference(region, inputs).reshape(region.output.shape)
    if result.dtype == np.float64 and not is_exact(region):
        operands = [x if x.dtype.kind in "biu" else x.astype(np.float64) for x in operands]
    with np.errstate(all="ignore"):
        return as_stored(region, epilogue_reference(region, result, operands))


def as_stored(region: Region, value: np.ndarray) -> np.ndarray:
    """A value in the type of a region's result, f32 as it was computed."""
    dtype = region.output.dtype
    if dtype == "float32" and value.dtype.name in _REAL:
        return value
    with np.errstate(all="ignore"):
        return value.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
