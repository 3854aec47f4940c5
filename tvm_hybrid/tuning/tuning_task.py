"""TuningTask: the search of one region, with its space, its strategy, and its measurements."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from microkernels.base.errors import ConfigError
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, template_for

from ..records.record import Record
from ..records.record_file import Located
from ..records.record_store import ConfigSpace, RecordStore, config_key, trusted
from .measuring.sampling import MARGIN
from .recordings.simulate import earlier_records
from .search.strategies import FAILED, MakeStrategy, SearchStrategy, SearchTask, make_strategy
from .task_scheduler import ALL_TRIED, TaskState
from .tune_result import RegionResult, TaskInfo

FINALISTS = 3

Space = Callable[[Region, Template[Any]], Iterable[Config]]


@dataclass(frozen=True)
class Plan:
    """How to search, and when to stop.

    Attributes
    ----------
    strategy : str or callable
        A name of `strategies.STRATEGIES`, or a function (task, generator) -> strategy.
    trials, trials_per_region, batch, min_gain
        See `TaskScheduler`.
    time_limit : float or None
        No measurement is begun after this many seconds.
    seed : int
        Seed of the strategy.
    resume : bool
        Whether configurations in the file are not measured again.
    finals : bool
        Whether the best are measured again, longer, and chosen only if that confirms them.
    space : callable or None
        (region, template) -> configurations, the default first; None for the template's space.
    """

    strategy: str | MakeStrategy = "model"
    trials: int | None = 1000
    trials_per_region: int | None = None
    batch: int = 8
    min_gain: float = 0.005
    time_limit: float | None = None
    seed: int = 0
    resume: bool = True
    finals: bool = True
    space: Space | None = None


@dataclass(eq=False)
class TuningTask:
    """The tuning of one region.

    Parameters
    ----------
    number : int
        Place among the tasks.
    region : Region
        The region.
    weight : int
        How often the model runs it.
    machine : Machine
        The machine to tune for.
    store : RecordStore
        Records of this region and of others.
    plan : Plan
        How to search.

    Attributes
    ----------
    default : Config
        The configuration that all others are compared with.
    found : list of Located
        All records of the region so far, in order.
    known, measured : int
        Configurations that the file held; measurements made since, finals included.
    stopped : str
        Why it gets no more trials.
    """

    number: int
    region: Region
    weight: int
    machine: Machine
    store: RecordStore
    plan: Plan

    def __post_init__(self) -> None:
        self.template = template_for(self.region.op)
        if self.plan.space is None:
            self.space = ConfigSpace.of(self.region, self.template, self.machine)
        else:
            configs = list(self.plan.space(self.region, self.template))
            own = self.template.default_config(self.region, self.machine)
            self.space = ConfigSpace(own if own in configs else configs[0], configs)
        self.default = self.space.configs[0]
        self._default_key = config_key(self.default.to_dict())
        self._records: dict[bytes, Record] = {}
        self.found: list[Located] = []
        self._strategy: SearchStrategy | None = None
        self._predicted: float | None = None
        self._ended = ""
        self._state: TaskState | None = None
        self._finalists: list[Config] | None = None
        self.measured = 0
        self.stopped = ""
        if self.plan.resume:
            for record, _ in self.store.tried(self.region, self.template, self.machine):
                self._keep(record)
        default = self.default_record
        if self.plan.finals and default is not None and default.relative not in (None, 1.0):
            # Measured as a candidate, in turns with an earlier default: measure it again.
            del self._records[self._default_key]
        self.known = len(self._records)

    def _keep(self, record: Record) -> None:
        # Keeps the newest record of each configuration, in the order of first trials.
        self._records[config_key(record.config)] = record
        self.found.append(Located(record, ""))
        self._state = self._finalists = None

    def is_default(self, record: Record) -> bool:
        """Whether a record is of the default configuration."""
        return config_key(record.config) == self._default_key

    @property
    def default_record(self) -> Record | None:
        """The newest record of the default configuration."""
        return self._records.get(self._default_key)

    @property
    def baseline(self) -> Config | None:
        """The configuration to sample candidates in turns with; None if the default fails."""
        record = self.default_record
        return self.default if record is not None and record.times_us else None

    @property
    def reference_us(self) -> float | None:
        """Time of a score of 1: the default's, or that of the first configuration that ran."""
        record = self.default_record
        ran = [record] if record is not None and record.times_us else self._ran()
        return ran[0].median_us if ran else None

    def _ran(self) -> list[Record]:
        return [record for record in self._records.values() if record.times_us]

    def score(self, record: Record) -> float:
        """Speed relative to the default; FAILED if it did not run."""
        if record.status != "ok" or not record.times_us:
            return FAILED
        if record.relative:
            return self._default_relative / record.relative
        reference = self.reference_us
        return reference / record.median_us if reference else FAILED

    @property
    def _default_relative(self) -> float:
        """The default's time over that of the baseline at the time of its measurement."""
        default = self.default_record
        return default.relative or 1.0 if default is not None else 1.0

    def state(self) -> TaskState:
        """The state for the scheduler; the default counts as tried first."""
        if self._state is None:
            scores = [self.score(record) for record in self._records.values()]
            if self.default_record is None:
                scores.clear()
            else:
                scores.insert(0, scores.pop(list(self._records).index(self._default_key)))
            known = tuple(scores), self.reference_us, self._predicted, self._ended
            self._state = TaskState(self.weight, len(self.space), *known)
        return self._state

    def propose(self, count: int) -> list[Config]:
        """Returns what to measure next: first the default, then the strategy's proposals, which may
        be fewer than `count` if the strategy wants to learn first."""
        if self.default_record is None:
            return [self.default]
        if self._strategy is None:
            # Made late, because other regions may have got records to learn from until now.
            history = partial(earlier_records, self.store, self.machine, self.region.key)
            task = SearchTask(self.region, self.template, self.machine, self.space, history)
            name, seed = self.plan.strategy, self.plan.seed
            if isinstance(name, str):
                self._strategy = make_strategy(name, task, seed)
            else:
                self._strategy = name(task, random.Random(f"{seed} {self.region.key}"))
            self.observe(list(self._records.values()))
        chosen = self._strategy.propose(count)
        if not chosen:
            self.end(ALL_TRIED)
        return [self.space.configs[index] for index in chosen]

    def end(self, reason: str) -> None:
        """Ends the search of this region."""
        self._ended, self._state = reason, None

    def expected(self, config: Config) -> float | None:
        """Score that the strategy expects of a configuration; None if it makes no predictions."""
        tell = getattr(self._strategy, "prediction", None)
        index = self.space.index_of(config)
        return tell(index) if tell is not None and index is not None else None

    def observe(self, records: Sequence[Record]) -> None:
        """Tells the strategy the scores of a batch."""
        if self._strategy is None:
            return
        results = []
        for record in records:
            with contextlib.suppress(ConfigError):  # an illegal record, written by hand
                index = self.space.index_of(self.template.config_type.from_dict(record.config))
                if index is not None:
                    results.append((index, self.score(record)))
        self._strategy.observe(results)
        self._predicted, self._state = self._strategy.predicted(), None

    def take(self, record: Record) -> None:
        """Adds the record of a new measurement."""
        self._keep(record)
        self.measured += 1

    def finalists(self) -> list[Config]:
        """Returns up to FINALISTS configurations that need a longer measurement, the best first.

        They must be faster than the confirmed ones, and than the default by more than the margin of
        the confirmation.
        """
        if self._finalists is not None:
            return self._finalists
        confirmed = [self.score(record) for record in self._ran() if record.confirmed]
        bar = 0.0  # if the default does not run, anything that runs is better
        if self.baseline is not None:
            bar = max(1 / (1 - MARGIN), *confirmed, 0.0)
        elif confirmed:
            self._finalists = []
            return []
        ran = (record for record in self._ran() if record.confirmed is None)
        waiting = [record for record in ran if self.score(record) > bar]
        waiting.sort(key=lambda each: (-self.score(each), config_key(each.config)))
        self._finalists = []
        for record in self._outdated() or waiting[:FINALISTS]:
            with contextlib.suppress(ConfigError):  # an illegal record, written by hand
                self._finalists.append(self.template.config_type.from_dict(record.config))
        return self._finalists

    def _outdated(self) -> list[Record]:
        """Records that were confirmed against another default than today's."""
        confirmed: dict[bytes, Record] = {}
        is_default = False
        for record, _ in self.found:
            key = config_key(record.config)
            if key == self._default_key:
                is_default = is_default or record.relative == 1.0
            elif record.confirmed is not None:
                confirmed.pop(key, None)
                if record.confirmed and not is_default:
                    confirmed[key] = record
        return list(confirmed.values()) if is_default else []

    def info(self) -> TaskInfo:
        """The state for callbacks."""
        default = self.default_record
        best = max(self.state().scores, default=0.0) or None
        return TaskInfo(
            number=self.number,
            **self._about(),
            default_us=default.median_us if default is not None and default.times_us else None,
            best=best,
            predicted_gain=self._predicted / best - 1 if self._predicted and best else None,
        )

    def _about(self) -> dict[str, Any]:
        about = {"region": self.region, "weight": self.weight, "size": len(self.space)}
        return {**about, "known": self.known, "tried": len(self._records), "stopped": self.stopped}

    def result(self) -> RegionResult:
        """The outcome."""
        found, default = next(iter(trusted(self.found)), None), self.default_record
        best = found.record if found is not None else None  # what a compilation chooses
        default_us = default.median_us if default is not None and default.times_us else None
        if best is not None and best.baseline_us:
            # Measured in turns with the best.
            default_us = best.baseline_us * self._default_relative
        return RegionResult(
            **self._about(),
            default_us=default_us,
            best_us=best.median_us if best is not None else None,
            best=best.config if best is not None else None,
            speedup=self.score(best) if best is not None and default_us else 1.0,
            trials=self.measured,
            failures=sum(record.status != "ok" for record in self._records.values()),
        )
