"""Reads strided elements, and elements at computed places, once for many results.

Every second, third or fourth element, or all of them backwards, a vector at a time (`stage`):

for v in vectorized(16): y[v] = x[2 * v]        (sixteen scalar loads)

->  row[0:16] = shuffle(x[0:16], x[15:31])      (never past the last element that is read)
    for v in vectorized(16): y[v] = row[v]

Places to sample, and their weights, once for all channels (`with_sample_tables`):

    y[c, h, w] = x[c, int64(floor(g[h, w] * 8))] * (g[h, w] * 8 - floor(g[h, w] * 8))

->  t[h, w] = int64(floor(g[h, w] * 8)); s[h, w] = g[h, w] * 8 - floor(g[h, w] * 8)
    y[c, h, w] = x[c, t[h, w]] * s[h, w]

This is done if places are computed from floats, as when an image is resized or read by a grid.
Values that do not depend on the last axis get no table: LLVM computes them once for a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx.expr import BinaryOpExpr, CmpExpr

from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr
from microkernels.vector.memory import transpose_block

from . import expressions
from .expressions import call_name, calls_of, const_int, int64, loads_of, same
from .loops import sequence, store_statement, vectorized
from .nest import Axis, FunctionNests, Nest, Store, analyzer_for, unchanged

STEPS = (-1, 2, 3, 4)
"""Distances between elements that are read by whole vectors and shuffled."""


@dataclass(frozen=True)
class Staged:
    """Loads whose elements lie in small local buffers, and the statements that fill them."""

    loads: tuple[TensorLoad, ...]
    rows: tuple[tirx.Var, ...]
    statements: tuple[tirx.Stmt, ...]

    def lane(self, lane: Expr) -> Callable[[TensorLoad], Expr]:
        """A function that replaces staged loads by one lane of their rows."""
        if not self.loads:
            return unchanged

        def change(load: TensorLoad) -> Expr:
            for other, row in zip(self.loads, self.rows, strict=True):
                if same(load, other):
                    element = tirx.BufferLoad(row, [lane])
                    dtype = str(load.ty.dtype)
                    return element if str(row.dtype) == dtype else ex.reinterpret(dtype, element)
            return load

        return change


NOTHING_STAGED = Staged((), (), ())


def strided_loads(nest: Nest, axis: Axis, still: Axis | None = None) -> list[TensorLoad]:
    """Loads of a flat nest with one of STEPS along `axis`, and no step along `still`."""
    if nest.has_choices:
        return []
    axes, analyzer = [axis.var] if still is None else [axis.var, still.var], nest.analyzer()
    found: list[TensorLoad] = []
    for load in nest.reads():
        step, *others = expressions.strides_of(load.indices[0], axes, analyzer).values()
        if step in STEPS and others in ([], [0]) and str(load.ty.dtype) != "bool":
            found.append(load)
    return expressions.distinct(found)


def stage(loads: Sequence[TensorLoad], axis: Axis, at: dict[tirx.Var, Expr], width: int) -> Staged:
    """Stages the elements of `loads` for `width` steps along `axis` from the point `at` on."""
    if width == 1:
        return NOTHING_STAGED
    rows = []
    statements: list[tirx.Stmt] = []
    for load in loads:
        first = expressions.substitute(load.indices[0], at)
        second = expressions.substitute(load.indices[0], {**at, axis.var: at[axis.var] + int64(1)})
        step = int(analyzer_for(()).simplify(second - first).value)
        vectors = _vectors(load.source, first, step, width)
        statements += [tirx.Bind(var, value) for var, value in vectors]
        last, _ = vectors[-1]
        row, stored = row_of(last)
        statements += stored
        rows.append(row)
    return Staged(tuple(loads), tuple(rows), tuple(statements))


def staged_stores(
    nest: Nest, axis: Axis, start: Expr, width: int, loads: Sequence[TensorLoad] = ()
) -> tirx.Stmt:
    """The stores of `width` steps along an axis, with `loads` staged."""
    staged = stage(loads, axis, {axis.var: start}, width)

    def at_lane(lane: Expr) -> tirx.Stmt:
        read = nest.with_loads(staged.lane(lane))
        return store_statement(read, read.stores, {axis.var: start + lane})

    return sequence([*staged.statements, vectorized(width, at_lane)])


def row_of(vector: Expr) -> tuple[tirx.Var, list[tirx.Stmt]]:
    """A buffer that holds a vector, and the statements that allocate and fill it."""
    lanes = ex.lanes_of(vector)
    row = tirx.decl_buffer((int64(lanes),), ex.element_of(vector), "row")
    return row, [
        tirx.AllocBuffer(row),
        tirx.BufferStore(row, vector, [expressions.ramp_at(int64(0), lanes)]),
    ]


def _vectors(source: tirx.Var, first: Expr, step: int, width: int) -> list[tuple[tirx.Var, Expr]]:
    """Names and values of the vectors that hold the elements; the last one is the result."""
    found: list[tuple[tirx.Var, Expr]] = []

    def named(value: Expr) -> tirx.Var:
        var = tirx.Var("strided", str(value.ty.dtype))
        found.append((var, value))
        return var

    def read(start: Expr) -> tirx.Var:
        vector = tirx.BufferLoad(source, [expressions.ramp_at(start, width)])
        # TVM's legalisation of bfloat16 changes the values of bindings, but not their variables.
        bfloat16 = ex.element_of(vector) == "bfloat16"
        return named(ex.reinterpret("uint16", vector) if bfloat16 else vector)

    if step == -1:
        vector = read(first - int64(width - 1))
        named(ex.shuffle([vector], reversed(range(width))))
        return found
        # The last vector ends at the last element, because there may be none beyond it.
    last = step * (width - 1) + 1 - width
    starts = [min(number * width, last) for number in range(step)]
    value = read(first)
    lanes = [step * lane for lane in range(width)]
    for number, start in enumerate(starts[1:], 1):
        limit = number * width
        vector = read(first + int64(start))
        picked = []
        for lane, at in enumerate(lanes):
            if at >= limit:
                picked.append(min(width + at - start, 2 * width - 1))
            else:
                picked.append(at if number == 1 else lane)
        value = named(ex.shuffle([value, vector], picked))
    return found


def with_selects(nest: Nest) -> Nest:
    """Computes both sides of choices whose elements exist, so that LLVM can vectorise them.

        y[i] = Select(x[i] > 1, x[i], p[0])

        ->  a = x[i]; b = p[0]; y[i] = Select(a > 1, a, b)

    TVM makes a branch of a choice that reads elements, because they might not exist. The tensors of
    the nest have their original shapes, by which the elements are proven to exist.
    """
    analyzer, named = nest.analyzer(), list[tuple[TensorLoad, tirx.Var]]()

    def name(load: TensorLoad) -> Expr:
        if not _exists(load, analyzer):
            return load
        for other, var in named:
            if same(load, other):
                return var
        named.append((load, tirx.Var("read", str(load.ty.dtype))))
        return named[-1][1]

    def chosen(call: Call) -> Expr:
        if call_name(call) != "if_then_else" or not all(map(_can_do, call.args[1:])):
            return call
        return tirx.Select(*call.args)

    def _can_do(side: Expr) -> bool:
        divisors = [const_int(division.b) for division in expressions.divisions_of(side)]
        return None not in divisors and all(_exists(load, analyzer) for load in loads_of(side))

    def select(choice: tirx.Select) -> Expr:
        sides = (
            expressions.map_loads(side, name) for side in (choice.true_value, choice.false_value)
        )
        return tirx.Select(choice.condition, *sides)

    def in_value(value: Expr) -> Expr:
        return tvm_ffi.structural_map(expressions.map_calls(value, chosen), (tirx.Select, select))

    found = nest.mapped(lambda store: replace(store, value=in_value(store.value)), lambda v: v)
    return replace(found, lets=(*((var, load) for load, var in named), *found.lets))


def _exists(load: TensorLoad, analyzer: Analyzer) -> bool:
    """Whether a load is proven to be within its tensor."""
    return all(
        not loads_of(index)
        and analyzer.can_prove(index >= int64(0))
        and analyzer.can_prove(index < size)
        for index, size in zip(load.indices, load.source.shape, strict=True)
    )


LEAST_SHARED = 4
"""Fewest elements that share an entry of a table."""

LEAST_COST = 2.0
"""A value gets a table if it costs more than this number of additions."""


def with_sample_tables(program: FunctionNests) -> FunctionNests:
    """The nests, with tables for values that several elements of their samples share."""
    nests: list[Nest] = []
    temporaries = list(program.temporaries)
    for nest in program.nests:
        tables = _Tables(nest)
        changed = tables.taken() if _samples(nest) else nest
        nests += [*tables.nests, changed]
        temporaries += [table.stores[0].buffer for table in tables.nests]
    return replace(program, nests=tuple(nests), temporaries=tuple(temporaries))


def _samples(nest: Nest) -> bool:
    """Whether a nest reads at places that are computed from floats."""
    if nest.reduce or nest.lets or len(nest.spatial) < 2:
        return False
    indices = (index for load in nest.reads() for index in load.indices)
    casts = (cast for index in indices for cast in expressions.nodes_of(index, tirx.Cast))
    return any(str(cast.value.ty.dtype).startswith("float") for cast in casts)


@dataclass(frozen=True)
class _Entry:
    """A value that has a table, and the table."""

    value: Expr
    axes: tuple[Axis, ...]
    buffer: tirx.Var

    @property
    def read(self) -> Expr:
        """The load of the table that replaces the value."""
        return tirx.BufferLoad(self.buffer, [axis.var for axis in self.axes])


class _Tables:
    """Moves values that depend on the last axis, but not on all axes, into tables."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.nests: list[Nest] = []
        self.entries: list[_Entry] = []
        self.read: list[TensorLoad] = []
        """Loads that every element makes, whatever it chooses."""

    def taken(self) -> Nest:
        """The nest with loads of tables; `nests` then has the nests that fill them."""
        for store in self.nest.stores:
            self._note_reads(store.value)
        stores = tuple(replace(each, value=self._over(each.value)) for each in self.nest.stores)
        self.entries.sort(key=lambda entry: expressions.node_count(entry.value))
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
        """A value with its largest suitable parts replaced by loads of tables."""
        axes = self._axes_of(value)
        return with_parts(value, self._over) if axes is None else self._entry(value, axes)

    def _axes_of(self, value: Expr) -> list[Axis] | None:
        """The axes of a table for a value; None if the value gets no table."""
        if isinstance(value, TensorLoad | tirx.Var) or expressions.cost_of(value) <= LEAST_COST:
            return None
        used, (*_, last) = expressions.variables_of(value), self.nest.spatial
        shared = [axis for axis in self.nest.spatial if axis.var not in used]
        if last.var not in used or math.prod(axis.extent for axis in shared) < LEAST_SHARED:
            return None
        if not all(any(same(load, other) for other in self.read) for load in loads_of(value)):
            return None
        # If a size is 0, a table may have entries that no element needs.
        if any(not const_int(division.b) for division in expressions.divisions_of(value)):
            return None
        return [axis for axis in self.nest.spatial if axis.var in used]

    def _entry(self, value: Expr, axes: list[Axis]) -> Expr:
        """The load of a value's table, which is added if it is new."""
        for entry in self.entries:
            if same(value, entry.value):
                return entry.read
        name, dtype = f"table_{len(self.entries)}", str(value.ty.dtype)
        buffer = tirx.decl_buffer([axis.stated for axis in axes], dtype, name)
        self.entries.append(_Entry(value, tuple(axes), buffer))
        return self.entries[-1].read

    def _table(self, entry: _Entry, smaller: list[_Entry]) -> Nest:
        """The nest that fills a table, and reads the tables of its smaller parts."""

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
    """An expression with its parts changed; unchanged if its kind has no parts here."""
    if isinstance(value, TensorLoad):
        return tirx.BufferLoad(value.source, [change(index) for index in value.indices])
    if isinstance(value, BinaryOpExpr | CmpExpr | tirx.And | tirx.Or):
        return type(value)(change(value.a), change(value.b))
    if isinstance(value, tirx.Cast):
        return tirx.Cast(str(value.ty.dtype), change(value.value))
    if call_name(value) == "if_then_else":
        return tirx.if_then_else(*map(change, value.args))
    return value


