"""What a tuning run found; everything in it is in the record file as well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tir_schedules.core.region import Region

from ..records.record import Record

if TYPE_CHECKING:
    from .layouts.joint_layout import JointResult
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
        lines = [
            f"{found.speedup:6.3f}x  {_microseconds(found.default_us)} -> "
            f"{_microseconds(found.best_us)}  {found.weight} x {found.region.key}"
            for found in self.regions
        ]
        whole = f"all regions: {self.default_us:.2f} us -> {self.best_us:.2f} us; {self.reason}"
        joint = [] if self.layouts is None else [str(self.layouts)]
        return "\n".join([*lines, *map(str, self.arrangements), *joint, whole])


def _microseconds(value: float | None) -> str:
    return "failed" if value is None else f"{value:.2f} us"
