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
    """The outcome of tuning one region.

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
        Fields of the best Config: the fastest one that was confirmed to be faster than the default,
        else the default.
    speedup : float
        The default's time over the best's, measured in turns; 1.0 if the default is the best.
    trials, tried : int
        Measurements made in this run, finals included; configurations measured so far.
    known : int
        Configurations that the file already held.
    failures : int
        Configurations whose status is not "ok".
    stopped : str
        Why the region got no more trials; empty if the run ended first.
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
        The regions whose tuning was begun.
    interrupted : bool
        Whether Ctrl-C ended the run.
    reason : str
        Why the run ended.
    seconds : float
        Duration of the run.
    records : list of Record
        Records of these regions: those known before, then those of this run, in order.
    layouts : JointResult or None
        The outcome of the joint stage; None without one.
    arrangements : list of ArrangementResult
        Outcomes for contractions in programs without operators.
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
        """Microseconds of all regions that ran, in one run of the model, with the defaults."""
        return sum(found.weight * (found.default_us or 0.0) for found in self.regions)

    @property
    def best_us(self) -> float:
        """Microseconds of all regions that ran, in one run of the model, as tuned."""
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


# What a tuning run reports to callbacks, and how a callback stops it.
#
# def watch(trial: Trial) -> None:
#     print(trial.trials_done, trial.task.region.key, trial.task.best)
#     if trial.task.best > 2:
#         raise StopTuning("fast enough")
#
# tvm_hybrid.tune(model, callbacks=[watch])


Stage = Literal["begin", "search", "final", "end"]


class StopTuning(Exception):
    """Raised by a callback to end the search; finalists are still measured again."""


@dataclass(frozen=True)
class TaskInfo:
    """The state of one region during a run.

    Attributes
    ----------
    number : int
        Place in `Trial.tasks`, from 0.
    region : Region
        The region.
    weight : int
        How often the model runs it.
    size : int
        Configurations of its space.
    known : int
        Configurations that the record file held before the run.
    tried : int
        Configurations measured so far, known ones included.
    default_us : float or None
        Median microseconds of the default configuration; None if it was not measured, or failed.
    best : float or None
        Best speed so far relative to the default, not yet confirmed.
    predicted_gain : float or None
        By which share the strategy expects the best untried configuration to be faster than the
        best so far; None without an expectation.
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
        Current state of all regions.
    number : int
        Place in `tasks` of the region that was measured.
    record : Record or None
        The measurement, already on disk. None at the beginning and at the end.
    trials_done : int
        Configurations measured so far, known ones included, finals not.
    trials_left : int or None
        Remaining trials; None if only the spaces limit them.
    seconds_left : float or None
        Most remaining seconds, from the mean of this run's measurements; None while unknown.
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
        """The best speed of that region so far, relative to the default."""
        return self.task.best

    @property
    def predicted_gain(self) -> float | None:
        """See `TaskInfo`."""
        return self.task.predicted_gain


Callback = Callable[[Trial], None]
