"""The program of attention: what one task does for the queries that share a k and a v.

pack k and v
for each block of queries
    for each block of keys (one, unless the softmax runs on from block to block)
        for each band of queries (as many rows as a register tile has)
            scores = q k^T        register tiles, scale and mask in their epilogue, into cache
            softmax               row by row, in vector registers
            out (+)= scores v     register tiles, the region's epilogue, stored in place
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel, Tile
from microkernels.prefetch import prefetch
from microkernels.vectors import Expr, bind, cast, constant, ramp, reinterpret, splat

from .activations import Activations
from .attention_problem import AttentionProblem
from .attention_scores import FusedScores, can_fuse, hide_later_keys
from .attention_softmax import Band, Quantization, Running, SoftmaxRows
from .batch_operands import PackedOperand, StoredOperand
from .blocking import Group, balanced
from .epilogue import Columns, Epilogue, load_vector, store_vector
from .tile_loops import for_groups, store_columns
from .zero_points import Start, ZeroPoints, is_integer

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


@dataclass(frozen=True)
class KeyBlock:
    """Vectors of keys [start, start + size), and how they are cut into panels."""

    start: Expr | int
    size: int
    panels: tuple[Group, ...]


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
        self.prefetches = prefetches
        self.lanes = isa.f32_lanes
        self.key_vectors = math.ceil(problem.n / self.lanes)
        self.out_vectors = math.ceil(problem.e / self.lanes)
        self.runs_on = blocks.keys < self.key_vectors
        self.quantization = Quantization.of(problem.softmax)
        form = can_fuse(problem.scores, self.lanes)
        self.fused = None
        if form is not None:
            self.fused = FusedScores(form, scores_epilogue, problem.n, self.lanes)
        shifted = self.quantization is not None and self.quantization.zero_point != 0
        # Hidden keys have probabilities of 0: they may be left out, unless 0 is another integer.
        whole = self.lanes % self.product_kernel.kr == 0
        self.skips = problem.causal is not None and not shifted and whole
        # Whole panels, so that all blocks are cut alike.
        keys = blocks.keys - blocks.keys % blocks.score_vectors if self.runs_on else blocks.keys
        self.block_keys = max(keys, blocks.score_vectors)
        full, rest = divmod(self.key_vectors, self.block_keys)
        self.key_blocks = [Group(0, full, self.block_keys)]
        if rest:
            self.key_blocks.append(Group(full * self.block_keys, 1, rest))

    def pack(self, batch: Expr) -> None:
        """Packs k and v of the attention number `batch`."""
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
        self.k = PackedOperand(
            self._stored("k", batch, problem.d, problem.n), self.scores_kernel, panels
        )
        self.k.pack()
        self.v = PackedOperand(
            self._stored("v", batch, problem.n, problem.e),
            self.product_kernel,
            balanced(self.out_vectors, self.blocks.product_vectors),
        )
        self.v.pack()
        for packed, part in ((self.k, problem.scores), (self.v, problem.product)):
            if is_integer(part) and ZeroPoints.of(part).needs_column_sums:
                packed.column_sums()

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

    def emit(self, batch: Expr, row: Expr, rows: int, following: Expr) -> None:
        """`rows` queries from `row` of the attention number `batch`; after `pack` and `allocate`.

        `following` is the attention whose operands may be fetched meanwhile.
        """
        problem = self.problem
        self.batch, self.following = batch, following
        self.bases = {name: problem.base(name, batch) for name in ("q", "out")}
        if self.fused is not None:
            self.fused.begin(batch * problem.m)
        if self.runs_on:
            for_groups(
                balanced(rows, self.blocks.queries),
                lambda at, size: self._query_block(row + at, size),
            )
        else:
            block = KeyBlock(0, self.key_vectors, self._panels(self.key_vectors))
            self._bands(row, rows, block, None)

    def _bands(
        self, row: Expr, rows: int, block: KeyBlock, running: tuple[Running, Expr] | None
    ) -> None:
        for_groups(
            balanced(rows, self.blocks.band),
            lambda band, size: self._band(row + band, size, block, running, band),
        )

    def _panels(self, vectors: int) -> tuple[Group, ...]:
        return balanced(vectors, self.blocks.score_vectors)

    def allocate(self, rows: int) -> None:
        """The buffers of a band, for at most as many queries."""
        lanes, band = self.lanes, min(self.blocks.band, rows)
        # One more vector a row: rows a multiple of 4 KB apart would evict each other from L1.
        pitch = min(self.block_keys, self.key_vectors) * lanes + 16

        def matrix(dtype: str, width: int) -> Expr:
            return I.sblock_alloc_buffer((band, width), dtype, align=64)

        scores = matrix("float32", pitch)
        kernel = self.product_kernel
        probabilities = scores
        if kernel.a_dtype != "float32":
            probabilities = matrix(kernel.operand_dtype, pitch)
        sums = None
        if self.quantization and ZeroPoints.of(self.problem.product).needs_row_sums:
            sums = I.sblock_alloc_buffer((band,), "int32")
        maximum, inverse = (I.sblock_alloc_buffer((band,), "float32") for _ in range(2))
        self.band = Band(scores, pitch - lanes, maximum, probabilities, inverse, sums)
        self.softmax = SoftmaxRows(
            self.isa,
            kernel,
            self.band,
            self.quantization,
            None if self.fused is None else self.fused.form.scale,
        )
        problem = self.problem
        layout = problem.layouts["q"]

        def read_q(row: Expr, columns: Columns) -> Expr:
            start = problem.element("q", self.bases["q"], row, columns.start)
            place = Columns(start, columns.lanes, columns.valid)
            if columns.lanes == 1:
                return self.buffers["q"][start]
            return load_vector(self.buffers["q"], problem.tensors["q"].dtype, [], place)

        scores_sums = is_integer(problem.scores) and ZeroPoints.of(problem.scores).needs_row_sums
        self.activations = Activations(
            self.scores_kernel,
            problem.tensors["q"].dtype,
            problem.d,
            band,
            read_q,
            contiguous=layout.column == 1,
            sums=scores_sums,
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
        result = I.sblock_alloc_buffer((rows, width), "float32", align=64)
        with I.serial(rows) as at:
            I.buffer_store(running.maxima, tirx.const(_MASKED, "float32"), [at])
            I.buffer_store(running.sums, tirx.const(0, "float32"), [at])
            with I.serial(self.out_vectors) as vector:
                zero = constant(0, "float32", lanes)
                I.buffer_store(result, zero, [at, ramp(vector * lanes, lanes)])
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
                value = result[at, ramp(vector * lanes, lanes)] * splat(inverse, lanes)
                self._store(row + at, vector, value, True)

    def _band(
        self,
        row: Expr,
        rows: int,
        block: KeyBlock,
        running: tuple[Running, Expr] | None,
        at: Expr,
    ) -> None:
        """One band of queries and one block of keys; `at` is the band's place in `running`."""
        with I.sblock("band"):
            I.reads()
            I.writes()
            visible = self._visible(row, rows, block)
            self.activations.begin(row, rows)
            self._scores(row, rows, block, visible)
            with I.serial(rows) as r:
                if self.fused is None:
                    self._finish_scores(row, r, block, visible)
                self._pad(r)
                if self.prefetches:
                    self._prefetch(row + r)
            if running is None:
                self.softmax.emit(rows, visible, self.problem.n)
            else:
                self.softmax.emit_running(rows, visible, running[0], at)
            self._product(row, rows, block, visible, running, at)

    def _pad(self, r: Expr) -> None:
        """Zeros for the keys that only the last step of the product has, in scalar code."""
        computed, kernel = self.key_vectors * self.lanes, self.product_kernel
        for key in range(computed, self.v.steps * kernel.kr):
            zero = tirx.const(0, kernel.operand_dtype)
            I.buffer_store(self.band.probabilities, zero, [r, key])

    def _scores(self, row: Expr, rows: int, block: KeyBlock, visible: Expr | int) -> None:
        """q k^T of a band into cache."""
        lanes, band, kernel = self.lanes, self.band, self.scores_kernel
        lowest = constant(_MASKED, "float32", lanes)
        for r in range(rows):
            I.buffer_store(band.scores, lowest, [r, ramp(band.edge, lanes)])
        part = self.problem.scores
        start = None
        if is_integer(part):
            start = Start(
                part, {}, self.problem.d, lanes, self.k.column_sum, self.activations.row_sum
            )

        def panel(first: Expr | int, width: int) -> None:
            for_groups(balanced(rows, kernel.mr), lambda r, size: tile(first, width, r, size))

        def tile(first: Expr | int, width: int, r0: Expr | int, size: int) -> None:
            with I.sblock("scores"):
                I.reads()
                I.writes()
                at = block.start + first
                init = None
                if start is not None and start.needed:
                    starts = start

                    def init(i: int, j: int) -> Expr:
                        return starts(row + r0 + i, at + j)

                result = kernel.emit(
                    size,
                    width,
                    (self.k.steps,),
                    lambda i, ks: self.activations.load(row + r0 + i, ks[0]),
                    lambda j, ks: self.k.load(at, width, ks[0], j),
                    init,
                )
                for i in range(size):
                    self._keep(result, i, row, r0 + i, first, block)

        for group in block.panels:
            _for_some(group, visible, panel)

    def _keep(
        self, result: Tile, i: int, row: Expr, r: Expr | int, first: Expr | int, block: KeyBlock
    ) -> None:
        """Stores one row of a tile of scores, and its maxima."""
        lanes, band = self.lanes, self.band
        largest = band.scores[r, ramp(band.edge, lanes)]
        for j in range(result.vectors):
            vector = block.start + first + j
            value = result.value(i, j)
            if self.fused is None:
                value = reinterpret("float32", value)
            else:
                value = self.fused(
                    cast("float32", value), self.batch * self.problem.m + row + r, vector
                )
                value = bind(self._hidden(value, row + r, vector))
                largest = tirx.Max(largest, value)
            I.buffer_store(band.scores, value, [r, ramp((first + j) * lanes, lanes)])
        if self.fused is not None:
            I.buffer_store(band.scores, largest, [r, ramp(band.edge, lanes)])

    def _hidden(self, value: Expr, row: Expr, vector: Expr) -> Expr:
        if self.problem.causal is None:
            return value
        return hide_later_keys(value, row, vector, self.problem.causal, self.lanes)

    def _finish_scores(self, row: Expr, r: Expr, block: KeyBlock, visible: Expr | int) -> None:
        """The epilogue of a row of accumulators that rest in cache, and its maxima."""
        lanes, n, band = self.lanes, self.problem.n, self.band
        integer = is_integer(self.problem.scores)
        flat = self.batch * self.problem.m + row + r
        whole = n // lanes

        def finish(vector: Expr, valid: int) -> None:
            place = [r, ramp(vector * lanes, lanes)]
            value = band.scores[tuple(place)]
            if integer:
                value = reinterpret("int32", value)
            at = block.start + vector
            columns = Columns(at * lanes, lanes, valid)
            value = cast("float32", self.scores_epilogue(value, flat, columns))
            if columns.mask is not None:
                value = tirx.Select(columns.mask, value, constant(_MASKED, "float32", lanes))
            value = bind(self._hidden(value, row + r, at))
            I.buffer_store(band.scores, value, place)
            largest = [r, ramp(band.edge, lanes)]
            I.buffer_store(band.scores, tirx.Max(band.scores[tuple(largest)], value), largest)

        with I.serial(visible) as vector:
            if n % lanes == 0:
                finish(vector, lanes)
            elif whole == 0:
                finish(vector, n)
            else:
                with I.If(block.start + vector < whole):
                    with I.Then():
                        finish(vector, lanes)
                    with I.Else():
                        finish(vector, n % lanes)

    def _product(
        self,
        row: Expr,
        rows: int,
        block: KeyBlock,
        visible: Expr | int,
        running: tuple[Running, Expr] | None,
        at: Expr,
    ) -> None:
        """The probabilities of a band times v."""
        lanes, band, kernel = self.lanes, self.band, self.product_kernel
        part = self.problem.product
        # Steps of a vector of keys; scalar code may have less than one, and no blocks then.
        per_vector = lanes // kernel.kr
        first_step = block.start * per_vector
        steps: Expr | int = self.v.steps
        if per_vector:
            steps = visible * per_vector
            if isinstance(steps, int) and isinstance(first_step, int):
                steps = min(steps, self.v.steps - first_step)
            elif self.v.steps % per_vector:
                steps = tirx.Min(steps, self.v.steps - first_step)
        starts = None
        if is_integer(part):
            found = Start(
                part,
                {},
                self.problem.n,
                lanes,
                self.v.column_sum,
                lambda r: band.sums[r] if band.sums is not None else tirx.const(0, "int32"),
            )
            starts = found if found.needed else None

        def tile(panel: Expr | int, width: int, r0: Expr | int, size: int) -> None:
            with I.sblock("product"):
                I.reads()
                I.writes()

                def init(i: int, j: int) -> Expr:
                    columns = ramp((panel + j) * lanes, lanes)
                    if running is not None:
                        factor = splat(running[0].factors[at + r0 + i], lanes)
                        return running[1][at + r0 + i, columns] * factor
                    assert starts is not None
                    return starts(r0 + i, panel + j)

                result = kernel.emit(
                    size,
                    width,
                    (steps,),
                    lambda i, ks: kernel.spread(
                        band.probabilities[r0 + i, ramp(ks[0] * kernel.kr, kernel.kr)]
                    ),
                    lambda j, ks: self.v.load(panel, width, first_step + ks[0], j),
                    init if running is not None or starts is not None else None,
                )
                for i in range(size):
                    for j in range(width):
                        value = result.value(i, j)
                        if running is not None:
                            columns = ramp((panel + j) * lanes, lanes)
                            I.buffer_store(running[1], value, [at + r0 + i, columns])
                            continue
                        if self.quantization is None:
                            value = value * splat(band.inverse[r0 + i], lanes)
                        self._store(row + r0 + i, panel + j, value, j == width - 1)

        for_groups(
            self.v.panels,
            lambda panel, width: for_groups(
                balanced(rows, kernel.mr), lambda r, size: tile(panel, width, r, size)
            ),
        )

    def _store(self, row: Expr, vector: Expr, value: Expr, last: bool) -> None:
        """The product's epilogue, and the store."""
        problem = self.problem
        flat = self.batch * problem.m + row

        def store(columns: Columns) -> None:
            start = problem.element("out", self.bases["out"], row, columns.start)
            place = Columns(start, columns.lanes, columns.valid)
            finished = self.product_epilogue(value, flat, columns)
            store_vector(self.buffers["out"], finished, [], place)

        store_columns(problem.e, self.lanes, vector, last, store)

    def _prefetch(self, row: Expr) -> None:
        """Rows of the next task's operands, in step with the rows of this one."""
        problem = self.problem
        for name in ("q", "k", "v", "out"):
            layout, tensor = problem.layouts[name], problem.tensors[name]
            if layout.column != 1:
                continue
            rows, columns = (
                problem.m if name in ("q", "out") else problem.n,
                problem.d if name in ("q", "k") else problem.e,
            )
            base = problem.base(name, self.following)
            item = 4 if tensor.dtype == "float32" else 2 if tensor.dtype == "bfloat16" else 1
            share = math.ceil(rows / problem.m)
            for number in range(share):
                at = row * share + number
                if rows % problem.m:
                    at = tirx.Min(at, rows - 1)
                for column in range(0, columns, _LINE // item):
                    prefetch(self.buffers[name][problem.element(name, base, at, column)])


def _for_some(group: Group, visible: Expr | int, body: Callable[[Expr | int, int], None]) -> None:
    """The pieces of a group that begin before `visible`."""
    if isinstance(visible, int):
        for_groups([group], body)
        return
    needed = I.floordiv(visible - group.start + (group.size - 1), group.size)
    with I.serial(tirx.Max(0, tirx.Min(needed, group.count))) as piece:
        body(group.start + piece * group.size, group.size)
