"""Layouts and loops tuned together, against loops alone, with as many trials: what ALT claims.

Two runs of `tune` into two record files that begin empty, then both models in turns. Both have the
same trials in all; the joint run spends up to `joint_layout.SHARE` of them on layouts.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microkernels.base.errors import RecordError

from ..frontend.model_input import import_model
from ..options import CompileOptions, passes_options, setting_of, target_of
from ..records.record_lookup import RecordLookup
from ..records.record_store import RecordStore
from ..tuning.joint_layout import JointResult
from ..tuning.measuring.model_race import RACE_EFFORT, race
from ..tuning.measuring.sampling import Effort, sign_test
from ..tuning.tune_model import tune
from ..tuning.tune_result import TuneResult

NAMES = ("loops.jsonl", "joint.jsonl")


@dataclass(frozen=True)
class LayoutComparison:
    """What both ways led to.

    Attributes
    ----------
    loops_us, joint_us : list of float
        Microseconds of the whole model after loops alone, and after both; samples at the same place
        were taken one right after the other.
    layouts : JointResult or None
        What the joint stage found.
    loops_trials, joint_trials : int
        Configurations that each run measured.
    """

    loops_us: list[float]
    joint_us: list[float]
    layouts: JointResult | None
    loops_trials: int
    joint_trials: int

    @property
    def speedup(self) -> float:
        """Time after loops alone over that after both: the median of the pairs' quotients."""
        pairs = zip(self.loops_us, self.joint_us, strict=True)
        return statistics.median(loops / joint for loops, joint in pairs)

    @property
    def chance(self) -> float:
        """How likely so many pairs in favour of the faster one are if both are equal."""
        one, other = self.joint_us, self.loops_us
        return min(1.0, 2 * min(sign_test(one, other, 0.0), sign_test(other, one, 0.0)))

    def __str__(self) -> str:
        return (
            f"loops alone {statistics.median(self.loops_us):.2f} us ({self.loops_trials} trials), "
            f"with layouts {statistics.median(self.joint_us):.2f} us ({self.joint_trials} trials): "
            f"{self.speedup:.3f}x, p = {self.chance:.2g}\n{self.layouts}"
        )


def compare_layouts(
    model: Any,
    folder: str | os.PathLike[str],
    options: CompileOptions,
    *,
    effort: Effort = RACE_EFFORT,
    **settings: Any,
) -> LayoutComparison:
    """Tunes a model in both ways, and runs what comes of it in turns.

    Parameters
    ----------
    model : Any
        As for `tune`.
    folder : path-like
        Where the record files go: NAMES, which must not be there yet.
    options : CompileOptions
        How the model is compiled.
    effort : Effort
        Of the comparison in the end.
    **settings
        Further keywords of `tune`, such as `trials`.

    Raises
    ------
    RecordError
        If the folder holds records already: they would not be the same for both.
    """
    files = [Path(folder) / name for name in NAMES]
    for file in files:
        if file.exists():
            raise RecordError(f"{file} exists: a comparison begins without records")
    loops, joint = (
        tune(model, options, records=file, layouts=layouts, **settings)
        for file, layouts in zip(files, ("fixed", "joint"), strict=True)
    )
    target, threads = target_of(options), setting_of(options, here=True).count
    fixed, free = (
        passes_options(options, target, threads, RecordLookup(RecordStore(file, must_exist=False)))
        for file in files
    )
    mod = import_model(model, options.shapes, options.values).mod
    found = race((mod, free), (mod, fixed), effort)
    return LayoutComparison(
        found.other_times_us, found.times_us, joint.layouts, _tried(loops), _tried(joint)
    )


def _tried(result: TuneResult) -> int:
    """Configurations that were measured, finals not counted."""
    keys = {each.region.key for each in result.regions}
    elsewhere = {} if result.layouts is None else result.layouts.measured
    other = sum(count for key, count in elsewhere.items() if key not in keys)
    return other + sum(each.tried for each in result.regions)
