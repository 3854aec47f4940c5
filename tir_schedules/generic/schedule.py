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
from collections.abc import Callable

import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.relax.analysis import has_reshape_pattern

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr
from tir_schedules.core.emission import walk

from .dynamic_blocks import dynamic_items, dynamic_reductions, static_rows
from .dynamic_elements import (
    dynamic_elements,
    dynamic_nests,
    flat_loop,
    over_axes,
    require_dynamic,
    step_along,
)
from .expressions import calls_of, distinct, guard_floats, int64, loads_of, substitute
from .fusion import merge_nests, program_loops
from .loops import flattened, parameter_views, store_statement, with_statements
from .nest import Axis, Nest, NotHandledError, read_program
from .transpose import RUN, Tile, tile_of, turned
from .vector_math import ascending, lower_math, names_in_memory

WHOLE_COPY = "tvm_hybrid.whole_copy"
"""Attribute of a function that stores its first tensor's elements in its last, in order."""


def whole_copy(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """The loop; threads have a share each.

    Raises
    ------
    NotHandledError
        If all sizes are known, or elements change or move.
    """
    require_dynamic(func)
    if WHOLE_COPY not in (func.attrs or {}) and not has_reshape_pattern(func):
        raise NotHandledError("it does more than copy")
    views, declarations = parameter_views(func)
    source, *_, result = views.values()

    def copied(at: Expr) -> tirx.Stmt:
        return tirx.BufferStore(result.flat, tirx.BufferLoad(source.flat, [at]), [at])

    loop = flat_loop(result.flat.shape[0], copied, machine)
    return with_statements(func, [*declarations, loop]), "generic_injective"


BLOCK = 8

MANY = 256
"""Elements of a long axis."""


def dynamic_transposes(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Elements of dynamic sizes that are stored across the order in which they are read, in blocks.

        for i, j in grid(n, m): y[i, j] = x[j, i]

        ->  if n >= 8 and m >= 8: for tiles of 8 by 8 elements, the last of which end with an axis:
                eight vectors of x, transposed in registers (`transpose`), are eight vectors of y
            else: for blocks of 8 by 8 elements: for j: for i: y[i, j] = x[j, i]

    So each cache line is read, and written, while it is in L1. With vectors of 16 elements, tiles
    are of 16 by 16 where they cut both axes well.

    Loops in blocks for a function that stores each element once.

    Raises
    ------
    NotHandledError
        If all sizes are known, or it reads along the axis that it stores along.
    """
    program = dynamic_nests(func)
    if len(program.nests) != 1 or program.nests[0].reduce:
        raise NotHandledError("it is more than one pass over elements")
    views, statements = parameter_views(func)
    nest = flattened(program.nests[0], views)
    stored, read, apart = _axes(nest)
    others = tuple(axis for axis in nest.spatial if axis not in (stored, read))
    body = _blocks(nest, stored, read)
    loads, words = distinct(apart), machine.isa.vector_bits // 32
    # Elements that are no plain ones are not transposed in registers.
    plain = not any(loads_of(load.indices[0]) for load in nest.reads())
    plain = plain and not calls_of(nest.stores[0].value, "if_then_else")
    # Tiles of whole cache lines, and for shorter axes those of half a line; smallest first.
    sizes = dict.fromkeys((BLOCK, words)) if plain and len(loads) <= 2 and words >= BLOCK else ()
    found = [tile_of(stored, read, loads, size) for size in sizes]
    tiles = {(tile.width, tile.height): tile for tile in found if tile is not None}
    for number, tile in enumerate(tiles.values()):
        asked = []
        for axis, size in ((tile.written, int64(tile.width)), (tile.read, int64(tile.height))):
            # Larger tiles are aligned, or so many that one more does not matter.
            aligned = tirx.EQ(tirx.floormod(axis.stated, size), int64(0))
            well_cut = tirx.any(aligned, axis.stated >= int64(MANY))
            asked.append(well_cut if number else axis.stated >= size)
        body = tirx.IfThenElse(tirx.all(*asked), _over_tiles(nest, tile), body)
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
                continue  # for `dynamic_items`
            if apart and all(step_along(nest, load.indices[0], read) == 1 for load in apart):
                return stored, read, apart
    raise NotHandledError(f"{nest.name} reads along the axis that it stores along")


def _over_tiles(nest: Nest, tile: Tile) -> tirx.Stmt:
    """Tiles of two axes; what the last shares with the one before, both write alike."""
    steps, starts = dict[Axis, tuple[tirx.Var, Expr]](), dict[tirx.Var, Expr]()
    for axis, size in ((tile.read, tile.height), (tile.written, tile.width)):
        step = tirx.Var(f"{axis.var.name}_tile", "int64")
        steps[axis] = step, tirx.floordiv(axis.stated + int64(size - 1), int64(size))
        starts[axis.var] = tirx.Min(step * int64(size), axis.stated - int64(size))
    body = turned(nest, tile, starts)
    run = tile.run_axis(nest)
    if run is None:
        return _over(_over(body, *steps[tile.written]), *steps[tile.read])
    step, count = steps.pop(run)
    outer, inner = tirx.Var("runs", "int64"), tirx.Var("run", "int64")
    first = outer * int64(RUN)
    body = substitute(body, {step: first + inner})
    body = _over(body, inner, tirx.Min(int64(RUN), count - first))
    for other in steps.values():
        body = _over(body, *other)
    return _over(body, outer, tirx.floordiv(count + int64(RUN - 1), int64(RUN)))


def _over(body: tirx.Stmt, var: tirx.Var, count: Expr) -> tirx.Stmt:
    return tirx.For(var, int64(0), count, tirx.ForKind.SERIAL, body)


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
        body = tirx.For(place_of[axis.var], int64(0), count, tirx.ForKind.SERIAL, body)
    for axis in (read, stored):
        blocks = tirx.floordiv(axis.stated + int64(BLOCK - 1), int64(BLOCK))
        body = tirx.For(block_of[axis.var], int64(0), blocks, tirx.ForKind.SERIAL, body)
    return body


# Schedules functions that cannot be read as nests: unknown extents, sorting, scattering, scans.
#
# for i in range(n): with T.sblock("b"): ...  ->  for i in T.parallel(n): with T.sblock("b"): ...


def parallel_blocks(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Every block's outermost loop parallel, where its points are independent.

    Raises
    ------
    NotHandledError
        If threads cannot be used, or no block allows it.
    """
    if machine.threads == 1:
        raise NotHandledError("one thread only")
    func = with_starts(func)
    if not isinstance(func.body, s_tir.SBlockRealize):
        raise NotHandledError("the body is not a root block")
    schedule = s_tir.Schedule(func.with_body(lower_math(guard_floats(func.body))))
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
    """The function with its own loops; with one thread, none of them parallel."""
    func = with_starts(func)
    body = func.body
    if machine.threads == 1:
        body = tvm_ffi.structural_map(body, (tirx.For, _serial))
    return func.with_body(lower_math(guard_floats(body))), "generic_serial"


def with_starts(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Stores what a reduction begins with apart from its steps, if there may be none.

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
"""With the value "raise", an error in a rule ends the compilation, as this project's tests want."""

Rule = Callable[[tirx.PrimFunc, Machine], tuple[tirx.PrimFunc, str]]


def _nests(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    views, declarations = parameter_views(func)
    statements, name = program_loops(merge_nests(read_program(func)), views, machine)
    return with_statements(func, [*declarations, *statements]), name


RULES: tuple[Rule, ...] = (
    _nests,
    whole_copy,
    dynamic_transposes,
    dynamic_elements,
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
        As it comes out of FuseTIR.
    machine : Machine
        With one thread, no loop is parallel.
    called : str
        Its name, for the log; default: part of one that was named.
    failed : list of str or None
        Gets a text for each rule with a mistake, and the next rule takes the function: that is
        slower, not wrong. If None, or if `TVM_HYBRID_RULE_ERRORS` is "raise", the error is raised.

    Returns
    -------
    func : tirx.PrimFunc
        The same function with other loops.
    name : str
        "generic_injective", "generic_transpose", "generic_pool", "generic_reduction",
        "generic_blocks", or "generic_serial" for loops that stayed as they were; the reasons are
        logged.
    """
    func, refused = _aligned_to_elements(func), dict[str, None]()
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


def _aligned_to_elements(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with parameters that need not be aligned to more than their elements.

    TVM promises LLVM 64 bytes unless told otherwise, and a caller's array may lie anywhere.
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
    return tirx.PrimFunc(params, substitute(func.body, values), func.ret_type, func.attrs)
