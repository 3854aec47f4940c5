"""Fuses nests: inlines cheap results into their readers, and puts nests under common outer loops.

    a[i, j] = x[i, j] + b[j]                 y[i, j] = max(x[i, j] + b[j], 0)
    y[i, j] = max(a[i, j], 0)           ->

    t[i] = 0; t[i] += x[i, k]                t[i] = 0; t[i] += x[i, k], finally y[i] = t[i] / n
    y[i] = t[i] / n                     ->

An intermediate result stays if its reader would compute it many times over: exp under a reduction
over another axis, padding under a convolution. Nests that read such a result share outer loops, so
that rows stay in cache:

    for i, k: m[i] = max(m[i], x[i, k])            for i in parallel(...):
    for i, j: e[i, j] = exp(x[i, j] - m[i])    ->      m = ...; e[0:n] = ...; s = ...
    for i, k: s[i] += e[i, k]                          y[i, 0:n] = e[0:n] / s
    for i, j: y[i, j] = e[i, j] / s[i]

Temporary buffers shrink to the elements that one iteration of the outer loops needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from . import expressions, loops
from .conditions import without_padding
from .elementwise import elementwise_loops
from .expressions import cost_of, distinct, loads_of, same_indices, substitute
from .loops import View
from .nest import FunctionNests, Nest, NotHandledError
from .reduction import reduction_loops
from .windows import windows_of

CHEAP = 2.0
"""A value up to this cost, in additions, is recomputed at every use; others are stored once."""

MOST_NODES = 600
"""Most nodes of an expression after merging."""


def merge_nests(program: FunctionNests) -> FunctionNests:
    """The function with as few nests as the costs of its values allow."""
    for position in reversed(range(len(program.nests))):
        written = [store.buffer for store in program.nests[position].results]
        if all(_is_temporary(program, b) and not program.consumers(b) for b in written):
            program = _without(program, position, {})  # no nest reads its results
    for merge in (_into_consumers, _take_epilogue):
        position = 0
        while position < len(program.nests):
            merged = merge(program, position)
            if merged is None:
                position += 1
            else:
                program = merged
    return program


def _is_temporary(program: FunctionNests, buffer: tirx.Var) -> bool:
    return any(buffer.same_as(other) for other in program.temporaries)


def _without(program: FunctionNests, position: int, changed: dict[int, Nest]) -> FunctionNests:
    nests = [changed.get(number, nest) for number, nest in enumerate(program.nests)]
    del nests[position]
    return replace(program, nests=tuple(nests))


def _into_consumers(program: FunctionNests, position: int) -> FunctionNests | None:
    """The function with one nest inlined into every nest that reads its result, or None."""
    producer = program.nests[position]
    if producer.reduce or len(producer.stores) != 1 or not _is_plain(producer):
        return None
    store = producer.stores[0]
    readers = program.consumers(store.buffer)
    if not readers or not _is_temporary(program, store.buffer):
        return None
    written = [other.buffer for nest in program.nests for other in nest.stores]
    if sum(map(store.buffer.same_as, written)) != 1:
        return None
    cost = cost_of(store.value) + sum(cost_of(value) for _, value in producer.lets)
    evaluations, by_table = 0, False  # each distinct read of an element counts once
    for reader in readers:
        found = reads_of(program.nests[reader], store.buffer)
        evaluations += len(distinct(found)) * program.nests[reader].points
        at_read_places = any(loads_of(index) for load in found for index in load.indices)
        by_table = by_table or (len(found) > 1 and at_read_places)
    # Neighbours at places read from a table are no vector, so equally many elements cost more.
    repeated = evaluations > producer.points or (evaluations == producer.points and by_table)
    dear = cost > CHEAP and repeated
    if dear and not all(program.nests[reader].reduce for reader in readers):
        return None
    changed = {}
    for reader in readers:
        merged = _inlined(producer, program.nests[reader], cost)
        if merged is None:
            return None
        merged = changed[reader] = merged.simplified()
        # Padding costs nothing if windows leave it out.
        if dear and without_padding(merged) is None and windows_of(merged) is None:
            return None
    return _without(program, position, changed)


def _is_plain(nest: Nest) -> bool:
    """Whether every axis is an index of the result and every other index is constant."""
    indices = nest.stores[0].indices
    plain = [index for index in indices if isinstance(index, tirx.Var)]
    axes = {axis.var for axis in nest.spatial}
    return (
        len(set(plain)) == len(plain) == len(axes)
        and set(plain) == axes
        and all(isinstance(index, tirx.Var | tirx.IntImm) for index in indices)
    )


def _inlined(producer: Nest, reader: Nest, cost: float) -> Nest | None:
    """`reader` with the producer's value in place of loads of its result; None if too large."""
    store, named = producer.stores[0], list[tuple[TensorLoad, tirx.Var, Expr]]()
    # A named value is computed before everything else, so no condition may guard it, and no index
    # may depend on it.
    is_float = str(store.value.ty.dtype).startswith("float")
    several = len(reads_of(reader, store.buffer)) > 1
    name = several and cost > 0.5 and is_float and not reader.has_choices

    def value_at(load: TensorLoad) -> Expr:
        pairs, value = zip(store.indices, load.indices, strict=True), store.value
        for var, known in reversed(producer.lets):
            value = substitute(value, {var: known})
        return substitute(value, {i: at for i, at in pairs if isinstance(i, tirx.Var)})

    def change(load: TensorLoad) -> Expr:
        if not load.source.same_as(store.buffer):
            return load
        if not name:
            return value_at(load)
        for other, var, _ in named:
            if same_indices(load.indices, other.indices):
                return var
        named.append((load, tirx.Var("value", str(load.ty.dtype)), value_at(load)))
        return named[-1][1]

    def in_value(value: Expr) -> Expr:
        return expressions.map_loads(value, change)

    merged = reader.mapped(lambda old: old.mapped(in_value), in_value)
    merged = replace(merged, lets=(*((var, value) for _, var, value in named), *merged.lets))
    if sum(expressions.node_count(value) for value in merged.expressions()) > MOST_NODES:
        return None
    return merged


