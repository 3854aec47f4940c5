"""LocalMeasurer: measures candidates on this machine.

Serial kernels are measured on one CPU while the next is built on another:

    process 1   build A | measure A | build C ...   | measure C
    process 2   build B ............ | measure B    | build D
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from microkernels.base.errors import ConfigError
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from ...runtime.threads import same_core
from .child_process import ChildProcess
from .measure import Effort, Measurement, joined
from .process_measurer import ProcessMeasurer
from .worker_process import WorkerProcess

MANY = 8
"""Candidates for which a second process is worth its start."""


class LocalMeasurer(ProcessMeasurer):
    """Measures candidates on this machine; after a wrong one the process is replaced.

    Parameters
    ----------
    machine, target, timeout, footprint_bytes, seed
        See `ProcessMeasurer`.
    cpu : int or None
        Where serial kernels are measured; None: on the last CPU that this process may use, because
        the first ones serve most interrupts. Kernels of several threads run on all that it may use.
    builders : sequence of int or None
        CPUs on which a second process builds serial kernels while one is measured; empty: there is
        no second process. None: all that this process may use, but for those of the core that
        measures.

    Raises
    ------
    ConfigError
        If there is no such CPU.
    """

    def __init__(
        self,
        machine: Machine,
        target: str,
        timeout: float = 30.0,
        footprint_bytes: int = 0,
        seed: int = 0,
        cpu: int | None = None,
        builders: Sequence[int] | None = None,
    ) -> None:
        super().__init__(machine, target, timeout, footprint_bytes, seed)
        measuring, building = "", ""
        if machine.threads == 1:
            measuring, building = _cpus(cpu, builders)
        arguments = [measuring, building or measuring]
        environment = {"TVM_NUM_THREADS": str(machine.threads)}
        self._workers = [
            WorkerProcess(ChildProcess.of_module(f"{__package__}.worker", arguments, environment))
            for _ in range(2 if building else 1)
        ]

    @property
    def pid(self) -> int | None:
        """The first process's id while it lives."""
        return self._workers[0].child.pid

    def measure(
        self,
        region: Region,
        template: Template[Any],
        configs: Sequence[Config],
        baseline: Config | None,
        effort: Effort,
    ) -> Generator[tuple[Config, Measurement], None, None]:
        """As `ProcessMeasurer.measure`; samples may be shared among fresh processes."""
        if effort.processes == 1:
            yield from super().measure(region, template, configs, baseline, effort)
            return
        share = msgspec.structs.replace(
            effort,
            processes=1,
            samples=math.ceil(effort.samples / effort.processes),
            seconds=effort.seconds / effort.processes,
        )
        for config in configs:
            parts: list[Measurement] = []
            while len(parts) < effort.processes and all(part.status == "ok" for part in parts):
                self.close()
                ((_, found),) = super().measure(region, template, [config], baseline, share)
                parts.append(found)
            yield config, joined(parts)

    def _joins(self, worker: WorkerProcess, candidates: int) -> bool:
        return worker is self._workers[0] or worker.child.pid is not None or candidates >= MANY

    def _watch(self) -> None:
        """One process measures at a time."""
        busy = [worker for worker in self._workers if worker.job is not None]
        waiting = [worker for worker in busy if worker.stage == "wait"]
        if waiting and not any(worker.stage == "measure" for worker in busy):
            waiting[0].take_turn()


def _cpus(cpu: int | None, builders: Sequence[int] | None) -> tuple[str, str]:
    """Where to measure and where to build meanwhile, as lists of numbers."""
    allowed = sorted(os.sched_getaffinity(0))
    measuring = allowed[-1] if cpu is None else cpu
    if builders is None:
        builders = [other for other in allowed if not same_core(measuring, other)]
    count = os.cpu_count() or 1
    for number in (measuring, *builders):
        if not 0 <= number < count:
            raise ConfigError(f"there is no CPU {number} here; there are 0 to {count - 1}")
    return str(measuring), ",".join(map(str, builders))
