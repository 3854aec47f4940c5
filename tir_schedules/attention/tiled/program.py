"""The program of attention: what one task does for the queries that share a k and a v.

pack k and v, or take them from where all threads packed those of all heads before
for each block of queries
    for each block of keys (one, unless the softmax runs on from block to block)
        for each band of queries (as many rows as a register tile has)
            scores = q k^T        register tiles, scale and mask in their epilogue, into cache
            softmax               row by row, in vector registers
            out (+)= scores v     register tiles, the region's epilogue, stored in place

With AMX tiles a band has whole blocks of rows; the remaining rows are a band of their own, the
last. Tiles are configured for full blocks, then for the remaining rows, then released.

The operands of the next attention are prefetched into L2, see `problem.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, bind, constant, splat
from tir_schedules.attention.problem import AttentionProblem, NextRows
from tir_schedules.core.blocking import Group, Panels, balanced
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.product_plan import is_integer
from tir_schedules.epilogue.epilogue import Columns, Epilogue, load_vector
from tir_schedules.product.activations import Activations, InPlace
from tir_schedules.product.packed_operand import (
    PackedOperand,
    StoredOperand,
    packed_room,
    widths_of,
)
from tir_schedules.product.zero_points import ZeroPoints

from .product_tiles import ProductTiles
from .rows import Matrix, TileRows, row_unit
from .score_tiles import KeyBlock, ScoreTiles
from .scores import FusedScores, can_fuse
from .softmax import Band, Quantization, Running, SoftmaxRows

_MASKED = -math.inf
_LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class Blocks:
    """How the program is cut.

    Attributes
    ----------
    band : int
        Queries whose scores are in cache together.
    score_vectors, product_vectors : int
        Most vectors of a register tile of each product.
    keys : int
        Vectors of keys of a block; all of them if the softmax does not run on.
    queries : int
        Queries of a block; used if the softmax runs on.
    """

    band: int
    score_vectors: int
    product_vectors: int
    keys: int
    queries: int


class AttentionProgram:
    """Emits the program of one task.

    Parameters
    ----------
    problem : AttentionProblem
        Extents and layouts.
    isa : Isa
        What the target has.
    kernels : tuple of Microkernel
        Of the scores and of the product.
    blocks : Blocks
        Sizes.
    buffers : dict
        "q", "k", "v", "out": flat views of the parameters.
    scores_epilogue, product_epilogue : Epilogue
        With the operands' parameters.
    prefetches : bool
        Whether the operands of the next task are fetched into L2 meanwhile.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        isa: Isa,
        kernels: tuple[Microkernel, Microkernel],
        blocks: Blocks,
        buffers: dict[str, Expr],
        scores_epilogue: Epilogue,
        product_epilogue: Epilogue,
        prefetches: bool = False,
    ) -> None:
        self.problem, self.isa, self.blocks, self.buffers = problem, isa, blocks, buffers
        self.scores_kernel, self.product_kernel = kernels
        self.scores_epilogue, self.product_epilogue = scores_epilogue, product_epilogue
        self.prefetches, self.next_rows = prefetches, NextRows(problem, buffers)
        self.shelves: dict[str, Expr] = {}
        self.lanes, self.unit = isa.f32_lanes, row_unit(kernels)
        self.key_vectors = math.ceil(problem.n / self.lanes)
        self.out_vectors = math.ceil(problem.e / self.lanes)
        self.runs_on = blocks.keys < self.key_vectors
        self.quantization = Quantization.of(problem.softmax, self.product_kernel)
        form = can_fuse(problem.scores, self.lanes)
        self.fused = None
        if form is not None:
            self.fused = FusedScores(form, scores_epilogue, problem.n, self.lanes)
        shifted = self.quantization is not None and self.quantization.zero_point != 0
        # Hidden keys have probabilities of 0: they may be left out, unless 0 is another integer.
        whole = self.lanes % self.product_kernel.kr == 0
        self.skips = problem.causal is not None and not shifted and whole
        # Whole panels, so that all blocks are cut alike, and whole tiles of the product.
        kernel = self.product_kernel
        tile_vectors = kernel.depth * kernel.kr // self.lanes if kernel.by_tiles else 1
        whole_keys = math.lcm(blocks.score_vectors, tile_vectors)
        keys = blocks.keys - blocks.keys % whole_keys if self.runs_on else blocks.keys
        self.block_keys = max(keys, whole_keys)
        full, rest = divmod(self.key_vectors, self.block_keys)
        self.key_blocks = [Group(0, full, self.block_keys)] if full else []
        if rest:
            self.key_blocks.append(Group(full * self.block_keys, 1, rest))

    # --- k and v ---------------------------------------------------------------------------------

    def pack(self, number: Expr) -> None:
        """Packs the k and v of so many that come before, for one task."""
        self._find(number)
        self.k.pack()
        self.v.pack()
        self._add_up()

    def make_shelves(self, count: int) -> None:
        """Room for so many packed k and v."""
        self.shelves = {
            name: packed_room(count, Panels(kernel, k, n, widths_of(panels)))
            for name, (kernel, k, n, panels) in self._cuts.items()
        }
        self._find(tirx.const(0, "int32"))

    @property
    def pieces(self) -> int:
        """Of a k and a v on the shelves."""
        return self.k.pieces + self.v.pieces

    def pack_piece(self, number: Expr, piece: Expr) -> None:
        """Packs a piece of a k or v onto its shelf."""
        self._find(number)
        with I.If(piece < self.k.pieces):
            with I.Then():
                self.k.pack_piece(piece)
            with I.Else():
                self.v.pack_piece(piece - self.k.pieces)

    def take(self, number: Expr) -> None:
        """Takes the packed k and v from their shelves, for one task."""
        self._find(number)
        self._add_up()

    @property
    def _cuts(self) -> dict[str, tuple[Microkernel, int, int, Sequence[Group]]]:
        """Kernel, K, columns and panels of k and of v."""
        problem = self.problem
        panels: list[Group] = []
        for group in self.key_blocks:
            size = self.blocks.score_vectors
            if group.count > 1:
                panels.append(Group(group.start, group.count * group.size // size, size))
                continue
            panels += [
                Group(group.start + inner.start, inner.count, inner.size)
                for inner in self._panels(group.size)
            ]
        columns = balanced(self.out_vectors, self.blocks.product_vectors)
        return {
            "k": (self.scores_kernel, problem.d, problem.n, panels),
            "v": (self.product_kernel, problem.n, problem.e, columns),
        }

    def _find(self, number: Expr) -> None:
        """The operands of a k and a v; without shelves, with buffers of their own."""
        batch = number if self.problem.group == 1 else number * self.problem.group
        self.k, self.v = (
            PackedOperand(
                self._stored(name, batch, k, n), kernel, panels, self.shelves.get(name), number
            )
            for name, (kernel, k, n, panels) in self._cuts.items()
        )

    def _add_up(self) -> None:
        """The sums of columns that zero points need."""
        parts = self.problem.scores, self.problem.product
        for packed, part in zip((self.k, self.v), parts, strict=True):
            if is_integer(part) and ZeroPoints.of(part, packed.kernel).needs_column_sums:
                packed.add_up()

    def _stored(self, name: str, batch: Expr, k: int, n: int) -> StoredOperand:
        """k [d, n] or v [n, e] of one attention."""
        layout, base = self.problem.layouts[name], self.problem.base(name, batch)
        by_key = name == "k"
        steps, columns = (layout.column, layout.row) if by_key else (layout.row, layout.column)
        contiguous = "columns" if columns == 1 else "steps" if steps == 1 else ""
        return StoredOperand(
            self.buffers[name],
            self.problem.tensors[name].dtype,
            k,
            n,
            lambda step, column: [base + step * steps + column * columns],
            contiguous,
        )

    # --- queries ---------------------------------------------------------------------------------

    def emit(self, batch: Expr, row: Expr, rows: int, following: Expr) -> None:
        """`rows` queries from `row` of the attention number `batch`.

        After `pack` or `take`, and `allocate`.

        `following` is the attention whose operands may be fetched meanwhile.
        """
        problem = self.problem
        self.following = following
        self.q_base = problem.base("q", batch)
        self.scores = ScoreTiles(
            problem,
            batch,
            self.scores_kernel,
            self.scores_epilogue,
            self.fused,
            self.activations,
            self.k,
            self.band,
        )
        self.product = ProductTiles(
            problem,
            batch,
            self.product_kernel,
            self.product_epilogue,
            self.v,
            self.band,
            self.buffers["out"],
            self.scratch,
        )
        if self.fused is not None:
            self.fused.begin(batch * problem.m)
        self.tiles = TileRows((self.scores_kernel, self.product_kernel))
        if self.runs_on:
            self.tiles.each(
                rows, self.blocks.queries, lambda at, size: self._query_block(row + at, size)
            )
        else:
            block = KeyBlock(0, self.key_vectors, self._panels(self.key_vectors))
            self._bands(row, rows, block, None)
        self.tiles.release()

    def _bands(
        self, row: Expr, rows: int, block: KeyBlock, running: tuple[Running, Matrix] | None
    ) -> None:
        self.tiles.each(
            rows,
            self.blocks.band,
            lambda band, size: self._band(row + band, size, block, running, band),
        )

    def _panels(self, vectors: int) -> tuple[Group, ...]:
        return balanced(vectors, self.blocks.score_vectors)

    def allocate(self, rows: int) -> None:
        """The buffers of a band, for at most as many queries."""
        lanes, band = self.lanes, min(max(self.blocks.band, self.unit), rows)
        keys = min(self.block_keys, self.key_vectors) * lanes
        # One more vector a row: rows a multiple of 4 KB apart would evict each other from L1.
        pitch = keys + 16

        scores = Matrix.allocate(band, pitch, "float32")
        kernel, probabilities = self.product_kernel, scores
        if kernel.a_dtype != "float32":
            # Whole lines of the cache, as tiles load them, and one more.
            line = _LINE // DataType(kernel.operand_dtype).itemsize
            width = (math.ceil(keys / line) + 1) * line
            probabilities = Matrix.allocate(band, width, kernel.operand_dtype)
        self.scratch = None
        if kernel.by_tiles and not self.runs_on:
            columns = min(self.out_vectors, self.blocks.product_vectors) * lanes
            self.scratch = Matrix.allocate(min(self.unit, rows), columns, kernel.acc_dtype)
        sums = None
        if self.quantization and ZeroPoints.of(self.problem.product, kernel).needs_row_sums:
            sums = I.sblock_alloc_buffer((band,), "int32")
        maximum, inverse = (I.sblock_alloc_buffer((band,), "float32") for _ in range(2))
        self.band = Band(scores, keys, maximum, probabilities, inverse, sums)
        self.softmax = SoftmaxRows(
            self.isa,
            kernel,
            self.band,
            self.quantization,
            None if self.fused is None else self.fused.scale,
        )
        problem = self.problem
        layout = problem.layouts["q"]

        def read_q(row: Expr, columns: Columns) -> Expr:
            start = problem.element("q", self.q_base, row, columns.start)
            place = Columns(start, columns.lanes, columns.valid)
            if columns.lanes == 1:
                return self.buffers["q"][start]
            return load_vector(self.buffers["q"], problem.tensors["q"].dtype, [], place)

        scores_sums = False
        if is_integer(problem.scores):
            scores_sums = ZeroPoints.of(problem.scores, self.scores_kernel).needs_row_sums
        self.activations = Activations(
            self.scores_kernel,
            problem.tensors["q"].dtype,
            problem.d,
            band,
            read_q,
            contiguous=layout.column == 1,
            sums=scores_sums,
            rows=InPlace(
                self.buffers["q"],
                lambda row, column: [problem.element("q", self.q_base, row, column)],
                layout.row,
            ),
        )

    def _visible(self, row: Expr, rows: int, block: KeyBlock) -> Expr | int:
        """Vectors of a block that a band needs."""
        if not self.skips:
            return block.size
        assert self.problem.causal is not None
        seen = I.floordiv(row + (rows + self.problem.causal + self.lanes - 1), self.lanes)
        # Without another block even the first may not be left out: something has to be divided.
        least = 0 if self.runs_on else 1
        return bind(tirx.Max(least, tirx.Min(seen - block.start, block.size)))

    def _query_block(self, row: Expr, rows: int) -> None:
        """Queries whose softmax runs on over the blocks of keys."""
        lanes = self.lanes
        running = Running(*(I.sblock_alloc_buffer((rows,), "float32") for _ in range(3)))
        width = self.out_vectors * lanes
        result = Matrix.allocate(rows, width, "float32")
        with I.serial(rows) as at:
            I.buffer_store(running.maxima, tirx.const(_MASKED, "float32"), [at])
            I.buffer_store(running.sums, tirx.const(0, "float32"), [at])
            with I.serial(self.out_vectors) as vector:
                result.store(at, vector * lanes, constant(0, "float32", lanes))
        for group in self.key_blocks:
            count: Expr | int = group.count
            if self.skips:
                assert self.problem.causal is not None
                keys = I.floordiv(row + (rows + self.problem.causal + lanes - 1), lanes)
                needed = I.floordiv(keys - group.start + group.size - 1, group.size)
                count = bind(tirx.Max(0, tirx.Min(needed, group.count)))
            with I.serial(count) as number:
                block = KeyBlock(
                    group.start + number * group.size, group.size, self._panels(group.size)
                )
                self._bands(row, rows, block, (running, result))
        with I.serial(rows) as at:
            inverse = bind(tirx.const(1, "float32") / running.sums[at])
            with I.serial(self.out_vectors) as vector:
                value = result.load(at, vector * lanes, lanes) * splat(inverse, lanes)
                self.product.store(row + at, vector, value, True)

    def _band(
        self,
        row: Expr,
        rows: int,
        block: KeyBlock,
        running: tuple[Running, Matrix] | None,
        at: Expr | int,
    ) -> None:
        """One band of queries and one block of keys; `at` is the band's place in `running`."""
        with opaque_block("band"):
            visible = self._visible(row, rows, block)
            self.activations.begin(row, rows)
            self.scores.emit(row, rows, block, visible)
            if self.fused is None:
                with I.serial(rows) as r:
                    self.scores.finish(row, r, block, visible)

            def beside(r: Expr) -> None:
                self.product.pad(r, visible)
                if self.prefetches:
                    self.next_rows.fetch(self.following, row + r)

            if running is None:
                self.softmax.emit(rows, visible, self.problem.n, beside)
            else:
                self.softmax.emit_running(rows, visible, running[0], at, beside)
            self.product.emit(row, rows, block, visible, running, at)
