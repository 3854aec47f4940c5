"""One matmul inside a kernel: its loops around whatever buffers the kernel gives it.

The template "matmul" has one product, whose rows are parameters. A merged kernel has several, one
after the other, whose rows may be buffers inside the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import DataType, relax, tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs, pairs_fit
from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Place
from microkernels.vector.expressions import Expr, ramp, reinterpret_group
from microkernels.vector.memory import PREFETCH_LLVM_IR, prefetch
from tir_schedules.core.extents import extent, worth_copying
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_open
from tir_schedules.core.template import Packing

from .activations import Activations, InPlace, Read
from .best_grid import ThreadGrid
from .byte_outliers import byte_shortcut, byte_tile_of, cut_for_bytes, cuts_above, searches
from .dynamic.rows import OpenRows, share_open
from .matmul_config import MatmulConfig, check, plan_of
from .narrow_weight import ScaledPanels
from .tile_loops import TileLoops, TileTask
from .wide_panels import WidePanels
from .wide_product import WideProduct, wide_product_of
from .zero_points import (
    Start,
    ZeroPoints,
    b_shift_of,
    quantize_parameters,
    shifted_columns,
    shifted_weight,
)

_LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class MatmulProduct:
    """A matmul region and what it works on.

    Attributes
    ----------
    region : Region
        The matmul.
    config : MatmulConfig
        Its numbers.
    kernel : Microkernel
        The configuration's, as `matmul_config.check` returns it.
    weight : Buffer
        The packed weight.
    inputs : mapping
        The inputs after it, by `further_inputs`.
    read_a : callable
        (row, columns of K) -> elements of A in memory.
    store : callable
        As `TileLoops.store`.
    epilogue_cost : int
        As `TileLoops.epilogue_cost`.
    find_range : callable or None
        Emits the search for A's scale and zero point, and returns the buffer that holds them.
    rows : InPlace or None
        As of `Activations`.
    direct : callable or None
        As of `TileLoops`.
    """

    region: Region
    config: MatmulConfig
    kernel: Microkernel
    weight: Expr
    inputs: Mapping[str, Expr]
    read_a: Read
    store: Callable[[Expr, Expr, Expr, bool], None]
    epilogue_cost: int
    find_range: Callable[[], Expr] | None = None
    rows: InPlace | None = None
    direct: Callable[[Expr, Expr], Place] | None = None

    def loops(self, most_rows: int) -> TileLoops:
        """The loops, for at most so many rows at a time; their buffers are the current block's."""
        region, config, kernel, weight = self.region, self.config, self.kernel, self.weight
        plan = plan_of(region, config)
        if is_integer(region):
            plan = cut_for_bytes(plan)
        panels, k, lanes = plan.panels, plan.k, kernel.lanes

        def load_b(panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr | Address:
            start = panels.start(panel, width, step, j)
            return kernel.b_operand(weight, start, width * lanes * kernel.kr)

        step_bytes = lanes * kernel.kr * int(DataType(kernel.b_dtype).itemsize)  # of a vector
        in_line = max(1, _LINE // step_bytes)

        def fetch(panel: Expr, line: Expr | int, element: Expr | int) -> None:
            prefetch(weight[panels.start(panel, 1, line * in_line, 0) + element])

        def behind(place: int, vector: Expr | int) -> Expr:
            return reinterpret_group(
                "int32", weight[ramp(place + vector * (4 * lanes), 4 * lanes)], lanes
            )

        column_term = partial(behind, panels.size)
        column_sums = column_term
        if has_column_sums(region, config, kernel):
            column_sums = partial(behind, sums_at(region, config, kernel))

        def column_address(vector: Expr | int) -> Address:
            return Address(I.address_of(weight[panels.size + vector * (4 * lanes)]), 0)

        inputs = dict(self.inputs)
        if self.find_range is not None:
            inputs["range"] = self.find_range()
        wide, vectors = wide_product_of(plan), min(config.vectors, plan.n_vectors)
        block = min(max(plan.m_block, config.rows), most_rows)
        tile = byte_tile_of(plan) if is_integer(region) else None
        rows = None if tile is None else self._activations(k, block, inputs, tile=tile)
        searched = rows is not None and searches(plan)
        if rows is None or not searched:
            exact = self._activations(k, block, inputs, wide)
        elif wide is None:
            exact = rows
        else:
            exact = Activations(kernel, "uint8", k, block, rows.operand, wide=wide)

        def start_of(found: Activations | None) -> Start | None:
            if found is None or not is_integer(region):
                return None
            start = Start(region, kernel, inputs, k, column_term, found.row_sum, column_address)
            return start if start.needed else None

        start = start_of(rows if searched else exact)

        loops = TileLoops(
            plan,
            exact.load,
            load_b,
            self.store,
            self.epilogue_cost,
            begin=exact.begin if exact.begins and exact is not rows else None,
            start=start,
            start_columns=start.columns if start is not None and start.by_column else None,
            peel=exact.tail,
            direct=self.direct,
            fetch=fetch if in_line * step_bytes == _LINE else None,
            line_vectors=in_line,
        )
        if rows is not None:
            answer = answer_at(region, config, kernel)
            shortcut = byte_shortcut(
                loops, rows, block, start_of(rows), column_sums, weight, answer
            )
            loops = replace(loops, shortcut=shortcut)
        if wide is not None:
            narrow = None
            if is_open((plan.m,)):
                few = rows if searched else self._activations(k, wide.fewest_rows - 1, inputs)
                assert few is not None
                narrow = replace(
                    loops,
                    plan=replace(plan, rows=min(plan.rows, kernel.mr)),
                    load_a=few.load,
                    begin=None if searched else few.begin,
                    start=start_of(few),
                )
            stage = WidePanels(panels, weight, wide, plan.longest_piece, vectors).stage
            return replace(loops, stage_b=stage, wide=wide, narrow=narrow)
        if "scale" not in inputs:
            return loops
        scaled = ScaledPanels(kernel, weight, inputs["scale"], k, plan.longest_piece, vectors)
        return replace(loops, stage_b=scaled.stage)

    def _activations(
        self,
        k: int,
        most_rows: int,
        inputs: Mapping[str, Expr],
        wide: WideProduct | None = None,
        tile: Microkernel | None = None,
    ) -> Activations:
        """A, at most so many rows of it at a time; `inputs` hold a range that was found.

        For a `tile` by bytes, rows are whole vectors, and are not widened.
        """
        region = self.region
        return Activations(
            tile or self.kernel,
            region.inputs[0].dtype,
            k,
            most_rows,
            self.read_a,
            quantize=quantize_parameters(region, self.kernel, inputs),
            sums=is_integer(region) and ZeroPoints.of(region, self.kernel).needs_row_sums,
            rows=self.rows,
            peels=True,
            wide=None if tile else wide,
            crowded=self._crowded,
            vectors=tile is not None,
        )

    @property
    def _crowded(self) -> bool:
        """Whether the rows of A lie at a distance at which tiles had better read a copy."""
        plan = plan_of(self.region, self.config)
        if self.rows is None or is_open((plan.m,)):
            return False
        item = int(DataType(self.kernel.a_dtype).itemsize)
        return worth_copying(self.rows.pitch, item, plan.m, plan.n)

    def run(self, rows: int, tiles: TileTask) -> None:
        """The product of the first `rows` rows, in the calling thread."""
        zero = tirx.const(0, "int32")
        n_vectors = plan_of(self.region, self.config).n_vectors
        with llvm_functions(PREFETCH_LLVM_IR):
            self.loops(rows).emit(zero, rows, zero, n_vectors, tiles)

    def run_open(self, rows: Expr, most: int) -> None:
        """The same for a number of rows that is known at run time only, `most` or fewer."""
        zero = tirx.const(0, "int32")
        n_vectors = plan_of(self.region, self.config).n_vectors
        with llvm_functions(PREFETCH_LLVM_IR):
            OpenRows(self.loops(most)).emit(zero, rows, zero, n_vectors)

    def share(self) -> None:
        """The whole product, in one parallel region over the configuration's grid of threads."""
        plan = plan_of(self.region, self.config)
        if self.region.is_open:
            rows = extent(plan.m)
            assert not isinstance(rows, int)
            loops = OpenRows(self.loops(plan.m_block))
            share_open(plan, rows, self.config.whole_rows, self.config.alone_rows, loops)
            return
        grid = ThreadGrid(plan)
        with grid.task() as task, llvm_functions(PREFETCH_LLVM_IR):
            grid.emit(task, self.loops(grid.most_rows))


# The constant inputs of a matmul region as its kernel reads them.
#
#     panels [N/nr][K/kr][nr][kr]
#     where zero points ask for it, one int32 for each column
#     where bytes are cut to seven bits above 0, the sums of the columns, int32
#     where bytes may be multiplied in pairs, one int32: whether that is exact for any A
#
# All of it lies in one flat array of the weight's type; columns are padded to whole vectors.


class MatmulPacking(Packing[MatmulConfig]):
    """The weight in panels with what follows it; zero points of columns as int32."""

    def pack(
        self, region: Region, config: MatmulConfig, isa: Isa, index: int, array: np.ndarray
    ) -> np.ndarray:
        """The weight as `build` reads it, a zero point for each column as int32."""
        kernel = check(region, config, isa)
        if index > 1:
            padding = self.shape(region, config, isa, index)[0] - array.size
            return np.pad(shifted_columns(region, kernel, array), (0, padding))
        matrix = shifted_weight(array.reshape(-1, array.shape[-1]), kernel)
        packed = plan_of(region, config).panels.pack(matrix)
        answer = [pairs_fit(packed)] if has_answer(region, kernel) else []
        terms = []
        if has_column_term(region, kernel):
            terms.append(ZeroPoints.of(region, kernel).column_term(matrix))
        if has_column_sums(region, config, kernel):
            terms.append(matrix.sum(axis=0, dtype="int32"))
        for term in terms:
            padding = math.ceil(term.size / kernel.lanes) * kernel.lanes - term.size
            packed = np.concatenate([packed, np.pad(term, (0, padding)).view(packed.dtype)])
        return np.concatenate([packed, np.array(answer, "int32").view(packed.dtype)])

    def unpack(
        self, region: Region, config: MatmulConfig, isa: Isa, index: int, expr: relax.Expr
    ) -> relax.Expr:
        """The weight [K, N] or [taps, C, N] as a Relax expression of its packed form."""
        kernel, panels = check(region, config, isa), plan_of(region, config).panels
        if index > 1:
            columns = relax.op.strided_slice(expr, [0], [0], [panels.n])
            if shift := b_shift_of(region, kernel):
                columns = relax.op.add(columns, relax.const(-shift, "int32"))
            return relax.op.reshape(columns, region.inputs[index].shape)
        matrix = panels.unpack(expr)
        if shift := b_shift_of(region, kernel):
            wide = relax.op.add(relax.op.astype(matrix, "int32"), relax.const(-shift, "int32"))
            matrix = relax.op.astype(wide, "uint8")
        shape = region.inputs[1].shape
        return matrix if len(shape) == 2 else relax.op.reshape(matrix, shape)

    def express(
        self, region: Region, config: MatmulConfig, isa: Isa, index: int, expr: relax.Expr
    ) -> relax.Expr:
        """The packed weight as a Relax expression of one [K, N] of floats."""
        check(region, config, isa)
        return plan_of(region, config).panels.express(expr)

    def shape(self, region: Region, config: MatmulConfig, isa: Isa, index: int) -> tuple[int, ...]:
        """Shape of a packed constant: the weight, and what follows it."""
        kernel, panels = check(region, config, isa), plan_of(region, config).panels
        if index > 1:
            return (panels.columns,)
        return (answer_at(region, config, kernel) + 4 * has_answer(region, kernel),)


PACKING = MatmulPacking()


def has_column_term(region: Region, kernel: Microkernel) -> bool:
    """Whether an int32 for each column follows the panels."""
    return is_integer(region) and ZeroPoints.of(region, kernel).needs_column_sums


def has_column_sums(region: Region, config: MatmulConfig, kernel: Microkernel) -> bool:
    """Whether the sums of the columns follow a term that is not these sums."""
    return is_integer(region) and cuts_above(plan_of(region, config), ZeroPoints.of(region, kernel))


def has_answer(region: Region, kernel: Microkernel) -> bool:
    """Whether packing says if pairs of bytes fit."""
    return is_integer(region) and has_pairs(kernel)


def sums_at(region: Region, config: MatmulConfig, kernel: Microkernel) -> int:
    """Where the sums of the columns lie, if `has_column_sums`."""
    panels = plan_of(region, config).panels
    return panels.size + (4 * panels.columns if has_column_term(region, kernel) else 0)


def answer_at(region: Region, config: MatmulConfig, kernel: Microkernel) -> int:
    """Where the answer lies whether pairs of bytes fit."""
    columns = plan_of(region, config).panels.columns
    sums = 4 * columns if has_column_sums(region, config, kernel) else 0
    return sums_at(region, config, kernel) + sums


def parameter_shape(region: Region, config: MatmulConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the kernel's parameter for an input, packed if it is constant."""
    tensor = region.inputs[index]
    return PACKING.shape(region, config, isa, index) if tensor.constant else tensor.shape
