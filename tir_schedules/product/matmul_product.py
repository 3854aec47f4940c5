"""One matmul inside a kernel: its loops around whatever buffers the kernel gives it.

The template "matmul" has one product, whose rows are parameters. A merged kernel has several, one
after the other, whose rows may be buffers inside the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import DataType, relax, tirx

from microkernels.base.arrays import SHIFT
from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import byte_tile, has_pairs
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, Index, ramp, reinterpret_group
from microkernels.vector.memory import PREFETCH_LLVM_IR, prefetch
from tir_schedules.core import extents, product_plan, template
from tir_schedules.core.arrays import A, as_bytes, joined, padded, sliced
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_dynamic
from tir_schedules.epilogue.epilogue import Columns, Epilogue, load_vector
from tir_schedules.epilogue.tile_results import RowResults

from . import best_grid, byte_outliers, zero_points
from .activations import Activations, Begun, InPlace
from .amx_tiles import TileTask
from .dynamic_rows import share_dynamic_rows
from .prefetch import Prefetch
from .staged_panels import ScaledPanels, WidePanels, WideProduct, has_scale, wide_product_of
from .tile_config import MatmulConfig, check, plan_of, window_of
from .tile_loops import Shortcut, TileLoops
from .tile_products import OperandB

_LINE = 64  # bytes of a cache line

Rows = tuple[Expr, Callable[[Expr], Sequence[Expr]]]
"""A buffer, and row -> leading indices of that row in it."""


@dataclass(frozen=True)
class MatmulProduct:
    """A matmul region with its configuration and its buffers.

    Attributes
    ----------
    region : Region
        The matmul.
    config : MatmulConfig
        Its configuration.
    kernel : Microkernel
        The configuration's microkernel, from `tile_config.check`.
    constants : sequence of Buffer
        The packed weight, and the inputs after it.
    epilogue : Epilogue
        The region's epilogue with its operands.
    source, target : tuple
        The rows of A and of the result.
    find_range : callable or None
        Emits the search for A's scale and zero point, and returns the buffer that holds them.
    """

    region: Region
    config: MatmulConfig
    kernel: Microkernel
    constants: Sequence[Expr]
    epilogue: Epilogue
    source: Rows
    target: Rows
    find_range: Callable[[], Expr] | None = None

    def loops(self, most_rows: int) -> TileLoops:
        """The loops for blocks of at most `most_rows` rows; allocates their buffers here."""
        region, config, kernel = self.region, self.config, self.kernel
        weight = PackedWeight(region, config, kernel, self.constants[0])
        plan, (buffer, leading) = weight.plan, self.target
        plan = byte_outliers.cut_for_bytes(plan)
        if has_scale(region):
            inputs = {"scale": self.constants[1]}
        else:
            inputs = zero_points.named_inputs(region, self.constants[1:])
        if self.find_range is not None:
            inputs["range"] = self.find_range()
        wide, searched = wide_product_of(plan), byte_outliers.SEVEN_BITS.suits(plan)
        block = min(max(plan.m_block, config.rows), most_rows)
        rows: Activations | None = None
        if byte_outliers.SMALL_PAIRS.suits(plan):
            rows = self._activations(block, inputs, tile=byte_tile(kernel))
        if rows is None or not searched:
            exact = self._activations(block, inputs, wide)
        elif wide is None:
            exact = rows
        else:
            exact = Activations(kernel, "uint8", plan.k, block, rows.operand, wide=wide)

        def start_of(found: Activations) -> zero_points.Start | None:
            further = inputs, plan.k, weight.column_term, found.row_sum, weight.column_address
            return zero_points.start_of(region, kernel, *further)

        pitch = int(buffer.shape[-1])
        results = RowResults(region, kernel, buffer, self.epilogue, leading, pitch)
        first = rows if rows is not None and searched else exact  # the one with row sums
        a = Begun(exact) if exact is rows else exact
        loops = TileLoops(plan, a, weight, results, start_of(first))
        if rows is not None:
            shortcuts = byte_outliers.byte_shortcuts(loops, rows, block, start_of(rows), weight)
            loops = replace(loops, shortcuts=shortcuts)
        vectors = min(config.vectors, plan.n_vectors)
        if wide is not None:
            least, shortcuts = 1, [*loops.shortcuts]
            if is_dynamic((plan.m,)):
                least = wide.fewest_rows
                few = first if searched else self._activations(least - 1, inputs)
                fewer = replace(plan, rows=min(plan.rows, kernel.mr))
                a = Begun(few) if searched else few
                narrow = replace(loops, plan=fewer, a=a, start=start_of(few))
                shortcuts.append(Shortcut(lambda _, count: extents.as_expr(count) < least, narrow))
            given = plan.panels, weight.buffer, wide, plan.longest_piece, vectors
            panels = WidePanels(*given, weight.prefetch)
            return replace(loops, b=panels, tiles=wide, shortcuts=shortcuts, least=least)
        if "scale" not in inputs:
            return loops
        return replace(loops, b=ScaledPanels(weight, inputs["scale"], vectors))

    def _activations(
        self,
        most_rows: int,
        inputs: Mapping[str, Expr],
        wide: WideProduct | None = None,
        tile: Microkernel | None = None,
    ) -> Activations:
        """Returns A in blocks of at most `most_rows` rows; `inputs` holds a dynamic range of A."""
        region, dtype, (buffer, leading) = self.region, self.region.inputs[0].dtype, self.source
        plan, window, rows = plan_of(region, self.config), window_of(region), None
        if window is None:
            pitch, item = int(buffer.shape[-1]), int(DataType(self.kernel.a_dtype).itemsize)
            crowded = not is_dynamic((plan.m,)) and extents.worth_copying(
                pitch, item, plan.m, plan.n
            )
            place = pitch, pitch > region.inputs[0].shape[-1], crowded
            rows = InPlace(buffer, lambda row, column: [*leading(row), column], *place)

        def read(row: Expr, columns: Columns) -> Expr:
            if window is not None:
                return buffer[tuple(window.element(row, columns.start))]
            return load_vector(buffer, dtype, leading(row), columns)

        return Activations(
            tile or self.kernel,
            dtype,
            plan.k,
            most_rows,
            read,
            quantize=zero_points.quantize_parameters(region, self.kernel, inputs),
            sums=product_plan.is_integer(region)
            and zero_points.ZeroPoints.of(region, self.kernel).needs_row_sums,
            rows=rows,
            wide=wide,
            # Rows for a byte tile are whole vectors and are not widened.
            vectors=tile is not None,
        )

    def run(self, rows: Index, tiles: TileTask | None = None, most: int = 0) -> None:
        """The product of the first `rows` rows, in the calling thread.

        Parameters
        ----------
        rows : Expr or int
            Number of rows; at most `most` if it is an expression.
        tiles : TileTask or None
            See `TileLoops.emit`.
        """
        zero, n_vectors = tirx.const(0, "int32"), plan_of(self.region, self.config).n_vectors
        with llvm_functions(PREFETCH_LLVM_IR):
            loops = self.loops(rows if isinstance(rows, int) else most)
            loops.emit(zero, rows, zero, n_vectors, tiles)

    def share(self) -> None:
        """Emits the whole product: one parallel region over the configuration's grid of threads."""
        plan = plan_of(self.region, self.config)
        if self.region.is_dynamic:
            share_dynamic_rows(self.loops(plan.m_block), self.config)
            return
        grid = best_grid.ThreadGrid(plan)
        with grid.task() as task, llvm_functions(PREFETCH_LLVM_IR):
            grid.emit(task, self.loops(grid.most_rows))


