"""The register tiles of the probabilities times v, and the store of the result.

AMX tiles read the probabilities where the softmax stored them, 64 bytes of keys at a time; zeros
follow the last key. A result that is not complete yet is accumulated where it is stored; a complete
one goes through a block in L1 to the epilogue, and so does one of dynamic sizes, whose epilogue is
written once for tiles of all heights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Place, Tile
from microkernels.vector.expressions import Expr, bind, constant, materialise, ramp, splat
from tir_schedules.attention.problem import AttentionProblem, blocks_of
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import ceil_div, choose, for_groups, opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.product_plan import is_integer
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.product.open_operand import OpenWords
from tir_schedules.product.packed_operand import PackedOperand, StoredOperand
from tir_schedules.product.tile_products import store_columns

from .scores import KeyBlock, start_of
from .softmax import Band, Matrix, Running


@dataclass
class ProductTiles:
    """Emits the product of one attention.

    Attributes
    ----------
    problem : AttentionProblem
        Extents and layouts.
    kernel : Microkernel
        The register tile.
    epilogue : Epilogue
        Of the product.
    v : PackedOperand or PackedValues
        The other operand.
    band : Band
        Where the probabilities are.
    out : buffer
        Flat view of the result.
    scratch : Matrix, buffer or None
        Where accumulators go: those of a block in tile registers, or [rows, columns] of dynamic
        sizes those of a band.
    batch, base : Expr
        Number of the attention, and where its result begins.
    keys : int or Expr
        How many there are.
    """

    problem: AttentionProblem
    kernel: Microkernel
    epilogue: Epilogue
    v: PackedOperand | PackedValues
    band: Band
    out: Expr
    scratch: Any
    batch: Expr
    base: Expr
    keys: int | Expr

    def __post_init__(self) -> None:
        kernel, sums = self.kernel, self.band.sums
        self.lanes = kernel.lanes
        # Steps of a vector of keys; scalar code may have less than one, and no blocks then.
        self.per_vector = kernel.lanes // kernel.kr
        self.start = start_of(
            self.problem.product,
            kernel,
            self.keys,
            self.v.column_sum,
            lambda r: sums[r] if sums is not None else tirx.const(0, "int32"),
        )

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

    def _whole_tiles(self, visible: Expr | int) -> Expr | int:
        """Vectors of keys that tiles multiply for so many visible ones."""
        vectors = self.kernel.depth // self.per_vector
        if isinstance(visible, int):
            return math.ceil(visible / vectors) * vectors
        return I.floordiv(visible + (vectors - 1), vectors) * vectors

    def _steps(self, block: KeyBlock, visible: Expr | int) -> Expr | int:
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
        self,
        row: Expr,
        rows: int,
        block: KeyBlock,
        visible: Expr | int,
        running: tuple[Running, Matrix] | None,
        at: Expr | int,
    ) -> None:
        """The probabilities of a band times v, of a static number of keys."""
        lanes, kernel = self.lanes, self.kernel
        steps = (block.start * self.per_vector, self._steps(block, visible))

        def tile(panel: Expr | int, width: int, r0: Expr | int, size: int) -> None:
            with opaque_block("product"):

                def so_far(i: Expr | int, j: int) -> Expr:
                    assert running is not None
                    factor = splat(running[0].factors[at + r0 + i], lanes)
                    return running[1].load(at + r0 + i, (panel + j) * lanes, lanes) * factor

                def keep(result: Tile, i: Expr | int) -> None:
                    for j in range(width):
                        value = result.value(i, j)
                        if running is not None:
                            running[1].store(at + r0 + i, (panel + j) * lanes, value)
                            continue
                        if not is_integer(self.problem.product):
                            value = value * splat(self.band.inverse[r0 + i], lanes)
                        self.store(row + r0 + i, panel + j, value, j == width - 1)

                place = None
                if kernel.by_tiles and running is not None:
                    place = running[1].place(at + r0, panel * lanes)
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

        for_groups(
            self.v.panels,
            lambda panel, width: for_groups(
                blocks_of(kernel, rows), lambda r, size: tile(panel, width, r, size)
            ),
        )

    def emit_dynamic(self, rows: int) -> None:
        """The same of any number of keys, without the epilogue."""
        lanes = self.lanes

        def tile(panel: Expr | int, width: int) -> None:
            with opaque_block("product"):
                steps = tirx.const(0, "int32"), self.v.steps
                result = self._multiply((panel, width), (0, rows), steps)
                for i in range(rows):
                    for j in range(width):
                        columns = ramp((panel + j) * lanes, lanes)
                        I.buffer_store(self.scratch, result.value(i, j), [i, columns])

        for_groups(self.v.panels, tile)

    def _multiply(
        self,
        panel: tuple[Expr | int, int],
        rows: tuple[Expr | int, int],
        steps: tuple[Expr | int, Expr | int],
        init: Callable[[Expr | int, int], Expr] | None = None,
        place: Place | None = None,
    ) -> Tile:
        """One tile: start and size of its columns, of its rows, and of what is multiplied."""
        kernel, start, columns = self.kernel, self.start, None
        (first, width), (r0, size), (first_step, count) = panel, rows, steps
        if start is not None and start.by_column and kernel.by_tiles:

            def columns(j: int) -> Expr | Address:
                return start.columns(first + j)

        elif init is None and start is not None:

            def init(i: Expr | int, j: int) -> Expr:
                return start(r0 + i, first + j)

        def probabilities(i: Expr | int, step: Expr | int) -> Expr | Address:
            found = self.band.probabilities
            pitch = found.pitch if isinstance(found.pitch, int) else 0
            return kernel.a_operand(found.buffer, [found.index(r0 + i, step * kernel.kr)], pitch)

        return kernel.emit(
            size,
            width,
            (count,),
            lambda i, ks: probabilities(i, ks[0]),
            lambda j, ks: self.v.load(first, width, first_step + ks[0], j),
            init,
            place,
            columns=columns,
        )

    def _flat(self, row: Expr) -> Expr:
        """Number of a query among those of all attentions."""
        return self.batch * extent(self.problem.m) + row

    def store(self, row: Expr, vector: Expr | int, value: Expr, last: bool) -> None:
        """The product's epilogue, and the store."""
        flat = self._flat(row)
        store_columns(
            self.problem.e,
            self.lanes,
            vector,
            last,
            lambda columns: self._put(row, flat, value, columns),
        )

    def store_row(self, row: Expr, r: Expr) -> None:
        """A row of a band of dynamic sizes, behind `emit_dynamic`."""
        lanes, flat = self.lanes, bind(self._flat(row + r))
        vectors = math.ceil(self.problem.e / lanes)
        inverse = bind(splat(self.band.inverse[r], lanes))
        for vector in range(vectors):

            def put(columns: Columns, vector: int = vector) -> None:
                value = self.scratch[r, ramp(vector * lanes, lanes)]
                if not is_integer(self.problem.product):
                    value = value * inverse
                self._put(row + r, flat, bind(value), columns)

            store_columns(self.problem.e, lanes, vector, vector == vectors - 1, put)

    def _put(self, row: Expr, flat: Expr, value: Expr, columns: Columns) -> None:
        start = self.problem.element("out", self.base, row, columns.start)
        place = Columns(start, columns.lanes, columns.valid)
        store_vector(self.out, self.epilogue(value, flat, columns), [], place)


