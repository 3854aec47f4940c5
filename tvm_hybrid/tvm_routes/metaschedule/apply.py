"""Applies a database of MetaSchedule to a module as TVM's users have it, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tvm import IRModule, ir, relax, tirx
from tvm.s_tir.meta_schedule.database import JSONDatabase
from tvm.target import Target

from microkernels.base.errors import RecordError
from microkernels.base.tvm_compat.metaschedule_database import MetaScheduleFolder
from microkernels.base.tvm_compat.relax import OP_PATTERN
from microkernels.base.tvm_compat.schedules import IS_SCHEDULED, makes_a_program

from ...targets.resolve import TargetLike, resolve_target
from .schedule import register_intrinsic
from .workload import LAYOUT_FREE, legalized, normalized
from .writer import first_line


def register_intrinsics(work_dir: str | os.PathLike[str]) -> list[str]:
    """Registers the microkernels that the traces of a database name, for this process.

    Parameters
    ----------
    work_dir : path-like
        The database's folder.

    Returns
    -------
    list of str
        The tensor intrinsics' names.

    Raises
    ------
    RecordError
        If there is no database.
    IsaError
        If a trace names a tile that no microkernel has.
    """
    entries = MetaScheduleFolder(Path(work_dir)).entries
    names = dict.fromkeys(name for entry in entries for name in entry.intrinsics)
    return [name for name in names if register_intrinsic(name)]


def apply_database(
    mod: IRModule, work_dir: str | os.PathLike[str], target: TargetLike = None
) -> IRModule:
    """A module with the programs that a database has for it; then `tvm.compile(mod, target)`.

    Parameters
    ----------
    mod : IRModule
        Of Relax operators, or legalised and fused already. Weights that are constants in it are
        packed at compile time where the database has such a program.
    work_dir : path-like
        The database's folder: `tvm-hybrid records export` or MetaSchedule wrote it.
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one.

    Returns
    -------
    IRModule
        Calls of programs. Those that the database does not have are as they were; dlight's rules
        take them, and leave the others alone.

    Raises
    ------
    RecordError
        If there is no database, or TVM cannot read it.
    IsaError
        If a trace names a tile that no microkernel has.
    TargetError
        If the target makes no sense.
    """
    register_intrinsics(work_dir)
    resolved = resolve_target(target)
    with resolved:
        mod = legalized(mod) if _has_operators(mod) else mod
        found = _replaced(mod, _database(work_dir), resolved)
        if not found:
            return mod
        # Packing of constants becomes programs of their own, then constants.
        passes = [
            relax.transform.SplitLayoutRewritePreproc(),
            relax.transform.FoldConstant(),
            relax.transform.DeadCodeElimination(),
        ]
        return ir.transform.Sequential(passes)(found)


def _has_operators(mod: IRModule) -> bool:
    """Whether a module has Relax operators that LegalizeOps would make programs of."""
    found: list[bool] = []

    def visit(expr: relax.Expr) -> None:
        op = getattr(expr, "op", None)
        if isinstance(op, ir.Op) and makes_a_program(op):
            found.append(True)

    for _, function in mod.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return bool(found)


def _database(work_dir: str | os.PathLike[str]) -> JSONDatabase:
    try:
        return JSONDatabase(work_dir=str(work_dir))
    except Exception as error:
        raise RecordError(
            f"TVM cannot read the database in {work_dir}: {first_line(error)}"
        ) from error


def _replaced(mod: IRModule, database: JSONDatabase, target: Target) -> IRModule | None:
    """The module with what the database has; None if that is nothing."""
    mod = relax.transform.AttachAttrLayoutFreeBuffers()(mod)
    updated = IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    found = False
    for gvar, function in mod.functions_items():
        if not isinstance(function, tirx.PrimFunc) or IS_SCHEDULED in function.attrs:
            continue
        name, plain = str(gvar.name_hint), _without(function, LAYOUT_FREE)
        for form in _forms(function):
            made = database.query_ir_module(normalized(form), target, name)
            if made is not None:
                found = True
                program = _without(made["main"], LAYOUT_FREE, "global_symbol")
                plain = program.with_attrs({**plain.attrs, IS_SCHEDULED: True})
                break
        updated.update_func(gvar, plain)
    return updated if found else None


def _forms(function: tirx.PrimFunc) -> Iterator[tirx.PrimFunc]:
    """A program as a database may have it: its weights constants or not, its operators' kind noted
    by AnnotateTIROpPattern or not.
    """
    for names in ((), (OP_PATTERN,), (LAYOUT_FREE,), (OP_PATTERN, LAYOUT_FREE)):
        if all(name in function.attrs for name in names):
            yield _without(function, *names)


def _without(function: tirx.PrimFunc, *names: str) -> tirx.PrimFunc:
    for name in names:
        if name in function.attrs:
            function = function.without_attr(name)
    return function
