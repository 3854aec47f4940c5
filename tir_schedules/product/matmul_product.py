"""One matmul inside a kernel: its loops around whatever buffers the kernel gives it.

The template "matmul" has one product, whose rows are parameters. A merged kernel has several, one
after the other, whose rows may be buffers inside the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Place
from microkernels.vector.expressions import Expr, ramp, reinterpret_group
from microkernels.vector.prefetch import PREFETCH_LLVM_IR, prefetch
from tir_schedules.core.extents import extent
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.row_distance import worth_copying
from tir_schedules.core.size import is_open

from .activations import Activations, InPlace, Read
from .byte_choice import byte_shortcut, cut_for_bytes
from .byte_product import byte_tile_of, searches
from .matmul_config import MatmulConfig, plan_of
from .matmul_weight import answer_at, has_column_sums, sums_at
from .open_rows import OpenRows, share_open
from .scaled_weight import ScaledPanels
from .thread_grid import ThreadGrid
from .tile_loops import TileLoops, TileTask
from .wide_panels import WidePanels
from .wide_product import WideProduct, wide_product_of
from .zero_points import Start, ZeroPoints, quantize_parameters

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
