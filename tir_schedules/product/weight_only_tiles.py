"""The two ways to multiply by a narrow weight: decoded in registers, or expanded in cache first."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import tvm.tirx.script.builder.ir as I
from tvm.sym import Analyzer

from microkernels.microkernel import Microkernel, whole_loop
from microkernels.tile import Address, Tile
from microkernels.vector.expressions import Expr, Index, bind, cast, constant, like, ramp, splat
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import branch, opaque_block
from tir_schedules.core.extents import as_expr
from tir_schedules.core.product_plan import Piece, ProductPlan
from tir_schedules.core.region import Tensor
from tir_schedules.epilogue.epilogue import Columns, load_vector, unflatten

from .few_rows import FewRows
from .narrow_weight import VECTORS_BY_VNNI, ByteDigits, NarrowWeight, most_digit_rows
from .staged_panels import staged_panel
from .tile_products import LoadPanel, OperandA, OperandB, RegisterTiles, TileContext

if TYPE_CHECKING:
    from .tile_loops import BlockLoops


@dataclass(frozen=True)
class SpreadRows(OperandA):
    """Rows whose elements are broadcast to all lanes one by one, as f32.

    Attributes
    ----------
    tensor : Tensor
        A.
    buffer : Buffer
        A in memory.
    lanes : int
        Lanes of a vector.
    digits : ByteDigits or None
        The digits of few rows, if digits multiply them.
    """

    tensor: Tensor
    buffer: Expr
    lanes: int
    digits: ByteDigits | None = None

    def begin(self, row: Expr, rows: Index) -> None:
        """See `OperandA.begin`."""
        if self.digits is not None:
            self.digits.begin(row, rows)

    def load(self, row: Expr, step: Index) -> Expr:
        """See `OperandA.load`."""
        indices = (*unflatten(row, self.tensor.shape[:-1]), step)
        return splat(cast("float32", self.buffer[indices]), self.lanes)

    def vector(self, row: Expr, columns: Columns) -> Expr:
        """Loads elements of a row."""
        leading = unflatten(row, self.tensor.shape[:-1])
        return load_vector(self.buffer, self.tensor.dtype, leading, columns)


@dataclass(frozen=True)
class WeightOnlyTiles(RegisterTiles):
    """Tiles that decode the weight in registers, and what expands it in cache.

    Attributes
    ----------
    kernel : Microkernel
        The f32 tile that is run, or whose multiply-add is used.
    weight : NarrowWeight
        The format.
    a : SpreadRows
        The rows.
    packed, scales : buffer
        As `NarrowInput.pack` makes them.
    zeros : buffer or None
        Zero points, packed as scales are; None if they are one number.
    side : int
        Vectors of a panel where a tile is as wide as several; 0: as wide as one.
    bytes_kernel : Microkernel or None
        The kernel of digits; AVX2 if None.
    only : tuple or None
        Of the only vector of all tiles: its panel, the panel's width, and the vector within it.
    """

    kernel: Microkernel
    weight: NarrowWeight
    a: SpreadRows
    packed: Expr
    scales: Expr
    zeros: Expr | None
    side: int = 0
    bytes_kernel: Microkernel | None = None
    only: tuple[Expr, int, Expr] | None = None

    def emit(self, tile: TileContext) -> Tile:
        """Multiplies one tile; the weight is decoded in registers.

        The products of a block are summed up first and then scaled into a second set of
        accumulators: one multiplication for a block instead of one for every element. A piece of K
        has to begin at a block if there are several.
        """
        row, panel, piece, totals = tile.row, tile.vector, tile.piece, self.begin(tile)
        digits, width = self.a.digits, totals.vectors
        if digits is None or not digits.takes(tile.rows, piece):
            self._decoded(totals, row, panel, piece)
            return totals

        def by_digits() -> None:
            first, spans = (each // digits.span for each in piece)
            with I.serial(spans) as number, self._vectors(panel, width) as (one, vector):
                one._add_digits(digits, totals, vector, row, panel, first + number)

        def one_by_one() -> None:
            # As `_decoded`, in little code for what hardly ever runs.
            lone = self._accumulators(totals.rows, 1)
            with self._vectors(panel, width) as (one, vector):
                for i in range(totals.rows):
                    _set(lone, i, 0, totals.value(i, vector))
                one._decoded(lone, row, panel, piece)
                for i in range(totals.rows):
                    _set(totals, i, vector, lone.value(i, 0))

        branch(digits.fine, by_digits, one_by_one)
        return totals

    def begin(self, tile: TileContext) -> Tile:
        """The accumulators of a tile before the first product."""
        totals, start = self._accumulators(tile.rows, tile.vectors), tile.init
        for i, j in _positions(totals):
            zero = constant(0, "float32", totals.lanes)
            _set(totals, i, j, zero if start is None else start(i, j))
        return totals

    def _add_digits(
        self, digits: ByteDigits, totals: Tile, vector: Expr, row: Expr, panel: Expr, span: Expr
    ) -> None:
        """Adds the products of one span, of rows from `row` on, to `vector` of the accumulators."""
        only, multiply_add, lanes = self.only, self.kernel.multiply_add, totals.lanes
        assert only is not None
        block, row = digits.block_of(span), Analyzer().simplify(row - digits.first)
        scale, zero = (
            self.per_block(self.scales, panel, 1, block, 0),
            self._zero(panel, 1, block, 0),
        )
        words = functools.partial(self.weight.emit_words, self.packed, *only)
        sums = digits.sums(totals.rows, row, span, words)
        factor, shift = bind(scale), zero
        if zero is not None and self.weight.half:
            shift = bind(zero + like(self.weight.half, zero))
        for i, (low, middle, high) in enumerate(sums):
            place = (row + i) * digits.spans + span
            rest = splat(digits.rests[place], lanes)
            value = bind(low + (rest if shift is None else rest * shift))
            value = bind(multiply_add(value, middle, like(2.0**8, value)))
            value = bind(multiply_add(value, high, like(2.0**16, value)))
            unit = bind(factor * splat(digits.units[place], lanes))
            _set(totals, i, vector, multiply_add(totals.value(i, vector), value, unit))

    @contextlib.contextmanager
    def _vectors(self, panel: Expr, width: int) -> Iterator[tuple[WeightOnlyTiles, Expr]]:
        """Yields tiles of one vector, and its number, in a loop over the vectors of a tile."""
        side = self.side or width
        # The digits of VNNI are in registers; LLVM would write a loop over four vectors out, and
        # move digits to memory and back.
        short = self.bytes_kernel is None or side <= VECTORS_BY_VNNI
        loop = I.serial(side) if short else whole_loop(side, hidden=True)
        with I.serial(width // side) as group, loop as inside, opaque_block("vector"):
            only = (panel + group * side, side, inside)
            yield replace(self, only=only), group * side + inside

    def _decoded(self, totals: Tile, row: Expr, panel: Expr, piece: Piece) -> None:
        weight, width = self.weight, totals.vectors
        parts = self._accumulators(totals.rows, width)

        def block(number: Index, first_unit: Index, steps: int) -> None:
            for i, j in _positions(parts):
                _set(parts, i, j, constant(0, "float32", parts.lanes))
            zeros = [self._zero(panel, width, number, j) for j in range(width)]

            def unit(number: Index, steps: int) -> None:
                self._unit(parts, row, panel, first_unit + number, steps, zeros)

            _each_unit(unit, steps, weight.unit)
            for j in range(width):
                scale = bind(self.per_block(self.scales, panel, width, number, j))
                for i in range(totals.rows):
                    product = self.kernel.multiply_add(totals.value(i, j), parts.value(i, j), scale)
                    _set(totals, i, j, product)

        k_start, k_size = piece
        if weight.blocks == 1:
            block(0, k_start // weight.unit, k_size)
            return
        first, units = k_start // weight.block, weight.block // weight.unit

        def scaled(number: Index, steps: int) -> None:
            block(first + number, (first + number) * units, steps)

        _each_unit(scaled, k_size, weight.block)

    def _unit(
        self, parts: Tile, row: Expr, panel: Expr, unit: Index, steps: int, zeros: list[Expr | None]
    ) -> None:
        """Adds the products of the first `steps` steps of one unit."""
        weight = self.weight
        vectors = []
        for j in range(parts.vectors):
            own, width, inside = self._place(panel, parts.vectors, j)
            vectors.append(weight.emit_unit(self.packed, own, width, unit, inside))
        for step in range(steps):
            a = [bind(self.a.load(row + i, unit * weight.unit + step)) for i in range(parts.rows)]
            for j, zero in enumerate(zeros):
                value = vectors[j][step]
                value = bind(value if zero is None else value - zero)
                for i in range(parts.rows):
                    _set(parts, i, j, self.kernel.multiply_add(parts.value(i, j), a[i], value))

    def with_digits(self, used: bool) -> WeightOnlyTiles:
        """These tiles, with buffers for the digits of few rows if `used`."""
        if not used:
            return self
        k = self.a.tensor.shape[-1]
        given = self.weight, k, self.zeros is not None, self.a.vector
        digits = ByteDigits(*given, self.bytes_kernel)
        return replace(self, a=replace(self.a, digits=digits))

    def expanded(self, panel: Expr, width: int, row: Index, j: int) -> list[Expr]:
        """The scaled f32 vectors of the unit of the weight that begins at `row`."""
        weight = self.weight
        block = 0 if weight.blocks == 1 else row // weight.block
        vectors = weight.emit_unit(self.packed, panel, width, row // weight.unit, j)
        scale = bind(self.per_block(self.scales, panel, width, block, j))
        zero = self._zero(panel, width, block, j)
        return [(value if zero is None else value - zero) * scale for value in vectors]

    def _accumulators(self, rows: int, width: int) -> Tile:
        # One small buffer a row: a larger one would become a heap allocation.
        size, lanes = (width * self.kernel.lanes,), self.kernel.lanes
        buffers = tuple(I.sblock_alloc_buffer(size, "float32") for _ in range(rows))
        return Tile(rows, width, lanes, buffers)

    def _zero(self, panel: Expr, width: int, block: Index, j: int) -> Expr | None:
        if self.zeros is None:
            return None
        return bind(self.per_block(self.zeros, panel, width, block, j))

    def per_block(self, buffer: Expr, panel: Expr, width: int, block: Index, j: int) -> Expr:
        """The scales or zero points of one block of a vector of a panel, as f32."""
        lanes = self.kernel.lanes
        panel, width, inside = self._place(panel, width, j)
        start = panel * (self.weight.blocks * lanes) + (block * width + inside) * lanes
        return cast("float32", buffer[ramp(start, lanes)])

    def _place(self, panel: Expr, width: int, j: int) -> tuple[Expr, int, Index]:
        """The panel of a vector of a tile, its width, and the vector's place in it."""
        if self.only is not None:
            return self.only
        if not self.side:
            return panel, width, j
        return panel + j // self.side * self.side, self.side, j % self.side