# Transposes blocks in registers: a few vectors along one axis become vectors along the other.
#
# Eight rows of sixteen elements, a0 a1 .. a15, b0 .. b15, .. h0 .. h15, become
#
#     a0 b0 c0 .. h0 a1 b1 .. h1,   a2 b2 .. h3,   ...
#
# by rounds that interleave the first half of the rows with the second half. Four bytes, or two
# 16-bit elements, are first combined to one, so that every round moves 32 bits at once.


def as_bits(value: Expr, bits: int) -> Expr:
    """Lanes of any type, reinterpreted as integers of `bits` bits (unless these are 32)."""
    element = ex.element_of(value) if bits == 32 else f"uint{bits}"
    return value if ex.element_of(value) == element else ex.reinterpret(element, value)


def transposed(rows: Sequence[Expr], bits: int) -> list[Expr]:
    """The transposed block: for every lane of the rows, the vector of that lane in all rows.

    The number of rows and their lanes are powers of two, and there are at least 32 / bits rows;
    `bits` is 8, 16 or 32.
    """
    size = len(rows)
    pixels = ex.lanes_of(rows[0])
    element = ex.element_of(rows[0])
    pack = 32 // bits
    words = [_packed(rows[at : at + pack]) for at in range(0, size, pack)]
    if len(words) == pixels:
        columns = transpose_block(words)
    else:
        columns = _regrouped(interleaved(words), len(words), pixels)
    if pack == 1:
        return columns
    return [ex.reinterpret_group(element, column, size) for column in columns]


