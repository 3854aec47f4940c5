"""An operand as it lies in memory, and how its columns are cut into panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, Index, materialise
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import ceil_div, opaque_block
from tir_schedules.core.extents import extent


@dataclass(frozen=True)
class StoredOperand:
    """A [K, N] operand in memory.

    Attributes
    ----------
    buffer : buffer
        Where its elements are.
    dtype : str
        Their type.
    k, n : int or Expr
        Extents.
    index : callable
        (k, column) -> index of an element.
    contiguous : str
        What lies next to each other: "columns", "steps" (of K) or "" (neither).
    """

    buffer: Expr
    dtype: str
    k: Index
    n: Index
    index: Callable[[Index, Index], list[Expr]]
    contiguous: str


def strided_operand(
    buffer: Expr, dtype: str, sizes: tuple[Index, Index], base: Expr, row: int, column: int
) -> StoredOperand:
    """An operand of (K, N) elements in a flat buffer from `base` on, by two strides."""
    contiguous = "columns" if column == 1 else "steps" if row == 1 else ""

    # LLVM hoists the first sum out of loops over steps: else small products of dynamic sizes took
    # 1.1 times as long.
    column_first = contiguous != "columns" and not all(isinstance(size, int) for size in sizes)

    def index(step: Index, at: Index) -> list[Expr]:
        first, last = step * extent(row), at * extent(column)
        return [base + last + first if column_first else base + first + last]

    return StoredOperand(buffer, dtype, *sizes, index, contiguous)


@dataclass(frozen=True)
class EqualPanels:
    """Panels of a dynamic number of vectors: each has `width`, but the last one may have fewer.

    Balanced panels differ by one vector, and machine code states how many a panel has. The widths
    of balanced panels follow from a static number of vectors only.
    """

    width: int
    vectors: Expr

    def emit(
        self,
        whole: Callable[[Expr, int], None],
        narrow: Callable[[Expr, Expr], None],
        needed: Expr | None = None,
    ) -> None:
        """Runs `whole(first vector, width)` for each panel but the last, then `narrow`.

        With `needed`, only panels that begin before that vector.
        """
        needed = self.vectors if needed is None else needed
        count = tirx.Min(I.floordiv(self.vectors, self.width), ceil_div(needed, self.width))
        with I.serial(count) as number, opaque_block("panel"):
            whole(materialise(number * self.width), self.width)
        if self.width > 1:
            left = materialise(I.floormod(self.vectors, self.width))
            is_needed = tirx.And(left > 0, needed > self.vectors - left)
            with I.If(is_needed), I.Then(), opaque_block("narrow"):
                narrow(materialise(self.vectors - left), left)

    def panel_of(self, vector: Expr) -> tuple[Expr, Expr]:
        """The first vector of the panel of a vector, and the panel's width."""
        panel = materialise(I.floordiv(vector, self.width) * self.width)
        most = tirx.const(self.width, "int32")
        return panel, materialise(tirx.Min(most, self.vectors - panel))


PanelCut = Sequence[Group] | EqualPanels
"""How vectors of columns are cut into panels."""
