"""The stages of the template "conv2d_winograd" over images whose sizes are known at run time only.

    for each team's share of all tiles of all images
        for each block of whole register tiles
            as for known sizes, but for the register tiles: whole ones in a loop, and one for what
            is left, whose code has a quarter, a half or three quarters of the rows

Only the last register tile of a team is not whole. Rows that it has too many are multiplied, and
nobody reads their results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.tile import Address
from microkernels.vector.expressions import Expr, materialise
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.open_loops import ceil_div, choose, share_of
from tir_schedules.core.product_plan import PANELS_AHEAD, PRODUCTS_PER_FETCH

from .config import WinogradConfig
from .panel_product import Panel, PanelProduct
from .program import Block, WinogradProgram, for_size


@dataclass(frozen=True)
class OpenWinogradProgram(WinogradProgram):
    """The program of a problem that `WinogradProblem.opened` made.

    Attributes
    ----------
    tiles : Expr
        How many there are.
    each : Expr
        How many blocks a team takes.
    """

    tiles: Expr
    each: Expr

    @staticmethod
    def steps_of(tiles: Expr, config: WinogradConfig) -> Expr:
        """Emits how many blocks a team takes of so many tiles."""
        of_team = ceil_div(ceil_div(tiles, config.threads_tiles), config.rows)
        return materialise(ceil_div(of_team, config.m_block // config.rows))

    @property
    def _teams(self) -> int:
        return self.config.threads_tiles

    @property
    def _most(self) -> int:
        return self.config.m_block

    @property
    def _each(self) -> Expr | int:
        return self.each

    @contextmanager
    def _block(self, team: Expr, step: Expr) -> Iterator[Block]:
        """A share of the register tiles of a team's share of the tiles."""
        rows = self.config.rows
        first, own = share_of(self.tiles, team, self._teams)
        start, count = share_of(materialise(ceil_div(own, rows)), step, self.each)
        with I.If(count > 0), I.Then():
            tiles = materialise(tirx.Min(count * rows, own - start * rows))
            yield Block(materialise(first + start * rows), tiles, step)

    def _products(self, block: Block, number: Expr, panel: Panel) -> None:
        panels = self.config.panels(self.problem, self.kernel)
        for_size(panels, number, lambda width: self._multiply_open(panel.of(width), block.tiles))

    def _multiply_open(self, panel: Panel, tiles: Expr) -> None:
        """The products of a panel."""
        rows = self.config.rows
        sizes = sorted({-(-rows * quarter // 4) for quarter in range(1, 5)})
        most = sizes[-2] if len(sizes) > 1 else 0  # rows of a tile that is not whole
        whole = materialise(I.floordiv(tiles + (rows - 1 - most), rows))
        left = materialise(tiles - whole * rows)
        kind: Expr = tirx.const(0, "int32")
        for size in sizes[:-2]:
            kind = kind + tirx.Cast("int32", left > size)
        kind = materialise(kind)
        with I.serial(self.problem.algorithm.products) as number, opaque_block("product"):
            product = self._product(panel, number)
            with I.serial(whole) as tile:
                self._register_tile(product, tile, rows)
            if most:
                with I.If(left > 0), I.Then():
                    choose(
                        kind,
                        range(len(sizes) - 1),
                        lambda which: self._register_tile(product, whole, sizes[which]),
                    )

    def _register_tile(self, product: PanelProduct, number: Expr, rows: int) -> None:
        """So many rows from those of the tile `number` on."""
        first, panel, width = number * self.config.rows, product.panel.first, product.panel.width
        tiles = self.config.m_block // self.config.rows
        fetch, lines = product.fetch, math.ceil(width / tiles)
        if lines * PRODUCTS_PER_FETCH > rows * width or tiles > PANELS_AHEAD * width:
            fetch = None

        def load_b(j: int, ks: Sequence[Expr | int]) -> Expr | Address:
            if fetch is not None and j == 0:
                for line in range(lines):
                    fetch(panel, (number * product.steps + ks[0]) * lines + line, 0)
            return product.load_b(panel, width, ks[0], j)

        with opaque_block("tile"):
            result = product.kernel.emit(
                rows,
                width,
                (product.steps,),
                lambda i, ks: product.load_a(first + i, ks[0]),
                load_b,
            )
            for i in range(rows):
                for j in range(width):
                    product.store(first + i, panel + j, result.value(i, j), j == width - 1)
