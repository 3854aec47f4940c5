"""Elements of open sizes that are stored across the order in which they are read, in blocks.

    for i, j in grid(n, m): y[i, j] = x[j, i]

    ->  if n >= 8 and m >= 8: for tiles of 8 by 8 elements, the last of which end with an axis:
            eight vectors of x, transposed in registers (`transpose`), are eight vectors of y
        else: for blocks of 8 by 8 elements: for j: for i: y[i, j] = x[j, i]

So each cache line is read, and written, while it is in L1.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from .expressions import calls_of, int64, loads_of, same
from .loops import flattened, parameter_views, store_statement, with_statements
from .nest import Axis, Nest, NotHandledError
from .open_nests import open_nests, over_axes, step_along
from .transpose import Tile, tile_of, turned

BLOCK = 8


def open_transposes(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Loops in blocks for a function that stores each element once.

    Raises
    ------
    NotHandledError
        If all sizes are known, or it reads along the axis that it stores along.
    """
    program = open_nests(func)
    if len(program.nests) != 1 or program.nests[0].reduce:
        raise NotHandledError("it is more than one pass over elements")
    views, statements = parameter_views(func)
    nest = flattened(program.nests[0], views)
    stored, read, apart = _axes(nest)
    others = tuple(axis for axis in nest.spatial if axis not in (stored, read))
    body = _blocks(nest, stored, read)
    tile = _tile(nest, stored, read, apart, machine)
    if tile is not None:
        wide = tirx.all(stored.stated >= int64(tile.width), read.stated >= int64(tile.height))
        body = tirx.IfThenElse(wide, _tiles(nest, tile), body)
    statements.append(over_axes(others, body, machine))
    return with_statements(func, statements), "generic_transpose"


def _axes(nest: Nest) -> tuple[Axis, Axis, list[TensorLoad]]:
    """The axes along which neighbours are stored, and read, and the loads that are read so."""
    loads = [load for store in nest.stores for load in loads_of(store.value)]
    if len(nest.stores) != 1 or nest.lets or not nest.spatial:
        raise NotHandledError(f"{nest.name} stores more than one element")
    for stored in nest.spatial:
        if step_along(nest, nest.stores[0].indices[0], stored) != 1:
            continue
        apart = [load for load in loads if step_along(nest, load.indices[0], stored) not in (0, 1)]
        for read in nest.spatial:
            if read.end is None and stored.end is None:
                continue  # for `open_items`
            if apart and all(step_along(nest, load.indices[0], read) == 1 for load in apart):
                return stored, read, apart
    raise NotHandledError(f"{nest.name} reads along the axis that it stores along")


def _tile(
    nest: Nest, stored: Axis, read: Axis, apart: list[TensorLoad], machine: Machine
) -> Tile | None:
    """The tile to transpose in registers, or None if elements are no plain ones."""
    reads = nest.reads()
    if machine.isa.vector_bits < 32 * BLOCK or any(loads_of(load.indices[0]) for load in reads):
        return None
    if calls_of(nest.stores[0].value, "if_then_else"):
        return None
    loads = list[TensorLoad]()
    for load in apart:
        if not any(same(load, other) for other in loads):
            loads.append(load)
    return tile_of(stored, read, loads, BLOCK) if len(loads) <= 2 else None


def _tiles(nest: Nest, tile: Tile) -> tirx.Stmt:
    """Tiles of two axes; what the last shares with the one before, both write alike."""
    steps, starts = list[tuple[tirx.Var, Expr]](), dict[tirx.Var, Expr]()
    for axis, size in ((tile.read, tile.height), (tile.written, tile.width)):
        step = tirx.Var(f"{axis.var.name}_tile", "int64")
        steps.append((step, tirx.floordiv(axis.stated + int64(size - 1), int64(size))))
        starts[axis.var] = tirx.Min(step * int64(size), axis.stated - int64(size))
    body = turned(nest, tile, starts)
    for step, count in reversed(steps):
        body = tirx.For(step, int64(0), count, ForKind.SERIAL, body)
    return body


def _blocks(nest: Nest, stored: Axis, read: Axis) -> tirx.Stmt:
    """Blocks of two axes, the stored one innermost."""
    firsts: dict[tirx.Var, Expr] = {}
    block_of, place_of = {}, {}
    for axis in (stored, read):
        block_of[axis.var], place_of[axis.var] = (
            tirx.Var(f"{axis.var.name}_{name}", "int64") for name in ("block", "place")
        )
        firsts[axis.var] = block_of[axis.var] * int64(BLOCK)
    at: dict[tirx.Var, Expr] = {var: firsts[var] + place for var, place in place_of.items()}
    body = store_statement(nest, nest.stores, at)
    for axis in (stored, read):
        count = tirx.Min(int64(BLOCK), axis.stated - firsts[axis.var])
        body = tirx.For(place_of[axis.var], int64(0), count, ForKind.SERIAL, body)
    for axis in (read, stored):
        blocks = tirx.floordiv(axis.stated + int64(BLOCK - 1), int64(BLOCK))
        body = tirx.For(block_of[axis.var], int64(0), blocks, ForKind.SERIAL, body)
    return body
