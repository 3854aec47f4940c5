"""Simulation: a search strategy replays a recorded space, instantly and without hardware.

    (recording,) = load_recordings("matmul_f32_small")
    trace = simulate("model", recording, seed=1)
    trials_to_reach(trace, 0.98)

A recording is a record file with every configuration of a region's space, each measured in turns
with the default configuration. The folder `recordings` holds those that the package ships.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from microkernels.base.errors import ConfigError, RecordError, TvmHybridError
from microkernels.base.logs import logger
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, template_for

from ...records.nearest_record import NearestRecords
from ...records.record import Record
from ...records.record_file import COMPRESSED, Located, read_records
from ...records.record_store import ConfigSpace, RecordStore, latest, ranked
from ..search.strategies import FAILED, SearchTask, make_strategy

SHIPPED = Path(__file__).parent
_ENDING = f".jsonl{COMPRESSED}"


@dataclass(frozen=True)
class Recording:
    """A completely measured space.

    Attributes
    ----------
    name : str
        The file's name without its ending; with the region's key if the file holds several.
    region : Region
        The region.
    template : Template
        Template of the configurations.
    machine : Machine
        The machine that was measured; cache sizes come from its description.
    space : ConfigSpace
        The measured configurations, the default first.
    scores : numpy.ndarray
        Speed of each relative to the default, float64; 0.0 for failures.
    times_us : numpy.ndarray
        Median microseconds of each, float64; infinite for failures.
    records : tuple of Record
        The newest measurement of each configuration.
    """

    name: str
    region: Region
    template: Template[Any]
    machine: Machine
    space: ConfigSpace = field(repr=False)
    scores: np.ndarray = field(repr=False)
    times_us: np.ndarray = field(repr=False)
    records: tuple[Record, ...] = field(repr=False)

    @property
    def best(self) -> float:
        """The optimum's score: the default's time over the optimum's."""
        return float(self.scores.max())

    def near(self, share: float) -> int:
        """Counts the configurations with at least this share of the optimum's speed."""
        return int((self.scores >= share * self.best).sum())

    def task(self, history: Sequence[Record] = ()) -> SearchTask:
        """Makes the task of searching this recording."""
        return SearchTask(self.region, self.template, self.machine, self.space, lambda: history)


@dataclass(frozen=True)
class Trace:
    """A simulated search.

    Attributes
    ----------
    order : tuple of int
        Configurations in the order of their trials.
    best : numpy.ndarray
        Best speed after each trial, as a share of the optimum's, float64.
    """

    order: tuple[int, ...]
    best: np.ndarray


def shipped_recordings() -> list[str]:
    """Names of the recordings that the package ships."""
    return sorted(path.name.removesuffix(_ENDING) for path in SHIPPED.glob(f"*{_ENDING}"))


def load_recordings(source: str | os.PathLike[str]) -> list[Recording]:
    """Loads the recordings of one file: one for each region, machine and number of threads.

    Parameters
    ----------
    source : str or path-like
        A file, plain or compressed by xz, or the name of a shipped recording.

    Raises
    ------
    RecordError
        If there is no such recording, its configurations do not fit this version, or the default
        configuration was not measured.
    """
    path = Path(source)
    shipped = SHIPPED / f"{path}{_ENDING}"
    if not path.is_file():
        if path.name != str(path) or not shipped.is_file():
            known = ", ".join(shipped_recordings()) or "none"
            raise RecordError(
                f"there is no file {path}; the recordings of this package are {known}"
            )
        path = shipped
    groups: dict[tuple[str, str, str, int], list[Located]] = {}
    for item in read_records(path):
        record = item.record
        key = (record.workload, record.machine, record.isa, record.threads)
        groups.setdefault(key, []).append(item)
    if not groups:
        raise RecordError(f"{path} holds no records")
    name = path.name.removesuffix(COMPRESSED).removesuffix(".jsonl")
    names = [name] if len(groups) == 1 else [f"{name}: {key[0]}" for key in groups]
    return [_recording(*named) for named in zip(names, groups.values(), strict=True)]


def simulate(
    strategy: str,
    recording: Recording,
    trials: int | None = None,
    seed: int = 0,
    batch: int = 8,
    history: Sequence[Record] = (),
    until: float | None = None,
) -> Trace:
    """Searches a recording; no score is known in advance, not even the default's.

    Parameters
    ----------
    strategy : str
        See `strategies.make_strategy`.
    recording : Recording
        The space to search.
    trials : int or None
        Most trials; None for the whole space.
    seed : int
        Seed of the strategy.
    batch : int
        Most proposals before the strategy learns their scores.
    history : sequence of Record
        Earlier measurements of other workloads, for transfer.
    until : float or None
        Ends with the batch that reaches this share of the optimum's speed.

    Raises
    ------
    ConfigError
        If there is no such strategy, or `trials` or `batch` is less than 1.
    """
    if batch < 1 or (trials is not None and trials < 1):
        raise ConfigError(f"trials and batch must be at least 1: {trials}, {batch}")
    search = make_strategy(strategy, recording.task(history), seed)
    scores, order = recording.scores, list[int]()
    limit = len(scores) if trials is None else min(trials, len(scores))
    enough = math.inf if until is None else until * recording.best
    while len(order) < limit:
        proposed = search.propose(min(batch, limit - len(order)))
        if not proposed:
            break
        order += proposed
        search.observe([(index, float(scores[index])) for index in proposed])
        if scores[proposed].max() >= enough:
            break
    return Trace(tuple(order), np.maximum.accumulate(scores[order]) / recording.best)


