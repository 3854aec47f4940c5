"""Loops for nests that read across the direction in which they write.

y[i, j] = x[j, i]

->  for it, jt in grid(n / 16, m / 16):
        sixteen vectors of x along i, at j = 16 * jt + 0 .. 15
        transposed in registers: log2(16) rounds of sixteen two-vector shuffles
        sixteen vectors of y along j, at i = 16 * it + 0 .. 15
    (the last tile of an axis ends where the axis ends)

Bytes are written 64 along j, 16-bit elements 32. Shorter axes have smaller tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr, bind, element_of, let_scope

from .expressions import calls_of, int64, loads_of, map_loads, ramp_at, same, strides_of, substitute
from .loops import Strides, nested, sequence, store_statement, vectorized
from .nest import Axis, Nest, analyzer_for
from .strided_reads import Staged
from .transposed_blocks import as_bits, transposed

LEAST_WORDS = 4
"""Words of 32 bits that a tile must have along both axes to be worth its shuffles."""


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
    if calls_of(nest.stores[0].value, "if_then_else"):
        return None
    if any(loads_of(load.indices[0]) for load in nest.reads()):
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
        if not any(same(load, other) for other in found):
            found.append(load)
    if chosen is None or len(found) > 2 or any(strides[chosen.var] is None for strides in loads):
        return None
    return tile_of(written, chosen, found, words)


def tile_of(written: Axis, read: Axis, loads: list[TensorLoad], words: int) -> Tile | None:
    """The tile that turns some loads, of at most so many words; None if no tile is worth it."""
    kinds = {"" if element_of(load) == "bool" else str(load.ty.dtype.bits) for load in loads}
    if len(kinds) != 1 or not kinds <= {"8", "16", "32"}:
        return None
    bits = int(kinds.pop())
    width = _power_of_two(written.extent, words * 32 // bits)
    height = _power_of_two(read.extent, words)
    if min(width * bits // 32, height) < LEAST_WORDS:
        return None
    return Tile(written, read, tuple(loads), bits, width, height)


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
    return nested((*others, rows, columns), body, machine, threads)


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
            start = substitute(load.indices[0], point)
            vectors.append(tirx.BufferLoad(load.source, [ramp_at(start, tile.height)]))
        with let_scope() as lets:
            columns = transposed(
                [bind(as_bits(vector, tile.bits)) for vector in vectors], tile.bits
            )
        statements += [tirx.Bind(var, value) for var, value in lets]
        rows = []
        for column in columns:
            row = tirx.decl_buffer((int64(tile.width),), element_of(column), "row")
            statements += [
                tirx.AllocBuffer(row),
                tirx.BufferStore(row, column, [ramp_at(int64(0), tile.width)]),
            ]
            rows.append(row)
        rows_of.append(rows)
    for number in range(tile.height):
        rows = [rows[number] for rows in rows_of]
        statements.append(vectorized(tile.width, _store(nest, tile, at, number, rows)))
    return sequence(statements)


def _store(
    nest: Nest, tile: Tile, at: dict[tirx.Var, Expr], number: int, rows: list[tirx.Var]
) -> Callable[[Expr], tirx.Stmt]:
    """Stores one lane of the row at `number` along the axis that is read along."""

    def at_lane(lane: Expr) -> tirx.Stmt:
        store = nest.stores[0]
        change = Staged(tuple(tile.transposed), tuple(rows), ()).lane(lane)
        staged = replace(store, value=map_loads(store.value, change))
        point = {
            tile.read.var: at[tile.read.var] + int64(number),
            tile.written.var: at[tile.written.var] + lane,
        }
        return store_statement(nest, (staged,), point)

    return at_lane
