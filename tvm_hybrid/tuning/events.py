"""What a tuning run tells those who watch it, and how they stop it.

def watch(trial: Trial) -> None:
    print(trial.trials_done, trial.task.region.key, trial.task.best)
    if trial.task.best > 2:
        raise StopTuning("fast enough")

tvm_hybrid.tune(model, callbacks=[watch])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tir_schedules.core.region import Region

from ..records.record import Record

Stage = Literal["begin", "search", "final", "end"]


class StopTuning(Exception):
    """Raised by a callback to end the search; what leads is still measured again, longer."""


@dataclass(frozen=True)
class TaskInfo:
    """One region of a run.

    Attributes
    ----------
    number : int
        From 0, in the order of `Trial.tasks`.
    region : Region
        The region.
    weight : int
        How often the model runs it.
    size : int
        Configurations of its space.
    known : int
        Of these, how many the record file held before the run.
    tried : int
        How many were measured by now, known ones included.
    default_us : float or None
        Median microseconds of the default configuration; None if it was not measured, or failed.
    best : float or None
        The best speed so far as a multiple of the default's, not yet confirmed.
    predicted_gain : float or None
        By which share the strategy expects the best untried configuration to be faster than the
        best so far; None if it does not say.
    stopped : str
        Why it gets no more trials; empty while it does.
    """

    number: int
    region: Region
    weight: int
    size: int
    known: int
    tried: int
    default_us: float | None
    best: float | None
    predicted_gain: float | None
    stopped: str


@dataclass(frozen=True)
class Trial:
    """One step of a run.

    Attributes
    ----------
    stage : str
        "begin", once; "search" and "final", after each measurement; "end", once.
    tasks : tuple of TaskInfo
        All regions, as they are now.
    number : int
        Which of them was measured.
    record : Record or None
        The measurement; it is on the disk. None at the beginning and at the end.
    trials_done : int
        Configurations measured by now, known ones included, finals not.
    trials_left : int or None
        How many more there may be; None if there is no limit but the spaces.
    seconds_left : float or None
        At most so long, by the mean of what was measured in this run; None while nothing was.
    """

    stage: Stage
    tasks: tuple[TaskInfo, ...]
    number: int
    record: Record | None
    trials_done: int
    trials_left: int | None
    seconds_left: float | None

    @property
    def task(self) -> TaskInfo:
        """The region that was measured."""
        return self.tasks[self.number]

    @property
    def best(self) -> float | None:
        """The best speed of that region so far as a multiple of the default's."""
        return self.task.best

    @property
    def predicted_gain(self) -> float | None:
        """See `TaskInfo`."""
        return self.task.predicted_gain


Callback = Callable[[Trial], None]
