"""The process that measures: `python -m tvm_hybrid.tuning.measuring.worker PARENT_PID CPUS CPUS`.

Jobs arrive on standard input, one JSON object a line; on what was standard output it answers with
the stages it enters and finally with the measurement. Before it enters "measure" it waits until it
is told to: it builds on the second list of CPUs, "0,2,3", and measures on the first, where somebody
else may be measuring still. It dies with its parent, and so does whatever candidate it is running.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from microkernels.base.errors import TvmHybridError
from tir_schedules.core.config import Config
from tir_schedules.core.template import Template

from .case import Case
from .child_process import Answers, die_with
from .measure import Bench, Effort, Measurement


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate to measure.

    Attributes
    ----------
    case : Case
        What it has in common with other candidates of its region.
    config, baseline : dict, dict or None
        Fields of the candidate's and of the default Config.
    effort : Effort
        How long to measure.
    """

    case: Case
    config: dict[str, Any]
    baseline: dict[str, Any] | None
    effort: Effort

    @staticmethod
    def of(case: Case, config: Config, baseline: Config | None, effort: Effort) -> Job:
        """The job of measuring one candidate."""
        default = None if baseline is None else baseline.to_dict()
        return Job(case=case, config=config.to_dict(), baseline=default, effort=effort)


class Stage(msgspec.Struct, frozen=True, tag=True):
    """The worker enters a stage; if it dies, it died there.

    Attributes
    ----------
    stage : str
        Its name.
    server : str
        The server that it depends on, if any.
    """

    stage: str
    server: str = ""


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The worker is done.

    Attributes
    ----------
    measurement : Measurement or None
        What came of it.
    fatal, kind : str
        If there is none: why no candidate of this region can be measured, and the error's type.
    lost : str
        If there is neither: how the server was lost.
    """

    measurement: Measurement | None = None
    fatal: str = ""
    kind: str = ""
    lost: str = ""


def fatal_reply(error: Exception) -> Reply:
    """What to say when no candidate of a region can be measured."""
    return Reply(fatal=str(error), kind=type(error).__name__)


class Turn(msgspec.Struct, frozen=True):
    """To the worker: nobody else is measuring."""


B = TypeVar("B")


class Benches(Generic[B]):
    """The bench of the region that jobs are for; one at a time.

    Parameters
    ----------
    make : callable
        Case, template -> its bench.
    """

    def __init__(self, make: Callable[[Case, Template[Any]], B]) -> None:
        self._make = make
        self._known: tuple[Case, B] | None = None

    def prepare(self, job: Job) -> tuple[B, Config, Config | None]:
        """What a job is measured by, its candidate and its baseline.

        Raises
        ------
        TvmHybridError, ImportError
            If no candidate of this region can be measured.
        """
        template = job.case.template()
        if self._known is None or self._known[0] != job.case:
            self._known = None  # frees the former region's arrays first
            gc.unfreeze()
            self._known = (job.case, self._make(job.case, template))
            # What lives now lives as long as the region: looking it through for garbage after every
            # candidate would take as long as a third of the measuring.
            gc.collect()
            gc.freeze()
        config = template.config_type.from_dict(job.config)
        baseline = template.config_type.from_dict(job.baseline) if job.baseline else None
        return self._known[1], config, baseline


class _Worker:
    def __init__(self, answer: Answers, measuring: set[int], building: set[int]) -> None:
        self.answer = answer
        self.measuring, self.building = measuring, building
        self.benches = Benches(Bench)

    def handle(self, job: Job) -> Reply:
        from ...runtime.threads import use_threads

        self.answer(Stage("prepare"))
        use_threads(job.case.threads)
        try:
            bench, config, baseline = self.benches.prepare(job)
        except (TvmHybridError, ImportError) as error:
            return fatal_reply(error)
        _go_to(self.building)
        return Reply(bench.measure(config, baseline, job.effort, self._enter))

    def _enter(self, stage: str) -> None:
        if stage == "measure":
            self.answer(Stage("wait"))
            if not sys.stdin.buffer.readline():
                sys.exit(0)
            _go_to(self.measuring)
        self.answer(Stage(stage))


def _go_to(cpus: set[int]) -> None:
    if cpus and os.sched_getaffinity(0) != cpus:
        os.sched_setaffinity(0, cpus)


def main() -> None:
    """Answers jobs until standard input ends."""
    die_with(int(sys.argv[1]))
    measuring, building = ({int(cpu) for cpu in arg.split(",") if cpu} for arg in sys.argv[2:4])
    _go_to(building)
    answer = Answers()
    worker = _Worker(answer, measuring, building)
    answer(Stage("ready"))
    for line in sys.stdin.buffer:
        answer(worker.handle(msgspec.json.decode(line, type=Job)))


if __name__ == "__main__":
    main()
