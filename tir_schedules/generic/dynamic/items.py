"""Schedules a function over sizes that are known at run time only: one item, then loops around it.

    for b in range(n): for i, j in grid(56, 64): y[b, i, j] = max(x[b, i, j], 0)     n not known

    ->  for b in range(n): the schedule of   for i, j in grid(56, 64): y[i, j] = max(x[i, j], 0)

An item is one index of every such size. That works where each block reads and writes, of a tensor
that has such a size, only what lies at its own index, and where an item lies in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr
from tir_schedules.core.emission import walk

from ..expressions import const_int, int64, substitute, variables_of
from ..nest import NotHandledError
from .vectors import loop_of_elements

Schedule = Callable[[tirx.PrimFunc, Machine], tuple[tirx.PrimFunc, str]]
SCHEDULES_LEFT = ("generic_serial", "generic_blocks")  # of items that gain nothing


def open_items(
    func: tirx.PrimFunc, machine: Machine, schedule: Schedule
) -> tuple[tirx.PrimFunc, str]:
    """The function as serial loops over items, each by the schedule of known sizes.

    Parameters
    ----------
    func : tirx.PrimFunc
        As it comes out of FuseTIR.
    machine : Machine
        Whose threads share an item.
    schedule : callable
        `schedule_generic`.

    Raises
    ------
    NotHandledError
        If all sizes are known, or an item reads or writes more than its own index.
    """
    symbols = _symbols(func)
    if not symbols:
        raise NotHandledError("all sizes are known")
    places = {symbol: tirx.Var(f"at_{symbol.name}", "int64") for symbol in symbols}
    sizes = {symbol: tirx.Var(f"size_{symbol.name}", "int64") for symbol in symbols}
    item, name = schedule(_item(func, places, sizes), machine)
    if name in SCHEDULES_LEFT:
        raise NotHandledError(f"an item is {name}")
    found = _looped(func, item, places, machine.isa.f32_lanes)
    return found.with_body(substitute(found.body, {sizes[each]: each for each in symbols})), name


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
            elif const_int(size) is None:
                raise NotHandledError(f"{param.name} has the size {size}")
            else:
                inside = inside or const_int(size) != 1
    return list(found)


def _item(
    func: tirx.PrimFunc, places: dict[tirx.Var, tirx.Var], sizes: dict[tirx.Var, tirx.Var]
) -> tirx.PrimFunc:
    """The function of a single index of every open size, where tensors have 1 for that size.

    `places` say which index, and `sizes` how large a size is, where an element depends on it.
    """
    body = func.body
    for block in walk(body):
        if isinstance(block, s_tir.SBlock) and block.iter_vars:
            body = _with_places(body, block, places, sizes)
    func = func.with_body(body)
    for number in range(len(func.params)):
        param = func.params[number]
        shape = getattr(param, "shape", ())
        if any(isinstance(size, tirx.Var) for size in shape):
            known = [int64(1) if isinstance(size, tirx.Var) else size for size in shape]
            align = param.data_alignment
            item = tirx.decl_buffer(known, param.dtype, param.name, data_alignment=align)
            func = func.specialize({param: item})
    return func


def _with_places(
    body: tirx.Stmt,
    block: s_tir.SBlock,
    places: dict[tirx.Var, tirx.Var],
    sizes: dict[tirx.Var, tirx.Var],
) -> tirx.Stmt:
    """A body in which one block uses its open indices to index open sizes only.

    Anywhere else, in another index or as a number, `places` stands for them, and `sizes` for the
    sizes.
    """
    own: dict[Expr, tirx.Var] = {}
    for iterator in block.iter_vars:
        extent = iterator.dom.extent
        if const_int(extent) is not None:
            continue
        if extent not in places or iterator.iter_type != tirx.IterVar.DataPar or extent in own:
            raise NotHandledError(f"{block.name_hint} has an axis of {extent}")
        own[extent] = iterator.var
    at = {own[symbol]: place for symbol, place in places.items() if symbol in own}
    same = {symbol: (var, at[var]) for symbol, var in own.items()}
    at |= sizes
    refused: list[str] = []  # an error of a callback would lose its type

    def indices(buffer: tirx.Var, given: list[Expr]) -> list[Expr]:
        found = []
        for size, index in zip(buffer.shape, given, strict=True):
            if const_int(size) is not None:
                found.append(substitute(index, at))
            elif any(map(index.same_as, same.get(size, ()))):
                found.append(own[size])
            else:
                refused.append(f"{buffer.name} is not indexed by one item of {size}")
        return found if len(found) == len(given) else given

    def load(node: TensorLoad) -> Expr:
        return tirx.BufferLoad(node.source, indices(node.source, list(node.indices)))

    def value(expr: Expr) -> Expr:
        """Loads keep what they index open sizes with; all else takes places."""
        hidden: dict[tirx.Var, Expr] = {}

        def hide(node: TensorLoad) -> Expr:
            name = tirx.Var("load", str(node.ty.dtype))
            hidden[name] = load(node)
            return name

        found = substitute(tvm_ffi.structural_map(expr, (TensorLoad, hide)), at)
        while not hidden.keys().isdisjoint(variables_of(found)):  # also loads within indices
            found = substitute(found, hidden)
        return found

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        return tirx.BufferStore(
            node.buffer, value(node.value), indices(node.buffer, list(node.indices))
        )

    inner = tvm_ffi.structural_map(block.body, (tirx.BufferStore, store))
    init = block.init and tvm_ffi.structural_map(block.init, (tirx.BufferStore, store))
    if refused:
        raise NotHandledError(refused[0])
    new = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        inner,
        init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    return tvm_ffi.structural_map(
        body, (s_tir.SBlock, lambda each: new if each.same_as(block) else each)
    )


def _looped(
    func: tirx.PrimFunc, item: tirx.PrimFunc, places: dict[tirx.Var, tirx.Var], lanes: int
) -> tirx.PrimFunc:
    """The item's loops for every place, on the function's own parameters."""
    if len(item.params) != len(func.params):
        raise NotHandledError("a size is a parameter")
    own = dict(zip(item.params, func.params, strict=True))
    views: dict[tirx.Var, tuple[tirx.Var, Expr]] = {}
    declared: list[tirx.Stmt] = []
    root, inside = _root(item.body)
    rest: list[tirx.Stmt] = []
    for statement in inside:
        if not isinstance(statement, tirx.DeclBuffer):
            rest.append(statement)
            continue
        used = variables_of(statement.data) if statement.data is not None else set()
        found = [param for param in item.params if param in used]
        if not found:
            raise NotHandledError("a view of something else than a parameter")
        (param,) = found
        size, offset = _size_and_offset(own[param], places)
        flat = tirx.decl_buffer((size,), own[param].dtype, f"{param.name}_items")
        views[statement.buffer] = (flat, offset)
        declared.append(tirx.DeclBuffer(flat, data=own[param].data))

    refused: list[str] = []

    def load(node: TensorLoad) -> Expr:
        if node.source in own:
            refused.append(f"{node.source.name} is not read as a row")
        if node.source not in views:
            return node
        flat, offset = views[node.source]
        return tirx.BufferLoad(flat, [node.indices[0] + offset])

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer in own:
            refused.append(f"{node.buffer.name} is not written as a row")
        if node.buffer not in views:
            return node
        flat, offset = views[node.buffer]
        return tirx.BufferStore(flat, node.value, [node.indices[0] + offset])

    body: tirx.Stmt = rest[0] if len(rest) == 1 else tirx.SeqStmt(rest)
    body = tvm_ffi.structural_map(body, [(TensorLoad, load), (tirx.BufferStore, store)])
    if refused:
        raise NotHandledError(refused[0])
    *outer, (symbol, place) = places.items()
    body = loop_of_elements(place, symbol, body, lanes)
    for symbol, place in reversed(outer):
        body = tirx.For(place, int64(0), symbol, ForKind.SERIAL, body)
    return func.with_body(root(tirx.SeqStmt([*declared, body])))


def _size_and_offset(param: tirx.Var, places: dict[tirx.Var, tirx.Var]) -> tuple[Expr, Expr]:
    """Elements of a parameter, and where an item of it begins."""
    size: Expr = int64(1)
    offset: Expr = int64(0)
    for extent in reversed(list(param.shape)):
        if isinstance(extent, tirx.Var):
            offset = offset + places[extent] * size
        size = size * extent
    return size, offset


def _root(
    body: tirx.Stmt,
) -> tuple[Callable[[tirx.Stmt], tirx.Stmt], list[tirx.Stmt]]:
    """What stands around the statements of a scheduled function, and these."""
    if not isinstance(body, s_tir.SBlockRealize):
        return (lambda inside: inside), list(_statements(body))
    block = body.block

    def around(inside: tirx.Stmt) -> tirx.Stmt:
        new = s_tir.SBlock(
            [], [], [], block.name_hint, inside, None, block.alloc_buffers, [], block.annotations
        )
        return s_tir.SBlockRealize([], True, new)

    return around, list(_statements(block.body))


def _statements(body: tirx.Stmt) -> Iterator[tirx.Stmt]:
    if isinstance(body, tirx.SeqStmt):
        for each in body.seq:
            yield from _statements(each)
    else:
        yield body
