"""Loops over sizes that are known at run time: blocks, and register tiles of balanced heights.

A register tile's height is a number that its code is written for. So there is code for each height
from 1 to the most, and a branch chooses among them; pieces of one loop differ by at most one, as
those of `balanced`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, materialise

from .emission import opaque_block, task_loop
from .extents import as_expr


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
    most: int,
    body: Callable[[Expr, int], None],
    after: Callable[[Expr, Expr], None] | None = None,
    least: int = 1,
) -> None:
    """Runs `body(start, size)` for the fewest pieces of at most `most`, sizes as numbers.

    Parameters
    ----------
    total : Expr
        What is cut; nothing runs for 0.
    after : callable or None
        (start, size as an expression) -> None; runs after each piece, written once for all sizes.
    least : int
        No total is smaller, but for 0.
    """
    count = materialise(ceil_div(total, most))
    some = tirx.Max(count, tirx.const(1, "int32"))
    base, larger = materialise(I.floordiv(total, some)), materialise(I.floormod(total, some))
    # Carried along: of `number * base + min(number, larger)` LLVM moves the division into the
    # innermost loop, where it costs a fifth of the time on CPUs whose divisions are slow.
    place = I.sblock_alloc_buffer((1,), "int32")
    I.buffer_store(place, tirx.const(0, "int32"), [0])
    with I.serial(count) as number, opaque_block("piece"):
        start = materialise(place[0])
        size = materialise(base + tirx.Cast("int32", tirx.LT(number, larger)))
        I.buffer_store(place, start + size, [0])
        sizes = range(smallest_piece(least, most), most + 1)
        choose(size, sizes, lambda known: body(start, known))
        if after is not None:
            after(start, size)


def smallest_piece(least: int, most: int) -> int:
    """The smallest that `for_tiles` makes of any total from `least` on, 0 left out."""
    totals = range(least, max(least, most * most) + most)  # pieces of larger ones are no smaller
    return min(total // -(-total // most) for total in totals)


def for_even_tiles(
    total: Expr,
    most: int,
    body: Callable[[Expr, int], None],
    after: Callable[[Expr, Expr], None],
    least: int = 1,
) -> None:
    """As `for_tiles`, with code for even heights, which is half as much.

    A piece that would be odd is one higher, and the last one overlaps the one before: of an odd
    total one element is computed twice.
    """
    one = tirx.const(1, "int32")
    lonely = tirx.all(I.bitwise_and(total, 1) > 0, total > 1, total < most)
    count = materialise(ceil_div(total, most) + tirx.Cast("int32", lonely))
    place = I.sblock_alloc_buffer((1,), "int32")
    I.buffer_store(place, tirx.const(0, "int32"), [0])
    with I.serial(count) as number, opaque_block("piece"):
        left = materialise(total - place[0])
        size = materialise(ceil_div(left, tirx.Max(count - number, one)))
        even = tirx.Min(size + I.bitwise_and(size, 1), tirx.const(most, "int32"))
        size = materialise(tirx.Select(total > 1, even, one))
        start = materialise(tirx.Min(total - left, total - size))
        I.buffer_store(place, start + size, [0])
        choose(size, even_heights(least, most), lambda known: body(start, known))
        after(start, size)


def even_heights(least: int, most: int) -> list[int]:
    """The heights that `for_even_tiles` makes of totals from `least` on, 0 left out."""
    single = [1] if least == 1 or most == 1 else []
    return single + [*range(2, most, 2)] + ([most] if most > 1 else [])


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
