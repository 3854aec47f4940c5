"""The two ways to multiply by a narrow weight: decoded in registers, or expanded in cache first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel, Tile
from microkernels.vector.expressions import Expr, bind, constant, ramp
from tir_schedules.core.product_plan import Piece

from .narrow_weight import NarrowWeight
from .tile_loops import LoadPanel, Start


@dataclass(frozen=True)
class WeightOnlyTiles:
    """Hooks for TileLoops.

    Attributes
    ----------
    kernel : Microkernel
        The f32 tile that is run, or whose multiply-add is used.
    weight : NarrowWeight
        The format.
    load_a : callable
        (row, step of K) -> one vector with A in every lane.
    packed, scales : buffer
        What `weight.pack` and `weight.pack_per_block` made.
    zeros : buffer or None
        Zero points, packed as scales are; None if they are one number.
    side : int
        Vectors of a panel where a tile is as wide as several; 0: as wide as one.
    """

    kernel: Microkernel
    weight: NarrowWeight
    load_a: Callable[[Expr, Expr | int], Expr]
    packed: Expr
    scales: Expr
    zeros: Expr | None
    side: int = 0

    def multiply(
        self, row: Expr, rows: int, panel: Expr, width: int, piece: Piece, start: Start | None
    ) -> Tile:
        """One tile, the weight decoded in registers; `multiply` of TileLoops.

        The products of a block are summed first and then scaled, in a second set of accumulators:
        one multiplication for a block instead of one for every element. A piece of K has to begin
        at a block if there are several.
        """
        lanes, weight = self.kernel.lanes, self.weight
        totals = Tile(rows, width, lanes, self._accumulators(rows, width))
        parts = Tile(rows, width, lanes, self._accumulators(rows, width))
        for i, j in _positions(rows, width):
            _set(totals, i, j, constant(0, "float32", lanes) if start is None else start(i, j))

        def block(number: Expr | int, first_unit: Expr | int, steps: int) -> None:
            for i, j in _positions(rows, width):
                _set(parts, i, j, constant(0, "float32", lanes))
            whole, rest = divmod(steps, weight.unit)
            zeros = [self._zero(panel, width, number, j) for j in range(width)]
            if whole:
                with I.serial(whole) if whole > 1 else contextlib.nullcontext(0) as unit:
                    self._unit(parts, row, panel, first_unit + unit, weight.unit, zeros)
            if rest:
                self._unit(parts, row, panel, first_unit + whole, rest, zeros)
            for j in range(width):
                scale = bind(self._per_block(self.scales, panel, width, number, j))
                for i in range(rows):
                    product = self.kernel.multiply_add(totals.value(i, j), parts.value(i, j), scale)
                    _set(totals, i, j, product)

        k_start, k_size = piece
        if weight.blocks == 1:
            block(0, k_start // weight.unit, k_size)
            return totals
        first, (whole, rest) = k_start // weight.block, divmod(k_size, weight.block)
        units = weight.block // weight.unit
        if whole:
            with I.serial(whole) if whole > 1 else contextlib.nullcontext(0) as number:
                block(first + number, (first + number) * units, weight.block)
        if rest:
            block(first + whole, (first + whole) * units, rest)
        return totals

    def _unit(
        self,
        parts: Tile,
        row: Expr,
        panel: Expr,
        unit: Expr | int,
        steps: int,
        zeros: list[Expr | None],
    ) -> None:
        """Adds the products of the first `steps` steps of one unit."""
        weight = self.weight
        vectors = []
        for j in range(parts.vectors):
            own, width, inside = self._place(panel, parts.vectors, j)
            vectors.append(weight.emit_unit(self.packed, own, width, unit, inside))
        for step in range(steps):
            a = [bind(self.load_a(row + i, unit * weight.unit + step)) for i in range(parts.rows)]
            for j, zero in enumerate(zeros):
                value = vectors[j][step]
                value = bind(value if zero is None else value - zero)
                for i in range(parts.rows):
                    _set(parts, i, j, self.kernel.multiply_add(parts.value(i, j), a[i], value))

    def stage(self, panel: Expr, width: int, piece: Piece, expanded: Expr) -> LoadPanel:
        """Expands a block of a panel to f32, [steps][columns]; `stage_b` of TileLoops.

        Parameters
        ----------
        expanded : buffer
            f32, flat; room for the piece.
        """
        weight, lanes = self.weight, self.kernel.lanes
        k_start, k_size = piece
        first = k_start // weight.unit

        def unit(number: Expr | int, steps: int) -> None:
            first_step = (first + number) * weight.unit
            block = 0 if weight.blocks == 1 else first_step // weight.block
            for j in range(width):
                vectors = weight.emit_unit(self.packed, panel, width, first + number, j)
                scale = bind(self._per_block(self.scales, panel, width, block, j))
                zero = self._zero(panel, width, block, j)
                for step, value in enumerate(vectors[:steps]):
                    position = ((number * weight.unit + step) * width + j) * lanes
                    value = value if zero is None else value - zero
                    I.buffer_store(expanded, value * scale, [ramp(position, lanes)])

        whole, rest = divmod(k_size, weight.unit)
        if whole:
            with I.serial(whole) if whole > 1 else contextlib.nullcontext(0) as number:
                unit(number, weight.unit)
        if rest:
            unit(whole, rest)

        def load_b(_panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr:
            return expanded[ramp(((step - k_start) * width + j) * lanes, lanes)]

        return load_b

    def _accumulators(self, rows: int, width: int) -> tuple[Expr, ...]:
        # One small buffer a row: a larger one would become a heap allocation.
        size = (width * self.kernel.lanes,)
        return tuple(I.sblock_alloc_buffer(size, "float32") for _ in range(rows))

    def _zero(self, panel: Expr, width: int, block: Expr | int, j: int) -> Expr | None:
        if self.zeros is None:
            return None
        return bind(self._per_block(self.zeros, panel, width, block, j))

    def _per_block(self, buffer: Expr, panel: Expr, width: int, block: Expr | int, j: int) -> Expr:
        lanes = self.kernel.lanes
        panel, width, j = self._place(panel, width, j)
        return buffer[
            ramp(panel * (self.weight.blocks * lanes) + (block * width + j) * lanes, lanes)
        ]

    def _place(self, panel: Expr, width: int, j: int) -> tuple[Expr, int, int]:
        """The panel of a vector of a tile, its width, and the vector's place in it."""
        if not self.side:
            return panel, width, j
        return panel + j // self.side * self.side, self.side, j % self.side


def _positions(rows: int, width: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(rows) for j in range(width)]


def _set(tile: Tile, row: int, vector: int, value: Expr) -> None:
    I.buffer_store(tile.buffers[row], value, [ramp(vector * tile.lanes, tile.lanes)])
