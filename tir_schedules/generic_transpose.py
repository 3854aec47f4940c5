"""Loops for nests that read across the direction in which they write.

y[i, j] = x[j, i]

->  for it, jt in grid(n / 16, m / 16):
        sixteen vectors of x along i, at j = 16 * jt + 0 .. 15
        transposed in registers: log2(16) rounds of sixteen two-vector shuffles
        sixteen vectors of y along j, at i = 16 * it + 0 .. 15
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.transpose import transpose_block
from microkernels.vectors import Expr, bind, let_scope

from .generic_expr import (
    calls_of,
    int64,
    loads_of,
    map_loads,
    ramp_at,
    same,
    strides_of,
    substitute,
)
from .generic_loops import Strides, nested, sequence, store_statement, vectorized
from .generic_nest import Axis, Nest, analyzer_for
from .machine import Machine


@dataclass(frozen=True)
class Tile:
    """The axes that a nest writes along and reads along, and the loads that need turning."""

    written: Axis
    read: Axis
    turned: tuple[TensorLoad, ...]
    lanes: int


def transpose_axes(
    nest: Nest, loads: list[Strides], stores: list[Strides], machine: Machine
) -> Tile | None:
    """The tile to transpose by, or None if the nest reads along the axis it writes."""
    lanes = machine.isa.vector_bits // 32
    if lanes < 8 or len(nest.spatial) < 2 or len(stores) != 1 or nest.lets:
        return None
    written = nest.spatial[-1]
    if stores[0][written.var] != 1 or written.extent < lanes:
        return None
    if calls_of(nest.stores[0].value, "if_then_else"):
        return None
    if any(loads_of(load.indices[0]) for load in nest.reads()):
        return None
    analyzer = analyzer_for(nest.axes())
    turned: list[TensorLoad] = []
    chosen: Axis | None = None
    for load in nest.reads():
        strides = strides_of(load.indices[0], [axis.var for axis in nest.spatial], analyzer)
        if strides[written.var] is None:
            return None
        if strides[written.var] in (0, 1):
            continue
        along = [a for a in nest.spatial[:-1] if strides[a.var] == 1 and a.extent >= lanes]
        if not along or int(load.ty.dtype.bits) != 32 or (chosen and chosen is not along[0]):
            return None
        chosen = along[0]
        if not any(same(load, other) for other in turned):
            turned.append(load)
    if chosen is None or len(turned) > 2 or any(strides[chosen.var] is None for strides in loads):
        return None
    return Tile(written, chosen, tuple(turned), lanes)


def transpose_loops(nest: Nest, tile: Tile, machine: Machine, parallel: bool) -> tirx.Stmt:
    """Loops over whole tiles, then over the elements right of and below them."""
    lanes, written, read = tile.lanes, tile.written, tile.read
    others = [a for a in nest.spatial if a is not written and a is not read]
    rows, columns = Axis.new(read.extent // lanes, "rows"), Axis.new(written.extent // lanes)
    at = {read.var: rows.var * int64(lanes), written.var: columns.var * int64(lanes)}
    axes = [axis for axis in (*others, rows, columns)]
    statements = [nested(axes, _tile(nest, tile, at), machine, parallel)]
    for below, right in (
        ((rows.extent * lanes, read.extent), (0, written.extent)),
        ((0, rows.extent * lanes), (columns.extent * lanes, written.extent)),
    ):
        if below[0] < below[1] and right[0] < right[1]:
            row, column = Axis.new(below[1] - below[0]), Axis.new(right[1] - right[0])
            point = {
                read.var: row.var + int64(below[0]),
                written.var: column.var + int64(right[0]),
            }
            body = store_statement(nest, nest.stores, point)
            statements.append(nested((*others, row, column), body, machine, parallel))
    return sequence(statements)


def _tile(nest: Nest, tile: Tile, at: dict[tirx.Var, Expr]) -> tirx.Stmt:
    lanes = tile.lanes
    statements: list[tirx.Stmt] = []
    rows_of: list[list[tirx.Var]] = []
    for load in tile.turned:
        vectors = []
        for number in range(lanes):
            point = {**at, tile.written.var: at[tile.written.var] + int64(number)}
            start = substitute(load.indices[0], point)
            vectors.append(tirx.BufferLoad(load.source, [ramp_at(start, lanes)]))
        with let_scope() as lets:
            turned = transpose_block([bind(vector) for vector in vectors])
        statements += [tirx.Bind(var, value) for var, value in lets]
        rows = []
        for vector in turned:
            row = tirx.decl_buffer((int64(lanes),), load.ty.dtype, "row")
            statements += [
                tirx.AllocBuffer(row),
                tirx.BufferStore(row, vector, [ramp_at(int64(0), lanes)]),
            ]
            rows.append(row)
        rows_of.append(rows)
    for number in range(lanes):

        def vector(lane: Expr, number: int = number) -> tirx.Stmt:
            def change(load: TensorLoad) -> Expr:
                for rows, other in zip(rows_of, tile.turned, strict=True):
                    if same(load, other):
                        return tirx.BufferLoad(rows[number], [lane])
                return load

            store = nest.stores[0]
            staged = replace(store, value=map_loads(store.value, change))
            point = {
                tile.read.var: at[tile.read.var] + int64(number),
                tile.written.var: at[tile.written.var] + lane,
            }
            return store_statement(nest, (staged,), point)

        statements.append(vectorized(lanes, vector))
    return sequence(statements)
