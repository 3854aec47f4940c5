"""MetaSchedule's databases and our records: `export_records`, `import_records`.

A database that we wrote is applied by TVM's own pass, once our microkernels have been registered
under the names that its traces use:

    register_intrinsics("work_dir")
    mod = relax.transform.MetaScheduleApplyDatabase("work_dir")(mod)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tir_schedules.core.region import Region
from tvm_hybrid.tvm_compat.metaschedule_database import MetaScheduleFolder

from .export_records import Exchange, export_records
from .import_records import import_records
from .schedule import register_intrinsic
from .trace import TraceRecord, traces_of

__all__ = [
    "Exchange",
    "TraceRecord",
    "export_records",
    "import_records",
    "regions_of_model",
    "register_intrinsics",
    "traces_of",
]


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


def regions_of_model(model: Any) -> list[Region]:
    """The regions that this machine would make of a model, merged ones and single ones.

    `import_records` compares foreign programs with them. TVM's pipelines merge no products, so
    records for `export_records` are those of single ones: tuned with `fusion="fine"`.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or IRModule
        As for `compile`.

    Raises
    ------
    ModelError
        If it cannot be read.
    """
    from relay_passes.pipeline import PipelineOptions, collect_regions

    from ...model_input import import_model
    from ...targets import resolve_target

    mod = import_model(model, None).mod
    found: dict[str, Region] = {}
    for fusion in ("coarse", "fine"):
        options = PipelineOptions(target=resolve_target(None), threads=1, fusion=fusion)
        found |= {region.key: region for region in collect_regions(mod, options)}
    return list(found.values())
