"""Loops for nests that read across the direction in which they write.

y[i, j] = x[j, i]

->  for it, jt in grid(n / 16, m / 16):
        sixteen vectors of x along i, at j = 16 * jt + 0 .. 15
        transposed in registers: log2(16) rounds of sixteen two-vector shuffles
        sixteen vectors of y along j, at i = 16 * it + 0 .. 15
    (the last tile of an axis ends where the axis ends)

Bytes are written 64 along j, 16-bit elements 32. Shorter axes have smaller tiles.

y[3 * i + c] = x[c, i]          (a short last axis: planes of an image become pixels)

->  for it in range(n / 16):
        three vectors of x at i = 16 * it
        interleaved in registers: two shuffles for each of the three vectors of y

y[2 * i + r] = x[i]             (every element twice)

->  for it in range(n / 16): one vector of x; two vectors of y, one shuffle each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index

from . import expressions
from .expressions import int64, strides_of
from .loops import Plan, nested, numbers_used, over_axes, sequence, store_statement, vectorized
from .nest import Axis, Nest, NotHandledError, Store
from .reads import Staged, as_bits, interleaved_by_chain, row_of, transposed
from .vector_math import lower_math

LEAST_WORDS = 4
"""Words of 32 bits that a tile must have along both axes to be worth its shuffles."""


RUN = 4
"""Tiles of a run of neighbouring tiles."""

RUNS = (RUN, 5, 6, 7, 8, 3, 2)
"""Tiles of a run, best first, for an axis whose number of tiles is a multiple of it."""

LINE_BYTES = 64

MOST_BYTES_APART = 512
"""Largest distance between rows of results that counts as close together."""


@dataclass(frozen=True)
class Tile:
    """The axes that a nest writes along and reads along, and the loads to transpose."""

    written: Axis  # along which results are neighbours
    read: Axis  # along which elements of `transposed` are neighbours
    transposed: tuple[TensorLoad, ...]
    bits: int  # of the elements of `transposed`
    width: int  # elements of a tile along `written`
    height: int  # elements of a tile along `read`

    def run_axis(self, nest: Nest) -> Axis | None:
        """The axis of a run of tiles, which is done before the next step of the other axis.

        If results are farther apart across a tile than the elements that are read, a run writes a
        few neighbouring lines of each row. If they are close together, a run reads such lines,
        which hardware prefetches. Otherwise a run would visit too many pages: returns None. Runs do
        not pay for tiles of partial cache lines either.
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


def loops_across(plan: Plan) -> tirx.Stmt | None:
    """Loops over tiles, or over rows to interleave; None if the nest reads along what it writes."""
    tile, mixed = _tile_axes(plan), None
    if tile is None:
        mixed = interleaving_of(plan)
        if mixed is None:
            return None
        along = mixed.short, mixed.long
        step, first = covering(mixed.long, mixed.lanes, "step")
        axes, body = [step], _step(plan.nest, mixed, first)
    else:
        along = tile.written, tile.read
        axes, body = tile_loops(plan.nest, tile)
    others = [axis for axis in plan.nest.spatial if all(axis is not each for each in along)]
    return nested((*others, *axes), body, plan.machine, plan.threads)


