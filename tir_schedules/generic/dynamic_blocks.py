"""Loops for functions of dynamic sizes whose inner axes are static, and for their reductions.

    for b in range(n): for i, j in grid(56, 64): y[b, i, j] = max(x[b, i, j], 0)     n not known

->  for b in range(n): the schedule of   for i, j in grid(56, 64): y[i, j] = max(x[i, j], 0)

An item is one index of every such size (`dynamic_items`). That works where each block reads and
writes, of a tensor that has such a size, only what lies at its own index, and where an item lies in
one piece.

    for n, h, w, c in grid(b, (x - 1) // 2 + 1, y, 96): z[n, h, w, c] = max(x[n, h, w, c], 0)

->  for n, h, w: for v in vectorized(16), six times: z[n, h, w, 16 * i + v] = ...

`static_rows` takes what that leaves: sizes that are expressions, and sums over dynamic sizes. What
comes before is computed where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from . import dynamic_elements, expressions
from .accumulators import along_results, dynamic_row, not_combined
from .dynamic_elements import SHORT, dynamic_nests, element_loops, over_axes, step_along, views_of
from .elementwise import elementwise_loops, lanes_for
from .expressions import int64
from .fusion import merge_nests, program_loops
from .loops import flattened, loop_of_elements, redirected, sequence, view_of, with_statements
from .nest import Nest, NotHandledError, Store, is_number, read_program
from .reads import with_selects
from .reduction import reduction_loops
from .windows import window_loops, windows_of


def dynamic_items(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """The function as serial loops over items, each by the loops of static sizes.

    Threads share an item.

    Raises
    ------
    NotHandledError
        If all sizes are known, or an item reads or writes more than its own index.
    """
    symbols = _symbols(func)
    if not symbols:
        raise NotHandledError("all sizes are known")
    if any(map(is_number, func.params)):
        raise NotHandledError("a size is a parameter")
    places: dict[Expr, tirx.Var] = {each: tirx.Var(f"at_{each.name}", "int64") for each in symbols}
    program = read_program(func, dynamic_elements.size_or_sample)
    items = {each: _item_of(each) for each in (*func.params, *program.temporaries)}
    views = {items[each]: view_of(items[each]) for each in func.params}
    moved: dict[tirx.Var, tuple[tirx.Var, Expr]] = {}
    declared: list[tirx.Stmt] = []
    for param in func.params:
        size: Expr = int64(1)
        offset: Expr = int64(0)  # where an item begins
        for extent in reversed(list(param.shape)):
            if isinstance(extent, tirx.Var):
                offset = offset + places[extent] * size
            size = size * extent
        flat = tirx.decl_buffer((size,), param.dtype, f"{param.name}_items")
        moved[views[items[param]].flat] = flat, offset
        declared.append(tirx.DeclBuffer(flat, data=param.data))
    item = replace(
        program,
        temporaries=tuple(items[each] for each in program.temporaries),
        nests=tuple(_nest_of_item(nest, places, items) for nest in program.nests),
    )
    statements, name = program_loops(merge_nests(item), views, machine)

    def in_whole(buffer: tirx.Var, indices: Sequence[Expr]) -> tuple[tirx.Var | None, Expr]:
        flat, offset = moved.get(buffer, (None, int64(0)))
        return flat, indices[0] + offset

    body = redirected(sequence(statements), in_whole)
    *outer, last = symbols
    body = loop_of_elements(places[last], last, body, machine.isa.f32_lanes)
    for symbol in reversed(outer):
        body = tirx.For(places[symbol], int64(0), symbol, tirx.ForKind.SERIAL, body)
    return with_statements(func, [*declared, body]), name


def _symbols(func: tirx.PrimFunc) -> list[tirx.Var]:
    """The variables that are sizes of parameters, in order."""
    found: dict[tirx.Var, None] = {}
    for param in func.params:
        inside = False
        for size in getattr(param, "shape", ()):
            if isinstance(size, tirx.Var):
                found[size] = None
                if inside:
                    raise NotHandledError(f"items of {param.name} lie apart")
            elif expressions.const_int(size) is None:
                raise NotHandledError(f"{param.name} has the size {size}")
            else:
                inside = inside or expressions.const_int(size) != 1
    return list(found)


def _item_of(buffer: tirx.Var) -> tirx.Var:
    """A buffer for one index of every dynamic size of another one."""
    if all(expressions.const_int(size) is not None for size in buffer.shape):
        return buffer
    shape = [int64(1) if expressions.const_int(size) is None else size for size in buffer.shape]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name)


def _nest_of_item(
    nest: Nest, places: Mapping[Expr, tirx.Var], items: Mapping[tirx.Var, tirx.Var]
) -> Nest:
    """The nest of a single index of every dynamic size, which `places` name, on buffers of items.

    It may be used as a number, or to index static sizes. Dynamic sizes have to be indexed by it.
    """
    own: dict[tirx.Var, Expr] = {}
    for axis in nest.axes():
        if axis.end is None:
            continue
        place = places.get(axis.end)
        if place is None or axis in nest.reduce or place in own.values():
            raise NotHandledError(f"{nest.name} has an axis of {axis.end}")
        own[axis.var] = place

    moved = nest.substituted(own)
    accesses = [(load.source, load.indices) for load in moved.reads()]
    accesses += [(store.buffer, store.indices) for store in moved.results]
    for buffer, indices in accesses:
        for size, index in zip(buffer.shape, indices, strict=True):
            if expressions.const_int(size) is None and not index.same_as(places.get(size)):
                raise NotHandledError(f"{buffer.name} is not indexed by one item of {size}")

    def indices_in(buffer: tirx.Var, given: Iterable[Expr]) -> list[Expr]:
        pairs = zip(buffer.shape, given, strict=True)
        return [int64(0) if expressions.const_int(size) is None else index for size, index in pairs]

    def load(node: TensorLoad) -> Expr:
        return tirx.BufferLoad(items[node.source], indices_in(node.source, node.indices))

    def in_store(store: Store) -> Store:
        at = [expressions.map_loads(index, load) for index in store.indices]
        value = expressions.map_loads(store.value, load)
        return Store(items[store.buffer], tuple(indices_in(store.buffer, at)), value, store.init)

    spatial = tuple(axis for axis in nest.spatial if axis.end is None)
    inside = moved.mapped(in_store, lambda value: expressions.map_loads(value, load))
    return replace(inside, spatial=spatial).simplified()


def static_rows(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Loops for what `dynamic_elements` and `dynamic_items` leave: static rows that lie apart.

    Raises
    ------
    NotHandledError
        If all sizes are known, or it reduces.
    """
    program = dynamic_elements.program_of_elements(func)
    views, statements = views_of(program)
    statements += [row_loops(flattened(nest, views), machine) for nest in program.nests]
    return with_statements(func, statements), "generic_injective"


