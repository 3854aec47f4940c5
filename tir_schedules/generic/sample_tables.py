"""Computes where to sample, and by which weights, once for all channels.

    y[c, h, w] = x[c, int64(floor(g[h, w] * 8))] * (g[h, w] * 8 - floor(g[h, w] * 8))

    ->  t[h, w] = int64(floor(g[h, w] * 8)); s[h, w] = g[h, w] * 8 - floor(g[h, w] * 8)
        y[c, h, w] = x[c, t[h, w]] * s[h, w]

That is done where places are computed by floats, as when an image is resized or read by a grid.
What does not depend on the last axis stays: LLVM computes it once for a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.expr import BinaryOpExpr, CmpExpr

from microkernels.vector.expressions import Expr

from .expressions import (
    calls_of,
    const_int,
    cost_of,
    divisions_of,
    is_call,
    loads_of,
    node_count,
    same,
    variables_of,
)
from .nest import Axis, Nest, Program, Store

LEAST_SHARED = 4
"""Elements that share a number of a table."""

LEAST_COST = 2.0
"""Cost, in additions, of what is worth a table."""


def with_sample_tables(program: Program) -> Program:
    """The program with tables for what several elements of its samples share."""
    nests: list[Nest] = []
    temporaries = list(program.temporaries)
    for nest in program.nests:
        tables = _Tables(nest)
        changed = tables.taken() if _samples(nest) else nest
        nests += [*tables.nests, changed]
        temporaries += [table.stores[0].buffer for table in tables.nests]
    return replace(program, nests=tuple(nests), temporaries=tuple(temporaries))


def _samples(nest: Nest) -> bool:
    """Whether a nest reads at places that are computed by floats."""
    if nest.reduce or nest.lets or len(nest.spatial) < 2:
        return False
    return any(_by_floats(index) for load in nest.reads() for index in load.indices)


def _by_floats(index: Expr) -> bool:
    found: list[str] = []

    def visit(cast: tirx.Cast) -> None:
        found.append(str(cast.value.ty.dtype))

    tvm_ffi.structural_walk(index, (tirx.Cast, visit))
    return any(dtype.startswith("float") for dtype in found)


@dataclass(frozen=True)
class _Entry:
    """A value that has a table, and the table."""

    value: Expr
    axes: tuple[Axis, ...]
    buffer: tirx.Var

    @property
    def read(self) -> Expr:
        """What stands for the value."""
        return tirx.BufferLoad(self.buffer, [axis.var for axis in self.axes])


class _Tables:
    """Takes out of a nest what only some of its axes, the last one among them, decide."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.nests: list[Nest] = []
        self.entries: list[_Entry] = []
        self.read: list[TensorLoad] = []
        """What every element reads, whatever it chooses."""

    def taken(self) -> Nest:
        """The nest that reads tables."""
        for store in self.nest.stores:
            self._note_reads(store.value)
        stores = tuple(replace(each, value=self._over(each.value)) for each in self.nest.stores)
        self.entries.sort(key=lambda entry: node_count(entry.value))
        for number, entry in enumerate(self.entries):
            self.nests.append(self._table(entry, self.entries[:number]))
        return replace(self.nest, stores=stores)

    def _note_reads(self, value: Expr) -> None:
        guarded = {
            load
            for call in calls_of(value, "if_then_else")
            for side in call.args[1:]
            for load in loads_of(side)
        }
        for call in calls_of(value, "if_then_else"):
            self._note_reads(call.args[0])
        self.read += [load for load in loads_of(value) if load not in guarded]

    def _over(self, value: Expr) -> Expr:
        """A value with tables for its parts, the largest ones that may have one."""
        axes = self._axes_of(value)
        return with_parts(value, self._over) if axes is None else self._entry(value, axes)

    def _axes_of(self, value: Expr) -> list[Axis] | None:
        """The axes of a table for a value; None if it should have none."""
        if isinstance(value, TensorLoad | tirx.Var) or cost_of(value) <= LEAST_COST:
            return None
        used, (*_, last) = variables_of(value), self.nest.spatial
        shared = [axis for axis in self.nest.spatial if axis.var not in used]
        if last.var not in used or math.prod(axis.extent for axis in shared) < LEAST_SHARED:
            return None
        if not all(any(same(load, other) for other in self.read) for load in loads_of(value)):
            return None
        # There may be entries without an element that needs them, where a size is 0.
        if any(not const_int(division.b) for division in divisions_of(value)):
            return None
        return [axis for axis in self.nest.spatial if axis.var in used]

    def _entry(self, value: Expr, axes: list[Axis]) -> Expr:
        """What is in the table of a value for an element."""
        for entry in self.entries:
            if same(value, entry.value):
                return entry.read
        name, dtype = f"table_{len(self.entries)}", str(value.ty.dtype)
        buffer = tirx.decl_buffer([axis.stated for axis in axes], dtype, name)
        self.entries.append(_Entry(value, tuple(axes), buffer))
        return self.entries[-1].read

    def _table(self, entry: _Entry, smaller: list[_Entry]) -> Nest:
        """Fills a table, by what smaller tables have."""

        def known(value: Expr) -> Expr:
            for other in smaller:
                if same(value, other.value):
                    return other.read
            return with_parts(value, known)

        own = {axis.var: tirx.Var(axis.var.name, "int64") for axis in entry.axes}
        spatial = tuple(replace(axis, var=own[axis.var]) for axis in entry.axes)
        places = tuple(axis.var for axis in entry.axes)
        store = Store(entry.buffer, places, known(entry.value))
        nest = replace(self.nest, name=entry.buffer.name, spatial=spatial, stores=(store,))
        return nest.substituted(dict(own))


def with_parts(value: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """An expression with its parts replaced; as it is, if it is of a kind that has none here."""
    if isinstance(value, TensorLoad):
        return tirx.BufferLoad(value.source, [change(index) for index in value.indices])
    if isinstance(value, BinaryOpExpr | CmpExpr | tirx.And | tirx.Or):
        return type(value)(change(value.a), change(value.b))
    if isinstance(value, tirx.Cast):
        return tirx.Cast(str(value.ty.dtype), change(value.value))
    if is_call(value, "if_then_else"):
        return tirx.if_then_else(*map(change, value.args))
    return value
