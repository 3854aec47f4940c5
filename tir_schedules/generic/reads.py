"""Reads elements that are no neighbours, or whose places are computed, once for many results.

Every second, third or fourth element, or backwards, a vector at a time (`stage`):

for v in vectorized(16): y[v] = x[2 * v]        (sixteen scalar loads)

->  row[0:16] = shuffle(x[0:16], x[15:31])      (never past the last element that is read)
    for v in vectorized(16): y[v] = row[v]

Where to sample, and by which weights, for all channels (`with_sample_tables`):

    y[c, h, w] = x[c, int64(floor(g[h, w] * 8))] * (g[h, w] * 8 - floor(g[h, w] * 8))

->  t[h, w] = int64(floor(g[h, w] * 8)); s[h, w] = g[h, w] * 8 - floor(g[h, w] * 8)
    y[c, h, w] = x[c, t[h, w]] * s[h, w]

That is done where places are computed by floats, as when an image is resized or read by a grid.
What does not depend on the last axis stays: LLVM computes it once for a row.
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
from .nest import Axis, Nest, Program, Store, analyzer_for, unchanged

STEPS = (-1, 2, 3, 4)
"""Distances from element to element that are read by whole vectors and shuffled."""


@dataclass(frozen=True)
class Staged:
    """Loads whose elements lie in register-sized local buffers, and the statements that do it."""

    loads: tuple[TensorLoad, ...]
    rows: tuple[tirx.Var, ...]
    statements: tuple[tirx.Stmt, ...]

    def lane(self, lane: Expr) -> Callable[[TensorLoad], Expr]:
        """Replaces staged loads by one lane of their rows."""
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
    """Loads of a flat nest with one of STEPS along `axis`, that stand still along `still`."""
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
    """The elements of `loads` for `width` steps along `axis` from the point `at`."""
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
    """The stores of a vector of steps along an axis, of which some loads are staged."""
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
    """Names for the vectors that hold the elements, and last for what is picked out of them."""
    found: list[tuple[tirx.Var, Expr]] = []

    def named(value: Expr) -> tirx.Var:
        var = tirx.Var("strided", str(value.ty.dtype))
        found.append((var, value))
        return var

    def read(start: Expr) -> tirx.Var:
        vector = tirx.BufferLoad(source, [expressions.ramp_at(start, width)])
        # TVM's legalisation of bfloat16 changes values that are bound, and not their names.
        bfloat16 = ex.element_of(vector) == "bfloat16"
        return named(ex.reinterpret("uint16", vector) if bfloat16 else vector)

    if step == -1:
        vector = read(first - int64(width - 1))
        named(ex.shuffle([vector], reversed(range(width))))
        return found
    # The last vector ends at the last element, beyond which there may be none.
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
    """Choices whose sides are both computed, so that LLVM makes vectors of them.

        y[i] = Select(x[i] > 1, x[i], p[0])

        ->  a = x[i]; b = p[0]; y[i] = Select(a > 1, a, b)

    TVM makes a branch of a choice that reads elements: they might not exist. These do.

    The nest with elements named that choices read, if they exist.

    Parameters
    ----------
    nest : Nest
        Its tensors have their own shapes.
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
    """Whether an element is known to be in its tensor."""
    return all(
        not loads_of(index)
        and analyzer.can_prove(index >= int64(0))
        and analyzer.can_prove(index < size)
        for index, size in zip(load.indices, load.source.shape, strict=True)
    )


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
        """A value with tables for its parts, the largest ones that may have one."""
        axes = self._axes_of(value)
        return with_parts(value, self._over) if axes is None else self._entry(value, axes)

    def _axes_of(self, value: Expr) -> list[Axis] | None:
        """The axes of a table for a value; None if it should have none."""
        if isinstance(value, TensorLoad | tirx.Var) or expressions.cost_of(value) <= LEAST_COST:
            return None
        used, (*_, last) = expressions.variables_of(value), self.nest.spatial
        shared = [axis for axis in self.nest.spatial if axis.var not in used]
        if last.var not in used or math.prod(axis.extent for axis in shared) < LEAST_SHARED:
            return None
        if not all(any(same(load, other) for other in self.read) for load in loads_of(value)):
            return None
        # There may be entries without an element that needs them, where a size is 0.
        if any(not const_int(division.b) for division in expressions.divisions_of(value)):
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
    """Lanes of any type as lanes to move."""
    element = ex.element_of(value) if bits == 32 else f"uint{bits}"
    return value if ex.element_of(value) == element else ex.reinterpret(element, value)


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
    """Rows of less than 32 bits as one vector of words: element 0 of all rows, element 1, ..."""
    if len(rows) == 1:
        return rows[0]
    pixels = ex.lanes_of(rows[0])
    lanes = [row * pixels + at for at in range(pixels) for row in range(len(rows))]
    return ex.bind(ex.reinterpret_group("int32", ex.shuffle(list(rows), lanes), pixels))


def interleaved(rows: Sequence[Expr]) -> list[Expr]:
    """As many vectors: element 0 of all rows, element 1 of all rows, and so on.

    The rows are a power of two.
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
    """What `interleaved` makes, of any number of rows, by one shuffle for every row but one."""
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
    """The flat sequence of `pixels` groups of `size` elements, a vector for every group."""
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
