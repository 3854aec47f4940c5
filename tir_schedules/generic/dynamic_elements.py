"""Loops for nests of dynamic sizes whose points are independent, in rows that LLVM vectorises.

    for i, j in grid(n, 2 * m): y[i, j] = x[i, j % m]

    ->  for i: for k in range(2): for j in range(m): y[i, m * k + j] = x[i, j]     copies of rows

Axes are cut where the kind of their elements changes (`pieces`). An axis that is read by its
quotient or remainder becomes two, and neighbouring axes that follow each other in all tensors
become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import detect_linear_equation

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from . import elementwise, expressions, loops
from .conditions import Piece, pieces
from .expressions import const_int, int64, loads_of, same, variables_of
from .fusion import merge_nests, reads_of
from .loops import View, store_statement
from .nest import SAMPLE, Axis, FunctionNests, Nest, NotHandledError, Store, read_program
from .reads import STEPS, staged_stores, with_sample_tables, with_selects

MOST_PIECES = 16
"""Most loops that one nest is cut into."""

FEW = 4
"""Most elements of a period that are unrolled, so that LLVM stores them as one vector."""

SHORT = 16
"""Most elements of a piece that is not worth a loop over periods, or a division."""

Most = Mapping[tirx.Var, int]
"""The most pieces that an axis may be cut into; other axes are not cut."""


def dynamic_elements(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Loops for a function of dynamic sizes that reduces nothing.

    Raises
    ------
    NotHandledError
        If all sizes are static, it reduces, or all rows are static and uniform.
    """
    program = program_of_elements(func)
    if not any(map(_gains, program.nests)):
        raise NotHandledError("its rows are of static size")
    views, statements = views_of(program)
    statements += [
        element_loops(loops.flattened(with_selects(nest), views), machine) for nest in program.nests
    ]
    return loops.with_statements(func, statements), "generic_injective"


def program_of_elements(func: tirx.PrimFunc) -> FunctionNests:
    program = with_sample_tables(dynamic_nests(func))
    if not program.nests or any(nest.reduce for nest in program.nests):
        raise NotHandledError("it does more than compute elements")
    return program


def views_of(program: FunctionNests) -> tuple[dict[tirx.Var, View], list[tirx.Stmt]]:
    """Flat views of all buffers, and statements that declare them or allocate the written ones."""
    views, declared = loops.parameter_views(program.func)
    own, allocated = loops.temporary_views(program)
    return {**views, **own}, [*declared, *allocated]


def _gains(nest: Nest) -> bool:
    """Whether rows are dynamic, or consist of several pieces."""
    if not nest.spatial:
        return False
    row = nest.spatial[-1]
    return row.end is not None or len(pieces(nest, row.var, row.stated, set(), MOST_PIECES)) > 1


def element_loops(nest: Nest, machine: Machine) -> tirx.Stmt:
    """Loops for a flat nest without reduction, with other loops for rows beyond L2 (`far_rows`)."""
    most, left = dict[tirx.Var, int](), MOST_PIECES
    for number, axis in reversed(list(enumerate(nest.spatial))):
        cut = pieces(nest, axis.var, axis.stated, _inside(nest, number), left)
        most[axis.var] = len(cut)
        left //= len(cut)
    found = _over(nest.tidied(), 0, most, machine)
    copies = isinstance(nest.stores[0].value, TensorLoad | Call)
    if machine.string_copy_cost <= 1 or not copies or len(nest.spatial) < 2:
        return found
    near = _over(nest.tidied(), 0, most, machine.with_numbers(string_copy_cost=1))
    if tvm_ffi.structural_equal(found, near, map_free_vars=True):
        return found
    return tirx.IfThenElse(elementwise.far_rows(nest, machine), found, near)


def _inside(nest: Nest, number: int) -> set[tirx.Var]:
    return {axis.var for axis in nest.spatial[number + 1 :]}


def _over(nest: Nest, number: int, most: Most, machine: Machine) -> tirx.Stmt:
    """Loops over the axes from axis `number` on."""
    if number == len(nest.spatial):
        return store_statement(nest, nest.stores, {})
    axis = nest.spatial[number]
    cut = pieces(nest, axis.var, axis.stated, _inside(nest, number), most.get(axis.var, 1))
    return loops.sequence([_piece(each, number, most, machine) for each in cut])


