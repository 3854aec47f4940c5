"""Compares ALT's joint tuning of layouts and loops with tuning loops alone, with equal trials.

Runs `tune` twice, into two new record files, then times both models in turns. Both runs have
equally many trials in total; the joint run spends up to `joint_layout.SHARE` of them on layouts.
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
    """The result of the comparison.

    Attributes
    ----------
    loops_us, joint_us : list of float
        Microseconds of the whole model after tuning loops alone, and after tuning both; samples at
        equal places were taken one right after the other.
    layouts : JointResult or None
        Outcome of the joint stage.
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
        """Median quotient of the pairs: time with loops alone over time with both."""
        pairs = zip(self.loops_us, self.joint_us, strict=True)
        return statistics.median(loops / joint for loops, joint in pairs)

    @property
    def chance(self) -> float:
        """Two-sided p-value of the sign test that both are equally fast."""
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
    """Tunes a model in both ways, and times the two results in turns.

    Parameters
    ----------
    model : Any
        See `tune`.
    folder : path-like
        Folder for the record files NAMES, which must not exist yet.
    options : CompileOptions
        How the model is compiled.
    effort : Effort
        Effort of the final comparison.
    **settings
        Further keywords of `tune`, such as `trials`.

    Raises
    ------
    RecordError
        If one of the record files exists: then the runs would not begin alike.
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
    """Number of measured configurations, without finals."""
    keys = {each.region.key for each in result.regions}
    elsewhere = {} if result.layouts is None else result.layouts.measured
    other = sum(count for key, count in elsewhere.items() if key not in keys)
    return other + sum(each.tried for each in result.regions)