def _take_epilogue(program: FunctionNests, position: int) -> FunctionNests | None:
    """The function with the only reader of a reduction's result made its epilogue, or None."""
    nest = program.nests[position]
    buffers = [store.buffer for store in nest.stores]
    if not nest.reduce or nest.epilogue or not all(_is_temporary(program, b) for b in buffers):
        return None
    readers = {reader for buffer in buffers for reader in program.consumers(buffer)}
    if len(readers) != 1:
        return None
    reader = readers.pop()
    consumer = program.nests[reader]
    if (
        consumer.reduce
        or consumer.lets
        or consumer.points != math.prod(axis.extent for axis in nest.spatial)
    ):
        return None
    axes = _matching_axes(nest, consumer, reads_of(consumer, *buffers)[0])
    if axes is None:
        return None
    moved = consumer.substituted({var: axis for var, axis in axes.items()})
    own = reads_of(moved, *buffers)
    if not all(same_indices(load.indices, nest.stores[0].indices) for load in own):
        return None
    fused = replace(nest, name=f"{nest.name}_{consumer.name}", epilogue=moved.stores)
    return _without(program, position, {reader: fused.simplified()})


def _matching_axes(nest: Nest, consumer: Nest, load: TensorLoad) -> dict[tirx.Var, tirx.Var] | None:
    """Maps every axis of the consumer to an axis of the reduction, or None."""
    extents = {axis.var: axis.stated for axis in (*nest.spatial, *consumer.spatial)}
    axes: dict[tirx.Var, tirx.Var] = {}
    for index, read in zip(nest.stores[0].indices, load.indices, strict=True):
        if isinstance(index, tirx.Var):
            if not isinstance(read, tirx.Var) or read not in extents:
                return None
            if not expressions.same(extents[read], extents[index]):  # both may be dynamic
                return None
            axes[read] = index
    if len(axes) != len(consumer.spatial) or len(set(axes.values())) != len(nest.spatial):
        return None
    return axes


def reads_of(nest: Nest, *buffers: tirx.Var) -> list[TensorLoad]:
    """The loads of some buffers."""
    return [load for load in nest.reads() if any(map(load.source.same_as, buffers))]


ORDER = ("generic_injective", "generic_transpose", "generic_pool", "generic_reduction")
"""Names of schedules; a kernel with several is named after the last of them in this order."""


def program_loops(
    program: FunctionNests, views: dict[tirx.Var, View], machine: Machine
) -> tuple[list[tirx.Stmt], str]:
    """The loops of a function's nests, and the name of its schedule.

    `views` are those of the parameters.
    """
    if not program.nests:
        raise NotHandledError("the function does nothing")
    groups, inside = _bands(program), set[tirx.Var]()
    for buffer in program.temporaries:  # find those that only one band writes and reads
        depths = [
            depth
            for group, depth in groups
            if any(reads_of(nest, buffer) for nest in group)
            or any(store.buffer.same_as(buffer) for nest in group for store in nest.results)
        ]
        if len(depths) == 1 and depths[0] > 0:
            inside.add(buffer)
    own, statements = loops.temporary_views(program, inside)
    views, names = {**views, **own}, []
    for group, depth in groups:
        statement, name = _band_loops(group, depth, views, machine)
        statements.append(statement)
        names.append(name)
    return statements, max(names, key=ORDER.index)


