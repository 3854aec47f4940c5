"""Puts nests that read each other's results under common outer loops, so that rows stay in cache.

    for i, k: m[i] = max(m[i], x[i, k])            for i in parallel(...):
    for i, j: e[i, j] = exp(x[i, j] - m[i])    ->      m = ...; e[0:n] = ...; s = ...
    for i, k: s[i] += e[i, k]                          y[i, 0:n] = e[0:n] / s
    for i, j: y[i, j] = e[i, j] / s[i]

The temporary buffers of a band shrink to what one iteration of its outer loops needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import tirx

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from .elementwise import elementwise_loops
from .expressions import variables_of
from .inline import reads_of
from .loops import (
    View,
    flattened,
    nested,
    parameter_views,
    sequence,
    temporary_view,
    threads_sharing,
    with_statements,
)
from .nest import Nest, NotHandledError, Program
from .reduction import reduction_loops

ORDER = ("generic_injective", "generic_transpose", "generic_pool", "generic_reduction")
"""The names of schedules; what does several things is called after the last in this order."""


def program_loops(program: Program, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """The function that runs a program's nests, and the name of its schedule."""
    if not program.nests:
        raise NotHandledError("the function does nothing")
    views, statements = parameter_views(program.func)
    groups = _bands(program)
    inside = _temporaries_inside(program, groups)
    for buffer in program.temporaries:
        used = any(
            store.buffer.same_as(buffer) for nest in program.nests for store in nest.results
        ) or any(store.buffer.same_as(buffer) for nest in program.nests for store in nest.stores)
        if used and buffer not in inside:
            views[buffer] = temporary_view(buffer)
            held = any(store.buffer.same_as(buffer) for n in program.nests for store in n.results)
            if held:
                statements.append(tirx.AllocBuffer(views[buffer].flat))
    names = []
    for group, depth in groups:
        statement, name = _band_loops(group, depth, views, inside, machine)
        statements.append(statement)
        names.append(name)
    return with_statements(program.func, statements), max(names, key=ORDER.index)


def _bands(program: Program) -> list[tuple[list[Nest], int]]:
    """Runs of nests with the number of outer axes that each run shares."""
    groups: list[tuple[list[Nest], int]] = []
    for nest in program.nests:
        if groups:
            group, depth = groups[-1]
            deepest = _shared_depth([*group, nest])
            enough = deepest >= 1 and (len(group) == 1 or deepest == depth)
            if enough and any(_feeds(other, nest) for other in group):
                groups[-1] = ([*group, nest], deepest)
                continue
        groups.append(([nest], 0))
    return groups


def _feeds(producer: Nest, consumer: Nest) -> bool:
    return any(reads_of(consumer, store.buffer) for store in producer.results)


def _shared_depth(group: Sequence[Nest]) -> int:
    """How many leading axes the nests have in common, no element crossing from pass to pass."""
    depth = min(len(nest.spatial) for nest in group)
    deepest = max(len(nest.spatial) + len(nest.reduce) for nest in group)
    while depth:
        if depth < deepest and _is_shared(group, depth):
            return depth
        depth -= 1
    return 0


def _is_shared(group: Sequence[Nest], depth: int) -> bool:
    extents = [axis.extent for axis in group[0].spatial[:depth]]
    passes = math.prod(extents)
    largest = max(nest.points for nest in group) // passes
    dimensions: dict[tirx.Var, list[int]] = {}
    for nest in group:
        axes = [axis.var for axis in nest.spatial[:depth]]
        if [axis.extent for axis in nest.spatial[:depth]] != extents:
            return False
        # Without axes of its own left, a nest is one scalar step per pass.
        if len(nest.spatial) == depth and not nest.reduce and largest < 8:
            return False
        # Nor may lanes be lost that a reduction lays along its results.
        if nest.reduce and len(nest.spatial) == depth and _lies_along_results(nest):
            return False
        for buffer, where in dimensions.items():
            for load in reads_of(nest, buffer):
                for axis, dimension in zip(axes, where, strict=True):
                    index = load.indices[dimension]
                    if not isinstance(index, tirx.Var) or not index.same_as(axis):
                        return False
        for store in nest.results:
            where = [
                next(
                    (
                        d
                        for d, i in enumerate(store.indices)
                        if isinstance(i, tirx.Var) and i.same_as(axis)
                    ),
                    -1,
                )
                for axis in axes
            ]
            if -1 in where or dimensions.get(store.buffer, where) != where:
                return False
            dimensions[store.buffer] = where
    return True


def _lies_along_results(nest: Nest) -> bool:
    """Whether a reduction's lanes lie along its results: few elements, or none that are neighbours,
    are reduced."""
    ends = [load.indices[-1] for load in nest.reads() if load.indices]
    reduced = {axis.var for axis in nest.reduce}
    return nest.reduce[-1].extent < 8 or not any(reduced & variables_of(each) for each in ends)


def _temporaries_inside(program: Program, groups: list[tuple[list[Nest], int]]) -> set[tirx.Var]:
    """Temporary buffers that are written and read in one band only."""
    inside = set()
    for buffer in program.temporaries:
        users = [
            number
            for number, (group, depth) in enumerate(groups)
            if any(
                reads_of(nest, buffer)
                or any(store.buffer.same_as(buffer) for store in nest.results)
                for nest in group
            )
        ]
        if len(users) == 1 and groups[users[0]][1] > 0:
            inside.add(buffer)
    return inside


def _band_loops(
    group: list[Nest],
    depth: int,
    views: dict[tirx.Var, View],
    inside: set[tirx.Var],
    machine: Machine,
) -> tuple[tirx.Stmt, str]:
    if depth == 0:
        return _nest_loops(flattened(group[0], views), machine, True)
    band = group[0].spatial[:depth]
    threads = threads_sharing(group, machine)
    local = dict(views)
    statements: list[tirx.Stmt] = []
    for nest in group:
        for store in nest.results:
            if store.buffer in inside and store.buffer not in local:
                axes = {axis.var for axis in nest.spatial[:depth]}
                dropped = [
                    d for d, i in enumerate(store.indices) if isinstance(i, tirx.Var) and i in axes
                ]
                local[store.buffer] = temporary_view(store.buffer, dropped)
                statements.append(tirx.AllocBuffer(local[store.buffer].flat))
        for store in nest.stores:
            if store.buffer not in local:
                local[store.buffer] = temporary_view(store.buffer)
    names = []
    for nest in group:
        own = {
            axis.var: common.var for axis, common in zip(nest.spatial[:depth], band, strict=True)
        }
        values: dict[tirx.Var, Expr] = dict(own)
        inner = replace(nest.substituted(values), spatial=nest.spatial[depth:])
        statement, name = _nest_loops(flattened(inner, local), machine, False)
        statements.append(statement)
        names.append(name)
    body = nested(band, sequence(statements), machine, threads)
    return body, max(names, key=ORDER.index)


def _nest_loops(nest: Nest, machine: Machine, parallel: bool) -> tuple[tirx.Stmt, str]:
    if nest.reduce:
        return reduction_loops(nest, machine, parallel)
    return elementwise_loops(nest, machine, parallel)