def _packed(rows: Sequence[Expr]) -> Expr:
    """Rows of elements below 32 bits as one vector: element 0 of all rows, element 1, ..."""
    if len(rows) == 1:
        return rows[0]
    pixels = ex.lanes_of(rows[0])
    lanes = [row * pixels + at for at in range(pixels) for row in range(len(rows))]
    return ex.bind(ex.reinterpret_group("int32", ex.shuffle(list(rows), lanes), pixels))


def interleaved(rows: Sequence[Expr]) -> list[Expr]:
    """The rows interleaved into as many vectors: element 0 of all rows, element 1, and so on.

    The number of rows is a power of two.
    """
    values = list(rows)
    pixels = ex.lanes_of(values[0])
    half = len(values) // 2
    rounds = len(values).bit_length() - 1
    for _ in range(rounds):
        mixed = []
        for low, high in zip(values[:half], values[half:], strict=True):
            for start in (0, pixels // 2):
                lanes = [
                    each for at in range(start, start + pixels // 2) for each in (at, pixels + at)
                ]
                mixed.append(ex.bind(ex.shuffle([low, high], lanes)))
        values = mixed
    return values


def interleaved_by_chain(rows: Sequence[Expr]) -> list[Expr]:
    """The result of `interleaved` for any number of rows, by one shuffle for every row but one."""
    number, pixels = len(rows), ex.lanes_of(rows[0])
    results = []
    for part in range(number):
        wanted = [divmod(part * pixels + lane, number) for lane in range(pixels)]
        value = rows[0]
        for row in range(1, number):
            lanes = [
                pixels + at if source == row else (at if row == 1 else lane)
                for lane, (at, source) in enumerate(wanted)
            ]
            value = ex.bind(ex.shuffle([value, rows[row]], lanes))
        results.append(value)
    return results


def _regrouped(vectors: list[Expr], size: int, pixels: int) -> list[Expr]:
    """The flat sequence of `pixels` groups of `size` elements, as one vector for every group."""
    if size > pixels:
        share = size // pixels
        return [
            ex.bind(ex.shuffle(vectors[at * share : (at + 1) * share], range(size)))
            for at in range(pixels)
        ]
    groups = []
    for at in range(pixels):
        vector, first = divmod(at * size, pixels)
        groups.append(ex.bind(ex.shuffle([vectors[vector]], range(first, first + size))))
    return groups
