"""Measures a model on this machine, to hold predictions against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ...executable.executable import Executable
from ...explain.profile import Profile
from .scale import ScaleReport

TURNS = 6
SLICE_US = 1e5


def with_measured(
    report: ScaleReport, executables: Mapping[int, Executable], feeds: Mapping[str, np.ndarray]
) -> ScaleReport:
    """A report with what the model and its kernels really take.

    Parameters
    ----------
    report : ScaleReport
        Predictions for this machine.
    executables : mapping from int to Executable
        The model by numbers of threads.
    feeds : mapping
        Its inputs.
    """
    runs = []
    for run in report.runs:
        executable = executables.get(run.threads)
        if executable is None:
            runs.append(run)
            continue
        total, kernels = measure(executable, feeds)
        runs.append(msgspec.structs.replace(run, measured_us=total, measured=kernels))
    return msgspec.structs.replace(report, runs=runs)


def measure(executable: Executable, feeds: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """Microseconds of a run, and of each kernel in it: the least of some turns.

    The time of a kernel is without that of the instrument, which is what the kernels take together
    more than the run, in equal parts for each call.
    """
    repeat = max(2, int(SLICE_US / executable.profile(feeds, 2).total_us))
    profiles = [executable.profile(feeds, repeat) for _ in range(TURNS)]
    total = min(profile.total_us for profile in profiles)
    calls = {row.function: row.calls for row in profiles[0].rows}
    least = {name: min(_time(profile, name) for profile in profiles) for name in calls}
    surplus = max(0.0, sum(least.values()) - total) / sum(calls.values())
    return total, {name: max(0.0, time - surplus * calls[name]) for name, time in least.items()}


def _time(profile: Profile, name: str) -> float:
    return sum(row.microseconds for row in profile.rows if row.function == name)
