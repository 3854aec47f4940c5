"""Which tile instructions an AMX product executes, in which order, and how many.

    start    tilezero, or tileloadd where a block of K continues with stored accumulators
    a step   A0, B0, TDP(0,0), B1, TDP(0,1), A1, TDP(1,0), TDP(1,1)     64 bytes of K, layout "2x2"
             A0, B0, TDP(0,0), B1, TDP(0,1), B2, TDP(0,2), ...          layout "1x4"
    end      tilestored, row by row of tiles

The emulator counts what a kernel executes; tests compare that with `product_counts`.
`amx.scoreboard` predicts how long a stream takes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .tile_shapes import FIRST_A, LAYOUTS, ROWS, accumulator, b_register


class TileInstruction(NamedTuple):
    """One instruction on tiles.

    Attributes
    ----------
    name : str
        The mnemonic; "tdp" for every dot product.
    target : int or None
        The tile register that it writes; None for a store.
    sources : tuple of int
        The tile registers that it reads.
    operand : str
        Whose memory it touches: "A", "B" or "C"; "" if none.
    """

    name: str
    target: int | None
    sources: tuple[int, ...] = ()
    operand: str = ""


@dataclass(frozen=True)
class InstructionCounts:
    """How often each tile instruction is executed; counts add up, and multiply by repetitions."""

    ldtilecfg: int = 0
    tilezero: int = 0
    tileloadd: int = 0
    tdp: int = 0
    tilestored: int = 0
    tilerelease: int = 0

    def __add__(self, other: InstructionCounts) -> InstructionCounts:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return InstructionCounts(*(a + b for a, b in zip(mine, theirs, strict=True)))

    def __mul__(self, times: int) -> InstructionCounts:
        return InstructionCounts(*(times * count for count in dataclasses.astuple(self)))

    def named(self, tdp: str) -> dict[str, int]:
        """The counts that are not zero by mnemonic; `tdp` is that of the dot product."""
        counts = dataclasses.asdict(self)
        counts[tdp] = counts.pop("tdp")
        return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True)
class TileBlock:
    """One block of results, and its tiles of K between two visits.

    Attributes
    ----------
    layout : str
        "2x2" or "1x4".
    row_tiles, column_tiles : int
        Tiles of accumulators along each; at most those of the layout.
    steps : int
        Tiles of K, of 64 bytes each.
    resume : bool
        Whether the accumulators are loaded from memory; else they are zeroed.
    """

    layout: str
    row_tiles: int
    column_tiles: int
    steps: int
    resume: bool = False

    def __post_init__(self) -> None:
        rows, columns = LAYOUTS[self.layout]
        if not (0 < self.row_tiles <= rows and 0 < self.column_tiles <= columns):
            raise ValueError(
                f"layout {self.layout} has no block of {self.row_tiles}x{self.column_tiles} tiles"
            )

    def stream(self) -> list[TileInstruction]:
        """Its instructions, in the order in which they are emitted."""
        grid = [(i, j) for i in range(self.row_tiles) for j in range(self.column_tiles)]
        numbers = [accumulator(self.layout, i, j) for i, j in grid]
        start, operand = ("tileloadd", "C") if self.resume else ("tilezero", "")
        return [
            *(TileInstruction(start, number, (), operand) for number in numbers),
            *(self._step() * self.steps),
            *(TileInstruction("tilestored", None, (number,), "C") for number in numbers),
        ]

    def _step(self) -> list[TileInstruction]:
        """The instructions for 64 bytes of K."""
        step = []
        for i in range(self.row_tiles):
            a = FIRST_A + i
            step.append(TileInstruction("tileloadd", a, (), "A"))
            for j in range(self.column_tiles):
                b, c = b_register(self.layout, j, self.column_tiles), accumulator(self.layout, i, j)
                if i == 0:
                    step.append(TileInstruction("tileloadd", b, (), "B"))
                step.append(TileInstruction("tdp", c, (c, a, b)))
        return step

    def counts(self) -> InstructionCounts:
        """How many of each instruction the stream has."""
        found = Counter(instruction.name for instruction in self._step())
        tiles = self.row_tiles * self.column_tiles
        return InstructionCounts(
            tilezero=0 if self.resume else tiles,
            tileloadd=self.steps * found["tileloadd"] + (tiles if self.resume else 0),
            tdp=self.steps * found["tdp"],
            tilestored=tiles,
        )


def full_then_tail(total: int, most: int) -> list[int]:
    """Cuts `total` into pieces of `most`; the tail is the last piece.

    >>> full_then_tail(70, 32)
    [32, 32, 6]
    """
    whole, rest = divmod(total, most)
    return [most] * whole + [rest] * (rest > 0)


def block_rows(layout: str) -> int:
    """Rows of a full block."""
    return ROWS * LAYOUTS[layout][0]


def product_counts(
    layout: str,
    row_blocks: Sequence[int],
    panels: Sequence[int],
    pieces: Sequence[int],
    *,
    started: bool = False,
    configure: int | None = None,
    release: int = 1,
) -> InstructionCounts:
    """Counts the instructions that one task executes for its part of a product.

    Parameters
    ----------
    layout : str
        "2x2" or "1x4".
    row_blocks : sequence of int
        Rows of every block, such as `full_then_tail(m, 32)`.
    panels : sequence of int
        Column tiles of every panel, such as `full_then_tail(column_tiles, 2)`.
    pieces : sequence of int
        Tiles of K between two visits of the accumulators, which are in memory in between.
    started : bool
        Whether the accumulators start with something other than zero, such as what zero points add.
    configure : int or None
        Number of `ldtilecfg`; None means one for each different number of rows.
    release : int
        Number of `tilerelease`.
    """
    total = InstructionCounts(
        ldtilecfg=len(set(row_blocks)) if configure is None else configure, tilerelease=release
    )
    heights = Counter(math.ceil(rows / ROWS) for rows in row_blocks).items()
    for (rows, of_rows), (columns, of_columns) in itertools.product(
        heights, Counter(panels).items()
    ):
        for number, steps in enumerate(pieces):
            block = TileBlock(layout, rows, columns, steps, started or number > 0)
            total += block.counts() * (of_rows * of_columns)
    return total
