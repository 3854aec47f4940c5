"""What every template's `build` puts around its loops: function, parameters, tasks, blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.vector.expressions import Expr, Index, bind, materialise, parameter

from .blocking import Group, TailHeights
from .extents import as_expr, buffer_shape, extent_scope
from .region import Region, Tensor

EXACT_BUFFERS = "tvm_hybrid.exact_buffers"
"""Attribute of a function whose buffers TVM leaves as they are: templates allocate what they need.
TVM's search for the used part of each buffer takes half of the time of its passes on unrolled code,
and minutes if sizes are expressions."""


@contextmanager
def kernel_function(name: str) -> Iterator[IRBuilder]:
    """A scope in which a kernel is built; afterwards `get` of the builder returns the kernel."""
    with IRBuilder() as builder, I.prim_func(s_tir=True), extent_scope():
        I.func_name(name)
        I.func_attr({**NO_ALIAS, EXACT_BUFFERS: True})
        yield builder


@contextmanager
def opaque_block(name: str) -> Iterator[None]:
    """A block with empty lists of what it reads and writes, so that TVM looks for none itself."""
    with I.sblock(name):
        I.reads()
        I.writes()
        yield


ALONE = "tvm_hybrid_alone"
"""Attribute around a parallel loop: the condition under which one thread runs all of it."""


@contextmanager
def task_loop(
    tasks: Index,
    parallel: bool = True,
    name: str = "task",
    threads: int = 0,
    alone: Expr | None = None,
) -> Iterator[Expr]:
    """A loop over tasks, each an opaque block; on all threads if there are several.

    With `threads`, that many threads share the tasks as evenly as possible, and others get none.
    TVM alone gives each thread the rounded-up share of tasks, and so none to some threads.

    `alone` is a condition on dynamic sizes under which one thread runs all tasks; the lowering pass
    `launch_few` implements it.
    """
    known = isinstance(tasks, int)
    if not parallel or not known or tasks == 1 or not 0 < threads < tasks:
        forks = parallel and (not known or tasks > 1)
        with ExitStack() as scope:
            if forks and alone is not None:
                scope.enter_context(I.attr(tirx.const(0, "int32"), ALONE, alone))
            task = scope.enter_context(I.parallel(tasks) if forks else I.serial(tasks))
            scope.enter_context(opaque_block(name))
            yield task
        return
    with I.parallel(threads) as thread, opaque_block("thread"):
        first = bind(I.floordiv(thread * tasks, threads))
        end = I.floordiv((thread + 1) * tasks, threads)
        with I.serial(end - first) as number, opaque_block(name):
            yield first + number


def tensor_parameter(name: str, tensor: Tensor) -> Expr:
    """A parameter of the function under construction, for a tensor."""
    return parameter(name, buffer_shape(tensor.shape), tensor.dtype)


def input_parameters(region: Region, first: int = 0) -> list[Expr]:
    """The parameters for a region's inputs, from input number `first` on."""
    tensors = enumerate(region.inputs[first:], first)
    return [tensor_parameter(f"input{i}", tensor) for i, tensor in tensors]


def operand_parameters(region: Region) -> list[Expr]:
    """The parameters for a region's operands."""
    return [tensor_parameter(f"operand{i}", tensor) for i, tensor in enumerate(region.operands)]


# Loops over dynamic sizes: blocks, and register tiles of some heights.
#
# Code of a register tile is written for a fixed height. So there is code for each of some heights
# (see `tail_heights`), and a branch chooses among them.


def smallest(a: Index, b: Index) -> Index:
    """The smaller of two sizes; a number if both are numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return tirx.Min(as_expr(a), as_expr(b))


def largest(a: Index, b: Index) -> Index:
    """The larger of two sizes; a number if both are numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return tirx.Max(as_expr(a), as_expr(b))


def named(size: Index) -> Index:
    """A size that TVM cannot look through (`materialise`); a number as it is."""
    return size if isinstance(size, int) else materialise(size)


