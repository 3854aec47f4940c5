"""Reads a lowered function as loop nests, or says why it is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels.vector.expressions import Expr

from .expressions import const_int, guard_floats, map_loads, substitute, variables_of
from .nest import Axis, Nest, NotHandledError, Program, ReadSize, Store


def read_program(func: tirx.PrimFunc, size: ReadSize = const_int) -> Program:
    """The nests of a function.

    Parameters
    ----------
    func : tirx.PrimFunc
        Its parameters are tensors; with another `size` than that of numbers, perhaps also numbers.
    size : callable
        What tells extents. Of one that is known at run time only, a symbolic size.

    Raises
    ------
    NotHandledError
        If the function is not a list of plain blocks with known extents.
    """
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or root.block.iter_vars:
        raise NotHandledError("the body is not a root block")
    for buffer in (*func.params, *root.block.alloc_buffers):
        if size is const_int or not is_number(buffer):
            _check_buffer(buffer, size)
    nests = []
    for number, statement in enumerate(statements_of(root.block.body)):
        nest = _without_reduction(_read_nest(statement, number, size)).simplified()
        if not _is_shadow(nest):
            nests.append(nest)
    return Program(func, tuple(root.block.alloc_buffers), tuple(nests))


def statements_of(body: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements of a sequence, those of sequences in it included, in order."""
    if isinstance(body, tirx.SeqStmt):
        return [part for statement in body.seq for part in statements_of(statement)]
    return [body]


def _without_reduction(nest: Nest) -> Nest:
    """A nest that accumulates a single element is a plain store of it."""
    if not nest.reduce or any(axis.extent != 1 for axis in nest.reduce):
        return nest
    starts = {store.buffer: store.init for store in nest.stores}

    def change(load: TensorLoad) -> Expr:
        start = starts.get(load.source)
        return load if start is None else start

    stores = tuple(
        replace(store, value=map_loads(store.value, change), init=None) for store in nest.stores
    )
    return replace(nest, stores=stores)


def _is_shadow(nest: Nest) -> bool:
    """Whether the nest has no points at all."""
    return nest.points == 0 and not nest.reduce


def is_number(parameter: tirx.Var) -> bool:
    """Whether a parameter of a function is no tensor."""
    return getattr(parameter, "shape", None) is None


def _check_buffer(buffer: tirx.Var, size: ReadSize) -> None:
    shape = getattr(buffer, "shape", None)
    if shape is None:
        raise NotHandledError(f"parameter {buffer.name} is not a tensor")
    if any(size(extent) is None for extent in shape):
        raise NotHandledError(f"the shape of {buffer.name} is not known")
    if len(buffer.strides):
        raise NotHandledError(f"{buffer.name} has strides")


def _read_nest(statement: tirx.Stmt, number: int, size: ReadSize) -> Nest:
    loops: list[tirx.For] = []
    while isinstance(statement, tirx.For):
        if statement.kind != tirx.ForKind.SERIAL or const_int(statement.min) != 0:
            raise NotHandledError(f"loop {statement.loop_var.name} is not a plain one")
        loops.append(statement)
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize):
        raise NotHandledError(f"statement {number} is not a block")
    block = statement.block
    if block.match_buffers or block.alloc_buffers or const_int(statement.predicate) != 1:
        raise NotHandledError(f"block {block.name_hint} is not a plain one")
    extents = {loop.loop_var: size(folded(loop.extent)) for loop in loops}
    own = {*extents, *(iterator.var for iterator in block.iter_vars)}
    spatial, reduce = [], []
    for iterator, value in zip(block.iter_vars, statement.iter_values, strict=True):
        stated = folded(iterator.dom.extent)
        extent = size(stated)
        inside = set() if isinstance(stated, tirx.IntImm) else variables_of(stated)
        end = stated if inside else None
        if any(var in own or not is_number(var) for var in inside):
            raise NotHandledError(f"{block.name_hint} has an axis whose extent is no size")
        bound = extents.get(value) if isinstance(value, tirx.Var) else const_int(value)
        if extent is None or const_int(iterator.dom.min) != 0:
            raise NotHandledError(f"{block.name_hint} has an axis of unknown extent")
        if bound != (extent if isinstance(value, tirx.Var) else 0):
            raise NotHandledError(f"{block.name_hint} does not run over its loops one to one")
        if iterator.iter_type == tirx.IterVar.DataPar:
            spatial.append(Axis(iterator.var, extent, end))
        elif iterator.iter_type == tirx.IterVar.CommReduce:
            reduce.append(Axis(iterator.var, extent, end))
        else:
            raise NotHandledError(f"{block.name_hint} has an axis that is neither S nor R")
    stores = _read_stores(block)
    return Nest(f"{block.name_hint}", tuple(spatial), tuple(reduce), stores, size=size)