class PackedValues(OpenWords):
    """v of one attention, packed for register tiles; the number of keys is known at run time only.

        panels of columns, each [keys / kr][columns of the panel][kr]

    Behind the last key, v is 0.

    v [n, e], packed by the task that reads it.

    Parameters
    ----------
    source, kernel
        As of `PackedWords`.
    panels : sequence of Group
        How the vectors of columns are cut.
    room : Expr
        The number of keys as of `extents.allocated`.
    """

    def __init__(
        self,
        source: StoredOperand,
        kernel: Microkernel,
        panels: Sequence[Group],
        room: Expr | int,
    ) -> None:
        super().__init__(source, kernel)
        self.panels, self.n = panels, as_expr(source.k)
        self.steps = self.n if self.kr == 1 else materialise(ceil_div(self.n, self.kr))
        self.columns = sum(group.count * group.size for group in panels) * self.lanes
        size = ceil_div(room, self.kr) * (self.columns * self.kr)
        self.buffer = I.sblock_alloc_buffer((size,), self.element, align=64)

    def load(self, panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr:
        """One vector of columns of kr keys."""
        return self.buffer[ramp(self._start(panel, width, step, j), self.group)]

    def _start(self, panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr:
        return (panel * self.steps + (step * width + j)) * self.group

    def pack(self) -> None:
        """Emits the loops that pack it: rows are copied, kr of them merged into words."""
        columns_of_v = self.source.n
        assert isinstance(columns_of_v, int)

        def rows(step: Expr, valid: int) -> None:
            def panel(start: Expr | int, width: int) -> None:
                for j in range(width):

                    def put(columns: Columns, j: int = j) -> None:
                        self._copied(step, valid, columns, self._start(start, width, step, j))

                    store_columns(columns_of_v, self.lanes, start + j, j == width - 1, put)

            for_groups(self.panels, panel)

        with opaque_block("pack"):
            with I.serial(I.floordiv(self.n, self.kr)) as step, opaque_block("key"):
                rows(step, self.kr)
            if self.kr > 1:
                left = materialise(I.floormod(self.n, self.kr))
                last = materialise(I.floordiv(self.n, self.kr))
                with I.If(left > 0), I.Then():
                    choose(left, range(1, self.kr), lambda valid: rows(last, valid))

    def add_up(self) -> None:
        """Adds up the elements of each column."""
        self.sums = I.sblock_alloc_buffer((self.columns,), "int32", align=64)

        def panel(start: Expr | int, width: int) -> None:
            for j in range(width):
                self._add_up(
                    start + j,
                    self.steps,
                    lambda step, j=j: self._start(start, width, step, j),  # type: ignore[misc]
                )

        with opaque_block("sums"):
            for_groups(self.panels, panel)
