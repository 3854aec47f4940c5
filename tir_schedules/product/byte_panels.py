"""A packed weight, and a block of rows, for products of bytes (see `byte_product`)."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Address
from microkernels.vector.expressions import Expr, cast, constant, ramp, reinterpret_group
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr
from tir_schedules.core.panels import Panels
from tir_schedules.core.product_plan import Piece

from .activations import Activations
from .tile_loops import LoadPanel

_HIGH = 0x80808080 - (1 << 32)  # the highest bit of four bytes, as int32


class BytePanels:
    """Lays blocks of a packed weight as byte tiles read them: four elements of K in a lane.

    Parameters are as of `WidePanels`.
    """

    def __init__(self, panels: Panels, weight: Expr, steps: int, vectors: int) -> None:
        self.panels, self.weight = panels, weight
        self.group = panels.kernel.lanes * panels.kernel.kr  # of a vector of the packed weight
        size = -(-steps // 2) * 2 * vectors * self.group
        self.buffer = I.sblock_alloc_buffer((size,), "int8", align=64)

    def stage(self, panel: Expr | int, width: int, piece: Piece) -> LoadPanel:
        """Interleaves two steps of a block of a panel; `stage_b` of `TileLoops`."""
        first, count = piece
        pairs, rest = divmod(count, 2)

        def lay(number: Expr | int, steps: int) -> None:
            for j in range(width):
                low, high = (self._words(panel, width, first + number * 2 + i, j) for i in (0, 1))
                lanes = low if steps == 1 else low | (high << constant(16, "int32", self._lanes))
                at = (number * width + j) * 2 * self.group
                value = I.reinterpret(f"int8x{2 * self.group}", lanes)
                I.buffer_store(self.buffer, value, [ramp(at, 2 * self.group)])

        with opaque_block("interleave"):
            if pairs:
                with I.serial(as_expr(pairs)) as number:
                    lay(number, 2)
            if rest:
                lay(pairs, 1)

        def load_b(_panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr | Address:
            at = ((step - first) * width + 2 * j) * self.group
            return self.buffer[ramp(at, 2 * self.group)]

        return load_b

    @property
    def _lanes(self) -> int:
        return self.panels.kernel.lanes

    def _words(self, panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr:
        """Two bytes of every column, in lanes of 32 bits whose upper halves are zeros."""
        start = self.panels.start(panel, width, step, j)
        pairs = I.reinterpret(f"uint16x{self._lanes}", self.weight[ramp(start, self.group)])
        return cast("int32", pairs)


class Fits:
    """Whether a block of rows can be multiplied as bytes; emits the search.

    Parameters
    ----------
    activations : Activations
        The rows as bytes, in whole vectors.
    weight : Buffer
        Packed, flat.
    answer : int
        Where the weight's own answer lies in it, an int32.
    """

    def __init__(self, activations: Activations, weight: Expr, answer: int) -> None:
        self.activations, self.weight, self.answer = activations, weight, answer
        self.lanes = activations.kernel.lanes * activations.kernel.kr
        self.vectors = -(-activations.k // self.lanes)
        self.seen = I.sblock_alloc_buffer((self.lanes,), "uint8", align=64)

    def find(self, block: Expr, rows: int | Expr) -> Expr:
        """The condition, for rows that the activations have begun."""
        everything = [ramp(0, self.lanes)]
        with opaque_block("find_high_bits"):
            I.buffer_store(self.seen, constant(0, "uint8", self.lanes), everything)
            with I.serial(rows) as row, I.serial(self.vectors) as vector:
                found = self.activations.vector_of(block + row, vector)
                I.buffer_store(self.seen, self.seen[tuple(everything)] | found, everything)
        words = [
            reinterpret_group("int32", self.seen[ramp(start, 4)], 1)
            for start in range(0, self.lanes, 4)
        ]
        while len(words) > 1:
            words = [a | b for a, b in zip(words[::2], words[1::2], strict=True)]
        small = (words[0] & tirx.const(_HIGH, "int32")).equal(0)
        weight = reinterpret_group("int32", self.weight[ramp(self.answer, 4)], 1)
        return tirx.Or(small, tirx.NE(weight, tirx.const(0, "int32")))
