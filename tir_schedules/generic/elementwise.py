"""Loops for nests whose points are independent: arithmetic, copies, gathers, concatenation.

for i in range(100): y[i] = if_then_else(i < 40, a[i], b[i - 40])

->  for f in range(2): for v in vectorized(16): y[f * 16 + v] = a[f * 16 + v]
    for v in vectorized(8): y[32 + v] = a[32 + v]
    (equivalent loops for 40 to 99, with b)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from . import expressions, loops
from .conditions import border_of
from .expressions import calls_of, const_int, int64, loads_of
from .loops import Plan, nested, sequence
from .nest import Axis, Nest
from .reads import staged_stores, strided_loads
from .transpose import loops_across

MOST_PIECES = 16
"""Most loop nests that one nest is split into to remove conditions."""

LEAST_STRING_BYTES = 2048
"""Smallest number of bytes that glibc copies by string instructions."""

COPIED_VECTORS = 2
"""Vectors of a row that are read before they are stored to several places.

One at a time is slower by a fifth on Zen 4 if addresses are equal modulo 4 KB: each read then waits
for the store before it.
"""

MOST_COPIES = 4
"""Most places that a loop over a row stores each element to.

Places a multiple of 4 KB apart share a set of L1: on Zen 4, eight such places are slower.
"""

FAR_COPIED_VECTORS = 4
"""Vectors of a row that are read before they are stored, in copies beyond L2.

