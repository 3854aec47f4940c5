"""Merges nests: computes cheap intermediate results where they are used.

    a[i, j] = x[i, j] + b[j]                 y[i, j] = max(x[i, j] + b[j], 0)
    y[i, j] = max(a[i, j], 0)           ->

    t[i] = 0; t[i] += x[i, k]                t[i] = 0; t[i] += x[i, k], finally y[i] = t[i] / n
    y[i] = t[i] / n                     ->

An intermediate result stays when its reader would compute it many times over: exp under a
reduction over another axis, padding under a convolution.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr

from .dynamic.windows import windows_of
from .expressions import (
    calls_of,
    cost_of,
    loads_of,
    map_loads,
    node_count,
    same,
    same_indices,
    substitute,
)
from .nest import Nest, Program, Store
from .padded_windows import without_padding

CHEAP = 2.0
"""Cost, in additions, up to which a value is recomputed at every use; more is stored once."""

MOST_NODES = 600
"""Size that an expression may grow to by merging."""


def merge_nests(program: Program) -> Program:
    """The program with as few nests as its values' costs allow."""
    program = _drop_unread(program)
    for merge in (_into_consumers, _take_epilogue):
        position = 0
        while position < len(program.nests):
            merged = merge(program, position)
            if merged is None:
                position += 1
            else:
                program = merged
    return program


def _drop_unread(program: Program) -> Program:
    """Drops nests whose results nobody reads."""
    nests = list(program.nests)
    for position in reversed(range(len(nests))):
        kept = replace(program, nests=tuple(nests))
        written = [store.buffer for store in nests[position].results]
        if all(_is_temporary(kept, buffer) and not kept.consumers(buffer) for buffer in written):
            del nests[position]
    return replace(program, nests=tuple(nests))


def _is_temporary(program: Program, buffer: tirx.Var) -> bool:
    return any(buffer.same_as(other) for other in program.temporaries)


def _without(program: Program, position: int, changed: dict[int, Nest]) -> Program:
    nests = [changed.get(number, nest) for number, nest in enumerate(program.nests)]
    del nests[position]
    return replace(program, nests=tuple(nests))


def _into_consumers(program: Program, position: int) -> Program | None:
    """The program with one nest computed inside every nest that reads its result."""
    producer = program.nests[position]
    if producer.reduce or len(producer.stores) != 1 or not _is_plain(producer):
        return None
    store = producer.stores[0]
    readers = program.consumers(store.buffer)
    if not readers or not _is_temporary(program, store.buffer):
        return None
    writers = [
        nest for nest in program.nests if any(s.buffer.same_as(store.buffer) for s in nest.stores)
    ]
    if len(writers) != 1:
        return None
    cost = cost_of(store.value) + sum(cost_of(value) for _, value in producer.lets)
    evaluations = _evaluations(program, store.buffer, readers)
    # At places of a table neighbours are no vector: as many elements cost more there.
    repeated = evaluations > producer.points or (
        evaluations == producer.points and _reads_by_table(program, store.buffer, readers)
    )
    dear = cost > CHEAP and repeated
    if dear and not all(program.nests[reader].reduce for reader in readers):
        return None
    changed = {}
    for reader in readers:
        merged = _inlined(producer, program.nests[reader], cost)
        if merged is None:
            return None
        changed[reader] = merged.simplified()
        # Padding costs nothing where windows leave it out.
        if dear and not _leaves_padding_out(changed[reader]):
            return None
    return _without(program, position, changed)


def _leaves_padding_out(nest: Nest) -> bool:
    return without_padding(nest) is not None or windows_of(nest) is not None


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


def _evaluations(program: Program, buffer: tirx.Var, readers: list[int]) -> int:
    """How many elements of a buffer are read, counting an element once per distinct reading."""
    total = 0
    for reader in readers:
        nest = program.nests[reader]
        distinct: list[TensorLoad] = []
        for load in nest.reads():
            if load.source.same_as(buffer) and not any(
                same_indices(load.indices, other.indices) for other in distinct
            ):
                distinct.append(load)
        total += len(distinct) * nest.points
    return total


