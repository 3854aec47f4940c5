"""The operands of batch_matmul: logical shapes, where elements are stored, packing of B."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Address, Microkernel
from microkernels.vector import bfloat16
from microkernels.vector.expressions import (
    Expr,
    bind,
    cast,
    constant,
    lanes_of,
    like,
    ramp,
    reinterpret,
    reinterpret_group,
    splat,
)
from microkernels.vector.transpose import transpose_block
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.group_loops import for_groups
from tir_schedules.core.panels import Panels
from tir_schedules.core.region import Region, Tensor
from tir_schedules.epilogue.epilogue import Columns, load_vector, unflatten

from .activations import InPlace
from .tile_stores import store_columns

_SIGN = 0x80


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
        self.m = math.prod(region.output.shape[:-1]) // self.batches

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


class PackedOperand:
    """An operand packed inside the kernel: [N/nr][K/kr][nr][kr], padded with zeros.

    Elements are converted to what the kernel multiplies on the way: f32 to bfloat16, unsigned 8-bit
    integers less 128.

    Parameters
    ----------
    source : StoredOperand
        The operand in memory.
    kernel : Microkernel
        The register tile.
    panels : sequence of Group
        How the vectors of columns are cut into panels.
    """

    def __init__(self, source: StoredOperand, kernel: Microkernel, panels: Sequence[Group]) -> None:
        self.source, self.kernel, self.panels = source, kernel, panels
        self.dtype = source.dtype
        self.lanes, self.kr = kernel.lanes, kernel.kr
        widths = tuple(group.size for group in panels for _ in range(group.count))
        self.layout = Panels(kernel, source.k, source.n, widths)
        self.steps = self.layout.steps
        self.group = self.lanes * self.kr
        self.element = "uint16" if kernel.b_dtype == "bfloat16" else kernel.b_dtype
        self.buffer = I.sblock_alloc_buffer((self.layout.size,), self.element, align=64)
        self.sums: Expr | None = None

    def load(
        self, panel: Expr | int, width: int, step: Expr | int, j: Expr | int
    ) -> Expr | Address:
        """One vector of a panel, `lanes` columns of kr elements each, as `emit` takes it."""
        start = self.layout.start(panel, width, step, j)
        return self.kernel.b_operand(self.buffer, start, width * self.group)

    def column_sums(self) -> None:
        """Adds up the columns, by the kernel's own products with ones."""
        kernel, lanes = self.kernel, self.lanes
        sums = I.sblock_alloc_buffer((self.layout.columns,), "int32", align=64)
        self.sums = sums

        def panel(start: Expr | int, width: int) -> None:
            total = I.sblock_alloc_buffer((width * lanes,), "int32")
            for j in range(width):
                I.buffer_store(total, constant(0, "int32", lanes), [ramp(j * lanes, lanes)])
            with I.serial(self.steps) as step:
                for j in range(width):
                    index = ramp(j * lanes, lanes)
                    group = self.buffer[ramp(self.layout.start(start, width, step, j), self.group)]
                    I.buffer_store(total, kernel.add_up(total[index], group), [index])
            for j in range(width):
                value = total[ramp(j * lanes, lanes)]
                I.buffer_store(sums, value, [ramp((start + j) * lanes, lanes)])

        with opaque_block("sums"):
            for_groups(self.panels, panel)

    def column_sum(self, vector: Expr | int) -> Expr:
        """The sums of one vector of columns; int32."""
        assert self.sums is not None
        return self.sums[ramp(vector * self.lanes, self.lanes)]

    def pack(self) -> None:
        """Emits the loops that pack it."""
        # Turning pairs or quadruples of rows pays for whole words of K only.
        ways = {"columns": self._copy, "steps": self._turn}
        with opaque_block("pack"):
            way = ways.get(self.source.contiguous, self._gather)

            def panel(start: Expr | int, width: int) -> None:
                way(start, width)
                self._pad(start, width)

            for_groups(self.panels, panel)

    def _pad(self, panel: Expr | int, width: int) -> None:
        """Zeros for the steps that only tiles have."""
        first = math.ceil(self.source.k / self.kr)
        if first < self.steps:
            zero = constant(0, self.element, self.group)
            with I.serial(self.steps - first) as step:
                for j in range(width):
                    offset = self.layout.start(panel, width, first + step, j)
                    I.buffer_store(self.buffer, zero, [ramp(offset, self.group)])

    def _each_vector(
        self, panel: Expr | int, width: int, emit: Callable[[int, Columns], None]
    ) -> None:
        """Runs `emit(j, columns)` for every vector of a panel."""
        for j in range(width):
            store_columns(
                self.source.n,
                self.lanes,
                panel + j,
                j == width - 1,
                functools.partial(emit, j),
            )

    def _bits(self, value: Expr) -> Expr:
        """Elements in memory as the bits that the kernel multiplies; f32 as it is."""
        if self.kernel.b_dtype == "bfloat16":
            return self.kernel.narrow(value) if self.dtype == "float32" else bfloat16.bits_of(value)
        if self.kernel.b_dtype in ("int8", "uint8"):
            value = reinterpret("uint8", value)
            return value ^ like(_SIGN, value) if self.dtype != self.kernel.b_dtype else value
        return value

    def _put(self, panel: Expr | int, width: int, step: Expr, j: Expr | int, words: Expr) -> None:
        """Stores one vector of words, each the kr elements of a column."""
        value = words
        if self.kernel.b_dtype != "float32":
            value = reinterpret_group(self.element, words, self.group)
        offset = self.layout.start(panel, width, step, j)
        I.buffer_store(self.buffer, value, [ramp(offset, self.group)])

    def _copy(self, panel: Expr | int, width: int) -> None:
        """Columns stored next to each other: kr rows are merged into words."""

        def step_of(step: Expr, valid: int) -> None:
            def put(j: int, columns: Columns) -> None:
                parts = []
                for i in range(valid):
                    *leading, start = self.source.index(step * self.kr + i, columns.start)
                    place = Columns(start, columns.lanes, columns.valid)
                    row = load_vector(self.source.buffer, self.dtype, leading, place)
                    parts.append(self._bits(row))
                self._put(panel, width, step, j, self._merged(parts))

            self._each_vector(panel, width, put)

        # A row is read once for the whole panel: the rows of a head may lie pages apart.
        whole = self.source.k // self.kr
        if whole:
            with I.serial(whole) as step:
                step_of(step, self.kr)
        if self.source.k % self.kr:
            step_of(tirx.const(whole, "int32"), self.source.k % self.kr)

    def _merged(self, parts: Sequence[Expr]) -> Expr:
        """Elements of consecutive rows as words; rows that do not exist are 0."""
        if self.kr == 1:
            return parts[0]
        bits = int(parts[0].ty.dtype.bits)
        word = f"uint{bits * self.kr}"
        merged = cast(word, parts[0])
        for i, part in enumerate(parts[1:], 1):
            wide = cast(word, part)
            merged = merged | (wide << like(bits * i, wide))
        return merged

    def _turn(self, panel: Expr | int, width: int) -> None:
        """Steps of K stored next to each other: square blocks of words transposed in registers."""
        self._each_vector(panel, width, functools.partial(self._turn_vector, panel, width))

    def _turn_vector(self, panel: Expr | int, width: int, j: int, columns: Columns) -> None:
        lanes, kr, k = self.lanes, self.kr, self.source.k
        bits = {"int8": 8, "uint8": 8, "uint16": 16}.get(self.element)
        word = "float32" if bits is None else f"uint{bits * kr}"

        def block(step: Expr, words: int) -> None:
            rows = []
            for i in range(lanes):
                if i >= columns.valid:
                    rows.append(constant(0, word, lanes))
                    continue
                index = self.source.index(step * kr, columns.start + i)
                elements = self.source.buffer[(*index[:-1], ramp(index[-1], words * kr))]
                if words < lanes and self._rounds:
                    # Rounding part of a vector takes LLVM seconds.
                    elements = _widened(elements, lanes * math.ceil(words * kr / lanes))
                row = self._bits(elements)
                if word != "float32":
                    row = reinterpret_group(word, row, lanes_of(row) // kr)
                rows.append(bind(_widened(row, lanes)))
            for i, value in enumerate(transpose_block(rows)[:words]):
                self._put(panel, width, step + i, j, value)

        whole = k // kr
        if whole >= lanes:
            with I.serial(whole // lanes) as square:
                block(square * lanes, lanes)
        if whole % lanes:
            block(tirx.const(whole - whole % lanes, "int32"), whole % lanes)
        if k % kr:
            self._gather_step(panel, width, j, columns, tirx.const(whole, "int32"), k % kr)

    @property
    def _rounds(self) -> bool:
        """Whether f32 becomes bfloat16."""
        return (self.dtype, self.kernel.b_dtype) == ("float32", "bfloat16")

    def _gather(self, panel: Expr | int, width: int) -> None:
        """Neither is contiguous: element by element."""
        self._each_vector(panel, width, functools.partial(self._gather_vector, panel, width))

    def _gather_vector(self, panel: Expr | int, width: int, j: int, columns: Columns) -> None:
        whole = self.source.k // self.kr
        if whole:
            with I.serial(whole) as step:
                self._gather_step(panel, width, j, columns, step, self.kr)
        if self.source.k % self.kr:
            last = tirx.const(whole, "int32")
            self._gather_step(panel, width, j, columns, last, self.source.k % self.kr)

    def _gather_step(
        self, panel: Expr | int, width: int, j: int, columns: Columns, step: Expr, valid: int
    ) -> None:
        """One step of K, element by element."""
        offset = self.layout.start(panel, width, step, j)
        for lane in range(self.lanes):
            for i in range(self.kr):
                value = tirx.const(0, self.element)
                if lane < columns.valid and i < valid:
                    index = self.source.index(step * self.kr + i, columns.start + lane)
                    bits = self._bits(self.source.buffer[tuple(index)])
                    value = bits if self.element != "int8" else reinterpret("int8", bits)
                I.buffer_store(self.buffer, value, [offset + lane * self.kr + i])


def _widened(value: Expr, lanes: int) -> Expr:
    """An exact load with as many lanes as wanted; the further ones hold anything."""
    given = lanes_of(value)
    if given == lanes:
        return value
    value = bind(value)
    if given == 1:
        return splat(value, lanes)
    chosen = [tirx.const(lane, "int32") for lane in range(lanes)]
    return tirx.Shuffle([value] * math.ceil(lanes / given), chosen)
