"""The register tiles of the probabilities times v, and the store of the result.

AMX tiles read the probabilities where the softmax stored them, 64 bytes of keys at a time; zeros
follow the last key. They accumulate in the stored result if the softmax continues over blocks of
keys, else in a buffer in L1, which the epilogue reads. With dynamic sizes vector kernels use such a
buffer, too, so that there is one epilogue for tiles of all heights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.tile import Address, Place, Tile
from microkernels.vector.expressions import Expr, Index, bind, constant, ramp, splat
from tir_schedules.attention.problem import blocks_of
from tir_schedules.core import extents, product_plan
from tir_schedules.core.emission import for_groups, opaque_block
from tir_schedules.epilogue.epilogue import Columns, store_vector
from tir_schedules.epilogue.tile_results import store_columns
from tir_schedules.product import zero_points

from .scores import KeyBlock
from .softmax import Running

if TYPE_CHECKING:
    from .program import AttentionEmitter


class ProductTiles:
    """Emits the product of one attention.

    Parameters
    ----------
    emitter : AttentionEmitter
        The kernel, the epilogue, the row block and the result.
    v : PackedOperand
        The packed v.
    scratch : Matrix, buffer or None
        For accumulators: of AMX tiles, or with dynamic sizes of a row block, [rows, columns].
    batch, base : Expr
        Number of the attention, and where its result begins.
    """

    def __init__(
        self, emitter: AttentionEmitter, v: Any, scratch: Any, batch: Expr, base: Expr
    ) -> None:
        self.v, self.scratch, self.batch, self.base = v, scratch, batch, base
        self.problem, self.band, self.out = emitter.problem, emitter.band, emitter.buffers["out"]
        self.epilogue, self.keys = emitter.product_epilogue, emitter.n
        kernel, sums = emitter.product_kernel, self.band.sums
        self.kernel = kernel
        self.lanes = kernel.lanes
        # Steps of a vector of keys; scalar code may have less than one, and then no blocks.
        self.per_vector = kernel.lanes // kernel.kr

        def row_sum(r: Index) -> Expr:
            return sums[r] if sums is not None else tirx.const(0, "int32")

        part, sums_of = self.problem.product, (self.v.column_sum, row_sum)
        self.start = zero_points.start_of(part, kernel, {}, self.keys, *sums_of)

    def pad(self, r: Expr, visible: Index) -> None:
        """Stores zeros for the padding keys of the last step of the product.

        With scalar code they follow all keys, with AMX tiles the visible vectors.
        """
        lanes, kernel, band = self.lanes, self.kernel, self.band
        if kernel.by_tiles:
            zeros = constant(0, kernel.operand_dtype, lanes)
            with I.serial(self._whole_tiles(visible) - visible) as number:
                band.probabilities.store(r, (visible + number) * lanes, zeros)
            return
        zero = tirx.const(0, kernel.operand_dtype)
        if not isinstance(self.keys, int):
            if kernel.kr > lanes:
                behind = visible * lanes
                with I.serial(self.v.steps * kernel.kr - behind) as number:
                    band.probabilities.store(r, behind + number, zero)
            return
        computed = math.ceil(self.keys / lanes) * lanes
        for key in range(computed, self.v.steps * kernel.kr):
            band.probabilities.store(r, key, zero)

    def _whole_tiles(self, visible: Index) -> Index:
        """Vectors of keys that AMX tiles multiply for `visible` visible ones."""
        vectors = self.kernel.depth // self.per_vector
        if isinstance(visible, int):
            return math.ceil(visible / vectors) * vectors
        return I.floordiv(visible + (vectors - 1), vectors) * vectors

    def _steps(self, block: KeyBlock, visible: Index) -> Index:
        """Steps of the product with a block of keys."""
        per_vector, steps = self.per_vector, self.v.steps
        if self.kernel.by_tiles:
            return self._whole_tiles(visible) * per_vector
        if not per_vector:
            return steps
        seen, first = visible * per_vector, block.start * per_vector
        if isinstance(seen, int) and isinstance(first, int):
            return min(seen, steps - first)
        return tirx.Min(seen, steps - first) if steps % per_vector else seen

    def emit(
        self, row: Expr, rows: int, block: KeyBlock, seen: Index, running: Running | None, at: Index
    ) -> None:
        """Emits the probabilities of a row block times v, for a static number of keys."""
        lanes, kernel = self.lanes, self.kernel
        steps = (block.start * self.per_vector, self._steps(block, seen))

        def tile(panel: Index, width: int, r0: Index, size: int) -> None:
            with opaque_block("product"):

                def so_far(i: Index, j: int) -> Expr:
                    assert running is not None
                    factor = splat(running.factors[at + r0 + i], lanes)
                    return running.result.load(at + r0 + i, (panel + j) * lanes, lanes) * factor

                def keep(result: Tile, i: Index) -> None:
                    for j in range(width):
                        value = result.value(i, j)
                        if running is not None:
                            running.result.store(at + r0 + i, (panel + j) * lanes, value)
                            continue
                        if not product_plan.is_integer(self.problem.product):
                            value = value * splat(self.band.inverse[r0 + i], lanes)
                        self.store(row + r0 + i, panel + j, value, j == width - 1)

                place = None
                if kernel.by_tiles and running is not None:
                    place = running.result.place(at + r0, panel * lanes)
                elif self.scratch is not None:
                    place = self.scratch.place()
                init = None if running is None else so_far
                result = self._multiply((panel, width), (r0, size), steps, init, place)
                if place is None:
                    for i in range(size):
                        keep(result, i)
                elif running is None:
                    with I.serial(size) as r:
                        keep(result, r)

        def of_panel(panel: Index, width: int) -> None:
            blocks = blocks_of(kernel, rows)
            for_groups(blocks, lambda r, size: tile(panel, width, r, size))

        for_groups(self.v.panels, of_panel)

    def emit_dynamic(self, rows: int, vectors: Expr) -> None:
        """Emits `rows` rows of probabilities times v, for dynamic keys, without the epilogue.

        The probabilities after `vectors` of keys are 0.
        """
        lanes, count = self.lanes, self.v.steps
        if self.per_vector:
            count = bind(tirx.Min(vectors * self.per_vector, count))

        def tile(panel: Index, width: int) -> None:
            with opaque_block("product"):
                steps = tirx.const(0, "int32"), count
                result = self._multiply((panel, width), (0, rows), steps)
                for i in range(rows):
                    for j in range(width):
                        columns = ramp((panel + j) * lanes, lanes)
                        I.buffer_store(self.scratch, result.value(i, j), [i, columns])

        for_groups(self.v.panels, tile)

    def _multiply(
        self,
        panel: tuple[Index, int],
        rows: tuple[Index, int],
        steps: tuple[Index, Index],
        init: Callable[[Index, int], Expr] | None = None,
        place: Place | None = None,
    ) -> Tile:
        """One tile: starts and sizes of its columns, of its rows and of its steps."""
        kernel, start, columns = self.kernel, self.start, None
        (first, width), (r0, size), (first_step, count) = panel, rows, steps
        if init is None and start is not None:
            init, columns = start.of_tile(r0, first)

        found = self.band.probabilities
        pitch = found.pitch if isinstance(found.pitch, int) else 0

        def read_a(i: Index, ks: Sequence[Index]) -> Expr | Address:
            at = found.index(r0 + i, ks[0] * kernel.kr)
            return kernel.a_operand(found.buffer, [at], pitch)

        def read_b(j: int, ks: Sequence[Index]) -> Expr | Address:
            return self.v.load(first, width, first_step + ks[0], j)

        given = size, width, (count,), read_a, read_b, init, place
        return kernel.emit(*given, columns=columns)

    def store(self, row: Expr, vector: Index, value: Expr, last: bool) -> None:
        """Applies the product's epilogue, and stores a vector of the result."""
        flat = self.batch * extents.extent(self.problem.m) + row

        def put(columns: Columns) -> None:
            start = self.problem.element("out", self.base, row, columns.start)
            place = Columns(start, columns.lanes, columns.valid)
            store_vector(self.out, self.epilogue(value, flat, columns), [], place)

        store_columns(self.problem.e, self.lanes, vector, last, put)

    def store_row(self, row: Expr, r: Expr) -> None:
        """Stores a row of a row block of dynamic sizes, after `emit_dynamic`."""
        row, inverse = bind(row + r), bind(splat(self.band.inverse[r], self.lanes))
        vectors = math.ceil(self.problem.e / self.lanes)
        for vector in range(vectors):
            value = self.scratch[r, ramp(vector * self.lanes, self.lanes)]
            if not product_plan.is_integer(self.problem.product):
                value = value * inverse
            self.store(row, vector, bind(value), vector == vectors - 1)