def _piece(piece: Piece, number: int, most: Most, machine: Machine) -> tirx.Stmt:
    nest, last = piece.nest, number + 1 == len(piece.nest.spatial)
    size = const_int(nest.analyzer().simplify(piece.end - piece.first))
    period = None if size is not None and size <= SHORT else _period(nest, number)
    length = None if period is None else const_int(period.length)
    if period is None or (number == 0 and not last and machine.threads > 1):
        return _run(piece, number, most, machine)
    if length is None or length > FEW:
        return _periods(piece, period, number, most, machine)
    if last and const_int(piece.first) == 0 and const_int(period.base) == 0:
        return _few(piece, period, length, number, machine)
    return _run(piece, number, most, machine)


def _run(piece: Piece, number: int, most: Most, machine: Machine) -> tirx.Stmt:
    """A loop over a piece and over the axes that continue it."""
    nest, old = piece.nest, piece.nest.spatial[number]
    size = nest.analyzer().simplify(tirx.Max(piece.end - piece.first, int64(0)))
    axis = Axis.new(size, old.var.name)
    nest = _replaced(nest, (axis,), {old.var: piece.first + axis.var})
    while number + 1 < len(nest.spatial) and continues(nest, *nest.spatial[number : number + 2]):
        outer, inner = nest.spatial[number : number + 2]
        axis = Axis.new(outer.stated * inner.stated, inner.var.name)
        nest = _replaced(nest, (axis,), {outer.var: int64(0), inner.var: axis.var})
    shared = number == 0 and machine.threads > 1
    if shared and len(nest.spatial) == 1:
        return flat_loop(
            axis.stated, lambda at: store_statement(nest, nest.stores, {axis.var: at}), machine
        )
    if not shared and number + 1 == len(nest.spatial):
        loads = _strided(nest, axis)
        lanes = elementwise.lanes_for(nest, machine)
        if loads and lanes > 1:
            return _strided_row(nest, axis, loads, lanes)
        accesses: list[TensorLoad | Store] = [*nest.reads(), *nest.stores]
        steps = [nest.step_along(each.indices[0], axis) for each in accesses]
        if lanes > 1 and elementwise.has_copies(nest, steps):
            return _strided_row(nest, axis, [], elementwise.COPIED_VECTORS * lanes)
        wide = elementwise.copied_row_lanes(nest, machine) if lanes > 1 and set(steps) == {1} else 0
        if wide:
            return _strided_row(nest, axis, [], wide, elementwise.is_long(nest))
    body = _over(nest, number + 1, most, machine)
    if shared:
        return loops.over_axes([axis], body, parallel=True)
    near = loops.loop_of_elements(axis.var, axis.stated, body, machine.isa.f32_lanes)
    return near if len(nest.spatial) > 1 else _near_or_far(nest, near, machine)


def _near_or_far(nest: Nest, near: tirx.Stmt, machine: Machine) -> tirx.Stmt:
    """A loop over all elements; in vectors, for memory beyond L2, if the size is large enough."""
    (axis,) = nest.spatial
    steps = [
        None if loads_of(load.indices[0]) else nest.step_along(load.indices[0], axis)
        for load in nest.reads()
    ]
    written = {nest.step_along(store.indices[0], axis) for store in nest.stores}
    lanes, least = elementwise.far_lanes(nest, steps, machine)
    if not lanes or written != {1}:
        return near
    far = loops.vectors_and_rest(
        int64(0),
        axis.stated,
        lanes,
        lambda first: staged_stores(nest, axis, first, lanes),
        lambda at: store_statement(nest, nest.stores, {axis.var: at}),
    )
    return tirx.IfThenElse(axis.stated >= int64(least), far, near)


def _strided(nest: Nest, axis: Axis) -> list[TensorLoad]:
    """Loads with a step in `STEPS` along a row of vectors; empty if they cannot be staged."""
    if nest.lets or nest.has_choices or reads_of(nest, *(own.buffer for own in nest.stores)):
        return []
    if any(nest.step_along(store.indices[0], axis) != 1 for store in nest.stores):
        return []
    found: list[TensorLoad] = []
    for load in nest.reads():
        step = None if loads_of(load.indices[0]) else nest.step_along(load.indices[0], axis)
        if step not in (0, 1, *STEPS) or (step in STEPS and str(load.ty.dtype) == "bool"):
            return []
        # LLVM would gather these elements, because a last vector could read beyond the last one.
        found += [load] if step in STEPS else []
    return expressions.distinct(found)


