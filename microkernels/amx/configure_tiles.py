"""Pass: loads the tile configurations that a tensorized function needs, and releases the tiles.

The function was scheduled with the intrinsics of `amx.tensor_intrin`; this is its last step.

    Before:                                  After:
        for i in T.parallel(4):                  assert that tiles may be used
            for j in range(3):                   for i in T.parallel(4):
                init S                               ldtilecfg
                for k in range(8):                   for j in range(3):
                    multiply A, B into S                 init S
                store S to C                             for k in range(8):
                                                             multiply A, B into S
                                                         store S to C
                                                     tilerelease

A task with blocks of several sizes loads a configuration before each run of blocks that can share
one. Without a parallel loop, all that uses tiles is one task.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import tvm.tirx.script.builder.ir as I
from tvm import IRModule, s_tir, tirx
from tvm.ir.transform import PassContext
from tvm.script.ir_builder import IRBuilder

from microkernels.tensorize.statements import children, walk, with_body, with_children

from .permission import emit_permission_check
from .residency import Size, check_residency, size_of
from .tensor_intrin import BLOCK_ATTRIBUTE
from .tile_shapes import (
    FIRST_A,
    LAYOUTS,
    ROWS,
    accumulator,
    b_register,
    configuration,
    emit_configure,
    emit_release,
)


def configure_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with tile configurations, releases and the check for permission.

    Parameters
    ----------
    func : PrimFunc
        Scheduled, with init, multiply and store of every block tensorized.

    Returns
    -------
    PrimFunc
        Ready to be compiled. A function without the intrinsics of `amx.tensor_intrin`, or one that
        went through here before, is returned as it is.

    Raises
    ------
    CompileError
        If accumulators would not stay in their tiles from init to store.
    """
    if not _sizes(func.body):
        return func
    check_residency(func)
    check = _emitted(emit_permission_check)
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func.with_body(tirx.SeqStmt([check, _with_tasks(func.body)]))
    root = func.body.block
    body = tirx.SeqStmt([check, _with_tasks(root.body)])
    return func.with_body(with_children(func.body, [with_children(root, [body])]))


def ConfigureTiles() -> tirx.transform.PrimFuncPass:
    """`configure_tiles` for every function of a module."""

    def transform(func: tirx.PrimFunc, _module: IRModule, _context: PassContext) -> tirx.PrimFunc:
        return configure_tiles(func)

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="ConfigureTiles")


def _with_tasks(statement: tirx.Stmt) -> tirx.Stmt:
    """Every outermost piece that runs on one thread configures and releases its tiles."""
    if not _sizes(statement):
        return statement
    if _is_parallel(statement):
        return with_children(statement, [_task(statement.body)])
    if any(_is_parallel(inner) and _sizes(inner) for inner in walk(statement)):
        return with_children(statement, [_with_tasks(child) for child in children(statement)])
    return _task(statement)


def _is_parallel(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL


def _task(statement: tirx.Stmt) -> tirx.Stmt:
    return tirx.SeqStmt([_configured(statement), _emitted(emit_release)])


def _configured(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement with tile instructions, and a configuration loaded wherever it is another."""
    shared = _shared(_sizes(statement))
    if shared is not None:
        load = _emitted(lambda: emit_configure(*shared))
        return tirx.SeqStmt([load, _unmarked(statement)])
    if not isinstance(statement, tirx.SeqStmt):
        return with_children(statement, [_configured(child) for child in children(statement)])
    return tirx.SeqStmt([_configured(run) if _sizes(run) else run for run in _runs(statement)])


def _runs(sequence: tirx.SeqStmt) -> list[tirx.Stmt]:
    """The statements, joined as long as they can share a configuration.

    A block's init, multiply and store are of one size, so no run ends between them.
    """
    runs: list[list[tirx.Stmt]] = []
    for statement in sequence.seq:
        together = _sizes(*(runs[-1] if runs else []), statement)
        if runs and (not together or _shared(together) is not None):
            runs[-1].append(statement)
        else:
            runs.append([statement])
    return [run[0] if len(run) == 1 else tirx.SeqStmt(run) for run in runs]


def _sizes(*statements: tirx.Stmt) -> frozenset[Size]:
    """Sizes of all blocks of tile instructions inside, configured ones excepted."""
    found = (size_of(inner) for statement in statements for inner in walk(statement))
    return frozenset(size for size in found if size is not None)


def _shared(sizes: Iterable[Size]) -> Size | None:
    """One configuration that fits blocks of all these sizes, if there is one."""
    sizes = sorted(sizes)
    for layout in dict.fromkeys(layout for layout, _, _ in sizes):
        rows = max(rows for _, rows, _ in sizes)
        columns = max(columns for _, _, columns in sizes)
        row_tiles, column_tiles = LAYOUTS[layout]
        if rows > ROWS * row_tiles or columns > ROWS * column_tiles:
            continue
        shapes = _shapes(layout, rows, columns)
        if all(_used(*size).items() <= shapes.items() for size in sizes):
            return layout, rows, columns
    return None


def _shapes(layout: str, rows: int, columns: int) -> dict[int, tuple[int, int]]:
    """Rows and bytes of a row of every tile register, in a configuration."""
    numbers = struct.unpack("<16x8H16x8B8x", configuration(layout, rows, columns))
    return dict(enumerate(zip(numbers[8:], numbers[:8], strict=True)))


def _used(layout: str, rows: int, columns: int) -> dict[int, tuple[int, int]]:
    """The same of the registers that a block uses."""
    row_tiles, column_tiles = range(-(-rows // ROWS)), range(-(-columns // ROWS))
    registers = {FIRST_A + i for i in row_tiles}
    registers |= {b_register(layout, j, len(column_tiles)) for j in column_tiles}
    registers |= {accumulator(layout, i, j) for i in row_tiles for j in column_tiles}
    shapes = _shapes(layout, rows, columns)
    return {register: shapes[register] for register in registers}


def _unmarked(statement: tirx.Stmt) -> tirx.Stmt:
    """The statement without the marks of what has now been configured."""
    statement = with_children(statement, [_unmarked(child) for child in children(statement)])
    if size_of(statement) is None:
        return statement
    kept = {key: value for key, value in statement.annotations.items() if key != BLOCK_ATTRIBUTE}
    return with_body(statement, statement.body, kept)


def _emitted(emit: Callable[[], None]) -> tirx.Stmt:
    """What a function emits, as a statement."""
    with IRBuilder() as builder, I.prim_func():
        I.func_name("emitted")
        emit()
    return builder.get().body