def row_loops(nest: Nest, machine: Machine) -> tirx.Stmt:
    """The loops of static sizes for the inner axes, in loops over all others.

    Threads share the two outermost axes: a batch may be one image.
    """
    count = max((n for n, axis in enumerate(nest.spatial, 1) if axis.end is not None), default=0)
    outer, inner = nest.spatial[:count], replace(nest, spatial=nest.spatial[count:])
    loops = reduction_loops if nest.reduce else elementwise_loops
    body, _ = loops(inner, replace(machine, threads=1), False)
    if machine.threads == 1 or count < 2 or (count == 2 and inner.points < SHORT):
        return over_axes(outer, body, machine)
    first, second, *rest = outer
    body = over_axes(tuple(rest), body, replace(machine, threads=1))
    task = tirx.Var("task", "int64")
    at = {first.var: task // second.stated, second.var: task % second.stated}
    passes = first.stated * second.stated
    return tirx.For(task, int64(0), passes, tirx.ForKind.PARALLEL, expressions.substitute(body, at))


def dynamic_reductions(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Reductions of tensors with dynamic sizes, in vectors.

        for i, k in grid(n, m): y[i] += x[i, k]

        ->  for i: four accumulators of vectors; what is left of k, one by one; add the lanes up

        for k, j in grid(m, n): y[j] += x[k, j]

        ->  for j: y[j] = 0
            for k: for j: y[j] += x[k, j]                LLVM makes vectors of it

    Loops stand in that order where neighbours of the result read neighbours. TVM's order, the
    reduced axis innermost, jumps from row to row, and LLVM may not reorder a sum of floats.

    Loops for a function that reduces, alone or with what is computed of the result.

    Raises
    ------
    NotHandledError
        If all sizes are known, or it is no such function.
    """
    program = dynamic_nests(func)
    if not any(nest.reduce for nest in program.nests):
        raise NotHandledError("it reduces nothing")
    views, statements = views_of(program)
    for nest in program.nests:
        flat = flattened(nest if nest.reduce else with_selects(nest), views)
        statements.append(_loops(flat, machine) if nest.reduce else element_loops(flat, machine))
    return with_statements(func, statements), "generic_reduction"


def _loops(nest: Nest, machine: Machine) -> tirx.Stmt:
    windows = windows_of(nest)
    if windows is not None:
        return window_loops(windows, machine)
    if all(axis.end is None for axis in (*nest.spatial[-1:], *nest.reduce)):
        return row_loops(nest, machine)
    nest = dynamic_elements.with_fewer_reduced(nest)
    reason = "names values" if nest.lets else not_combined(nest)
    if reason:
        raise NotHandledError(f"{nest.name} {reason}")
    loads = [load for store in nest.stores for load in expressions.loads_of(store.value.b)]
    lanes = lanes_for(nest, machine)
    for axis in reversed(nest.reduce):
        steps = [step_along(nest, load.indices[0], axis) for load in loads]
        if lanes > 1 and 1 in steps and all(step in (0, 1) for step in steps):
            return over_axes(nest.spatial, dynamic_row(nest, axis, lanes), machine)
    for axis in nest.spatial[-1:]:
        steps = [step_along(nest, load.indices[0], axis) for load in loads]
        written = [step_along(nest, store.indices[0], axis) for store in nest.results]
        if all(step in (0, 1) for step in steps) and set(written) == {1}:
            return over_axes(nest.spatial[:-1], along_results(nest, axis), machine)
    raise NotHandledError(f"{nest.name} reads no neighbours")