def _strided_row(
    nest: Nest, axis: Axis, loads: list[TensorLoad], lanes: int, when: Expr | None = None
) -> tirx.Stmt:
    """A loop over vectors, the last of which ends with the row; over elements of a short row."""
    start = tirx.Var("start", "int64")
    vector = Axis.new(tirx.floordiv(axis.stated + int64(lanes - 1), int64(lanes)), "vector")
    first = tirx.Min(vector.var * int64(lanes), axis.stated - int64(lanes))
    body = loops.sequence([tirx.Bind(start, first), staged_stores(nest, axis, start, lanes, loads)])
    wide = loops.over_axes([vector], body)
    single = loops.over_axes([axis], store_statement(nest, nest.stores, {}))
    # `when` replaces the check of the row's length, so it must be false for a short row.
    wide_enough = axis.stated >= int64(lanes) if when is None else when
    return tirx.IfThenElse(wide_enough, wide, single)


def _replaced(nest: Nest, axes: tuple[Axis, ...], values: dict[tirx.Var, Expr]) -> Nest:
    """The nest with `axes` in the place of the axes whose variables get `values`."""
    number = next(n for n, axis in enumerate(nest.spatial) if axis.var in values)
    left = [axis for axis in nest.spatial if axis.var not in values]
    spatial = (*left[:number], *axes, *left[number:])
    return replace(nest.substituted(values), spatial=spatial).tidied()


@dataclass(frozen=True)
class _Period:
    """An axis is divided by `length`, after `base` was added to it."""

    divided: Expr
    base: Expr
    divisor: Expr

    @property
    def length(self) -> Expr:
        """The period; at least 1, because it may be 0 if the axis is empty."""
        known = const_int(self.divisor)
        return self.divisor if known else tirx.Max(self.divisor, int64(1))


def _period(nest: Nest, number: int) -> _Period | None:
    """The first division of an axis in which only that axis and outer ones take part."""
    axis, inner = nest.spatial[number].var, _inside(nest, number)
    for value in nest.expressions():
        for division in expressions.divisions_of(value):
            used = variables_of(division)
            if axis not in used or not used.isdisjoint(inner) or loads_of(division):
                continue
            found = list(detect_linear_equation(division.a, [axis]))
            if found and const_int(found[0]) == 1 and axis not in variables_of(division.b):
                return _Period(division.a, found[1], division.b)
    return None


def _without(nest: Nest, period: _Period, quotient: Expr, rest: Expr) -> Nest:
    """The nest with a division replaced by its quotient and remainder."""

    def change(division: tirx.FloorDiv | tirx.FloorMod) -> Expr:
        if not same(division.a, period.divided) or not same(division.b, period.divisor):
            return division
        return quotient if isinstance(division, tirx.FloorDiv) else rest

    def in_value(value: Expr) -> Expr:
        return tvm_ffi.structural_map(value, ((tirx.FloorDiv, tirx.FloorMod), change))

    return nest.with_values(in_value)


def _whole_periods(piece: Piece, period: _Period) -> tuple[Expr, Expr] | None:
    """The length and the number of periods; None unless the piece consists of whole periods."""
    end, length = piece.end, period.divisor
    if const_int(piece.first) != 0 or const_int(period.base) != 0 or not isinstance(end, tirx.Mul):
        return None
    # A length of max(n, 1) counts as n: if n is 0, the periods are empty.
    if isinstance(length, tirx.Max) and const_int(length.b) == 1:
        length = length.a
    analyzer = piece.nest.analyzer()
    for count in (end.b, end.a):
        if analyzer.can_prove_equal(length * count, end):
            return length, count
    return None


def _periods(piece: Piece, period: _Period, number: int, most: Most, machine: Machine) -> tirx.Stmt:
    """A loop over periods, and a loop over the part of each period that lies in the piece."""
    nest, old, length = piece.nest, piece.nest.spatial[number], period.length
    shared = number == 0 and machine.threads > 1
    analyzer = nest.analyzer()
    first, end = (analyzer.simplify(each + period.base) for each in (piece.first, piece.end))
    whole = _whole_periods(piece, period)
    if whole is None:
        begun = analyzer.simplify(tirx.floordiv(first, length))
        count = analyzer.simplify(tirx.floordiv(end + length - int64(1), length) - begun)
    else:
        begun, (length, count) = int64(0), whole
    which, within = Axis.new(count, "period"), Axis.new(length, old.var.name)
    quotient = begun + which.var
    nest = _without(nest, period, quotient, within.var)
    at = quotient * length + within.var - period.base
    nest = _replaced(nest, (which, within), {old.var: at})
    if whole is None:
        before = quotient * length
        part = Piece(
            nest.analyzer().simplify(tirx.Max(first - before, int64(0))),
            nest.analyzer().simplify(tirx.Min(end - before, length)),
            nest,
        )
    else:
        nest = nest if shared else elementwise.with_copies(nest, [which])
        which, part = nest.spatial[number], Piece(int64(0), length, nest)
    return loops.over_axes([which], _piece(part, number + 1, most, machine), shared)


