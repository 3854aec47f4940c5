"""The accumulators of a reduction: local buffers that LLVM keeps in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from .expressions import int64, map_loads
from .loops import Strides, sequence, store_statement
from .nest import Axis, Nest, NotHandledError, Store
from .strided_reads import NOTHING_STAGED, Staged, keeping_nan


@dataclass(frozen=True)
class Plan:
    """A flat reduction with the strides of its accesses, and what the loops are for."""

    nest: Nest
    loads: list[Strides]
    stores: list[Strides]
    machine: Machine
    threads: int


class Accumulators:
    """Local buffers in place of the accumulated elements: one per store and register."""

    def __init__(self, nest: Nest, widths: list[int], rows: int) -> None:
        self.nest = nest
        self.rows = rows
        self.buffers = [
            [
                tirx.decl_buffer((int64(rows * width),), store.buffer.dtype, "accumulator")
                for width in widths
            ]
            for store in nest.stores
        ]
        self.widths = widths

    def allocations(self) -> list[tirx.Stmt]:
        return [tirx.AllocBuffer(buffer) for row in self.buffers for buffer in row]

    def at(self, piece: int, row: Expr, lane: Expr) -> Callable[[TensorLoad], Expr]:
        """Replaces loads of accumulated elements by one lane of a register."""
        position = row * int64(self.widths[piece]) + lane

        def change(load: TensorLoad) -> Expr:
            for store, buffers in zip(self.nest.stores, self.buffers, strict=True):
                if load.source.same_as(store.buffer):
                    return tirx.BufferLoad(buffers[piece], [position])
            return load

        return change

    def stores(self, piece: int, row: Expr, lane: Expr) -> list[tuple[Store, tirx.Var, Expr]]:
        position = row * int64(self.widths[piece]) + lane
        return [
            (store, buffers[piece], position)
            for store, buffers in zip(self.nest.stores, self.buffers, strict=True)
        ]

    def start(self, piece: int, row: Expr, lane: Expr) -> tirx.Stmt:
        return sequence(
            [
                tirx.BufferStore(buffer, store.start, [position])
                for store, buffer, position in self.stores(piece, row, lane)
            ]
        )

    def update(
        self,
        piece: int,
        row: Expr,
        lane: Expr,
        at: dict[tirx.Var, Expr],
        staged: Staged = NOTHING_STAGED,
    ) -> tirx.Stmt:
        nest = self.nest.with_loads(self.at(piece, row, lane)).with_loads(staged.lane(lane))
        updates = [
            Store(buffer, (position,), keeping_nan(store.value))
            for store, (_, buffer, position) in zip(
                nest.stores, self.stores(piece, row, lane), strict=True
            )
        ]
        return store_statement(nest, updates, at)

    def finish(self, piece: int, row: Expr, lane: Expr, at: dict[tirx.Var, Expr]) -> tirx.Stmt:
        change = self.at(piece, row, lane)
        stores = [replace(store, value=map_loads(store.value, change)) for store in self.results()]
        return store_statement(replace(self.nest, lets=()), stores, at)

    def finish_with(self, totals: list[Expr], at: dict[tirx.Var, Expr]) -> tirx.Stmt:
        """Stores the results of accumulated elements that are elsewhere."""

        def change(load: TensorLoad) -> Expr:
            for store, total in zip(self.nest.stores, totals, strict=True):
                if load.source.same_as(store.buffer):
                    return total
            return load

        stores = [replace(store, value=map_loads(store.value, change)) for store in self.results()]
        return store_statement(replace(self.nest, lets=()), stores, at)

    def results(self) -> tuple[Store, ...]:
        """The epilogue, or stores of the accumulated elements as they are."""
        return self.nest.epilogue or tuple(
            replace(store, value=tirx.BufferLoad(store.buffer, list(store.indices)))
            for store in self.nest.stores
        )


def over_reduced(axes: Sequence[Axis], body: tirx.Stmt) -> tirx.Stmt:
    """Serial loops over the reduced axes."""
    for axis in reversed(axes):
        body = tirx.For(axis.var, int64(0), axis.stated, tirx.ForKind.SERIAL, body)
    return body


def along_results(nest: Nest, axis: Axis) -> tirx.Stmt:
    """The results along an axis, accumulated where they end up; those of another type in a row."""
    if len(nest.stores) != 1 or len(nest.results) != 1:
        raise NotHandledError(f"{nest.name} has several results")
    (store,), (result,) = nest.stores, nest.results
    row = replace(result, value=store.value)
    apart: list[tirx.Stmt] = []
    if str(store.buffer.dtype) != str(result.buffer.dtype):
        kept = tirx.decl_buffer((axis.stated,), store.buffer.dtype, "row")
        row = replace(row, buffer=kept, indices=(axis.var,))
        apart.append(tirx.AllocBuffer(kept))

    def placed(load: TensorLoad) -> Expr:
        same = load.source.same_as(store.buffer)
        return tirx.BufferLoad(row.buffer, list(row.indices)) if same else load

    update = Store(row.buffer, row.indices, map_loads(keeping_nan(store.value), placed))

    def each(value: Store) -> tirx.Stmt:
        body = store_statement(nest, [value], {})
        return tirx.For(axis.var, int64(0), axis.stated, tirx.ForKind.SERIAL, body)

    parts = [each(replace(row, value=store.start)), over_reduced(nest.reduce, each(update))]
    if nest.epilogue:
        parts.append(each(replace(result, value=map_loads(result.value, placed))))
    return sequence([*apart, *parts])


def tiles_of(extent: int, size: int) -> list[tuple[int, int, int]]:
    """(start, size, count) of the full tiles and of the rest."""
    full, rest = divmod(extent, size)
    found = [(0, size, full)] if full else []
    return found + ([(full * size, rest, 1)] if rest else [])


def shared_axis(plan: Plan, along: Axis) -> Axis | None:
    """Another result axis whose points share the vectors read along `along`."""
    best = None
    for axis in plan.nest.spatial:
        if axis is along or any(s[axis.var] is None for s in (*plan.loads, *plan.stores)):
            continue
        moving = [strides for strides in plan.loads if strides[along.var] != 0]
        if moving and any(strides[axis.var] == 0 for strides in moving):
            best = axis
    return best