def _positions(tile: Tile) -> list[tuple[int, int]]:
    return [(i, j) for i in range(tile.rows) for j in range(tile.vectors)]


def serial(count: int) -> AbstractContextManager[Index]:
    """A loop, unless there is one turn alone."""
    return I.serial(count) if count > 1 else contextlib.nullcontext(0)


def _each_unit(body: Callable[[Index, int], None], steps: int, unit: int) -> None:
    """Runs `body(number of a unit, its steps)` for all units of `steps` steps of K."""
    whole, rest = divmod(steps, unit)
    if whole:
        with serial(whole) as number:
            body(number, unit)
    if rest:
        body(whole, rest)


def _set(tile: Tile, row: int, vector: Index, value: Expr) -> None:
    I.buffer_store(tile.buffers[row], value, [ramp(vector * tile.lanes, tile.lanes)])


class ExpandedPanels(OperandB):
    """Blocks of a narrow weight, expanded to f32 before tiles read them: [steps][columns].

    Allocates a buffer for a block of a panel in the PrimFunc under construction.

    Parameters
    ----------
    tiles : WeightOnlyTiles
        The packed weight, scales and zero points.
    plan : ProductPlan
        How the product is cut.
    """

    staged = True

    def __init__(self, tiles: WeightOnlyTiles, plan: ProductPlan) -> None:
        self.tiles = tiles
        vectors = min(plan.vectors, tiles.weight.n_vectors)
        size = plan.longest_piece * vectors * tiles.weight.lanes
        self.buffer = I.sblock_alloc_buffer((size,), "float32")

    def stage(self, vector: Expr, vectors: int, piece: Piece) -> LoadPanel:
        """See `OperandB.stage`."""
        tiles, weight, lanes = self.tiles, self.tiles.weight, self.tiles.kernel.lanes
        k_start, k_size = piece
        assert isinstance(k_size, int)
        first = k_start // weight.unit

        def unit(number: Index, steps: int) -> None:
            for j in range(vectors):
                row = (first + number) * weight.unit
                for step, value in enumerate(tiles.expanded(vector, vectors, row, j)[:steps]):
                    position = ((number * weight.unit + step) * vectors + j) * lanes
                    I.buffer_store(self.buffer, value, [ramp(position, lanes)])

        _each_unit(unit, k_size, weight.unit)
        return staged_panel(self.buffer, k_start, vectors, lanes)


