"""Applies a database of MetaSchedule to a module as TVM's users have it, in one call."""

from __future__ import annotations

import os
from pathlib import Path

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from tvm_hybrid.tvm_compat.metaschedule_database import MetaScheduleFolder

from ...targets import TargetLike, resolve_target
from .schedule import register_intrinsic
from .workload import LAYOUT_FREE, legalized

IS_SCHEDULED = "tirx.is_scheduled"


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
        Calls of programs. Those that the database does not have are as they were, and TVM's own
        schedules may follow.

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
    apply = relax.transform.MetaScheduleApplyDatabase(str(work_dir))
    passes = [
        relax.transform.AttachAttrLayoutFreeBuffers(),
        apply,
        _without_free_layouts(),
        apply,
        relax.transform.SplitLayoutRewritePreproc(),
        relax.transform.FoldConstant(),
    ]
    with resolve_target(target):
        return ir.transform.Sequential(passes)(legalized(mod))


def _without_free_layouts() -> ir.transform.Pass:
    """A pass that makes a program that was not found the one without constants."""

    @module_pass(opt_level=0, name="tvm_hybrid.without_free_layouts")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        updated = IRModule(dict(mod.functions_items()), attrs=mod.attrs)
        for gvar, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and IS_SCHEDULED not in function.attrs:
                updated.update_func(gvar, function.without_attr(LAYOUT_FREE))
        return updated

    return run
