"""Measures how to arrange contractions best, before anything else of a model is tuned.

    for every contraction of the model's programs that the file does not know:
        for every candidate, the best by estimate first:
            the contraction alone in this arrangement, in turns with the estimate's choice
        the fastest one that is certainly faster, else the estimate's choice -> a record

Contractions are measured alone. So it does not count whether a copy of an operand would become part
of the previous kernel.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm import IRModule

from microkernels.base.logs import logger
from relay_passes.lift.emission import arranged_module, can_be_measured
from relay_passes.lower_module import arrangement_problems
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.tensorize.arrangement import Arrangement, ArrangementProblem

from ..records.choice_record import ArrangementRecord
from ..records.record_lookup import RecordLookup
from ..records.record_store import RecordStore
from .measuring.model_race import Program, Race, race
from .measuring.sampling import Effort, is_faster

MOST_CANDIDATES = 6
SHARE = 0.2
"""Most of a run's time for arrangements."""
EFFORT = Effort(samples=51, seconds=2.0)

RunRace = Callable[[Program, Program, Effort], Race]


@dataclass(frozen=True)
class ArrangementResult:
    """The outcome for one contraction.

    Attributes
    ----------
    contraction : str
        Its key.
    chosen : str
        Description of the chosen arrangement.
    speedup : float
        Time of the estimate's choice over the chosen one's; 1.0 if they are the same.
    tried : int
        Candidates that were measured in this run.
    source : str
        FILE:LINE of the record if it was known before.
    """

    contraction: str
    chosen: str
    speedup: float
    tried: int
    source: str = ""

    def __str__(self) -> str:
        how = f"known, {self.source}" if self.source else f"{self.tried} measured"
        return f"{self.speedup:6.3f}x  {self.contraction}: {self.chosen}; {how}"


def tune_arrangements(
    mod: IRModule,
    options: PipelineOptions,
    store: RecordStore,
    resume: bool = True,
    seconds: float | None = None,
    race: RunRace = race,
) -> list[ArrangementResult]:
    """Measures the candidates of every contraction that has several.

    Parameters
    ----------
    mod : IRModule
        The imported model.
    options : PipelineOptions
        How to compile it; `lookup` and `layouts` are replaced.
    store : RecordStore
        Holds known configurations; receives a record of each contraction when it is done.
    resume : bool
        Whether contractions that the store knows are skipped.
    seconds : float or None
        No contraction is begun after this time.
    race : callable
        Compares two programs.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    options = replace(options, strict=False, dump_ir=None, layouts=None)
    measurable = filter(can_be_measured, arrangement_problems(mod, options))
    problems = {each.key: each for each in measurable}
    options = replace(options, lookup=RecordLookup(store))
    found = []
    for problem in problems.values():
        known = ArrangementRecord.find(store.files, problem.key, options) if resume else None
        if known is None and time.monotonic() >= end:
            continue
        record, place = known or (_measured(problem, options, race), "")
        ordered = problem.best_first(record.choice)
        chosen = ordered[0].text() if ordered else "a candidate that there is no more"
        tried = 0 if known else record.tried
        found.append(ArrangementResult(problem.key, chosen, record.speedup, tried, place))
        if known is None:
            store.append(record)
            logger.info("%s", found[-1])
    return found


def _measured(
    problem: ArrangementProblem, options: PipelineOptions, race: RunRace
) -> ArrangementRecord:
    """Races all candidates of a contraction against the estimate's, and returns the best."""
    lanes = options.machine.isa.f32_lanes
    default, *others = problem.candidates[:MOST_CANDIDATES]
    first = arranged_module(problem, default, lanes)
    tried = len(others) + 1

    def made(candidate: Arrangement, mine: list[float], theirs: list[float]) -> ArrangementRecord:
        fields: dict[str, Any] = {"contraction": problem.key, "tried": tried}
        fields |= problem.choice(candidate)._asdict()
        return ArrangementRecord.made(options, mine, theirs, **fields)

    best = made(default, [], [])
    for candidate in others:
        module = arranged_module(problem, candidate, lanes)
        times, default_times, same = race((module, options), (first, options), EFFORT)
        if not same:
            logger.warning("%s computes something else arranged so", problem.key)
            continue
        record = made(candidate, times, default_times)
        if is_faster(times, default_times, len(others)) and record.speedup > best.speedup:
            best = record
    return best