class RoundedPanels(OperandB):
    """Blocks of a narrow weight, expanded to bfloat16 as AMX tiles read them.

        16 columns of a unit of K, f32     ->  words of [steps / 2][16 columns][2], bfloat16
        (q - zero) * scale, rounded

    Two steps of K lie in one word. Zeros follow the last row of the weight, up to whole tiles.
    Allocates a buffer for a block of a panel in the PrimFunc under construction.

    Parameters
    ----------
    tiles : WeightOnlyTiles
        The packed weight, scales and zero points.
    plan : ProductPlan
        How tiles of bfloat16 cut the product.
    """

    staged = True

    def __init__(self, tiles: WeightOnlyTiles, plan: ProductPlan) -> None:
        self.tiles, self.plan, self.lanes = tiles, plan, plan.kernel.lanes
        vectors = min(plan.vectors, plan.n_vectors)
        size = plan.longest_piece * vectors * self.lanes
        self.words = I.sblock_alloc_buffer((size,), "uint32", align=64)

    def stage(self, vector: Expr, vectors: int, piece: Piece) -> LoadPanel:
        """See `OperandB.stage`."""
        weight, kernel, lanes = self.tiles.weight, self.plan.kernel, self.lanes
        first, count = piece
        assert isinstance(first, int) and isinstance(count, int)
        begin = first * kernel.kr
        rows = min(begin + count * kernel.kr, self.plan.k) - begin  # of the weight

        def unit(number: Index, rows_of_unit: int) -> None:
            row = begin + number * weight.unit
            for j in range(vectors):
                values = self.tiles.expanded(vector, vectors, row, j)[:rows_of_unit]
                for pair in range(math.ceil(rows_of_unit / 2)):
                    step = number * (weight.unit // 2) + pair
                    self._put(step * vectors + j, values[2 * pair : 2 * pair + 2])

        with opaque_block("expand"):
            _each_unit(unit, rows, weight.unit)
            filled = math.ceil(rows / 2)
            if filled < count:
                with I.serial((count - filled) * vectors) as number:
                    place = ramp((filled * vectors + number) * lanes, lanes)
                    I.buffer_store(self.words, constant(0, "uint32", lanes), [place])

        def load_b(_panel: Index, _width: int, step: Index, j: int) -> Expr | Address:
            start = ((step - first) * vectors + j) * lanes
            return kernel.b_operand(self.words, start, vectors * lanes)

        return load_b

    def _put(self, vector: Index, values: list[Expr]) -> None:
        """Stores one or two steps of a vector of columns."""
        word, *high = (cast("uint32", self.plan.kernel.narrow(value)) for value in values)
        for each in high:
            shifted = bind(each)
            word = word | (shifted << like(16, shifted))
        I.buffer_store(self.words, word, [ramp(vector * self.lanes, self.lanes)])


MOST_ROWS = 4  # for more rows, the weight is expanded in cache first


@dataclass(frozen=True)
class FewDecodedRows(FewRows):
    """A few rows of a dynamic number.

    Attributes
    ----------
    tiles : WeightOnlyTiles
        They decode and multiply.
    with_digits : bool
        Whether digits may multiply one or two rows.
    """

    fewest: int = MOST_ROWS
    tiles: WeightOnlyTiles = field(kw_only=True)
    with_digits: bool = field(kw_only=True)

    def emit(self, block: BlockLoops) -> None:
        """See `FewRows.emit`; the digits of the rows are made first."""
        own = replace(self, tiles=self.tiles.with_digits(self.with_digits))
        if self.with_digits:
            most = most_digit_rows(self.tiles.weight.lanes)
            with I.If(as_expr(block.rows) <= most), I.Then():
                own.tiles.a.begin(block.row, block.rows)
        FewRows.emit(own, block)

    def side(self, plan: ProductPlan, rows: int, group: Group) -> tuple[int, Microkernel]:
        """How many panels of a group are decoded at once: two sets of accumulators have to fit.

        Digits multiply one panel after the other, which is one stream of memory: several streams
        take longer (measured on Zen 3).
        """
        kernel = plan.kernel
        vectors = max(1, (6 if kernel.lanes < 16 else 12) // rows)
        if self.with_digits and rows <= most_digit_rows(kernel.lanes):
            vectors = 1
        return max(1, min(group.count, vectors // group.size)), kernel

    def multiply(self, tile: TileContext, kernel: Microkernel) -> Tile:
        """See `FewRows.multiply`; a step is one element of K, unlike for more rows."""
        tile = replace(tile, piece=(0, self.tiles.a.tensor.shape[-1]))
        return replace(self.tiles, side=tile.vectors // tile.side).emit(tile)
