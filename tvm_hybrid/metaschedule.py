"""For users of MetaSchedule: our microkernels in its spaces and its databases.

    space = tvm_hybrid.metaschedule.space_generator(target)     # for tune_tir and tune_relax
    mod = tvm_hybrid.metaschedule.apply_database(mod, "work_dir", target)

docs/tvm_schedules.md shows both. Our own tuner is `tvm_hybrid.tune`.
"""

from __future__ import annotations

from .tuning.metaschedule import apply_database, space_generator, tensor_intrinsic

__all__ = ["apply_database", "space_generator", "tensor_intrinsic"]
