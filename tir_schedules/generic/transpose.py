"""Loops for nests that read across the direction in which they write.

y[i, j] = x[j, i]

->  for it, jt in grid(n / 16, m / 16):
        sixteen vectors of x along i, at j = 16 * jt + 0 .. 15
        transposed in registers: log2(16) rounds of sixteen two-vector shuffles
        sixteen vectors of y along j, at i = 16 * it + 0 .. 15
    (the last tile of an axis ends where the axis ends)

Bytes are written 64 along j, 16-bit elements 32. Shorter axes have smaller tiles.

y[3 * i + c] = x[c, i]          (a short last axis: planes of an image made pixels)

->  for it in range(n / 16):
        three vectors of x at i = 16 * it
        interleaved in registers: two shuffles for each of the three vectors of y

y[2 * i + r] = x[i]             (every element twice)

->  for it in range(n / 16): one vector of x; two vectors of y, a shuffle each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr

from . import expressions
from .expressions import int64, strides_of
from .loops import Strides, nested, numbers_used, sequence, store_statement, vectorized
from .nest import Axis, Nest, Store, analyzer_for
from .reads import Staged, as_bits, interleaved_by_chain, row_of, transposed
from .vector_math import lower_math

LEAST_WORDS = 4
"""Words of 32 bits that a tile must have along both axes to be worth its shuffles."""


RUN = 4
"""Tiles of a run."""

RUNS = (RUN, 5, 6, 7, 8, 3, 2)
"""The same, the best number first, for an axis whose number of tiles is a multiple."""

LINE_BYTES = 64

MOST_BYTES_APART = 512
"""From row to row of results that are close together."""


@dataclass(frozen=True)
class Tile:
    """The axes that a nest writes along and reads along, and the loads that need turning.

    Attributes
    ----------
    written, read : Axis
        Along which results, and elements of `transposed`, are neighbours.
    transposed : tuple of TensorLoad
        Loads to turn.
    bits : int
        Of the elements of `transposed`.
    width, height : int
        Elements of a tile along `written` and along `read`.
    """

    written: Axis
    read: Axis
    transposed: tuple[TensorLoad, ...]
    bits: int
    width: int
    height: int

    def run_axis(self, nest: Nest) -> Axis | None:
        """The axis along which a run of tiles is done before the next one along the other axis.

        Either results lie farther apart across a tile than what is read, and a run writes a few
        neighbouring lines of each row; or they are close together, and a run reads such lines, for
        which hardware prefetches. None if neither does: then a run would visit too many pages. Nor
        do runs pay where a tile has parts of lines.
        """
        if min(self.width, self.height) * self.bits < 8 * LINE_BYTES:
            return None
        analyzer = nest.analyzer()
        load, store = self.transposed[0], nest.stores[0]
        near = strides_of(load.indices[0], [self.written.var], analyzer)[self.written.var]
        far = strides_of(store.indices[0], [self.read.var], analyzer)[self.read.var]
        if near is not None and (far is None or near < far):
            return self.written
        many = self.written.extent >= 4 * self.width
        close = far is not None and far * self.bits <= 8 * MOST_BYTES_APART
        return self.read if many and close else None


def transpose_axes(
    nest: Nest, loads: list[Strides], stores: list[Strides], machine: Machine
) -> Tile | None:
    """The tile to transpose by, or None if the nest reads along the axis it writes."""
    words = machine.isa.vector_bits // 32
    if words < 8 or len(nest.spatial) < 2 or len(stores) != 1 or nest.lets:
        return None
    written = nest.spatial[-1]
    if stores[0][written.var] != 1:
        return None
    if expressions.calls_of(nest.stores[0].value, "if_then_else"):
        return None
    if any(expressions.loads_of(load.indices[0]) for load in nest.reads()):
        return None
    analyzer = analyzer_for(nest.axes())
    found: list[TensorLoad] = []
    chosen: Axis | None = None
    for load in nest.reads():
        strides = strides_of(load.indices[0], [axis.var for axis in nest.spatial], analyzer)
        if strides[written.var] is None:
            return None
        if strides[written.var] in (0, 1):
            continue
        along = [a for a in nest.spatial[:-1] if strides[a.var] == 1]
        if not along or (chosen and chosen is not along[0]):
            return None
        chosen = along[0]
        found.append(load)
    found = expressions.distinct(found)
    if chosen is None or len(found) > 2 or any(strides[chosen.var] is None for strides in loads):
        return None
    return tile_of(written, chosen, found, words)


def tile_of(written: Axis, read: Axis, loads: list[TensorLoad], words: int) -> Tile | None:
    """The tile that turns some loads, of at most so many words; None if no tile is worth it."""
    bits = _common_bits(loads)
    if bits is None:
        return None
    width = _power_of_two(written.extent, words * 32 // bits)
    height = _power_of_two(read.extent, words)
    if min(width * bits // 32, height) < LEAST_WORDS:
        return None
    return Tile(written, read, tuple(loads), bits, width, height)


def _common_bits(loads: Sequence[TensorLoad]) -> int | None:
    """Of all elements: 8, 16 or 32, none of them booleans; else None."""
    bits = {0 if ex.element_of(load) == "bool" else int(load.ty.dtype.bits) for load in loads}
    return bits.pop() if len(bits) == 1 and bits <= {8, 16, 32} else None


def _power_of_two(extent: int, most: int) -> int:
    """The largest power of two up to an extent and up to `most`."""
    size = most
    while size > extent:
        size //= 2
    return size


def transpose_loops(nest: Nest, tile: Tile, machine: Machine, threads: int) -> tirx.Stmt:
    """Loops over tiles, the last of which end where the axes end."""
    written, read = tile.written, tile.read
    others = [a for a in nest.spatial if a is not written and a is not read]
    rows, row = covering(read.extent, tile.height, "rows")
    columns, column = covering(written.extent, tile.width, "columns")
    body = turned(nest, tile, {read.var: row, written.var: column})
    along = tile.run_axis(nest)
    if along is None:
        return nested((*others, rows, columns), body, machine, threads)
    run, other = (rows, columns) if along is read else (columns, rows)
    size = next((size for size in RUNS if run.extent % size == 0), 1)
    outer, inner = Axis.new(run.extent // size), Axis.new(size, "run")
    body = expressions.substitute(body, {run.var: outer.var * int64(size) + inner.var})
    return nested((*others, outer, other, inner), body, machine, threads)


def covering(extent: int, size: int, name: str) -> tuple[Axis, Expr]:
    """An axis of the steps that cover an extent, and where each starts.

    The last step ends with the extent; what it shares with the one before, both write alike.
    """
    axis = Axis.new(-(-extent // size), name)
    start = axis.var * int64(size)
    return axis, start if extent % size == 0 else tirx.Min(start, int64(extent - size))


def turned(nest: Nest, tile: Tile, at: dict[tirx.Var, Expr]) -> tirx.Stmt:
    """The stores of the tile that begins at some place along its two axes."""
    statements: list[tirx.Stmt] = []
    rows_of: list[list[tirx.Var]] = []
    for load in tile.transposed:
        vectors = []
        for number in range(tile.width):
            point = {**at, tile.written.var: at[tile.written.var] + int64(number)}
            start = expressions.substitute(load.indices[0], point)
            vectors.append(tirx.BufferLoad(load.source, [expressions.ramp_at(start, tile.height)]))
        with ex.let_scope() as lets:
            columns = transposed(
                [ex.bind(as_bits(vector, tile.bits)) for vector in vectors], tile.bits
            )
        statements += [tirx.Bind(var, value) for var, value in lets]
        rows = []
        for column in columns:
            row, stored = row_of(column)
            statements += stored
            rows.append(row)
        rows_of.append(rows)

    def at_lane(number: int, lane: Expr) -> tirx.Stmt:
        """Stores one lane of the row at `number` along the axis that is read along."""
        store = nest.stores[0]
        rows = tuple(rows[number] for rows in rows_of)
        staged = expressions.map_loads(store.value, Staged(tile.transposed, rows, ()).lane(lane))
        point = {
            tile.read.var: at[tile.read.var] + int64(number),
            tile.written.var: at[tile.written.var] + lane,
        }
        return store_statement(nest, (replace(store, value=staged),), point)

    for number in range(tile.height):
        statements.append(vectorized(tile.width, partial(at_lane, number)))
    return sequence(statements)


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
    if nest.lets or expressions.calls_of(nest.stores[0].value, "if_then_else"):
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
        if far is None or near is None or expressions.loads_of(load.indices[0]):
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
    bits = _common_bits(kinds["rows"])
    if bits is None or len(kinds["rows"]) > 2 or (short.extent > MOST_ROWS and not repeats):
        return None
    lanes = _power_of_two(long.extent, machine.isa.vector_bits // bits)
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

    def position(access: TensorLoad | Store, at: int) -> Expr:
        point = {plan.long.var: first, plan.short.var: int64(at)}
        return expressions.substitute(access.indices[0], point)

    rows_of: list[list[tirx.Var]] = []
    with ex.let_scope() as lets:
        for load in plan.rows:
            vectors: list[Expr] = []
            for at in range(number):
                start = position(load, at)
                if at and expressions.same(start, position(load, at - 1)):
                    vectors.append(vectors[-1])
                    continue
                read = tirx.BufferLoad(load.source, [expressions.ramp_at(start, lanes)])
                vectors.append(ex.bind(as_bits(read, int(load.ty.dtype.bits))))
            if all(vector is vectors[0] for vector in vectors):
                parts = [range(part * lanes, (part + 1) * lanes) for part in range(number)]
                mixed = [
                    ex.bind(ex.shuffle([vectors[0]], [lane // number for lane in part]))
                    for part in parts
                ]
            else:
                mixed = interleaved_by_chain(vectors)
            kept = [row_of(vector) for vector in mixed]
            statements += [stored[0] for _, stored in kept] + [stored[1] for _, stored in kept]
            rows_of.append([row for row, _ in kept])
        for load in plan.periodic:
            values = [
                ex.bind(tirx.BufferLoad(load.source, [position(load, at)])) for at in range(number)
            ]
            mixed = interleaved_by_chain([tirx.Broadcast(value, lanes) for value in values])
            kept = [row_of(vector) for vector in mixed]
            statements += [each for _, stored in kept for each in stored]
            rows_of.append([row for row, _ in kept])
    named = [tirx.Bind(var, value) for var, value in lets]
    store = nest.stores[0]

    def at_lane(part: int, lane: Expr) -> tirx.Stmt:
        """Stores one lane of one vector of the result."""
        staged = Staged((*plan.rows, *plan.periodic), tuple(rows[part] for rows in rows_of), ())
        ahead = int64(part * lanes) + lane

        def change(load: TensorLoad) -> Expr:
            found = staged.lane(lane)(load)
            if found is not load:
                return found
            start = position(load, 0)
            if any(expressions.same(load, other) for other in plan.straight):
                start = start + ahead
            return tirx.BufferLoad(load.source, [start])

        value = lower_math(expressions.map_loads(store.value, change))
        return tirx.BufferStore(store.buffer, value, [position(store, 0) + ahead])

    statements += [vectorized(lanes, partial(at_lane, part)) for part in range(number)]
    return sequence([*named, *statements])
