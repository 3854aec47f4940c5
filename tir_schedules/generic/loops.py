"""The loops of generic schedules: flat buffers, merged axes, vectors, parallel outer loops.

for i, j in grid(64, 48): y[i, j] = x[i, j] * b[0]     (all accesses have equal strides)

->  for f in parallel(192): for v in vectorized(16): y[f * 16 + v] = x[f * 16 + v] * b[0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.tir import IMPORT_LLVM
from microkernels.machines.machine import Machine
from microkernels.microkernel import FENCE, FENCE_LLVM_IR, HIDDEN, HIDDEN_LLVM_IR
from microkernels.vector import unlikely
from microkernels.vector.expressions import Expr, Index, element_of
from tir_schedules.cost.parallel import LEAST_MOVED, MEASURED_THREADS, threads_worth

from . import expressions
from .expressions import int64, substitute
from .nest import Axis, FunctionNests, Nest, Store, analyzer_for
from .vector_math import lower_math

OPERATION_CYCLES, ELEMENT_CYCLES = 1.18, 2.96
"""Cycles of a vector: of an operation that costs an addition, and of an access to L2."""

Strides = dict[tirx.Var, "int | None"]
Body = Callable[[Expr], tirx.Stmt]
"""Makes the statement for a position."""


@dataclass(frozen=True)
class View:
    """A buffer seen as one row; dimensions with stride 0 do not count towards the position."""

    flat: tirx.Var
    strides: tuple[Index, ...]

    def offset(self, indices: Sequence[Expr]) -> Expr:
        """Position of an element in the row."""
        total: Expr = int64(0)
        for index, stride in zip(indices, self.strides, strict=True):
            if not isinstance(stride, int):
                total = total + index * stride
            elif stride:
                total = total + index * int64(stride)
        return total


def parameter_views(func: tirx.PrimFunc) -> tuple[dict[tirx.Var, View], list[tirx.Stmt]]:
    """Flat views of a function's tensors, and their declarations."""
    views = {each: view_of(each) for each in func.params if hasattr(each, "shape")}
    return views, [tirx.DeclBuffer(view.flat, data=each.data) for each, view in views.items()]


def with_statements(func: tirx.PrimFunc, statements: Sequence[tirx.Stmt]) -> tirx.PrimFunc:
    """The function with a body of these statements.

    TVM's later passes expect a root block, which may be empty otherwise.
    """
    root = s_tir.SBlock([], [], [], "root", sequence(statements))
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root))


def temporary_view(buffer: tirx.Var, dropped: Sequence[int] = ()) -> View:
    """The `view_of` a temporary buffer, with conditions stored as bytes.

    TVM mixes up the vector types of conditions that were stored as booleans.
    """
    return view_of(buffer, dropped, "uint8" if buffer.dtype == "bool" else buffer.dtype)


def temporary_views(
    program: FunctionNests, inside: Collection[tirx.Var] = ()
) -> tuple[dict[tirx.Var, View], list[tirx.Stmt]]:
    """Views of temporary buffers that are not `inside` bands; allocations of the written ones."""
    written = {store.buffer for nest in program.nests for store in nest.results}
    views = {each: temporary_view(each) for each in program.temporaries if each not in inside}
    return views, [tirx.AllocBuffer(own.flat) for each, own in views.items() if each in written]


def view_of(buffer: tirx.Var, dropped: Sequence[int] = (), dtype: str = "") -> View:
    """A flat view of a buffer, or, without the `dropped` dimensions, of the part for one band."""
    extents: list[Index] = []
    for dimension, extent in enumerate(buffer.shape):
        known = 1 if dimension in dropped else expressions.const_int(extent)
        extents.append(extent if known is None else known)
    strides = [
        0 if isinstance(extent, int) and extent == 1 else math.prod(extents[d + 1 :])
        for d, extent in enumerate(extents)
    ]
    size = math.prod(extents)
    size = int64(max(size, 1)) if isinstance(size, int) else size
    flat = tirx.decl_buffer((size,), dtype or buffer.dtype, f"{buffer.name}_flat")
    return View(flat, tuple(strides))


def flattened(nest: Nest, views: dict[tirx.Var, View]) -> Nest:
    """The nest with every access on flat buffers, as one simplified position."""
    analyzer = analyzer_for(nest.axes())

    def change(load: TensorLoad) -> Expr:
        view = views.get(load.source)
        if view is None:
            return load
        flat = tirx.BufferLoad(view.flat, [analyzer.simplify(view.offset(load.indices))])
        if str(load.ty.dtype) == "bool" and view.flat.dtype != "bool":
            return tirx.NE(flat, tirx.const(0, str(view.flat.dtype)))
        return flat

    def in_store(store: Store) -> Store:
        view = views[store.buffer]
        indices = [expressions.map_loads(index, change) for index in store.indices]
        value = expressions.map_loads(store.value, change)
        if str(value.ty.dtype) == "bool" and view.flat.dtype != "bool":
            value = tirx.Cast(str(view.flat.dtype), value)
        return Store(view.flat, (analyzer.simplify(view.offset(indices)),), value, store.init)

    return nest.mapped(in_store, lambda value: expressions.map_loads(value, change))