@dataclass
class PackedWeight(OperandB):
    """The packed weight of a matmul region: one flat array of the weight's type.

        panels [N/nr][K/kr][nr][kr]
        if zero points need it: one int32 term for each column
        if outliers are cut from an offset above 0: the int32 sums of the columns
        if bytes may be multiplied in pairs: one int32, not 0 if that is exact for any A

    Columns are padded to whole vectors.

    Attributes
    ----------
    region : Region
        The matmul.
    config : MatmulConfig
        Its configuration.
    kernel : Microkernel
        Its microkernel.
    buffer : Buffer or None
        The weight's parameter in the kernel under construction.
    """

    region: Region
    config: MatmulConfig
    kernel: Microkernel
    buffer: Any = None

    def __post_init__(self) -> None:
        region, kernel = self.region, self.kernel
        self.plan = plan_of(region, self.config)
        self.panels, points = self.plan.panels, zero_points.ZeroPoints.of
        self.points = points(region, kernel) if product_plan.is_integer(region) else None
        columns = 4 * self.panels.columns
        # Which parts follow the panels, and where each part begins.
        self.has_term = self.points is not None and self.points.needs_column_sums
        self.has_sums = self.points is not None and byte_outliers.cuts_above(self.plan, self.points)
        self.has_answer = self.points is not None and has_pairs(kernel)
        self.sums_at = self.panels.size + self.has_term * columns
        self.answer_at = self.sums_at + self.has_sums * columns
        self.size = self.answer_at + 4 * self.has_answer
        # Lines are prefetched if a vector fills a cache line or divides one.
        step_bytes = kernel.lanes * kernel.kr * int(DataType(kernel.b_dtype).itemsize)
        self.in_line = max(1, _LINE // step_bytes)
        if self.in_line * step_bytes == _LINE:
            self.prefetch = Prefetch(self._fetch, self.in_line)

    def _fetch(self, panel: Expr, line: Index, element: Index) -> None:
        prefetch(self.buffer[self.panels.start(panel, 1, line * self.in_line, 0) + element])

    def load(self, panel: Index, width: int, step: Index, j: int) -> Expr | Address:
        """See `OperandB.load`."""
        start, group = self.panels.start(panel, width, step, j), self.kernel.lanes * self.kernel.kr
        return self.kernel.b_operand(self.buffer, start, width * group)

    def column_term(self, vector: Index) -> Expr:
        """The initial accumulators of a vector of columns, due to zero points; int32 lanes."""
        return self._numbers(self.panels.size, vector)

    def column_sums(self, vector: Index) -> Expr:
        """The sums of a vector of columns; int32 lanes."""
        return self._numbers(self.sums_at if self.has_sums else self.panels.size, vector)

    def _numbers(self, place: int, vector: Index) -> Expr:
        lanes = self.kernel.lanes
        found = self.buffer[ramp(place + vector * (4 * lanes), 4 * lanes)]
        return reinterpret_group("int32", found, lanes)

    def column_address(self, vector: Index) -> Address:
        """The address of `column_term`."""
        start = self.panels.size + vector * (4 * self.kernel.lanes)
        return Address(I.address_of(self.buffer[start]), 0)


def packed_weight(region: Region, config: MatmulConfig, isa: Isa) -> PackedWeight:
    """The packed weight of a legal configuration."""
    return PackedWeight(region, config, check(region, config, isa))


@dataclass
class WeightInput(template.PackedInput):
    """How the weight is packed: its panels and the parts that follow them.

    Attributes
    ----------
    weight : PackedWeight
        The layout.
    read : tuple of int
        Shape of the input before packing.
    shift : int
        Added to its elements: -128 if unsigned ones are multiplied as signed, else 0.
    """

    weight: PackedWeight
    read: tuple[int, ...]
    shift: int

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the packed array."""
        return (self.weight.size,)

    def pack(self, array: A) -> A:
        if isinstance(array, np.ndarray):
            return self._constant(array)
        return self.weight.panels.pack(array)  # of floats, without further parts

    def _constant(self, array: np.ndarray) -> np.ndarray:
        weight, panels = self.weight, self.weight.panels
        matrix = array.reshape(1, -1, panels.n)
        if self.shift:  # unsigned values minus 128, as int8
            matrix = (matrix ^ np.uint8(SHIFT)).view(weight.kernel.b_dtype)
        packed = panels.pack(matrix)
        terms = list[np.ndarray]()
        if weight.points is not None and weight.has_term:
            terms.append(weight.points.column_terms(matrix, np.ones((1, 1), bool)))
        if weight.has_sums:
            terms.append(matrix.sum(axis=1, dtype=np.int32))
        behind = [padded(each, (0, panels.columns - panels.n)) for each in terms]
        if weight.has_answer:
            behind.append(zero_points.pairs_answer(packed, panels.size))
        if not behind:
            return packed
        return joined([packed, *(as_bytes(each, each.size, str(packed.dtype)) for each in behind)])

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        matrix = self.weight.panels.unpack(expr)
        if self.shift:
            wide = relax.op.add(relax.op.astype(matrix, "int32"), relax.const(-self.shift, "int32"))
            matrix = relax.op.astype(wide, "uint8")
        return matrix if len(self.read) == 2 else relax.op.reshape(matrix, self.read)


class ColumnZeroPoints(WeightInput):
    """Zero points of the weight's columns, as int32."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the packed array."""
        return (self.weight.panels.columns,)

    def pack(self, array: A) -> A:
        assert isinstance(array, np.ndarray)
        columns = array.reshape(-1).astype(np.int32) + np.int32(self.shift)
        return padded(columns, [self.weight.panels.columns - array.size])

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        columns = sliced(expr, 0, 0, self.weight.panels.n)
        if self.shift:
            columns = relax.op.add(columns, relax.const(-self.shift, "int32"))
        return relax.op.reshape(columns, self.read)


def packing(region: Region, config: MatmulConfig, isa: Isa, index: int) -> WeightInput:
    """How a constant input is packed."""
    weight = packed_weight(region, config, isa)
    kind = WeightInput if index == 1 else ColumnZeroPoints
    return kind(weight, region.inputs[index].shape, zero_points.b_shift_of(region, weight.kernel))
