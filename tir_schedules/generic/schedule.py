"""Loops for every function that no template builds: vectorised, parallel, fused.

TVM lowers an operator to serial scalar loops. This schedule reads them as nests (what is computed,
not how), merges the nests, and writes new loops:

    for i, j in grid(128, 768): a[i, j] = x[i, j] + y[i, j]
    for i, j in grid(128, 768): z[i, j] = max(a[i, j], 0)

    ->  for f in parallel(6144):
            for v in vectorized(16): z[16 * f + v] = max(x[16 * f + v] + y[16 * f + v], 0)

Each rule either schedules a function or says why it cannot. The last rule takes every function and
leaves its loops as they are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.relax.analysis import has_reshape_pattern

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr
from tir_schedules.core.emission import walk

from . import dynamic_elements as dynamic
from . import expressions, loops
from .accumulators import along_results, dynamic_row, not_combined
from .elementwise import lanes_for
from .expressions import int64
from .fusion import merge_nests, nest_loops, program_loops
from .nest import Nest, NotHandledError, Store, is_number, read_program
from .reads import with_selects
from .transpose import blocks_across
from .vector_math import ascending, lower_math, names_in_memory
from .windows import window_loops, windows_of

WHOLE_COPY = "tvm_hybrid.whole_copy"
"""Attribute of a function that stores its first tensor's elements in its last, in order."""


