"""The process that measures: `python -m tvm_hybrid.tuning.measuring.worker PARENT_PID CPUS CPUS`.

Jobs arrive on standard input, one JSON object a line; on what was standard output it answers with
the stages it enters and finally with the measurement. Before it enters "measure" it waits until it
is told to: it builds on the second list of CPUs, "0,2,3", and measures on the first, where somebody
else may be measuring still. It dies with its parent, and so does whatever candidate it is running.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from microkernels.errors import TvmHybridError
from microkernels.isa import isa_named
from tir_schedules.core.config import Config
from tir_schedules.core.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, all_templates, template_for

from .child_answers import Answers, die_with
from .measure import Bench, Effort, Measurement


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate to measure.

    Attributes
    ----------
    region : Region
        What it computes.
    module : str
        The Python module that defines, and when imported registers, the template.
    config, baseline : dict, dict or None
        Fields of the candidate's and of the default Config.
    isa : str
        The instruction set to build for.
    target : str
        The TVM target as JSON.
    threads : int
        Threads the kernel uses.
    footprint_bytes : int
        Bytes of all constants of the model.
    effort : Effort
        How long to measure.
    seed : int
        For the arguments.
    """

    region: Region
    module: str
    config: dict[str, Any]
    baseline: dict[str, Any] | None
    isa: str
    target: str
    threads: int
    footprint_bytes: int
    effort: Effort
    seed: int


class Setting(NamedTuple):
    """What the jobs of one measurer have in common.

    Attributes
    ----------
    machine : Machine
        ISA and threads; twice its L3 is the largest footprint that makes a difference.
    target : str
        The TVM target as JSON.
    footprint_bytes, seed : int
        As of `Job`.
    """

    machine: Machine
    target: str
    footprint_bytes: int
    seed: int

    def job(
        self,
        region: Region,
        template: Template[Any],
        config: Config,
        baseline: Config | None,
        effort: Effort,
    ) -> Job:
        """The job of measuring one candidate."""
        return Job(
            region=region,
            module=template.build.__module__,
            config=config.to_dict(),
            baseline=baseline.to_dict() if baseline is not None else None,
            isa=self.machine.isa.name,
            target=self.target,
            threads=self.machine.threads,
            footprint_bytes=min(self.footprint_bytes, 2 * self.machine.l3_bytes),
            effort=effort,
            seed=self.seed,
        )


class Stage(msgspec.Struct, frozen=True, tag=True):
    """The worker enters this stage; if it dies, it died there."""

    stage: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The worker is done; `fatal` says why no candidate of this region can be measured."""

    measurement: Measurement | None = None
    fatal: str = ""


class Turn(msgspec.Struct, frozen=True):
    """To the worker: nobody else is measuring."""


B = TypeVar("B")


class Benches(Generic[B]):
    """The bench of the region that jobs are for; one at a time.

    Parameters
    ----------
    make : callable
        Region, template, ISA, target, threads, footprint in bytes, seed -> its bench.
    """

    def __init__(self, make: Callable[..., B]) -> None:
        self._make = make
        self._known: tuple[object, B] | None = None

    def prepare(self, job: Job) -> tuple[B, Config, Config | None]:
        """What a job is measured by, its candidate and its baseline.

        Raises
        ------
        TvmHybridError, ImportError
            If no candidate of this region can be measured.
        """
        import tvm

        template = template_of(job)
        key = (job.region.key, job.isa, job.target, job.threads, job.footprint_bytes, job.seed)
        if self._known is None or self._known[0] != key:
            self._known = None  # frees the former region's arrays first
            gc.unfreeze()
            target = tvm.target.Target(json.loads(job.target))
            setting = (job.threads, job.footprint_bytes, job.seed)
            bench = self._make(job.region, template, isa_named(job.isa), target, *setting)
            self._known = (key, bench)
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
        from ...threads import use_threads

        self.answer(Stage("prepare"))
        use_threads(job.threads)
        try:
            bench, config, baseline = self.benches.prepare(job)
        except (TvmHybridError, ImportError) as error:
            return Reply(fatal=f"{type(error).__name__}: {error}")
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


def template_of(job: Job) -> Template:
    """A job's template; its module is imported if nobody has."""
    if job.region.op not in {template.name for template in all_templates()}:
        importlib.import_module(job.module)
    return template_for(job.region.op)


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
