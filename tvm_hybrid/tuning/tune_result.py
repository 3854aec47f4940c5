"""What a tuning run found; everything in it is in the record file as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tir_schedules.core.region import Region

from ..records.record import Record

if TYPE_CHECKING:
    from .joint_layout import JointResult
    from .tune_arrangements import ArrangementResult


@dataclass(frozen=True)
class RegionResult:
    """What tuning one region found.

    Attributes
    ----------
    region : Region
        The region.
    weight : int
        How often the model runs it.
    size : int
        Configurations of its space.
    default_us, best_us : float or None
        Median microseconds of the default and of the best configuration; None if none ran.
    best : dict or None
        Fields of the best Config: the fastest of those that were confirmed to be faster than the
        default, else the default.
    speedup : float
        The default's time over the best's, measured in turns; 1.0 if the default is the best.
    trials, tried : int
        Measurements made in this run, finals included; configurations measured by now.
    known : int
        Configurations that the file held already.
    failures : int
        Configurations that did not come out "ok".
    stopped : str
        Why it got no more trials; empty if the run ended first.
    """

    region: Region
    weight: int
    size: int
    default_us: float | None
    best_us: float | None
    best: dict[str, object] | None
    speedup: float
    trials: int
    tried: int
    known: int
    failures: int
    stopped: str = ""


@dataclass
class TuneResult:
    """The outcome of a tuning run.

    Attributes
    ----------
    regions : list of RegionResult
        Those that were begun.
    interrupted : bool
        Whether Ctrl-C ended it.
    reason : str
        Why it ended.
    seconds : float
        How long it took.
    records : list of Record
        Of these regions: those known before, then those measured in this run, in their order.
    layouts : JointResult or None
        What the joint stage found, if there was one.
    arrangements : list of ArrangementResult
        Of contractions in programs without operators.
    """

    regions: list[RegionResult] = field(default_factory=list)
    interrupted: bool = False
    reason: str = ""
    seconds: float = 0.0
    records: list[Record] = field(default_factory=list, repr=False)
    layouts: JointResult | None = None
    arrangements: list[ArrangementResult] = field(default_factory=list)

    @property
    def default_us(self) -> float:
        """Microseconds of all regions of one run of the model, by default, as far as they ran."""
        return sum(found.weight * (found.default_us or 0.0) for found in self.regions)

    @property
    def best_us(self) -> float:
        """The same with what was found."""
        return sum(
            found.weight * (found.default_us or 0.0) / found.speedup for found in self.regions
        )

    def __str__(self) -> str:
        lines = []
        for found in self.regions:
            times = (found.default_us, found.best_us)
            default, best = ("failed" if us is None else f"{us:.2f} us" for us in times)
            runs = f"{found.weight} x {found.region.key}"
            lines.append(f"{found.speedup:6.3f}x  {default} -> {best}  {runs}")
        whole = f"all regions: {self.default_us:.2f} us -> {self.best_us:.2f} us; {self.reason}"
        joint = [] if self.layouts is None else [str(self.layouts)]
        return "\n".join([*lines, *map(str, self.arrangements), *joint, whole])


# What a tuning run tells those who watch it, and how they stop it.
#
# def watch(trial: Trial) -> None:
#     print(trial.trials_done, trial.task.region.key, trial.task.best)
#     if trial.task.best > 2:
#         raise StopTuning("fast enough")
#
# tvm_hybrid.tune(model, callbacks=[watch])


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