def whole_copy(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """A loop that copies all elements, in chunks for the threads.

    Raises
    ------
    NotHandledError
        If all sizes are static, or elements are changed or moved.
    """
    dynamic.require_dynamic(func)
    if WHOLE_COPY not in (func.attrs or {}) and not has_reshape_pattern(func):
        raise NotHandledError("it does more than copy")
    views, declarations = loops.parameter_views(func)
    source, *_, result = views.values()

    def copied(at: Expr) -> tirx.Stmt:
        return tirx.BufferStore(result.flat, tirx.BufferLoad(source.flat, [at]), [at])

    loop = dynamic.flat_loop(result.flat.shape[0], copied, machine)
    return loops.with_statements(func, [*declarations, loop]), "generic_injective"


def dynamic_transposes(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Blocked loops for elements of dynamic sizes that are stored across their order of reading.

    Raises
    ------
    NotHandledError
        If all sizes are static, or it reads along the axis that it stores along.
    """
    program = dynamic.dynamic_nests(func)
    if len(program.nests) != 1 or program.nests[0].reduce:
        raise NotHandledError("it does more than one pass over elements")
    views, statements = loops.parameter_views(func)
    statements.append(blocks_across(loops.flattened(program.nests[0], views), machine))
    return loops.with_statements(func, statements), "generic_transpose"


# Loops for functions of dynamic sizes whose inner axes are static, and for their reductions.
#
#     for b in range(n): for i, j in grid(56, 64): y[b, i, j] = max(x[b, i, j], 0)     n is dynamic
#
# ->  for b in range(n): the schedule of   for i, j in grid(56, 64): y[i, j] = max(x[i, j], 0)
#
# An item is one index of every dynamic size (`dynamic_items`). This needs blocks that access a
# tensor with a dynamic size only at their own index, and items that are contiguous.
#
#     for n, h, w, c in grid(b, (x - 1) // 2 + 1, y, 96): z[n, h, w, c] = max(x[n, h, w, c], 0)
#
# ->  for n, h, w: for v in vectorized(16), six times: z[n, h, w, 16 * i + v] = ...
#
# `static_rows` takes functions that earlier rules refuse: sizes that are expressions, and sums over
# dynamic sizes. Intermediate results are computed where they are needed.


def dynamic_items(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """The function as serial loops over items, each with the loops of static sizes.

    Threads share an item.

    Raises
    ------
    NotHandledError
        If all sizes are static, or an item reads or writes more than its own index.
    """
    symbols = _symbols(func)
    if not symbols:
        raise NotHandledError("all sizes are static")
    if any(map(is_number, func.params)):
        raise NotHandledError("a size is a parameter")
    places: dict[Expr, tirx.Var] = {each: tirx.Var(f"at_{each.name}", "int64") for each in symbols}
    program = read_program(func, dynamic.size_or_sample)
    items = {each: _item_of(each) for each in (*func.params, *program.temporaries)}
    views = {items[each]: loops.view_of(items[each]) for each in func.params}
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

    body = loops.redirected(loops.sequence(statements), in_whole)
    *outer, last = symbols
    body = loops.loop_of_elements(places[last], last, body, machine.isa.f32_lanes)
    for symbol in reversed(outer):
        body = loops.loop(places[symbol], symbol, body)
    return loops.with_statements(func, [*declared, body]), name


def _symbols(func: tirx.PrimFunc) -> list[tirx.Var]:
    """The variables that are sizes of parameters, in order."""
    found: dict[tirx.Var, None] = {}
    for param in func.params:
        inside = False
        for size in getattr(param, "shape", ()):
            if isinstance(size, tirx.Var):
                found[size] = None
                if inside:
                    raise NotHandledError(f"items of {param.name} are not contiguous")
            elif expressions.const_int(size) is None:
                raise NotHandledError(f"{param.name} has the size {size}")
            else:
                inside = inside or expressions.const_int(size) != 1
    return list(found)


def _item_of(buffer: tirx.Var) -> tirx.Var:
    """A buffer for the part of another one at one index of every dynamic size."""
    if all(expressions.const_int(size) is not None for size in buffer.shape):
        return buffer
    shape = [int64(1) if expressions.const_int(size) is None else size for size in buffer.shape]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name)


def _nest_of_item(
    nest: Nest, places: Mapping[Expr, tirx.Var], items: Mapping[tirx.Var, tirx.Var]
) -> Nest:
    """The nest for one index of every dynamic size, named by `places`, on buffers of items."""
    own: dict[tirx.Var, Expr] = {}
    for axis in nest.axes():
        if axis.end is None:
            continue
        place = places.get(axis.end)
        if place is None or axis in nest.reduce or place in own.values():
            raise NotHandledError(f"{nest.name} has an axis of {axis.end}")
        own[axis.var] = place

    moved = nest.substituted(own)
    # The index may be used as a number, or for static sizes; dynamic sizes must be indexed by it.
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
    """Loops for functions that `dynamic_elements` and `dynamic_items` refuse, by `row_loops`.

    Raises
    ------
    NotHandledError
        If all sizes are static, or it reduces.
    """
    program = dynamic.program_of_elements(func)
    views, statements = dynamic.views_of(program)
    statements += [row_loops(loops.flattened(nest, views), machine) for nest in program.nests]
    return loops.with_statements(func, statements), "generic_injective"


def row_loops(nest: Nest, machine: Machine) -> tirx.Stmt:
    """The loops of static sizes for the static inner axes, in loops over all other axes.

    Threads share the two outermost axes, because a batch may be one image.
    """
    count = max((n for n, axis in enumerate(nest.spatial, 1) if axis.end is not None), default=0)
    outer, inner = nest.spatial[:count], replace(nest, spatial=nest.spatial[count:])
    body, _ = nest_loops(inner, replace(machine, threads=1), False)
    if machine.threads == 1 or count < 2 or (count == 2 and inner.points < dynamic.SHORT):
        return loops.over_axes(outer, body, machine.threads > 1)
    first, second, *rest = outer
    body = loops.over_axes(rest, body)
    task = tirx.Var("task", "int64")
    at = {first.var: task // second.stated, second.var: task % second.stated}
    passes = first.stated * second.stated
    return loops.loop(task, passes, expressions.substitute(body, at), tirx.ForKind.PARALLEL)


def dynamic_reductions(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Vectorised loops for reductions of dynamic sizes, with an epilogue if there is one.

        for i, k in grid(n, m): y[i] += x[i, k]

        ->  for i: four accumulators of vectors; the tail of k, one by one; add the lanes up

        for k, j in grid(m, n): y[j] += x[k, j]

        ->  for j: y[j] = 0
            for k: for j: y[j] += x[k, j]                LLVM vectorises this

    The second order is used if neighbours of the result read neighbours. TVM's order, with the
    reduced axis innermost, jumps from row to row, and LLVM may not reorder a sum of floats.

    Raises
    ------
    NotHandledError
        If all sizes are static, or the function has no such reduction.
    """
    program = dynamic.dynamic_nests(func)
    if not any(nest.reduce for nest in program.nests):
        raise NotHandledError("it reduces nothing")
    views, statements = dynamic.views_of(program)
    for nest in program.nests:
        flat = loops.flattened(nest if nest.reduce else with_selects(nest), views)
        statements.append(
            _loops(flat, machine) if nest.reduce else dynamic.element_loops(flat, machine)
        )
    return loops.with_statements(func, statements), "generic_reduction"


def _loops(nest: Nest, machine: Machine) -> tirx.Stmt:
    windows = windows_of(nest)
    if windows is not None:
        return window_loops(windows, machine)
    if all(axis.end is None for axis in (*nest.spatial[-1:], *nest.reduce)):
        return row_loops(nest, machine)
    nest = dynamic.with_fewer_reduced(nest)
    reason = "names values" if nest.lets else not_combined(nest)
    if reason:
        raise NotHandledError(f"{nest.name} {reason}")
    loads = [load for store in nest.stores for load in expressions.loads_of(store.value.b)]
    lanes = lanes_for(nest, machine)
    for axis in reversed(nest.reduce):
        steps = [nest.step_along(load.indices[0], axis) for load in loads]
        if lanes > 1 and 1 in steps and all(step in (0, 1) for step in steps):
            row = dynamic_row(nest, axis, lanes)
            return loops.over_axes(nest.spatial, row, machine.threads > 1)
    for axis in nest.spatial[-1:]:
        steps = [nest.step_along(load.indices[0], axis) for load in loads]
        written = [nest.step_along(store.indices[0], axis) for store in nest.results]
        if all(step in (0, 1) for step in steps) and set(written) == {1}:
            row = along_results(nest, axis)
            return loops.over_axes(nest.spatial[:-1], row, machine.threads > 1)
    raise NotHandledError(f"{nest.name} does not read neighbouring elements")


# Schedules functions that cannot be read as nests: unknown extents, sorting, scattering, scans.
#
# for i in range(n): with T.sblock("b"): ...  ->  for i in T.parallel(n): with T.sblock("b"): ...


def parallel_blocks(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Makes every block's outermost loop parallel, if its points are independent.

    Raises
    ------
    NotHandledError
        If there is one thread, or no block allows it.
    """
    if machine.threads == 1:
        raise NotHandledError("one thread only")
    func = with_starts(func)
    if not isinstance(func.body, s_tir.SBlockRealize):
        raise NotHandledError("the body is not a root block")
    schedule = s_tir.Schedule(func.with_body(lower_math(expressions.guard_floats(func.body))))
    root = schedule.get_sblock(func.body.block.name_hint)
    changed = False
    for block in schedule.get_child_blocks(root):
        loops = schedule.get_loops(block)
        kinds = [iterator.iter_type for iterator in schedule.get(block).iter_vars]
        if loops and kinds and kinds[0] == tirx.IterVar.DataPar:
            schedule.parallel(loops[0])
            changed = True
    if not changed:
        raise NotHandledError("no block with independent points")
    return schedule.mod["main"].with_attrs(func.attrs), "generic_blocks"


def loops_as_written(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """The function with the loops that it has; with one thread, none of them parallel."""
    func = with_starts(func)
    body = func.body
    if machine.threads == 1:
        body = tvm_ffi.structural_map(body, (tirx.For, _serial))
    return func.with_body(lower_math(expressions.guard_floats(body))), "generic_serial"


def with_starts(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Separates the initial store of a reduction from its steps if there may be no steps.

    for i, k: y[i] = (0 if k == 0 else y[i]) + x[i, k]   ->   for i: y[i] = 0
                                                              for i, k: y[i] = y[i] + x[i, k]
    """
    names = [
        each.name_hint
        for each in walk(func.body)
        if isinstance(each, s_tir.SBlock)
        and each.init is not None
        and any(
            axis.iter_type == tirx.IterVar.CommReduce
            and not isinstance(axis.dom.extent, tirx.IntImm)
            for axis in each.iter_vars
        )
    ]
    if not names:
        return func
    schedule = s_tir.Schedule(func)
    for name in names:
        block = schedule.get_sblock(name)
        schedule.decompose_reduction(block, schedule.get_loops(block)[0])
    return func.with_body(schedule.mod["main"].body)


def _serial(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    bounds = loop.loop_var, loop.min, loop.extent
    return tirx.For(*bounds, tirx.ForKind.SERIAL, loop.body, annotations=loop.annotations)


logger = logging.getLogger("tvm_hybrid")

ERRORS_VARIABLE = "TVM_HYBRID_RULE_ERRORS"
"""With the value "raise", an error in a rule ends the compilation; the project's tests use it."""

Rule = Callable[[tirx.PrimFunc, Machine], tuple[tirx.PrimFunc, str]]


def _nests(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    views, declarations = loops.parameter_views(func)
    statements, name = program_loops(merge_nests(read_program(func)), views, machine)
    return loops.with_statements(func, [*declarations, *statements]), name


RULES: tuple[Rule, ...] = (
    _nests,
    whole_copy,
    dynamic_transposes,
    dynamic.dynamic_elements,
    dynamic_items,
    dynamic_reductions,
    static_rows,
    parallel_blocks,
    loops_as_written,
)


def schedule_generic(
    func: tirx.PrimFunc, machine: Machine, called: str = "an item", failed: list[str] | None = None
) -> tuple[tirx.PrimFunc, str]:
    """Loops for a function, by the first rule that can write them.

    A rule refuses a function by a NotHandledError, or by TVM's ScheduleError. Every other error is
    a mistake in the rule.

    Parameters
    ----------
    func : tirx.PrimFunc
        A function as FuseTIR makes it.
    machine : Machine
        With one thread, no loop is parallel.
    called : str
        Name of the function in the log; by default, that of an item of a function named before.
    failed : list of str or None
        Gets a text for each rule with a mistake. The next rule then takes the function, which is
        slower, not wrong. If None, or if `TVM_HYBRID_RULE_ERRORS` is "raise", the error is raised.

    Returns
    -------
    func : tirx.PrimFunc
        The function with new loops.
    name : str
        "generic_injective", "generic_transpose", "generic_pool", "generic_reduction",
        "generic_blocks", or "generic_serial" for loops that stayed unchanged; the reasons are
        logged.
    """
    func, refused = aligned_to_elements(func), dict[str, None]()
    for rule in RULES:
        try:
            found, name = rule(func, machine)
            found = found.with_body(ascending(names_in_memory(found.body)))
        except NotHandledError as reason:
            refused[str(reason)] = None
        except Exception as error:
            if rule is RULES[-1]:
                raise
            lines = str(error).splitlines() or [""]
            if isinstance(error, s_tir.ScheduleError):
                refused[f"TVM refuses the schedule of {rule.__name__}: {lines[0]}"] = None
                continue
            if failed is None or os.environ.get(ERRORS_VARIABLE) == "raise":
                raise
            failed.append(f"{rule.__name__.strip('_')} failed: {type(error).__name__}: {lines[-1]}")
            logger.warning("%s: %s", called, failed[-1], exc_info=True)
        else:
            break
    level = logging.INFO if name in ("generic_serial", "generic_blocks") else logging.DEBUG
    logger.log(level, "%s is %s: %s", called, name, "; ".join(refused))
    return found, name


def aligned_to_elements(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with parameters that need no more alignment than their elements.

    By default TVM promises LLVM 64 bytes, but a caller's array may lie anywhere.
    """
    params = []
    for param in func.params:
        if hasattr(param, "shape"):
            param = tirx.decl_buffer(
                param.shape,
                param.dtype,
                param.name,
                strides=param.strides,
                elem_offset=param.elem_offset,
                data_alignment=max(1, DataType(param.dtype).itemsize),
                offset_factor=param.offset_factor,
            )
        params.append(param)
    values = dict(zip(func.params, params, strict=True))
    return tirx.PrimFunc(
        params, expressions.substitute(func.body, values), func.ret_type, func.attrs
    )