def _reads_by_table(program: Program, buffer: tirx.Var, readers: list[int]) -> bool:
    """Whether several elements of a buffer are read, at places that are read, too."""
    for reader in readers:
        found = reads_of(program.nests[reader], buffer)
        if len(found) > 1 and any(loads_of(index) for load in found for index in load.indices):
            return True
    return False


def _inlined(producer: Nest, reader: Nest, cost: float) -> Nest | None:
    """`reader` with the producer's value in place of loads of its result."""
    store = producer.stores[0]
    lets: list[tuple[tirx.Var, Expr]] = []
    named: list[tuple[TensorLoad, tirx.Var]] = []
    occurrences = sum(load.source.same_as(store.buffer) for load in reader.reads())
    # A name is worked out before everything else, so nothing may guard it, and no index may
    # depend on it.
    guarded = any(calls_of(value, "if_then_else") for value in reader.expressions())
    is_float = str(store.value.ty.dtype).startswith("float")
    name = occurrences > 1 and cost > 0.5 and is_float and not guarded

    def value_at(load: TensorLoad) -> Expr:
        indices = {
            index: at
            for index, at in zip(store.indices, load.indices, strict=True)
            if isinstance(index, tirx.Var)
        }
        value = store.value
        for var, named_value in reversed(producer.lets):
            value = substitute(value, {var: named_value})
        return substitute(value, indices)

    def change(load: TensorLoad) -> Expr:
        if not load.source.same_as(store.buffer):
            return load
        if not name:
            return value_at(load)
        for other, var in named:
            if same_indices(load.indices, other.indices):
                return var
        var = tirx.Var("value", str(load.ty.dtype))
        named.append((load, var))
        lets.append((var, value_at(load)))
        return var

    def in_store(old: Store) -> Store:
        return Store(
            old.buffer,
            tuple(map_loads(index, change) for index in old.indices),
            map_loads(old.value, change),
            old.init,
        )

    merged = reader.mapped(in_store, lambda value: map_loads(value, change))
    merged = replace(merged, lets=(*lets, *merged.lets))
    if sum(node_count(value) for value in merged.expressions()) > MOST_NODES:
        return None
    return merged


def _take_epilogue(program: Program, position: int) -> Program | None:
    """The program with the one reader of a reduction's result made its epilogue."""
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
    loads = [
        load for load in consumer.reads() if any(load.source.same_as(buffer) for buffer in buffers)
    ]
    axes = _matching_axes(nest, consumer, loads)
    if axes is None:
        return None
    moved = consumer.substituted({var: axis for var, axis in axes.items()})
    own = [load for load in moved.reads() if any(load.source.same_as(buffer) for buffer in buffers)]
    if not all(same_indices(load.indices, nest.stores[0].indices) for load in own):
        return None
    fused = replace(nest, name=f"{nest.name}_{consumer.name}", epilogue=moved.stores)
    return _without(program, position, {reader: fused.simplified()})


def _matching_axes(
    nest: Nest, consumer: Nest, loads: list[TensorLoad]
) -> dict[tirx.Var, tirx.Var] | None:
    """For every axis of the consumer the reduction's axis that it stands for."""
    extents = {axis.var: axis.stated for axis in (*nest.spatial, *consumer.spatial)}
    axes: dict[tirx.Var, tirx.Var] = {}
    for index, read in zip(nest.stores[0].indices, loads[0].indices, strict=True):
        if isinstance(index, tirx.Var):
            if not isinstance(read, tirx.Var) or read not in extents:
                return None
            if not same(extents[read], extents[index]):  # both may be open
                return None
            axes[read] = index
    if len(axes) != len(consumer.spatial) or len(set(axes.values())) != len(nest.spatial):
        return None
    return axes


def reads_of(nest: Nest, buffer: tirx.Var) -> list[TensorLoad]:
    """The loads of one buffer."""
    return [
        load
        for expression in nest.expressions()
        for load in loads_of(expression)
        if load.source.same_as(buffer)
    ]