def trials_to_reach(trace: Trace, share: float = 0.98) -> int | None:
    """Trials until a configuration reaches this share of the optimum's speed; None if never."""
    reached = np.flatnonzero(trace.best >= share)
    return int(reached[0]) + 1 if len(reached) else None


def random_median(size: int, near: int) -> int:
    """Exact median of random search's trials until it finds one of `near` in `size` configurations.

    t draws without replacement miss all of them with probability C(size - near, t) / C(size, t).
    """
    missed = 1.0
    for trial in range(1, size + 1):
        missed *= max(size - near - trial + 1, 0) / (size - trial + 1)
        if missed <= 0.5 + 1e-9:  # tolerates rounding errors
            return trial
    raise ConfigError(f"there is nothing to find: {near} of {size}")


def _recording(name: str, located: Sequence[Located]) -> Recording:
    newest = latest(located)
    first = newest[0].record
    where = newest[0].place.rpartition(":")[0]
    try:
        template = template_for(first.region.op)
        machine = Machine(first.machine, isa_named(first.isa), first.threads)
        configs = [template.config_type.from_dict(record.config) for record, _ in newest]
        default = template.default_config(first.region, machine)
    except TvmHybridError as error:
        raise RecordError(f"{where}: recorded for another version: {error}") from error
    if first.version != template.version:
        text = "%s: measured with version %d of the template %s; this is version %d"
        logger.warning(text, where, first.version, template.name, template.version)
    if default not in configs:
        # The heuristic has changed, or the file is not a whole space. Use the default of the time
        # of the recording: the first configuration that was measured against itself.
        recorded = (record.config for record, _ in newest if record.is_default)
        fields = next(recorded, None)
        if fields is None:
            raise RecordError(f"{where}: no default configuration was measured")
        default = template.config_type.from_dict(fields)
        logger.warning("%s: the default configuration is not recorded, %s is", where, default)
    space = ConfigSpace(default, configs)
    of_config = dict(zip(configs, newest, strict=True))
    ordered = [of_config[config] for config in space.configs]
    for record, place in ordered:
        if record.status == "ok" and record.relative is None:
            raise RecordError(f"{place}: was not measured in turns with the default")
    scores = np.array([1 / (r.relative or 1.0) if r.status == "ok" else FAILED for r, _ in ordered])
    if scores[0] == FAILED:
        raise RecordError(f"{ordered[0].place}: the default failed: {ordered[0].record.error}")
    records = tuple(item.record for item in ordered)
    times = np.array([record.median_us if record.status == "ok" else np.inf for record in records])
    return Recording(
        name, first.region, template, machine, space, scores / scores[0], times, records
    )


# Records of other regions, from which a strategy may learn before it measures.
#
# They come from the user's file (also from earlier in this run) and from the shipped recordings, if
# CPU, instruction set and threads agree.


def earlier_records(store: RecordStore, machine: Machine, workload: str) -> list[Record]:
    """Returns the records to learn from, without `workload`'s own; the user's come first."""
    setting = machine.name, machine.isa.name, machine.threads
    return [
        each
        for each in (*(record for record, _ in store), *recorded_on(machine.name))
        if each.workload != workload and (each.machine, each.isa, each.threads) == setting
    ]


@functools.cache
def recorded_on(cpu: str) -> tuple[Record, ...]:
    """Returns the shipped recordings' records of a CPU, given by its LLVM name."""
    found: list[Record] = []
    for path in sorted(SHIPPED.glob("*.jsonl.xz")):
        try:
            found += [record for record, _ in read_records(path) if record.machine == cpu]
        except RecordError as error:
            logger.warning("nothing is learned from a recording: %s", error)
    return tuple(found)


# Simulates borrowing on recorded spaces: which configuration would each region get from the others?
#
# for loan in simulate_borrowing([load_recordings(name)[0] for name in shipped_recordings()]):
#     print(loan.lender, "->", loan.borrower, loan.gain, "of", loan.best)


@dataclass(frozen=True)
class Loan:
    """A configuration that one region would borrow from another.

    Attributes
    ----------
    lender, borrower : str
        Names of the recordings.
    distance : float
        Distance of the two regions; see `nearest_record`.
    promised : float
        The configuration's speed for the lender, relative to the default.
    gain : float or None
        Its measured speed for the borrower, relative to the default; 0.0 if it failed; None if it
        was not measured.
    best : float
        The borrower's optimum, relative to the default.
    """

    lender: str
    borrower: str
    distance: float
    promised: float
    gain: float | None
    best: float


def simulate_borrowing(recordings: Sequence[Recording]) -> list[Loan]:
    """Finds what each region would borrow if only the others had been tuned."""
    loans = []
    for borrower in recordings:
        others = [one for one in recordings if one.region.key != borrower.region.key]
        tuned = {one.region.key: _confirmed(one.records) for one in others}
        borrowed = NearestRecords(tuned.copy).find(borrower.region, borrower.machine)
        if borrowed is None:
            continue
        config, record, _ = borrowed.found
        index = borrower.space.index_of(config)
        lender = next(one.name for one in others if one.region.key == record.workload)
        promised = 1 / (record.relative or 1.0)
        gain = None if index is None else float(borrower.scores[index])
        distance, best = borrowed.distance, borrower.best
        loans.append(Loan(lender, borrower.name, distance, promised, gain, best))
    return loans


def _confirmed(records: Sequence[Record]) -> list[Located]:
    """Keeps the default and the optimum, and marks them as a search would have confirmed them."""
    best = ranked(Located(record, "recording:0") for record in records)[:1]
    default = [Located(record, "recording:0") for record in records if record.is_default]
    return [
        Located(msgspec.structs.replace(record, confirmed=True), place)
        for record, place in (*default, *best)
    ]