def folded(extent: Expr) -> Expr:
    """An extent; the number, if there is no variable in it."""
    if isinstance(extent, tirx.IntImm) or variables_of(extent):
        return extent
    return Analyzer().simplify(extent)


def _value(value: Expr, block: s_tir.SBlock) -> Expr:
    """A stored value; reductions are told by the form of theirs."""
    return value if block.init is not None else guard_floats(value)


def _read_stores(block: s_tir.SBlock) -> tuple[Store, ...]:
    inits: dict[tirx.Var, Expr] = {}
    if block.init is not None:
        for statement in statements_of(block.init):
            if not isinstance(statement, tirx.BufferStore):
                raise NotHandledError(f"{block.name_hint} has an unusual init")
            inits[statement.buffer] = statement.value
    names: dict[tirx.Var, Expr] = {}
    stores: list[Store] = []
    for statement in statements_of(block.body):
        if isinstance(statement, tirx.Bind):
            if stores:
                raise NotHandledError(f"{block.name_hint} names a value after a store")
            names[statement.var] = substitute(statement.value, names)
        elif isinstance(statement, tirx.BufferStore):
            stores.append(
                Store(
                    statement.buffer,
                    tuple(statement.indices),
                    _value(substitute(statement.value, names), block),
                    inits.get(statement.buffer),
                )
            )
        else:
            raise NotHandledError(f"{block.name_hint} does more than store elements")
    return tuple(stores)


# Replaces sizes in programs: variables that extents are made of, and the buffers that have them.
#
# Before
#
#     buffer = T.sblock_alloc_buffer((n, 64))     # n -> batch * 2
#
# After
#
#     buffer = T.sblock_alloc_buffer((batch * 2, 64))


def resized_buffers(
    buffers: Iterable[tirx.Var], values: Mapping[tirx.Var, Any]
) -> dict[tirx.Var, tirx.Var]:
    """For each buffer with an extent that changes, one with the others."""
    found = {}
    for buffer in buffers:
        shape = getattr(buffer, "shape", None)
        if shape is None or not any(variables_of(extent) & values.keys() for extent in shape):
            continue
        found[buffer] = tirx.decl_buffer(
            [folded(substitute(extent, values)) for extent in shape],
            str(buffer.dtype),
            str(buffer.name),
            strides=[substitute(stride, values) for stride in buffer.strides],
            elem_offset=substitute(buffer.elem_offset, values),
            scope=buffer.scope(),
            data_alignment=int(buffer.data_alignment),
            offset_factor=int(buffer.offset_factor),
            layout=None,
        )
    return found


def with_sizes(
    body: tirx.Stmt,
    values: Mapping[tirx.Var, Any],
    known: Mapping[tirx.Var, tirx.Var] | None = None,
) -> tirx.Stmt:
    """A statement with other sizes.

    Parameters
    ----------
    body : tirx.Stmt
        It stays as it is.
    values : mapping
        Variable -> what stands in its place.
    known : mapping, optional
        Buffers that have a replacement already.
    """
    renewed = {**resized_buffers(variables_of(body), values), **(known or {})}
    return substitute(body, {**values, **renewed})