def _tile_axes(plan: Plan) -> Tile | None:
    """The tile to transpose by, or None if the nest reads along the axis it writes."""
    nest, loads, stores = plan.nest, plan.loads, plan.stores
    words = plan.machine.isa.vector_bits // 32
    if words < 8 or len(nest.spatial) < 2 or len(stores) != 1 or nest.lets:
        return None
    written = nest.spatial[-1]
    if stores[0][written.var] != 1:
        return None
    if expressions.calls_of(nest.stores[0].value, "if_then_else"):
        return None
    if any(expressions.loads_of(load.indices[0]) for load in nest.reads()):
        return None
    found: list[TensorLoad] = []
    chosen: Axis | None = None
    for load, strides in zip(nest.distinct_reads(), loads, strict=True):
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
    """The tile of up to `words` vectors that transposes loads; None if no tile is worth it."""
    bits = _common_bits(loads)
    if bits is None:
        return None
    width = _power_of_two(written.extent, words * 32 // bits)
    height = _power_of_two(read.extent, words)
    if min(width * bits // 32, height) < LEAST_WORDS:
        return None
    return Tile(written, read, tuple(loads), bits, width, height)


def _common_bits(loads: Sequence[TensorLoad]) -> int | None:
    """The bits of all elements if these are 8, 16 or 32, and none is a boolean; else None."""
    bits = {0 if ex.element_of(load) == "bool" else int(load.ty.dtype.bits) for load in loads}
    return bits.pop() if len(bits) == 1 and bits <= {8, 16, 32} else None


def _power_of_two(extent: int, most: int) -> int:
    """The largest power of two up to an extent and up to `most`."""
    size = most
    while size > extent:
        size //= 2
    return size


def tile_loops(nest: Nest, tile: Tile) -> tuple[list[Axis], tirx.Stmt]:
    """Loops over tiles and their body; the last tile of an axis ends where the axis ends."""
    written, read = tile.written, tile.read
    known = written.end is None and read.end is None
    rows, row = covering(read, tile.height, "rows" if known else f"{read.var.name}_tile", known)
    name = "columns" if known else f"{written.var.name}_tile"
    columns, column = covering(written, tile.width, name, known)
    body = turned(nest, tile, {read.var: row, written.var: column})
    along = tile.run_axis(nest)
    if along is None:
        return [rows, columns], body
    run, other = (rows, columns) if along is read else (columns, rows)
    size = next((size for size in RUNS if run.extent % size == 0), 1) if known else RUN
    outer = Axis.new(_parts(run, size, known), "i" if known else "runs")
    inner, first = Axis.new(size, "run"), outer.var * int64(size)
    if not known:
        inner = replace(inner, end=tirx.Min(int64(RUN), run.stated - first))
    body = expressions.substitute(body, {run.var: first + inner.var})
    return [outer, other, inner], body


def covering(axis: Axis, size: int, name: str, known: bool = True) -> tuple[Axis, Expr]:
    """An axis of steps of `size` that cover another axis, and the start of each step.

    The last step ends with the axis; elements that it shares with the step before are written
    twice, with equal values.
    """
    steps = Axis.new(_parts(axis, size, known), name)
    start = steps.var * int64(size)
    aligned = known and axis.extent % size == 0
    return steps, start if aligned else tirx.Min(start, axis.stated - int64(size))


def _parts(axis: Axis, size: int, known: bool) -> Index:
    """How many parts of `size` an axis has, the last one perhaps smaller."""
    if known:
        return -(-axis.extent // size)
    return tirx.floordiv(axis.stated + int64(size - 1), int64(size))


def turned(nest: Nest, tile: Tile, at: dict[tirx.Var, Expr]) -> tirx.Stmt:
    """The stores of the tile that begins at the point `at` of its two axes."""
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
        """Stores one lane of row `number` along the axis that is read along."""
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
"""Most rows that are interleaved; more rows are transposed by tiles, which is faster."""

MOST_REPEATS = 16
"""Most times that an element may be repeated."""

LEAST_LANES = 4


@dataclass(frozen=True)
class Interleaving:
    """Loads that are interleaved, loads in the order of the result, and loads that repeat."""

    short: Axis  # the last axis
    long: Axis  # the axis that the rows run along
    rows: tuple[TensorLoad, ...]  # step by 1 along `long`
    straight: tuple[TensorLoad, ...]  # step by 1 along `short`, by its extent along `long`
    periodic: tuple[TensorLoad, ...]  # step along `short` only, by any constant
    lanes: int  # elements of a row that are interleaved at once


def interleaving_of(plan: Plan) -> Interleaving | None:
    """How to interleave a flat nest; None if it cannot be interleaved."""
    nest, loads, stores = plan.nest, plan.loads, plan.stores
    vector_bits = plan.machine.isa.vector_bits
    if vector_bits < 256 or len(nest.spatial) < 2 or len(nest.stores) != 1:
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
    lanes = _power_of_two(long.extent, vector_bits // bits)
    if lanes < LEAST_LANES:
        return None
    rows, straight, periodic = map(tuple, kinds.values())
    return Interleaving(short, long, rows, straight, periodic, lanes)


def _step(nest: Nest, plan: Interleaving, first: Expr) -> tirx.Stmt:
    """Stores `plan.lanes` elements of the long axis from `first` on, with all of the short axis."""
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


# For dynamic sizes: tiles if both axes are long enough, else blocks of single elements.


BLOCK = 8

MANY = 256
"""Elements from which an axis counts as long."""


def blocks_across(nest: Nest, machine: Machine) -> tirx.Stmt:
    """Loops in blocks for a flat nest of dynamic sizes that stores each element once.

        for i, j in grid(n, m): y[i, j] = x[j, i]

        ->  if n >= 8 and m >= 8: for tiles of 8 by 8 elements, the last of which end with an axis:
                eight vectors of x, transposed in registers, are eight vectors of y
            else: for blocks of 8 by 8 elements: for j: for i: y[i, j] = x[j, i]

    So each cache line is read and written while it is in L1. With vectors of 16 elements, tiles are
    16 by 16 if those cut both axes well.
    """
    stored, read, apart = _axes(nest)
    others = tuple(axis for axis in nest.spatial if axis not in (stored, read))
    body = _blocks(nest, stored, read)
    loads, words = expressions.distinct(apart), machine.isa.vector_bits // 32
    # Conditional elements, and elements at computed places, are not transposed in registers.
    plain = not any(expressions.loads_of(load.indices[0]) for load in nest.reads())
    plain = plain and not expressions.calls_of(nest.stores[0].value, "if_then_else")
    # Tiles of whole cache lines, and of half a line for shorter axes; smallest first.
    sizes = dict.fromkeys((BLOCK, words)) if plain and len(loads) <= 2 and words >= BLOCK else ()
    found = [tile_of(stored, read, loads, size) for size in sizes]
    tiles = {(tile.width, tile.height): tile for tile in found if tile is not None}
    for number, tile in enumerate(tiles.values()):
        asked = []
        for axis, size in ((tile.written, int64(tile.width)), (tile.read, int64(tile.height))):
            # Larger tiles cut an axis well if they are aligned, or if one tile more hardly matters.
            aligned = tirx.EQ(tirx.floormod(axis.stated, size), int64(0))
            well_cut = tirx.any(aligned, axis.stated >= int64(MANY))
            asked.append(well_cut if number else axis.stated >= size)
        # Elements that the last tile shares with the one before are written twice, equally.
        body = tirx.IfThenElse(tirx.all(*asked), over_axes(*tile_loops(nest, tile)), body)
    return over_axes(others, body, machine.threads > 1)


def _axes(nest: Nest) -> tuple[Axis, Axis, list[TensorLoad]]:
    """The axes along which elements are stored and are read, and the loads along the latter."""
    loads = [load for store in nest.stores for load in expressions.loads_of(store.value)]
    if len(nest.stores) != 1 or nest.lets or not nest.spatial:
        raise NotHandledError(f"{nest.name} stores more than one element")
    for stored in nest.spatial:
        if nest.step_along(nest.stores[0].indices[0], stored) != 1:
            continue
        apart = [load for load in loads if nest.step_along(load.indices[0], stored) not in (0, 1)]
        for read in nest.spatial:
            if read.end is None and stored.end is None:
                continue  # for `dynamic_items`
            if apart and all(nest.step_along(load.indices[0], read) == 1 for load in apart):
                return stored, read, apart
    raise NotHandledError(f"{nest.name} reads along the axis that it stores along")


def _blocks(nest: Nest, stored: Axis, read: Axis) -> tirx.Stmt:
    """Loops over blocks of two axes, with the stored axis innermost."""
    blocks, places, at = list[Axis](), list[Axis](), dict[tirx.Var, Expr]()
    for axis in (read, stored):
        count = tirx.floordiv(axis.stated + int64(BLOCK - 1), int64(BLOCK))
        block = Axis(tirx.Var(f"{axis.var.name}_block", "int64"), axis.extent, count)
        first = block.var * int64(BLOCK)
        size = tirx.Min(int64(BLOCK), axis.stated - first)
        place = Axis(tirx.Var(f"{axis.var.name}_place", "int64"), BLOCK, size)
        at[axis.var] = first + place.var
        blocks.append(block)
        places.append(place)
    return over_axes(blocks[::-1] + places, store_statement(nest, nest.stores, at))