def quarters(rows: int) -> list[int]:
    """A quarter, a half, three quarters and all of a tile's rows: tails have code for these."""
    return sorted({-(-rows * part // 4) for part in range(1, 5)})


def which_size(left: Expr, sizes: Sequence[int]) -> Expr:
    """Index of the first of some rising sizes that a tail fits in."""
    return sum((tirx.Cast("int32", left > size) for size in sizes[:-1]), tirx.const(0, "int32"))


def ceil_div(total: Index, by: Index) -> Any:
    """Divides a size by another one, rounded up."""
    if isinstance(total, int) and isinstance(by, int):
        return -(-total // by)
    return I.floordiv(total + (by - 1), by)


def divided(size: Index, by: int) -> tuple[Index, Index]:
    """(quotient, remainder) of a size, each in a register if it is dynamic."""
    if isinstance(size, int):
        return divmod(size, by)
    if by == 1:
        return size, 0
    return materialise(I.floordiv(size, by)), materialise(I.floormod(size, by))


def for_blocks(total: Expr, most: Index, body: Callable[[Expr, Expr], None]) -> None:
    """Runs `body(start, size)` for blocks of `most`, of which the last one may be smaller."""
    with I.serial(ceil_div(total, most)) as number, opaque_block("block"):
        start = materialise(number * most)
        body(start, materialise(tirx.Min(as_expr(most), total - start)))


def balanced_blocks(
    total: Expr, most: int, unit: int
) -> tuple[Expr, Callable[[Expr], tuple[Expr, Expr]]]:
    """Cuts a size into the fewest blocks: their count, and number -> (start, size) of a block.

    Sizes differ by at most one unit, apart from the last block's.

    Parameters
    ----------
    total : Expr
        The size to cut; 0 has no blocks.
    most : int
        The largest size of a block.
    unit : int
        All blocks but the last are multiples of it, if it is no larger than `most`.
    """
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
def dynamic_tasks(threads: int, alone: Expr) -> Iterator[tuple[Expr, Index]]:
    """A loop over the parts that threads run, (number, count); a single part if `alone` holds."""
    if threads == 1:
        with task_loop(1) as task:
            yield task, 1
        return
    one, all_of_them = (tirx.const(number, "int32") for number in (1, threads))
    count = materialise(tirx.Select(alone, one, all_of_them))
    with task_loop(count, alone=alone) as task:
        yield task, count


def share_of(total: Expr, number: Expr, parts: Index) -> tuple[Expr, Expr]:
    """(start, size) of one of `parts` parts, which differ by at most one."""
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
    """Runs `body(start, size)` for whole tiles, then for pieces of the tail; a size is a number.

    Parameters
    ----------
    total : Expr
        The size to cut; nothing runs for 0.
    after : callable or None
        (start, size as an expression) -> None; runs after each piece, written once for all sizes.
    """
    most = heights.heights[-1]
    whole = materialise(tirx.Max(I.floordiv(total, most) - 1, tirx.const(0, "int32")))
    count = whole + lookup(heights.counts, total - whole * most)
    # Kept in memory: LLVM would move a computation from the number into the innermost loop.
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
    """The number at a place in a list of small numbers, which are packed in 64-bit words."""
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
    """Runs `body(number)` for the number that equals `value`, by bisection; a branch for each."""
    if len(numbers) == 1:
        with opaque_block("chosen"):
            body(numbers[0])
        return
    middle = len(numbers) // 2
    low, high = numbers[:middle], numbers[middle:]
    branch(value < high[0], lambda: choose(value, low, body), lambda: choose(value, high, body))


def branch(condition: Expr | bool, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Emits `then()` for the case that a condition holds, and `otherwise()` for the other."""
    with I.If(condition):
        with I.Then():
            then()
        with I.Else():
            otherwise()


def where_all(
    conditions: Sequence[Expr], then: Callable[[], None], otherwise: Callable[[], None]
) -> None:
    """Emits `then()` for the case that all conditions hold, and `otherwise()` for the other."""
    if conditions:
        branch(tirx.all(*conditions), then, otherwise)
    else:
        then()


def repeat(count: Index, name: str, body: Callable[[Expr], None]) -> None:
    """Runs `body(number)` `count` times; each is an opaque block if the count is dynamic."""
    if isinstance(count, int) and not count:
        return
    scope = nullcontext() if isinstance(count, int) else opaque_block(name)
    with I.serial(count) as number, scope:
        body(number)


def for_vectors(total: Index, lanes: int, name: str, body: Callable[[Expr, Index], None]) -> None:
    """Runs `body(start, valid)` for whole vectors of a size, then for the tail if there is one."""
    whole, tail = divided(total, lanes)
    repeat(whole, name, lambda number: body(number * lanes, lanes))
    if not isinstance(tail, int):
        with I.If(tail > 0), I.Then(), opaque_block(name):
            body(materialise(as_expr(whole * lanes)), tail)
    elif tail:
        body(as_expr(whole * lanes), tail)


def evaluated(condition: Expr) -> Expr:
    """A condition, evaluated once."""
    one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")
    return materialise(tirx.Select(condition, one, zero)) > 0


def for_groups(groups: Sequence[Group], body: Callable[[Index, int], None]) -> None:
    """Runs `body(start, size)` for every piece; a loop for each group."""
    for group in groups:
        if group.count == 1:
            body(group.start, group.size)
        else:
            with I.serial(group.count) as piece:
                body(group.start + piece * group.size, group.size)


def for_part(
    group: Group, share: tuple[Expr, Expr] | None, body: Callable[[Index, int], None]
) -> None:
    """Runs `body(start, size)` for a group's pieces, or for a share (number, count) of them."""
    if share is None:
        for_groups([group], body)
        return
    before, own = share_of(as_expr(group.count), *share)
    with I.serial(own) as at, opaque_block("panel"):
        body(materialise(group.start + (before + at) * group.size), group.size)


def for_share(
    groups: Sequence[Group], index: Expr, body: Callable[[Expr, int], None], before: int = 0
) -> None:
    """Runs `body(start, size)` for the piece number `index`; one branch for each size.

    `before` is the number of pieces in groups before these.
    """
    group, *others = groups

    def run() -> None:
        number = index - before if before else index
        start = number * group.size
        body(group.start + start if group.start else start, group.size)

    if not others:
        run()
        return
    end = before + group.count
    branch(index < end, run, lambda: for_share(others, index, body, end))


def children(statement: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements directly inside one, in program order; an `init` of a block is not listed."""
    if isinstance(statement, tirx.SeqStmt):
        return list(statement.seq)
    if isinstance(statement, s_tir.SBlockRealize):
        return [statement.block]
    if isinstance(statement, s_tir.SBlock | tirx.For | tirx.While | tirx.AttrStmt):
        return [statement.body]
    if isinstance(statement, tirx.IfThenElse):
        cases = [statement.then_case, statement.else_case]
        return [case for case in cases if case is not None]
    return []


def with_children(statement: tirx.Stmt, inside: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statement with other statements in place of its `children`."""
    if not inside:
        return statement
    if isinstance(statement, s_tir.SBlock):
        (body,) = inside
        return with_body(statement, body, dict(statement.annotations))
    places, remaining = len(children(statement)), iter(inside)
    if len(inside) != places:
        raise ValueError(f"{len(inside)} statements for the {places} inside of another")

    def change(each: tirx.Stmt, mutator: tvm_ffi.StructuralMutator) -> tirx.Stmt:
        return mutator.default_mutate(each) if each.same_as(statement) else next(remaining)

    return tvm_ffi.structural_mutate(statement, [(tirx.Stmt, change)])


def with_body(
    block: s_tir.SBlock, body: tirx.Stmt, annotations: Mapping[str, object], name: str = ""
) -> s_tir.SBlock:
    """The block with another body and other annotations, perhaps under another name."""
    before = block.iter_vars, block.reads, block.writes, name or block.name_hint
    buffers = block.alloc_buffers, block.match_buffers
    return s_tir.SBlock(*before, body, block.init, *buffers, annotations)


def walk(statement: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """The statement and all inside it, in program order."""
    yield statement
    for child in children(statement):
        yield from walk(child)