def _bands(program: FunctionNests) -> list[tuple[list[Nest], int]]:
    """Neighbouring nests that share outer axes, and the number of axes that they share."""
    groups: list[tuple[list[Nest], int]] = []
    for nest in program.nests:
        if groups:
            group, depth = groups[-1]
            joined, own = [*group, nest], [store for each in group for store in each.results]
            most = min(len(each.spatial) for each in joined)
            depths = range(min(most, max(len(each.axes()) for each in joined) - 1), 0, -1)
            deepest = next((each for each in depths if _is_shared(joined, each)), 0)
            enough = deepest >= 1 and (len(group) == 1 or deepest == depth)
            if enough and any(reads_of(nest, store.buffer) for store in own):
                groups[-1] = (joined, deepest)
                continue
        groups.append(([nest], 0))
    return groups


def _is_shared(group: Sequence[Nest], depth: int) -> bool:
    """Whether nests share `depth` leading axes, and no element passes between their iterations."""
    extents = [axis.extent for axis in group[0].spatial[:depth]]
    passes = math.prod(extents)
    largest = max(nest.points for nest in group) // passes
    dimensions: dict[tirx.Var, list[int]] = {}
    for nest in group:
        axes = [axis.var for axis in nest.spatial[:depth]]
        if [axis.extent for axis in nest.spatial[:depth]] != extents:
            return False
        # A nest without further axes is one scalar step for each iteration.
        if len(nest.spatial) == depth and not nest.reduce and largest < 8:
            return False
        # Do not merge if a reduction vectorises along its output, because it would lose those
        # lanes: it reduces few elements, or elements that are no neighbours.
        if nest.reduce and len(nest.spatial) == depth:
            ends = [load.indices[-1] for load in nest.reads() if load.indices]
            reduced = {axis.var for axis in nest.reduce}
            if nest.reduce[-1].extent < 8 or not any(
                reduced & expressions.variables_of(end) for end in ends
            ):
                return False
        for buffer, where in dimensions.items():
            for load in reads_of(nest, buffer):
                pairs = zip(axes, where, strict=True)
                if not all(load.indices[dimension].same_as(axis) for axis, dimension in pairs):
                    return False
        for store in nest.results:
            found = [[d for d, i in enumerate(store.indices) if i.same_as(axis)] for axis in axes]
            where = [each[0] for each in found if each]
            if not all(found) or dimensions.get(store.buffer, where) != where:
                return False
            dimensions[store.buffer] = where
    return True


def _band_loops(
    group: list[Nest], depth: int, views: dict[tirx.Var, View], machine: Machine
) -> tuple[tirx.Stmt, str]:
    """Loops over axes that nests share; buffers without a view are allocated inside of them."""
    if depth == 0:
        return nest_loops(loops.flattened(group[0], views), machine, True)
    band, threads = group[0].spatial[:depth], loops.threads_sharing(group, machine)
    local, statements = dict(views), list[tirx.Stmt]()
    for nest in group:
        axes = {axis.var for axis in nest.spatial[:depth]}
        for store in nest.results:
            if store.buffer not in local:
                dropped = [
                    d for d, i in enumerate(store.indices) if isinstance(i, tirx.Var) and i in axes
                ]
                local[store.buffer] = loops.temporary_view(store.buffer, dropped)
                statements.append(tirx.AllocBuffer(local[store.buffer].flat))
        for store in nest.stores:
            if store.buffer not in local:
                local[store.buffer] = loops.temporary_view(store.buffer)
    names = []
    for nest in group:
        pairs = zip(nest.spatial[:depth], band, strict=True)
        own: dict[tirx.Var, Expr] = {axis.var: common.var for axis, common in pairs}
        inner = replace(nest.substituted(own), spatial=nest.spatial[depth:])
        statement, name = nest_loops(loops.flattened(inner, local), machine, False)
        statements.append(statement)
        names.append(name)
    body = loops.nested(band, loops.sequence(statements), machine, threads)
    return body, max(names, key=ORDER.index)


def nest_loops(nest: Nest, machine: Machine, parallel: bool) -> tuple[tirx.Stmt, str]:
    """The loops of a flat nest, and the name of its schedule."""
    if nest.reduce:
        return reduction_loops(nest, machine, parallel)
    return elementwise_loops(nest, machine, parallel)