def _few(piece: Piece, period: _Period, length: int, number: int, machine: Machine) -> tirx.Stmt:
    """A loop over periods of a few elements that are unrolled, and a loop over the tail."""
    nest, old = piece.nest, piece.nest.spatial[number]
    whole = tirx.floordiv(piece.end, int64(length))
    axis = Axis.new(whole, "period")

    def elements(at: Expr) -> tirx.Stmt:
        statements = []
        for rest in range(length):
            each = _without(nest, period, axis.var, int64(rest))
            own = {old.var: axis.var * int64(length) + int64(rest)}
            each = _replaced(each, (axis,), own)
            statements.append(store_statement(each, each.stores, {axis.var: at}))
        return loops.sequence(statements)

    if number == 0 and machine.threads > 1:
        periods = flat_loop(whole, elements, machine)
    else:
        periods = loops.loop(axis.var, whole, elements(axis.var))
    left = tirx.Var(old.var.name, "int64")
    start = whole * int64(length)
    body = store_statement(nest, nest.stores, {old.var: start + left})
    return loops.sequence([periods, loops.loop(left, piece.end - start, body)])


def require_dynamic(func: tirx.PrimFunc) -> None:
    """Raises NotHandledError for a function of static sizes, for which other rules are faster."""
    shapes = [getattr(param, "shape", ()) for param in func.params]
    if all(const_int(size) is not None for shape in shapes for size in shape):
        raise NotHandledError("all sizes are static")


def dynamic_nests(func: tirx.PrimFunc) -> FunctionNests:
    """The nests of a function with dynamic sizes, merged as far as their costs allow.

    Raises
    ------
    NotHandledError
        If all sizes are static, or the function is not a list of plain blocks.
    """
    require_dynamic(func)
    return merge_nests(read_program(func, size_or_sample))


def size_or_sample(extent: Any) -> int:
    """The value of an extent, or `SAMPLE` if it is dynamic."""
    known = const_int(extent)
    return SAMPLE if known is None else known


def continues(nest: Nest, outer: Axis, inner: Axis) -> bool:
    """Whether in all tensors of a flat nest the inner axis fills the step of the outer one."""
    if not {outer.var, inner.var}.isdisjoint(loops.numbers_used(nest)):
        return False
    analyzer = nest.analyzer()
    positions = [load.indices[0] for load in nest.distinct_reads()]
    positions += [store.indices[0] for store in (*nest.stores, *nest.epilogue)]
    for position in positions:
        found = list(detect_linear_equation(position, [outer.var, inner.var]))
        if not found or not analyzer.can_prove_equal(found[0], found[1] * inner.stated):
            return False
    return True


def with_fewer_reduced(nest: Nest) -> Nest:
    """A flat nest with reduced axes merged if one continues the other."""
    reduce = list[Axis]()
    for axis in nest.reduce:
        if reduce and continues(nest, reduce[-1], axis):
            outer = reduce.pop()
            both = Axis.new(outer.stated * axis.stated, axis.var.name)
            nest = nest.substituted({outer.var: int64(0), axis.var: both.var})
            axis = both
        reduce.append(axis)
    return replace(nest, reduce=tuple(reduce)).tidied()


def flat_loop(size: Expr, body: loops.Body, machine: Machine) -> tirx.Stmt:
    """One loop over `size` elements; each thread gets a chunk."""
    number, lanes = tirx.Var("number", "int64"), machine.isa.f32_lanes
    if machine.threads == 1:
        return loops.loop_of_elements(number, size, body(number), lanes)

    def share(first: Expr, count: Expr) -> tirx.Stmt:
        return loops.loop_of_elements(number, count, body(first + number), lanes)

    return loops.in_shares(size, machine.threads, share)