def access_strides(nest: Nest) -> tuple[list[Strides], list[Strides]]:
    """Strides of every load, and of every store, of a flat nest."""
    axes, analyzer = [axis.var for axis in nest.axes()], nest.analyzer()
    accesses = nest.distinct_reads(), (*nest.stores, *nest.epilogue)
    loads, stores = (
        [expressions.strides_of(a.indices[0], axes, analyzer) for a in each] for each in accesses
    )
    return loads, stores


def numbers_used(nest: Nest) -> set[tirx.Var]:
    """The axes whose variables are used as numbers, not only in positions."""
    used: set[tirx.Var] = set()
    for value in nest.values():
        used |= expressions.variables_beside_loads(value)
        for load in expressions.loads_of(value):
            if expressions.loads_of(load.indices[0]):
                used |= expressions.variables_beside_loads(load.indices[0])
    return used


def collapsed(nest: Nest, kept: Iterable[tirx.Var] = ()) -> Nest:
    """The flat nest with neighbouring axes merged if every access steps through both as one."""
    loads, stores = access_strides(nest)
    every = [*loads, *stores]
    numbers = numbers_used(nest).union(kept)
    result = stores[-1]
    spatial = sorted(nest.spatial, key=lambda axis: -(result[axis.var] or 0))
    values: dict[tirx.Var, Expr] = {}

    def alike(outer: Axis, inner: Axis) -> bool:
        pairs = [(strides[outer.var], strides[inner.var]) for strides in every]
        known = all(far is not None and step is not None for far, step in pairs)
        steps = known and all(far == (step or 0) * inner.extent for far, step in pairs)
        return steps and numbers.isdisjoint((outer.var, inner.var))

    def merge(axes: Sequence[Axis]) -> tuple[Axis, ...]:
        merged: list[Axis] = []
        for axis in axes:
            outer = merged[-1] if merged else None
            if outer is None or not alike(outer, axis):
                merged.append(axis)
                continue
            both = Axis.new(outer.extent * axis.extent, axis.var.name)
            values[outer.var] = int64(0)
            values[axis.var] = both.var
            for strides in every:
                strides[both.var] = strides[axis.var]
            merged[-1] = both
        return tuple(merged)

    spatial_merged, reduce_merged = merge(spatial), merge(nest.reduce)
    # A merged axis may have been merged again: follow the chain to its last variable.
    for var, value in values.items():
        while isinstance(value, tirx.Var) and value in values:
            value = values[value]
        values[var] = value
    merged_nest = replace(nest, spatial=spatial_merged, reduce=reduce_merged)
    return merged_nest.substituted(values).simplified()


@dataclass(frozen=True)
class Plan:
    """A flat nest with the strides of its accesses, and the machine and threads for its loops."""

    nest: Nest
    loads: list[Strides]
    stores: list[Strides]
    machine: Machine
    threads: int

    @staticmethod
    def of(nest: Nest, machine: Machine, threads: int) -> Plan:
        """The plan for loops that `threads` share."""
        return Plan(nest, *access_strides(nest), machine, threads)


def pieces(extent: int, lanes: int) -> list[tuple[int, int]]:
    """(start, lanes) of the vectors that cover an extent: full ones, then halves that fit."""
    found = [(start, lanes) for start in range(0, extent - lanes + 1, lanes)]
    start = len(found) * lanes
    while start < extent:
        lanes //= 2
        if extent - start >= lanes:
            found.append((start, lanes))
            start += lanes
    return found


def loop(
    var: tirx.Var, count: Expr, body: tirx.Stmt, kind: tirx.ForKind = tirx.ForKind.SERIAL
) -> tirx.Stmt:
    """A loop from 0 to before `count`."""
    return tirx.For(var, int64(0), count, kind, body)


def over_axes(axes: Sequence[Axis], body: tirx.Stmt, parallel: bool = False) -> tirx.Stmt:
    """Loops over the axes, of any size; if `parallel`, threads share the outermost."""
    for number, axis in reversed(list(enumerate(axes))):
        shared = parallel and number == 0
        kind = tirx.ForKind.PARALLEL if shared else tirx.ForKind.SERIAL
        body = loop(axis.var, axis.stated, body, kind)
    return body


