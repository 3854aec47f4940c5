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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import (
    Expr,
    bind,
    element_of,
    lanes_of,
    let_scope,
    reinterpret,
    reinterpret_group,
)
from microkernels.vector.memory import transpose_block

from .expressions import (
    calls_of,
    int64,
    loads_of,
    map_loads,
    ramp_at,
    same,
    shuffle,
    strides_of,
    substitute,
)
from .loops import Strides, nested, sequence, store_statement, vectorized
from .nest import Axis, Nest, analyzer_for
from .strided_reads import Staged

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
    along = tile.run_axis(nest)
    if along is None:
        return nested((*others, rows, columns), body, machine, threads)
    run, other = (rows, columns) if along is read else (columns, rows)
    size = next((size for size in RUNS if run.extent % size == 0), 1)
    outer, inner = Axis.new(run.extent // size), Axis.new(size, "run")
    body = substitute(body, {run.var: outer.var * int64(size) + inner.var})
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


# Transposes blocks in registers: a few vectors along one axis become vectors along the other.
#
# Eight rows of sixteen elements, a0 a1 .. a15, b0 .. b15, .. h0 .. h15, become
#
#     a0 b0 c0 .. h0 a1 b1 .. h1,   a2 b2 .. h3,   ...
#
# by rounds that interleave the first half of the rows with the second half. Four bytes, or two
# 16-bit elements, are first combined to one, so that every round moves 32 bits at once.


def bits_element(dtype: str, bits: int) -> str:
    """The element type to move elements of `dtype` as."""
    return dtype if bits == 32 else f"uint{bits}"


def as_bits(value: Expr, bits: int) -> Expr:
    """Lanes of any type as lanes to move."""
    element = bits_element(element_of(value), bits)
    return value if element_of(value) == element else reinterpret(element, value)


def transposed(rows: Sequence[Expr], bits: int) -> list[Expr]:
    """For every lane of the rows, the vector of that lane of all rows.

    Parameters
    ----------
    rows : sequence of Expr
        A power of two of vectors of a power of two of lanes to move, of `bits` bits; at least
        32 / bits rows.
    bits : int
        8, 16 or 32.
    """
    size = len(rows)
    pixels = lanes_of(rows[0])
    element = element_of(rows[0])
    pack = 32 // bits
    words = [_packed(rows[at : at + pack]) for at in range(0, size, pack)]
    if len(words) == pixels:
        columns = transpose_block(words)
    else:
        columns = _regrouped(interleaved(words), len(words), pixels)
    if pack == 1:
        return columns
    return [reinterpret_group(element, column, size) for column in columns]


def _packed(rows: Sequence[Expr]) -> Expr:
    """Rows of less than 32 bits as one vector of words: element 0 of all rows, element 1, ..."""
    if len(rows) == 1:
        return rows[0]
    pixels = lanes_of(rows[0])
    lanes = [row * pixels + at for at in range(pixels) for row in range(len(rows))]
    return bind(reinterpret_group("int32", shuffle(list(rows), lanes), pixels))


def interleaved(rows: Sequence[Expr]) -> list[Expr]:
    """As many vectors: element 0 of all rows, element 1 of all rows, and so on.

    The rows are a power of two.
    """
    values = list(rows)
    pixels = lanes_of(values[0])
    half = len(values) // 2
    rounds = len(values).bit_length() - 1
    for _ in range(rounds):
        mixed = []
        for low, high in zip(values[:half], values[half:], strict=True):
            for start in (0, pixels // 2):
                lanes = [
                    each for at in range(start, start + pixels // 2) for each in (at, pixels + at)
                ]
                mixed.append(bind(shuffle([low, high], lanes)))
        values = mixed
    return values


def interleaved_by_chain(rows: Sequence[Expr]) -> list[Expr]:
    """What `interleaved` makes, of any number of rows, by one shuffle for every row but one."""
    number, pixels = len(rows), lanes_of(rows[0])
    results = []
    for part in range(number):
        wanted = [divmod(part * pixels + lane, number) for lane in range(pixels)]
        value = rows[0]
        for row in range(1, number):
            lanes = [
                pixels + at if source == row else (at if row == 1 else lane)
                for lane, (at, source) in enumerate(wanted)
            ]
            value = bind(shuffle([value, rows[row]], lanes))
        results.append(value)
    return results


def _regrouped(vectors: list[Expr], size: int, pixels: int) -> list[Expr]:
    """The flat sequence of `pixels` groups of `size` elements, a vector for every group."""
    if size > pixels:
        share = size // pixels
        return [
            bind(shuffle(vectors[at * share : (at + 1) * share], range(size)))
            for at in range(pixels)
        ]
    groups = []
    for at in range(pixels):
        vector, first = divmod(at * size, pixels)
        groups.append(bind(shuffle([vectors[vector]], range(first, first + size))))
    return groups
