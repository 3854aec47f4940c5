"""MetaSchedule's databases and our records: `export_records`, `import_records`.

`apply_database` applies a database that we wrote to a module. TVM's pass does so too, once our
microkernels are registered under the names that the traces use:

    register_intrinsics("work_dir")
    mod = relax.transform.MetaScheduleApplyDatabase("work_dir")(mod)

`space_generator` gives MetaSchedule's search programs around our microkernels.
"""

from __future__ import annotations

from typing import Any

from tir_schedules.core.region import Region

from .exchange import Exchange, export_records, import_records
from .space import apply_database, register_intrinsics, space_generator, tensor_intrinsic
from .trace import TraceRecord, traces_of

__all__ = [
    "Exchange",
    "TraceRecord",
    "apply_database",
    "export_records",
    "import_records",
    "regions_of_model",
    "register_intrinsics",
    "space_generator",
    "tensor_intrinsic",
    "traces_of",
]


def regions_of_model(model: Any) -> list[Region]:
    """The regions that this machine would make of a model, both merged and single.

    `import_records` compares foreign programs with these regions. TVM's pipelines merge no
    products, so `export_records` needs records of single products, tuned with `fusion="fine"`.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or IRModule
        As for `compile`.

    Raises
    ------
    ModelError
        If the model cannot be read.
    """
    from relay_passes.lower_module import collect_regions
    from relay_passes.pipeline_options import PipelineOptions

    from ...frontend.model_input import import_model
    from ...targets.resolve import resolve_target

    mod = import_model(model, None).mod
    found: dict[str, Region] = {}
    for fusion in ("coarse", "fine"):
        options = PipelineOptions(target=resolve_target(None), threads=1, fusion=fusion)
        found |= {region.key: region for region in collect_regions(mod, options)}
    return list(found.values())