def in_shares(size: Expr, threads: int, body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
    """A parallel loop over threads, each of which runs `body(first, count)` for its chunk."""
    part = tirx.Var("part", "int64")
    share = tirx.floordiv(size + int64(threads - 1), int64(threads))
    first = part * share
    count = tirx.Min(share, tirx.Max(size - first, int64(0)))
    return loop(part, int64(threads), body(first, count), tirx.ForKind.PARALLEL)


def serial(extent: int, body: Body, kind: tirx.ForKind = tirx.ForKind.SERIAL) -> tirx.Stmt:
    """A loop with constant extent; only the body if there is a single iteration."""
    if extent == 1:
        return body(int64(0))
    var = tirx.Var("i", "int64")
    return loop(var, int64(extent), body(var), kind)


def hidden(extent: int, body: Body) -> tirx.Stmt:
    """A loop whose extent is hidden from LLVM.

    With a known extent LLVM could prove that copies do not overlap, and make each a memcpy.
    """
    if extent == 1:
        return body(int64(0))
    var, count = tirx.Var("i", "int64"), tirx.Var("count", "int32")
    number = tirx.call_extern("int32", HIDDEN, tirx.const(extent, "int32"))
    steps = loop(var, tirx.Cast("int64", count), body(var))
    bound = tirx.SeqStmt([tirx.Bind(count, number), steps])
    return tirx.AttrStmt(int64(0), IMPORT_LLVM, HIDDEN_LLVM_IR, bound)


def without_memcpy(extent: int, body: Body) -> tirx.Stmt:
    """A copying loop that LLVM makes no memcpy of, because its fence might change memory."""
    fence = tirx.Evaluate(tirx.call_extern("int32", FENCE))
    steps = serial(extent, lambda step: sequence([fence, body(step)]))
    return tirx.AttrStmt(int64(0), IMPORT_LLVM, FENCE_LLVM_IR, steps)


def vectorized(lanes: int, body: Body) -> tirx.Stmt:
    """A loop whose iterations are the lanes of one vector."""
    found = serial(lanes, body, tirx.ForKind.VECTORIZED)
    return without_repeats(found) if isinstance(found, tirx.For) else found


def stored(buffer: tirx.Var, first: Expr, lanes: int, value: Callable[[Expr], Expr]) -> tirx.Stmt:
    """Stores a vector from position `first` on; `value` gives the element of a lane."""
    return vectorized(lanes, lambda lane: tirx.BufferStore(buffer, value(lane), [first + lane]))


def without_repeats(loop: tirx.For) -> tirx.For:
    """A vectorised loop, or a serial one if it stores a loop-invariant bfloat16.

    TVM fails on such a vector; LLVM vectorises the serial loop.
    """
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    analyzer = Analyzer()
    analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
    axes: dict[tirx.Var, Expr] = {}
    for each in expressions.nodes_of(loop.body, s_tir.SBlockRealize):
        variables = [axis.var for axis in each.block.iter_vars]
        axes.update(zip(variables, each.iter_values, strict=True))
    values = [store.value for store in expressions.nodes_of(loop.body, tirx.BufferStore)]
    if all(
        element_of(value) != "bfloat16"
        or loop.loop_var in expressions.variables_of(analyzer.simplify(substitute(value, axes)))
        for value in values
    ):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def unrolled(extent: int, body: Body) -> tirx.Stmt:
    """An unrolled loop."""
    return serial(extent, body, tirx.ForKind.UNROLLED)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Statements one after the other; nested sequences are joined."""
    flat: list[tirx.Stmt] = []
    for statement in statements:
        flat += statement.seq if isinstance(statement, tirx.SeqStmt) else [statement]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def store_statement(nest: Nest, stores: Sequence[Store], at: dict[tirx.Var, Expr]) -> tirx.Stmt:
    """The stores of one point, or of one vector if `at` has a vectorised loop's variable."""
    statements = []
    for store in stores:
        names = {var: tirx.Var(var.name, str(var.ty.dtype)) for var, _ in nest.lets}
        known = {**at, **names}
        value = lower_math(substitute(store.value, known))
        for var, named in reversed(nest.lets):
            value = tirx.Let(names[var], lower_math(substitute(named, known)), value)
        statements.append(
            tirx.BufferStore(store.buffer, value, [substitute(store.indices[0], known)])
        )
    return sequence(statements)


def threads_sharing(nests: Iterable[Nest], machine: Machine) -> int:
    """The number of threads that are worth their cost for nests."""
    us = 0.0  # rough time of vectorised nests on one core
    for nest in nests:
        work = sum(expressions.cost_of(store.value) for store in nest.stores)
        work += sum(expressions.cost_of(value) for _, value in nest.lets)
        own = {store.buffer for store in nest.stores} if nest.reduce else set()
        touched = sum(load.source not in own for load in nest.reads())
        results = math.prod(axis.extent for axis in nest.spatial) * len(nest.results)
        each = OPERATION_CYCLES * work + ELEMENT_CYCLES * touched
        cycles = (nest.points * each + ELEMENT_CYCLES * results) / machine.isa.f32_lanes
        us += cycles / machine.cycles_per_us
    return threads_worth(machine, us, LEAST_MOVED)


def nested(axes: Sequence[Axis], body: tirx.Stmt, machine: Machine, threads: int) -> tirx.Stmt:
    """Loops over the axes, outermost first; the outer ones as one parallel loop for `threads`.

    The parallel loop joins as many axes as give every thread eight iterations or more. TVM gives
    every thread equally many iterations, rounded up, so some threads may get none. If that happens,
    or fewer threads take part, each iteration of the parallel loop is the chunk of one thread.
    """
    units = {axis.var: int64(0) for axis in axes if axis.extent == 1}
    body = substitute(body, units)
    axes = [axis for axis in axes if axis.extent != 1]
    count = 0
    passes = 1
    if threads > 1:
        while count < len(axes) and passes < 8 * threads:
            passes *= axes[count].extent
            count += 1
    body = over_axes(axes[count:], body)
    if passes == 1:
        return body
    joined = Axis.new(passes, "task")
    values: dict[tirx.Var, Expr] = {}
    inner = 1
    for axis in reversed(axes[:count]):
        value: Expr = joined.var
        if inner > 1:
            value = tirx.FloorDiv(value, int64(inner))
        if inner * axis.extent < passes:
            value = tirx.FloorMod(value, int64(axis.extent))
        values[axis.var] = value
        inner *= axis.extent
    body = substitute(body, values)
    uneven = machine.threads > MEASURED_THREADS and passes % threads > 0
    if threads >= passes or not (uneven or threads < machine.threads):
        return over_axes([joined], body, parallel=True)
    # Chunks of neighbouring iterations differ by one at most.
    share, step = tirx.Var("share", "int64"), tirx.Var("step", "int64")
    first, last = (
        tirx.FloorDiv((share + int64(i)) * int64(passes), int64(threads)) for i in range(2)
    )
    body = substitute(body, {joined.var: first + step})
    body = loop(step, last - first, body)
    return loop(share, int64(threads), body, tirx.ForKind.PARALLEL)


def loop_of_elements(place: tirx.Var, extent: Expr, body: tirx.Stmt, lanes: int) -> tirx.Stmt:
    """A serial loop, or one in vectors if the body branches, which LLVM does not vectorise."""
    branches = expressions.calls_of(body, unlikely.NAME.removeprefix("tirx."))
    if not branches or expressions.nodes_of(body, tirx.For):
        return loop(place, extent, body)
    lane, widened = Axis.new(lanes, "lane"), dict[tirx.Var, tirx.Var]()
    rest: list[tirx.Stmt] = []
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if isinstance(statement, tirx.AllocBuffer):  # one element becomes a vector
            old = statement.buffer
            widened[old] = tirx.decl_buffer((int64(lanes),), old.dtype, old.name)
        else:
            rest.append(statement)
    allocated = list(map(tirx.AllocBuffer, widened.values()))
    filled = redirected(sequence(rest), lambda buffer, _: (widened.get(buffer), lane.var))

    def wide(first: Expr) -> tirx.Stmt:
        inner = substitute(filled, {place: first + lane.var})
        vector = tirx.For(lane.var, int64(0), int64(lanes), tirx.ForKind.VECTORIZED, inner)
        return sequence([*allocated, without_repeats(vector)])

    return vectors_and_rest(int64(0), extent, lanes, wide, lambda at: substitute(body, {place: at}))


def vectors_and_rest(start: Expr, extent: Expr, lanes: int, wide: Body, single: Body) -> tirx.Stmt:
    """A loop over whole vectors, given their first elements, and a loop over the tail."""
    vector, rest = tirx.Var("vector", "int64"), tirx.Var("rest", "int64")
    whole = tirx.floordiv(extent, int64(lanes))
    last = whole * int64(lanes)
    vectors = loop(vector, whole, wide(start + vector * int64(lanes)))
    return sequence([vectors, loop(rest, extent - last, single(start + last + rest))])


def redirected(
    body: tirx.Stmt, place: Callable[[tirx.Var, Sequence[Expr]], tuple[tirx.Var | None, Expr]]
) -> tirx.Stmt:
    """A statement with its accesses moved to other buffers.

    `place` maps a buffer and indices to a flat buffer and a position, or to None if it stays.
    """

    def load(node: TensorLoad) -> Expr:
        buffer, at = place(node.source, node.indices)
        return node if buffer is None else tirx.BufferLoad(buffer, [at])

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        buffer, at = place(node.buffer, node.indices)
        return node if buffer is None else tirx.BufferStore(buffer, node.value, [at])

    return tvm_ffi.structural_map(body, [(TensorLoad, load), (tirx.BufferStore, store)])
