"""Loops over dynamic sizes: blocks, and register tiles of some heights.

A register tile's height is a number that its code is written for. So there is code for each of some
heights (see `tail_heights`), and a branch chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, materialise

from .emission import opaque_block, task_loop
from .extents import as_expr
from .tail_heights import TailHeights


def ceil_div(total: Expr | int, by: Expr | int) -> Expr:
    """A size over another one, rounded up."""
    if isinstance(total, int) and isinstance(by, int):
        return tirx.const(-(-total // by), "int32")
    return I.floordiv(total + (by - 1), by)


def for_blocks(total: Expr, most: Expr | int, body: Callable[[Expr, Expr], None]) -> None:
    """Runs `body(start, size)` for blocks of `most`, of which the last one may be smaller."""
    with I.serial(ceil_div(total, most)) as number, opaque_block("block"):
        start = materialise(number * most)
        body(start, materialise(tirx.Min(as_expr(most), total - start)))


def for_balanced_blocks(
    total: Expr, most: int, unit: int, body: Callable[[Expr, Expr], None]
) -> None:
    """As `for_blocks`, for the fewest blocks; they differ by at most one unit, but for the last.

    Parameters
    ----------
    total : Expr
        What is cut; nothing runs for 0.
    most : int
        The largest size of a block.
    unit : int
        All blocks but the last are multiples of it, if it is no larger than `most`.
    """
    count, block_of = balanced_blocks(total, most, unit)
    with I.serial(count) as number, opaque_block("block"):
        body(*block_of(number))


def balanced_blocks(
    total: Expr, most: int, unit: int
) -> tuple[Expr, Callable[[Expr], tuple[Expr, Expr]]]:
    """The number of blocks of `for_balanced_blocks`, and (start, size) of each by its number."""
    unit = unit if unit <= most else 1
    units = materialise(ceil_div(total, unit))
    count = materialise(ceil_div(units, most // unit))
    some = tirx.Max(count, tirx.const(1, "int32"))
    base, larger = materialise(I.floordiv(units, some)), materialise(I.floormod(units, some))

    def block_of(number: Expr) -> tuple[Expr, Expr]:
        start = materialise((number * base + tirx.Min(number, larger)) * unit)
        size = (base + tirx.Cast("int32", tirx.LT(number, larger))) * unit
        return start, materialise(tirx.Min(size, total - start))

    return count, block_of


@contextmanager
def open_tasks(threads: int, alone: Expr) -> Iterator[tuple[Expr, Expr | int]]:
    """(number, count) of the parts that threads run; a single one if a condition holds."""
    if threads == 1:
        with task_loop(1) as task:
            yield task, 1
        return
    one, all_of_them = (tirx.const(number, "int32") for number in (1, threads))
    count = materialise(tirx.Select(alone, one, all_of_them))
    with task_loop(count, alone=alone) as task:
        yield task, count


def share_of(total: Expr, number: Expr, parts: Expr | int) -> tuple[Expr, Expr]:
    """(start, size) of one of so many parts, which differ by at most one."""
    if isinstance(parts, int) and parts == 1:
        return tirx.const(0, "int32"), total
    first = materialise(I.floordiv(number * total, parts))
    return first, materialise(I.floordiv((number + 1) * total, parts) - first)


def for_tiles(
    total: Expr,
    heights: TailHeights,
    body: Callable[[Expr, int], None],
    after: Callable[[Expr, Expr], None] | None = None,
) -> None:
    """Runs `body(start, size)` for whole tiles and then for pieces of the tail, sizes as numbers.

    Parameters
    ----------
    total : Expr
        What is cut; nothing runs for 0.
    after : callable or None
        (start, size as an expression) -> None; runs after each piece, written once for all sizes.
    """
    most = heights.heights[-1]
    whole = materialise(tirx.Max(I.floordiv(total, most) - 1, tirx.const(0, "int32")))
    count = whole + lookup(heights.counts, total - whole * most)
    # Carried along: LLVM moves what is computed from the number into the innermost loop.
    place = I.sblock_alloc_buffer((1,), "int32")
    I.buffer_store(place, tirx.const(0, "int32"), [0])
    with I.serial(materialise(count)) as number, opaque_block("piece"):
        start = materialise(place[0])
        left = materialise(tirx.Min(total - start, tirx.const(2 * most - 1, "int32")))
        piece = tirx.Select(number < whole, as_expr(most), lookup(heights.first, left))
        size = materialise(piece)
        I.buffer_store(place, start + size, [0])
        choose(size, heights.heights, lambda known: body(start, known))
        if after is not None:
            after(start, size)


def lookup(values: Sequence[int], at: Expr) -> Expr:
    """One of some small numbers, out of 64-bit words."""
    bits = max(values).bit_length()
    each = 63 // bits
    words = [values[start : start + each] for start in range(0, len(values), each)]
    packed = [
        tirx.const(sum(value << (bits * place) for place, value in enumerate(word)), "int64")
        for word in words
    ]
    found, first = packed[0], tirx.const(0, "int32")
    for number, word in enumerate(packed[1:], 1):
        begin = tirx.const(number * each, "int32")
        found = tirx.Select(at < begin, found, word)
        first = tirx.Select(at < begin, first, begin)
    shift = tirx.Cast("int64", (at - first) * bits)
    mask = tirx.const((1 << bits) - 1, "int64")
    return tirx.Cast("int32", tirx.bitwise_and(tirx.shift_right(found, shift), mask))


def choose(value: Expr, numbers: Sequence[int], body: Callable[[int], None]) -> None:
    """Runs `body(number)` for the number that a value is, by halving; one branch for each."""
    if len(numbers) == 1:
        with opaque_block("chosen"):
            body(numbers[0])
        return
    middle = len(numbers) // 2
    with I.If(value < numbers[middle]):
        with I.Then():
            choose(value, numbers[:middle], body)
        with I.Else():
            choose(value, numbers[middle:], body)
