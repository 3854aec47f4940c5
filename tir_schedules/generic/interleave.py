"""Loops for nests with a short last axis whose elements come from rows along another axis.

y[3 * i + c] = x[c, i]          (planes of an image made pixels)

->  for it in range(n / 16):
        three vectors of x at i = 16 * it
        interleaved in registers: two shuffles for each of the three vectors of y

y[2 * i + r] = x[i]             (every element twice)

->  for it in range(n / 16): one vector of x; two vectors of y, a shuffle each
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr, bind, element_of, let_scope, reinterpret

from .expressions import calls_of, int64, loads_of, map_loads, ramp_at, same, shuffle, substitute
from .loops import Strides, nested, numbers_used, sequence, vectorized
from .nest import Axis, Nest
from .transpose import as_bits, covering, interleaved_by_chain
from .vector_math import lower_math

MOST_ROWS = 4
"""Rows that are interleaved; more are transposed by tiles, which is faster."""

MOST_REPEATS = 16
"""Times that an element may be repeated."""

LEAST_LANES = 4


@dataclass(frozen=True)
class Interleaving:
    """Which loads are rows to interleave, which lie as the result does, and which repeat.

    Attributes
    ----------
    short, long : Axis
        The last axis, and the one that the rows run along.
    rows, straight, periodic : tuple of TensorLoad
        Loads that step by one along `long`; by one along `short` and its extent along `long`; by
        any constant along `short` only.
    lanes : int
        Elements of a row that are interleaved at once.
    """

    short: Axis
    long: Axis
    rows: tuple[TensorLoad, ...]
    straight: tuple[TensorLoad, ...]
    periodic: tuple[TensorLoad, ...]
    lanes: int


def interleaving_of(
    nest: Nest, loads: list[Strides], stores: list[Strides], machine: Machine
) -> Interleaving | None:
    """How to interleave a flat nest, or None if it is of another kind."""
    if machine.isa.vector_bits < 256 or len(nest.spatial) < 2 or len(nest.stores) != 1:
        return None
    if nest.lets or calls_of(nest.stores[0].value, "if_then_else"):
        return None
    short = nest.spatial[-1]
    if not 2 <= short.extent <= MOST_REPEATS or stores[0][short.var] != 1:
        return None
    long = next((a for a in nest.spatial[:-1] if stores[0][a.var] == short.extent), None)
    if long is None or {short.var, long.var} & numbers_used(nest):
        return None
    kinds: dict[str, list[TensorLoad]] = {"rows": [], "straight": [], "periodic": []}
    repeats = True
    for load, strides in zip(nest.distinct_reads(), loads, strict=True):
        far, near = strides[long.var], strides[short.var]
        if far is None or near is None or loads_of(load.indices[0]):
            return None
        if far == 1 and near != 1:
            kinds["rows"].append(load)
            repeats = repeats and near == 0
        elif far == short.extent and near == 1:
            kinds["straight"].append(load)
        elif far == 0:
            if near:
                kinds["periodic"].append(load)
        else:
            return None
    bits = {8 if element_of(load) == "bool" else int(load.ty.dtype.bits) for load in kinds["rows"]}
    if len(bits) != 1 or not bits <= {8, 16, 32} or len(kinds["rows"]) > 2:
        return None
    if any(element_of(load) == "bool" for load in kinds["rows"]):
        return None
    if short.extent > MOST_ROWS and not repeats:
        return None
    lanes = machine.isa.vector_bits // bits.pop()
    while lanes > long.extent:
        lanes //= 2
    if lanes < LEAST_LANES:
        return None
    rows, straight, periodic = map(tuple, kinds.values())
    return Interleaving(short, long, rows, straight, periodic, lanes)


def interleaving_loops(nest: Nest, plan: Interleaving, machine: Machine, threads: int) -> tirx.Stmt:
    """Loops over the long axis, the last step of which ends where the axis ends."""
    others = [axis for axis in nest.spatial if axis is not plan.short and axis is not plan.long]
    axis, first = covering(plan.long.extent, plan.lanes, "step")
    return nested((*others, axis), _step(nest, plan, first), machine, threads)


def _step(nest: Nest, plan: Interleaving, first: Expr) -> tirx.Stmt:
    """`plan.lanes` elements of the long axis from `first` on, with all of the short axis."""
    number, lanes = plan.short.extent, plan.lanes
    statements: list[tirx.Stmt] = []

    def position(load: TensorLoad, at: int) -> Expr:
        point = {plan.long.var: first, plan.short.var: int64(at)}
        return substitute(load.indices[0], point)

    rows_of: list[list[tirx.Var]] = []
    with let_scope() as lets:
        for load in plan.rows:
            vectors: list[Expr] = []
            for at in range(number):
                start = position(load, at)
                if at and same(start, position(load, at - 1)):
                    vectors.append(vectors[-1])
                    continue
                read = tirx.BufferLoad(load.source, [ramp_at(start, lanes)])
                vectors.append(bind(as_bits(read, int(load.ty.dtype.bits))))
            if all(vector is vectors[0] for vector in vectors):
                parts = [range(part * lanes, (part + 1) * lanes) for part in range(number)]
                mixed = [
                    bind(shuffle([vectors[0]], [lane // number for lane in part])) for part in parts
                ]
            else:
                mixed = interleaved_by_chain(vectors)
            rows_of.append([_buffer_of(vector) for vector in mixed])
            statements_of = [
                tirx.BufferStore(row, vector, [ramp_at(int64(0), lanes)])
                for row, vector in zip(rows_of[-1], mixed, strict=True)
            ]
            statements += [tirx.AllocBuffer(row) for row in rows_of[-1]]
            statements += statements_of
        for load in plan.periodic:
            values = [
                bind(tirx.BufferLoad(load.source, [position(load, at)])) for at in range(number)
            ]
            mixed = interleaved_by_chain([tirx.Broadcast(value, lanes) for value in values])
            rows = [_buffer_of(vector) for vector in mixed]
            for row, vector in zip(rows, mixed, strict=True):
                statements.append(tirx.AllocBuffer(row))
                statements.append(tirx.BufferStore(row, vector, [ramp_at(int64(0), lanes)]))
            rows_of.append(rows)
    named = [tirx.Bind(var, value) for var, value in lets]
    for part in range(number):
        rows = [rows[part] for rows in rows_of]
        statements.append(vectorized(lanes, _store(nest, plan, first, part, rows)))
    return sequence([*named, *statements])


def _buffer_of(vector: Expr) -> tirx.Var:
    lanes = int(vector.ty.dtype.lanes)
    return tirx.decl_buffer((int64(lanes),), element_of(vector), "row")


def _store(
    nest: Nest, plan: Interleaving, first: Expr, part: int, rows: list[tirx.Var]
) -> Callable[[Expr], tirx.Stmt]:
    """Stores one lane of one vector of the result."""
    staged = (*plan.rows, *plan.periodic)
    origin = {plan.long.var: first, plan.short.var: int64(0)}
    store = nest.stores[0]

    def at_lane(lane: Expr) -> tirx.Stmt:
        ahead = int64(part * plan.lanes) + lane

        def change(load: TensorLoad) -> Expr:
            for row, other in zip(rows, staged, strict=True):
                if same(load, other):
                    element = tirx.BufferLoad(row, [lane])
                    dtype = str(load.ty.dtype)
                    return element if str(row.dtype) == dtype else reinterpret(dtype, element)
            start = substitute(load.indices[0], origin)
            if any(same(load, other) for other in plan.straight):
                return tirx.BufferLoad(load.source, [start + ahead])
            return tirx.BufferLoad(load.source, [start])

        value = lower_math(map_loads(store.value, change))
        where = substitute(store.indices[0], origin) + ahead
        return tirx.BufferStore(store.buffer, value, [where])

    return at_lane
