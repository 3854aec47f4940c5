"""The kernel of attention with many queries: one task for the queries that share a k and a v.

pack k and v, or use those that all threads packed for all heads before
for each block of queries
    for each block of keys (one, unless the softmax continues from block to block)
        for each row block of queries (as high as a register tile)
            scores = q k^T        register tiles, scale and mask in their epilogue, into cache
            softmax               row by row, in vector registers
            out (+)= scores v     register tiles, the region's epilogue, stored in place

With AMX tiles a row block has whole tile heights; the tail of the rows is the last row block. Tiles
are configured for full heights, then for the tail, then released.

The operands of the next attention are prefetched into L2, see `problem.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, Index, bind, constant, splat
from tir_schedules.attention import problem as problems
from tir_schedules.attention.config import AttentionConfig, kernels_of
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.blocking import Group, balanced, cut_in_units
from tir_schedules.core.emission import branch, for_groups, opaque_block
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.stored_operand import StoredOperand, strided_operand
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product import packed_operand
from tir_schedules.product.activations import Activations, InPlace, read_flat
from tir_schedules.product.amx_tiles import TileTask
from tir_schedules.product.zero_points import ZeroPoints

from .product_tiles import ProductTiles
from .scores import FusedScores, KeyBlock, ScoreTiles, can_fuse
from .softmax import Band, Matrix, Quantization, Running, SoftmaxRows

_MASKED = -math.inf
_LINE = 64  # bytes of a cache line


@dataclass
class AttentionEmitter:
    """Base of the emitters for static and for dynamic sizes.

    Attributes
    ----------
    problem : AttentionProblem
        Extents and layouts.
    config : AttentionConfig
        Kernels, widths of panels, sizes of blocks, and threads.
    isa : Isa
        What the target has.
    buffers : dict
        "q", "k", "v", "out": flat views of the parameters.
    scores_epilogue, product_epilogue : Epilogue
        The epilogues with their operands.
    n : int or Expr
        Keys that are multiplied.
    fused : FusedScores or None
        The epilogue of the scores, if register tiles compute it.
    band : Band
        The scores and probabilities of a row block.
    q_base : Expr
        Where the queries of an attention begin.
    k, v : packed operands
        Packed k and v of the attentions that share them.
    """

    problem: AttentionProblem
    config: AttentionConfig
    isa: Isa
    buffers: dict[str, Expr]
    scores_epilogue: Epilogue
    product_epilogue: Epilogue
    n: Index = field(init=False)
    fused: FusedScores | None = field(init=False)
    band: Band = field(init=False)
    k: Any = field(init=False)
    v: Any = field(init=False)

    def __post_init__(self) -> None:
        problem, self.q_base = self.problem, tirx.const(0, "int32")
        self.scores_kernel, self.product_kernel = self.kernels = kernels_of(self.config)
        self.next_rows = problems.NextRows(problem, self.buffers)
        self.lanes = self.isa.f32_lanes
        self.out_vectors = math.ceil(problem.e / self.lanes)
        self.quantization = Quantization.of(problem.softmax, self.product_kernel)
        self.scores_points, self.product_points = (
            ZeroPoints.of(part, kernel) if is_integer(part) else ZeroPoints(0, 0, False, False)
            for part, kernel in zip((problem.scores, problem.product), self.kernels, strict=True)
        )

    def fused_scores(self, n: Index, room: Index) -> FusedScores | None:
        """The epilogue of the scores of `n` keys, if register tiles compute it, else None."""
        form = can_fuse(self.problem.scores, self.lanes)
        if form is None or (problems.SINK in self.buffers and form.constant):
            return None
        return FusedScores(form, self.scores_epilogue, self.lanes, n, room)

    def add_up(self) -> None:
        """Adds up the columns of k and v if zero points need their sums."""
        if self.scores_points.needs_column_sums:
            self.k.add_up()
        if self.product_points.needs_column_sums:
            self.v.add_up()

    def make_band(self, rows: int, scores: Matrix, probabilities: Matrix, edge: Index) -> None:
        """Makes a row block of at most `rows` rows, and its softmax."""
        adds = self.product_points.needs_row_sums
        sums = I.sblock_alloc_buffer((rows,), "int32") if adds else None
        maximum, inverse = (I.sblock_alloc_buffer((rows,), "float32") for _ in range(2))
        sinks = I.sblock_alloc_buffer((rows,), "float32") if problems.SINK in self.buffers else None
        self.band = Band(scores, edge, maximum, probabilities, inverse, sums, sinks)
        self.softmax = SoftmaxRows(self, tails=self.problem.region.is_dynamic)

    def queries(self, rows: int) -> Activations:
        """q as the kernel reads it, at most `rows` rows at a time."""
        problem, q = self.problem, self.buffers["q"]
        dtype, layout = problem.tensors["q"].dtype, problem.layouts["q"]

        def index(row: Expr, column: Index) -> list[Index]:
            return [problem.element("q", self.q_base, row, column)]

        read = read_flat(q, dtype, lambda row, column: index(row, column)[0])
        given = self.scores_kernel, dtype, problem.d, rows, read
        contiguous = problems.columns_are_contiguous(layout, problem.d)
        sums, in_place = self.scores_points.needs_row_sums, InPlace(q, index, layout.row)
        return Activations(*given, contiguous, sums=sums, rows=in_place)

    def stored(self, name: str, base: Expr, k: Index, n: Index) -> StoredOperand:
        """k [d, n] or v [n, e] of one attention, which begins at `base`."""
        layout = self.problem.layouts[name]
        strides = (layout.column, layout.row) if name == "k" else (layout.row, layout.column)
        given = self.buffers[name], self.problem.tensors[name].dtype, (k, n), base
        return strided_operand(*given, *strides)


class StaticAttentionEmitter(AttentionEmitter):
    """Emits one task for static sizes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        problem, config = self.problem, self.config
        self.shelves: dict[str, Expr] = {}
        self.unit = problems.row_unit(self.kernels)
        self.key_vectors = math.ceil(problem.n / self.lanes)
        keys = min(config.key_block // self.lanes or self.key_vectors, self.key_vectors)
        self.runs_on = keys < self.key_vectors
        self.n, self.fused = problem.n, self.fused_scores(problem.n, problem.n)
        shifted = self.quantization is not None and self.quantization.zero_point != 0
        # Hidden keys have probabilities of 0 and may be skipped, unless 0 is quantised to another
        # integer.
        whole = self.lanes % self.product_kernel.kr == 0
        self.skips = problem.causal is not None and not shifted and whole
        # Whole panels, so that all blocks have equal panels, and whole tiles of the product.
        kernel = self.product_kernel
        tile_vectors = kernel.depth * kernel.kr // self.lanes if kernel.by_tiles else 1
        whole_keys = math.lcm(config.score_vectors, tile_vectors)
        self.block_keys = max(keys - keys % whole_keys if self.runs_on else keys, whole_keys)
        self.key_blocks = cut_in_units(self.key_vectors, self.block_keys, self.block_keys)

    # --- k and v ---------------------------------------------------------------------------------

    def pack(self, number: Expr) -> None:
        """Packs the k and v with this number, for one task."""
        self._find(number)
        self.k.pack()
        self.v.pack()
        self.add_up()

    def make_shelves(self, count: int) -> None:
        """Allocates buffers for `count` packed k and v."""
        for name, (kernel, k, n, _panels) in self._cuts.items():
            self.shelves[name] = packed_operand.packed_room(kernel, k, n, count)
        self._find(tirx.const(0, "int32"))

    def pack_piece(self, number: Expr, piece: Expr) -> None:
        """Packs a piece of the k or v with this number, for all tasks."""
        self._find(number)
        k, v, first = self.k, self.v, self.k.pieces
        branch(piece < first, lambda: k.pack_piece(piece), lambda: v.pack_piece(piece - first))

    def take(self, number: Expr) -> None:
        """Uses the packed k and v with this number, for one task."""
        self._find(number)
        self.add_up()

    @property
    def _cuts(self) -> dict[str, tuple[Microkernel, int, int, Sequence[Group]]]:
        """Kernel, K, columns and panels of k and of v."""
        problem = self.problem
        panels: list[Group] = []
        for group in self.key_blocks:
            size = self.config.score_vectors
            if group.count > 1:
                panels.append(Group(group.start, group.count * group.size // size, size))
                continue
            own = self._panels(group.size)
            panels += [Group(group.start + each.start, each.count, each.size) for each in own]
        columns = balanced(self.out_vectors, self.config.product_vectors)
        return {
            "k": (self.scores_kernel, problem.d, problem.n, panels),
            "v": (self.product_kernel, problem.n, problem.e, columns),
        }

    def _find(self, number: Expr) -> None:
        """Sets `k` and `v` to the operands with this number, with buffers if none are shared."""
        batch = number if self.problem.group == 1 else number * self.problem.group
        for name, (kernel, k, n, panels) in self._cuts.items():
            stored = self.stored(name, self.problem.base(name, batch), k, n)
            given = stored, kernel, panels, self.shelves.get(name), number
            setattr(self, name, packed_operand.PackedOperand(*given))

    # --- queries ---------------------------------------------------------------------------------

    def emit(self, batch: Expr, row: Expr, rows: int, following: Expr) -> None:
        """Emits `rows` queries from `row` of the attention `batch`.

        Call `pack` or `take`, and `allocate`, before. `following` is the attention whose operands
        may be prefetched meanwhile.
        """
        problem = self.problem
        self.following = following
        self.q_base = problem.base("q", batch)
        self.scores = ScoreTiles(self, self.activations, self.k, batch)
        base = problem.base("out", batch)
        self.product = ProductTiles(self, self.v, self.scratch, batch, base)
        if self.fused is not None:
            self.fused.begin(batch * problem.m)
        self.tiles = TileTask()
        if self.runs_on:
            most = self.config.query_block
            self._each(rows, most, lambda at, size: self._query_block(row + at, size))
        else:
            block = KeyBlock(0, self.key_vectors, self._panels(self.key_vectors))
            self._bands(row, rows, block, None)
        self.tiles.release()

    def _each(self, rows: int, most: int, body: Callable[[Index, int], None]) -> None:
        """Runs `body(start, size)` for pieces of rows; tiles are configured for each height."""
        kernel = problems.tile_kernel(self.kernels)
        for group in cut_in_units(rows, most, self.unit):
            if kernel is not None:
                self.tiles.configure(kernel, min(group.size, self.unit))
            for_groups([group], body)

    def _bands(self, row: Expr, rows: int, block: KeyBlock, running: Running | None) -> None:
        def band(at: Index, size: int) -> None:
            self._band(row + at, size, block, running, at)

        self._each(rows, self.config.band, band)

    def _panels(self, vectors: int) -> tuple[Group, ...]:
        return balanced(vectors, self.config.score_vectors)

    def allocate(self, rows: int) -> None:
        """Allocates the buffers of a row block of at most `rows` queries."""
        lanes, band = self.lanes, min(max(self.config.band, self.unit), rows)
        keys = min(self.block_keys, self.key_vectors) * lanes
        # One more vector in each row: rows a multiple of 4 KB apart would evict each other from L1.
        pitch = keys + 16

        scores = Matrix.allocate(band, pitch, "float32")
        kernel, probabilities = self.product_kernel, scores
        if kernel.a_dtype != "float32":
            # Whole cache lines, as tiles load them, and one more.
            line = _LINE // DataType(kernel.operand_dtype).itemsize
            width = (math.ceil(keys / line) + 1) * line
            probabilities = Matrix.allocate(band, width, kernel.operand_dtype)
        self.scratch = None
        if kernel.by_tiles and not self.runs_on:
            columns = min(self.out_vectors, self.config.product_vectors) * lanes
            self.scratch = Matrix.allocate(min(self.unit, rows), columns, kernel.acc_dtype)
        self.make_band(band, scores, probabilities, keys)
        self.activations = self.queries(band)

    def _visible(self, row: Expr, rows: int, block: KeyBlock) -> Index:
        """Vectors of a block of keys that a row block needs."""
        if not self.skips:
            return block.size
        assert self.problem.causal is not None
        seen = I.floordiv(row + (rows + self.problem.causal + self.lanes - 1), self.lanes)
        # A single block keeps at least one vector: the product is divided by the sum of its powers.
        least = 0 if self.runs_on else 1
        return bind(tirx.Max(least, tirx.Min(seen - block.start, block.size)))

    def _query_block(self, row: Expr, rows: int) -> None:
        """Emits queries whose softmax continues over the blocks of keys."""
        lanes = self.lanes
        maxima, sums, factors = (I.sblock_alloc_buffer((rows,), "float32") for _ in range(3))
        result = Matrix.allocate(rows, self.out_vectors * lanes, "float32")
        running = Running(maxima, sums, factors, result)
        with I.serial(rows) as at:
            sink = self.scores.sink(row + at)
            first = tirx.const(_MASKED, "float32") if sink is None else sink
            I.buffer_store(running.maxima, first, [at])
            I.buffer_store(running.sums, tirx.const(0 if sink is None else 1, "float32"), [at])
            with I.serial(self.out_vectors) as vector:
                result.store(at, vector * lanes, constant(0, "float32", lanes))
        for group in self.key_blocks:
            count: Index = group.count
            if self.skips:
                assert self.problem.causal is not None
                keys = I.floordiv(row + (rows + self.problem.causal + lanes - 1), lanes)
                needed = I.floordiv(keys - group.start + group.size - 1, group.size)
                count = bind(tirx.Max(0, tirx.Min(needed, group.count)))
            with I.serial(count) as number:
                start = group.start + number * group.size
                block = KeyBlock(start, group.size, self._panels(group.size))
                self._bands(row, rows, block, running)
        with I.serial(rows) as at:
            inverse = bind(tirx.const(1, "float32") / running.sums[at])
            with I.serial(self.out_vectors) as vector:
                value = result.load(at, vector * lanes, lanes) * splat(inverse, lanes)
                self.product.store(row + at, vector, value, True)

    def _band(
        self, row: Expr, rows: int, block: KeyBlock, running: Running | None, at: Index
    ) -> None:
        """Emits one row block and one block of keys; `at` is the row block's place in `running`."""
        with opaque_block("band"):
            visible = self._visible(row, rows, block)
            self.activations.begin(row, rows)
            self.scores.emit(row, rows, block, visible)
            if self.fused is None:
                with I.serial(rows) as r:
                    self.scores.finish(row, r, block, visible)

            def beside(r: Expr) -> None:
                self.product.pad(r, visible)
                if self.config.prefetch:
                    self.next_rows.fetch(self.following, row + r)

            self.softmax.emit(rows, visible, self.problem.n, beside, running, at)
            self.product.emit(row, rows, block, visible, running, at)