On Zen 4 a load waits for an earlier store to an address that is equal modulo 4 KB. Two vectors are
up to 8% slower for that reason; eight are up to a half slower.
"""

_FEW_OPERATIONS = 2
_SINGLE = ("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "fabs")

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def with_copies(nest: Nest, axes: Iterable[Axis]) -> Nest:
    """A flat nest that copies; axes that its reads do not depend on become further stores.

        for i, j: y[i, j] = x[j]    ->    for j: y[0, j] = x[j]; y[1, j] = x[j]

    So a row is read once for several places, and LLVM does not make it a memcpy. If an axis has too
    many steps, a part of them become stores.
    """
    value = nest.stores[0].value
    if nest.lets or nest.reduce or not isinstance(value, TensorLoad):
        return nest
    if not all(expressions.same(store.value, value) for store in nest.stores):
        return nest
    used = expressions.variables_of(value)
    for axis in axes:
        most = 0 if axis.end is not None or axis.var in used else MOST_COPIES // len(nest.stores)
        count = max((n for n in range(1, most + 1) if axis.extent % n == 0), default=1)
        if count == 1:
            continue
        outer = Axis.new(axis.extent // count, axis.var.name)
        places = [outer.var * int64(count) + int64(place) for place in range(count)]
        copies = [nest.substituted({axis.var: place}).stores for place in places]
        spatial = [outer if each is axis else each for each in nest.spatial]
        new = tuple(store for group in zip(*copies, strict=True) for store in group)
        nest = replace(nest, spatial=tuple(spatial), stores=new).tidied()
    return nest


def has_copies(nest: Nest, steps: Iterable[int | None]) -> bool:
    """Whether a nest stores elements to several places, as `with_copies` makes it.

    `steps` are those of all loads and stores along a row.
    """
    value = nest.stores[0].value
    alike = all(expressions.same(store.value, value) for store in nest.stores)
    return len(nest.stores) > 1 and isinstance(value, TensorLoad) and alike and set(steps) == {1}


def elementwise_loops(nest: Nest, machine: Machine, parallel: bool) -> tuple[tirx.Stmt, str]:
    """Loops for a flat nest without reduction, and the name of the schedule."""
    statements: list[tirx.Stmt] = []
    names = []
    rows: list[_Rows] = []
    parts = []
    for part in split_at_conditions(nest):
        split = split_at_periods(part)
        parts += [part] if split is part else split_at_conditions(split)
    for part in map(loops.collapsed, parts):
        threads = loops.threads_sharing([part], machine) if parallel else 1
        plan = Plan.of(part, machine, threads)
        across = loops_across(plan)
        if across is not None:
            statements += [*_row_loops(rows, machine), across]
            rows = []
            names.append("generic_transpose")
            continue
        copied = with_copies(part, part.spatial[:-1])
        if copied is not part:
            plan = Plan.of(copied.simplified(), machine, threads)
        rows.append(_rows(plan))
        names.append("generic_injective")
    return sequence([*statements, *_row_loops(rows, machine)]), max(names)


def lanes_for(nest: Nest, machine: Machine) -> int:
    """Lanes that fill a register with the widest element type up to 32 bits."""
    widest = min(max(*_bits_of(nest), 8), 32)
    return max(machine.isa.vector_bits // widest, 1)


def _bits_of(nest: Nest) -> set[int]:
    """Bits of the elements that are read and written."""
    reads = {int(load.ty.dtype.bits) for load in nest.reads()}
    return reads | {int(store.value.ty.dtype.bits) for store in nest.results}


def far_lanes(nest: Nest, steps: Iterable[int | None], machine: Machine) -> tuple[int, int]:
    """Lanes of a row's vectors if memory limits the speed, and the fewest results for that; or 0.

    Narrow loads and stores keep fewer lines in flight, and leave more to the prefetchers: on Zen 4
    they are faster beyond L2 by up to a tenth. This holds for at most two operations on elements of
    one width, which take less time than a line does.

    `steps` are those of the loads along the row.
    """
    bits, *others = _bits_of(nest)
    lanes = machine.far_access_bits // bits
    if others or nest.lets or not 1 < lanes < lanes_for(nest, machine):
        return 0, 0
    if any(step not in (0, 1) for step in steps):
        return 0, 0
    for store in nest.stores:
        # Calls that are one instruction count as one.
        single = sum(len(calls_of(store.value, name)) for name in _SINGLE)
        cost = expressions.cost_of(store.value) - single * (expressions.OTHER_CALL_COST - 1)
        if not 0 < cost <= _FEW_OPERATIONS:
            return 0, 0
    return lanes, machine.l2_bytes * 8 // bits


def copied_row_lanes(nest: Nest, machine: Machine) -> int:
    """Lanes of `FAR_COPIED_VECTORS` if a flat nest copies each row once; else 0.

    glibc copies long rows by string instructions, which are slow on some CPUs
    (`Machine.string_copy_cost`). A tensor that is copied as a whole gains nothing. LLVM makes no
    memcpy of conditions.
    """
    (store, *others), axes = nest.stores, {axis.var for axis in nest.spatial}
    if machine.string_copy_cost <= 1 or others or nest.lets or len(axes) < 2:
        return 0
    if not isinstance(store.value, TensorLoad) or not axes <= expressions.variables_of(store.value):
        return 0
    if str(store.value.ty.dtype) == "bool":
        return 0
    return FAR_COPIED_VECTORS * machine.isa.vector_bits // max(*_bits_of(nest), 8)


def far_rows(nest: Nest, machine: Machine) -> Expr:
    """A condition: the result and its operand are beyond L2, and rows are long (`is_long`)."""
    store, *_ = nest.stores
    elements = machine.l2_bytes // 2 * 8 // max(*_bits_of(nest), 8)
    return tirx.And(store.buffer.shape[0] >= int64(elements), is_long(nest))


def is_long(nest: Nest) -> Expr:
    """A condition: glibc copies a row of the nest by string instructions."""
    return nest.spatial[-1].stated >= int64(LEAST_STRING_BYTES * 8 // max(*_bits_of(nest), 8))


@dataclass(frozen=True)
class _Rows:
    """The work for every point of some axes: a whole row, or a part of one if not `whole`."""

    axes: tuple[Axis, ...]
    body: tirx.Stmt
    threads: int
    whole: bool = True


def _row_loops(parts: Sequence[_Rows], machine: Machine) -> list[tirx.Stmt]:
    """Loops over rows; parts of equal numbers of rows share a loop, so a row is written once."""
    groups: list[list[_Rows]] = []
    for part in parts:
        first = groups[-1][0] if groups else None
        fits = first is not None and first.whole and part.whole
        if first is not None and fits and len(part.axes) == len(first.axes):
            pairs = zip(part.axes, first.axes, strict=True)
            if all(expressions.same(own.stated, other.stated) for own, other in pairs):
                groups[-1].append(part)
                continue
        groups.append([part])
    statements = []
    for group in groups:
        axes = group[0].axes
        bodies: list[tirx.Stmt] = []
        for part in group:
            moved = {own.var: other.var for own, other in zip(part.axes, axes, strict=True)}
            bodies.append(expressions.substitute(part.body, moved))
        threads = max(part.threads for part in group)
        statements.append(nested(axes, sequence(bodies), machine, threads))
    return statements


def _rows(plan: Plan) -> _Rows:
    machine, threads, axes = plan.machine, plan.threads, plan.nest.spatial
    row = axes[-1] if axes else None
    nest = conditions_as_selects(plan.nest)
    lanes = lanes_for(nest, machine)
    if (
        row is None
        or lanes == 1
        or any(strides[row.var] != 1 for strides in plan.stores)
        or any(strides[row.var] is None for strides in plan.loads)
        or is_guarded_by(nest, row.var)
    ):
        return _Rows(axes, loops.store_statement(nest, nest.stores, {}), threads, whole=False)
    far, most = far_lanes(nest, (strides[row.var] for strides in plan.loads), machine)
    if far and len(axes) == 1 and row.extent >= most * threads:
        lanes = far
    passes = math.prod(axis.extent for axis in axes[:-1])
    steps = [strides[row.var] for strides in (*plan.loads, *plan.stores)]
    loop = loops.hidden if has_copies(nest, steps) else loops.serial
    lanes *= COPIED_VECTORS if loop is loops.hidden else 1
    in_loops = passes >= 8 * threads or threads == 1
    wide = copied_row_lanes(nest, machine) if in_loops and set(steps) == {1} else 0
    if wide and const_int(Analyzer().simplify(far_rows(nest, machine))) == 1:
        loop, lanes = loops.without_memcpy, wide
    main, tail = divmod(row.extent, lanes)

    strided = strided_loads(nest, row)

    def vector(start: Expr, width: int) -> tirx.Stmt:
        return staged_stores(nest, row, start, width, strided)

    rest = [vector(int64(main * lanes), tail)] if tail else []
    if in_loops or main <= 1:
        body = [loop(main, lambda step: vector(step * int64(lanes), lanes))] if main else []
        return _Rows(axes[:-1], sequence([*body, *rest]), threads)
    step = Axis.new(main, "step")
    body = [nested((*axes[:-1], step), vector(step.var * int64(lanes), lanes), machine, threads)]
    body += [nested(axes[:-1], each, machine, 1) for each in rest]
    return _Rows((), sequence(body), 1, whole=False)


def is_guarded_by(nest: Nest, var: tirx.Var) -> bool:
    """Whether an axis decides which value is computed."""
    return any(
        var in expressions.variables_of(call.args[0])
        for expression in nest.expressions()
        for call in calls_of(expression, "if_then_else")
    )


def conditions_as_selects(nest: Nest) -> Nest:
    """The flat nest with if_then_else as Select if both sides can safely be computed."""
    if not nest.has_choices:
        return nest
    analyzer = nest.analyzer()

    def exists(load: TensorLoad) -> bool:
        (index,), size = load.indices, const_int(load.source.shape[0])
        bound = analyzer.const_int_bound(index)
        is_inside = size is not None and bound.min_value >= 0 and bound.max_value < size
        return is_inside and not loads_of(index)

    def change(call: Call) -> Expr:
        if expressions.call_name(call) != "if_then_else":
            return call
        loads = [load for side in call.args[1:] for load in loads_of(side)]
        return tirx.Select(*call.args) if all(map(exists, loads)) else call

    return nest.with_values(lambda value: expressions.map_calls(value, change))


def split_at_conditions(nest: Nest) -> list[Nest]:
    """The nest cut along its axes where conditions on a single axis change, with these folded."""
    cuts: dict[tirx.Var, set[int]] = {}
    extents = {axis.var: axis.extent for axis in nest.spatial}
    for expression in nest.expressions():
        for call in calls_of(expression, "if_then_else"):
            for var, position in _cuts_of(call.args[0], extents):
                cuts.setdefault(var, set()).add(position)
    parts: list[list[tuple[Axis, int, int]]] = []
    count = 1
    # Innermost axes first: a condition that stays on an outer axis is tested once per row.
    for axis in reversed(nest.spatial):
        borders = sorted({0, axis.extent, *cuts.get(axis.var, ())})
        if count * (len(borders) - 1) > MOST_PIECES:
            borders = [0, axis.extent]
        count *= len(borders) - 1
        parts.insert(0, [(axis, low, high) for low, high in itertools.pairwise(borders)])
    if count == 1:
        return [nest]
    found = []
    for ranges in itertools.product(*parts):
        axes = tuple(Axis.new(high - low, axis.var.name) for axis, low, high in ranges)
        pairs = zip(axes, ranges, strict=True)
        moved = {axis.var: inner.var + int64(low) for inner, (axis, low, _) in pairs}
        found.append(replace(nest.substituted(moved), spatial=axes).simplified())
    return found


def split_at_periods(nest: Nest) -> Nest:
    """The nest with an axis split in two if it is read modulo a divisor of its extent.

    y[i] = x[i % 5]  ->  y[5 * j + k] = x[k]
    """
    axes: list[Axis] = []
    values: dict[tirx.Var, Expr] = {}
    divisions = [
        part for load in nest.reads() for part in expressions.divisions_of(load.indices[0])
    ]
    for axis in nest.spatial:
        divisors = {const_int(part.b) or 0 for part in divisions if part.a.same_as(axis.var)}
        periods = {n for n in divisors if 1 < n < axis.extent and axis.extent % n == 0}
        if len(periods) != 1:
            axes.append(axis)
            continue
        period = periods.pop()
        outer, inner = Axis.new(axis.extent // period), Axis.new(period)
        axes += [outer, inner]
        values[axis.var] = outer.var * int64(period) + inner.var
    if not values:
        return nest
    return replace(nest.substituted(values), spatial=tuple(axes)).simplified()


def _cuts_of(condition: Expr, extents: dict[tirx.Var, int]) -> list[tuple[tirx.Var, int]]:
    """Where a condition changes, as (axis, first position of the other side)."""
    if isinstance(condition, tirx.And | tirx.Or):
        return [*_cuts_of(condition.a, extents), *_cuts_of(condition.b, extents)]
    if isinstance(condition, tirx.Not):
        return _cuts_of(condition.a, extents)
    if not isinstance(condition, (*_COMPARISONS, tirx.EQ, tirx.NE)) or loads_of(condition):
        return []
    used = expressions.variables_of(condition)
    if len(used) != 1 or not used <= extents.keys():
        return []
    (var,) = used
    sides, asked = (condition.a, condition.b), [condition]
    if isinstance(condition, tirx.EQ | tirx.NE):
        asked = [tirx.LE(*sides), tirx.GE(*sides)]
    borders = [border_of(each, var, set()) for each in asked]
    found = [const_int(Analyzer().simplify(each.at)) for each in borders if each is not None]
    if len(asked) != len(set(found)):  # there is no border, or no integer between two borders
        return []
    return [(var, at) for at in sorted(at for at in found if at and 0 < at < extents[var])]
