"""The register tiles of the probabilities times v, and the store of the result.

AMX tiles read the probabilities where the softmax stored them, 64 bytes of keys at a time; zeros
follow the last key. A result that is not complete yet is accumulated where it is stored; a complete
one goes through a block in L1 to the epilogue.
"""

from __future__ import annotations

import math

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Tile
from microkernels.vector.expressions import Expr, constant, splat
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.emission import for_groups, opaque_block
from tir_schedules.core.product_plan import is_integer
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.product.packed_operand import PackedOperand
from tir_schedules.product.tile_products import store_columns
from tir_schedules.product.zero_points import Start

from .rows import Matrix, blocks_of
from .score_tiles import KeyBlock
from .softmax import Band, Running


class ProductTiles:
    """Emits the product of one attention.

    Parameters
    ----------
    problem : AttentionProblem
        Extents and layouts.
    batch : Expr
        Number of the attention.
    kernel : Microkernel
        The register tile.
    epilogue : Epilogue
        Of the product.
    v : PackedOperand
        The other operand.
    band : Band
        Where the probabilities are.
    out : buffer
        Flat view of the result.
    scratch : Matrix or None
        Where the accumulators of tile registers go: those of a block.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        batch: Expr,
        kernel: Microkernel,
        epilogue: Epilogue,
        v: PackedOperand,
        band: Band,
        out: Expr,
        scratch: Matrix | None = None,
    ) -> None:
        self.problem, self.batch, self.kernel, self.epilogue = problem, batch, kernel, epilogue
        self.v, self.band, self.out, self.scratch = v, band, out, scratch
        self.base = problem.base("out", batch)
        self.quantized = is_integer(problem.product)
        self.lanes = kernel.lanes
        # Steps of a vector of keys; scalar code may have less than one, and no blocks then.
        self.per_vector = kernel.lanes // kernel.kr

    def pad(self, r: Expr, visible: Expr | int) -> None:
        """Zeros for the keys that only the last step of the product has.

        Those of scalar code lie behind all keys, those of tiles behind the visible vectors.
        """
        lanes, kernel, band = self.lanes, self.kernel, self.band
        if kernel.by_tiles:
            zeros = constant(0, kernel.operand_dtype, lanes)
            with I.serial(self._whole_tiles(visible) - visible) as number:
                band.probabilities.store(r, (visible + number) * lanes, zeros)
            return
        computed = math.ceil(self.problem.n / lanes) * lanes
        for key in range(computed, self.v.steps * kernel.kr):
            band.probabilities.store(r, key, tirx.const(0, kernel.operand_dtype))

    def _whole_tiles(self, visible: Expr | int) -> Expr | int:
        """Vectors of keys that tiles multiply for so many visible ones."""
        vectors = self.kernel.depth // self.per_vector
        if isinstance(visible, int):
            return math.ceil(visible / vectors) * vectors
        return I.floordiv(visible + (vectors - 1), vectors) * vectors

    def emit(
        self,
        row: Expr,
        rows: int,
        block: KeyBlock,
        visible: Expr | int,
        running: tuple[Running, Matrix] | None,
        at: Expr | int,
    ) -> None:
        """The probabilities of a band times v."""
        lanes, band, kernel = self.lanes, self.band, self.kernel
        part = self.problem.product
        per_vector = self.per_vector
        first_step = block.start * per_vector
        steps: Expr | int = self.v.steps
        if kernel.by_tiles:
            steps = self._whole_tiles(visible) * per_vector
        elif per_vector:
            steps = visible * per_vector
            if isinstance(steps, int) and isinstance(first_step, int):
                steps = min(steps, self.v.steps - first_step)
            elif self.v.steps % per_vector:
                steps = tirx.Min(steps, self.v.steps - first_step)
        starts = None
        if is_integer(part):
            found = Start(
                part,
                kernel,
                {},
                self.problem.n,
                self.v.column_sum,
                lambda r: band.sums[r] if band.sums is not None else tirx.const(0, "int32"),
            )
            starts = found if found.needed else None

        def tile(panel: Expr | int, width: int, r0: Expr | int, size: int) -> None:
            with opaque_block("product"):

                def init(i: Expr | int, j: int) -> Expr:
                    if running is not None:
                        factor = splat(running[0].factors[at + r0 + i], lanes)
                        return running[1].load(at + r0 + i, (panel + j) * lanes, lanes) * factor
                    assert starts is not None
                    return starts(r0 + i, panel + j)

                def keep(result: Tile, i: Expr | int) -> None:
                    for j in range(width):
                        value = result.value(i, j)
                        if running is not None:
                            running[1].store(at + r0 + i, (panel + j) * lanes, value)
                            continue
                        if not self.quantized:
                            value = value * splat(band.inverse[r0 + i], lanes)
                        self.store(row + r0 + i, panel + j, value, j == width - 1)

                place = None
                if kernel.by_tiles and running is not None:
                    place = running[1].place(at + r0, panel * lanes)
                elif self.scratch is not None:
                    place = self.scratch.place()
                columns = None
                if starts is not None and starts.by_column and kernel.by_tiles:
                    alike = starts

                    def columns(j: int) -> Expr | Address:
                        return alike.columns(panel + j)

                result = kernel.emit(
                    size,
                    width,
                    (steps,),
                    lambda i, ks: self._probabilities(r0 + i, ks[0]),
                    lambda j, ks: self.v.load(panel, width, first_step + ks[0], j),
                    None if columns is not None or (running is None and starts is None) else init,
                    place,
                    columns=columns,
                )
                if place is None:
                    for i in range(size):
                        keep(result, i)
                elif running is None:
                    with I.serial(size) as r:
                        keep(result, r)

        for_groups(
            self.v.panels,
            lambda panel, width: for_groups(
                blocks_of(kernel, rows), lambda r, size: tile(panel, width, r, size)
            ),
        )

    def _probabilities(self, r: Expr | int, step: Expr | int) -> Expr | Address:
        """kr probabilities of a row, as `emit` takes them."""
        found = self.band.probabilities
        assert isinstance(found.pitch, int)
        index = found.index(r, step * self.kernel.kr)
        return self.kernel.a_operand(found.buffer, [index], found.pitch)

    def store(self, row: Expr, vector: Expr | int, value: Expr, last: bool) -> None:
        """The product's epilogue, and the store."""
        problem = self.problem
        flat = self.batch * problem.m + row

        def store(columns: Columns) -> None:
            start = problem.element("out", self.base, row, columns.start)
            place = Columns(start, columns.lanes, columns.valid)
            finished = self.epilogue(value, flat, columns)
            store_vector(self.out, finished, [], place)

        store_columns(problem.e, self.lanes, vector, last, store)
