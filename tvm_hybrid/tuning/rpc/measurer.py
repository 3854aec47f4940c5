"""RpcMeasurer: measures candidates at all servers that a tracker has, and outlives them.

Every worker process builds a candidate, waits for a free server, and measures there, so a batch is
spread over the servers as they get done. When a server is lost (killed, frozen, unplugged), its
candidate goes to another one; a candidate with which two were lost is a runtime error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from microkernels.errors import ConfigError
from tir_schedules.core.config import Config
from tir_schedules.core.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from ..measuring.case import Case
from ..measuring.measure import Effort, Measurement
from ..measuring.worker import Job
from .agent import GRACE_SECONDS, Agent
from .batch import Batch
from .servers import PATIENCE_SECONDS, no_server
from .tracker import Address, Tracker
from .worker import RemoteJob

MOST_WORKERS = 32
_POLL_SECONDS = 0.5


class RpcMeasurer:
    """Measures candidates at the servers of a tracker; a `Measurer`.

    Parameters
    ----------
    machine : Machine
        ISA and threads; its name is the servers' CPU (see `servers.find_servers`), "" for any.
    target : str
        The TVM target as JSON.
    address : Address
        The tracker, and the key of the servers.
    timeout : float
        Seconds that building a candidate and trying it here may take.
    session_seconds : float
        Seconds that a candidate may occupy a server, besides those that are meant for its samples.
    footprint_bytes : int
        Bytes of all constants of the model; decides how cold the caches are kept.
    seed : int
        For the arguments of the kernels.
    patience : float
        Seconds without any server after which it gives up.
    workers : int or None
        Worker processes; None: one for each server, and some more that build meanwhile.
    grace : float
        Seconds after which a server that should have ended a session is lost.
    """

    def __init__(
        self,
        machine: Machine,
        target: str,
        address: Address,
        timeout: float = 30.0,
        session_seconds: float = 10.0,
        footprint_bytes: int = 0,
        seed: int = 0,
        patience: float = PATIENCE_SECONDS,
        workers: int | None = None,
        grace: float = GRACE_SECONDS,
    ) -> None:
        if min(timeout, session_seconds, patience) <= 0:
            raise ConfigError(
                "times must be positive: "
                f"timeout {timeout:g}, session {session_seconds:g}, patience {patience:g} seconds"
            )
        self.machine, self.target, self.address = machine, target, address
        self.timeout, self.session_seconds, self.grace = timeout, session_seconds, grace
        self.footprint_bytes, self.seed = footprint_bytes, seed
        self.patience, self.workers = patience, workers
        self._agents: list[Agent] = []

    def measure(
        self,
        region: Region,
        template: Template[Any],
        configs: Sequence[Config],
        baseline: Config | None,
        effort: Effort,
    ) -> Iterator[tuple[Config, Measurement]]:
        """Each candidate with what came of it, in order of completion; see `Measurer.measure`.

        Raises
        ------
        ServerError
            If there is no tracker, no server for so long as `patience` says, or one that cannot
            run the code.
        CompileError
            If no candidate of this region can be measured.
        """
        if not configs:
            return
        case = Case.of(region, template, self.machine, self.target, self.footprint_bytes, self.seed)
        tasks = [
            RemoteJob(
                job=Job.of(case, config, baseline, effort),
                cpu=self.machine.name,
                session_seconds=self.session_seconds + effort.seconds,
            )
            for config in configs
        ]
        batch = Batch(tasks)
        batch.start(self._enough(len(tasks)))
        try:
            while batch.left:
                for number, measured in batch.finished(_POLL_SECONDS):
                    yield configs[number], measured
                self._check_servers(batch)
        finally:
            batch.stop()

    def _enough(self, tasks: int) -> list[Agent]:
        """As many agents as can be busy."""
        if self.workers is None:
            with Tracker(self.address) as tracker:
                servers = max(1, tracker.servers())
            wanted = servers + min(servers, len(os.sched_getaffinity(0)))
        else:
            wanted = self.workers
        wanted = max(1, min(wanted, tasks, MOST_WORKERS))
        while len(self._agents) < wanted:
            self._agents.append(Agent(self.address, self.timeout, self.grace))
        return self._agents[:wanted]

    def _check_servers(self, batch: Batch) -> None:
        agents = batch.agents
        waiting = [agent.waiting_since for agent in agents if agent.waiting_since is not None]
        if not waiting or any(agent.at_server for agent in agents):
            return
        last = max(min(waiting), *(agent.served for agent in agents))
        if time.monotonic() - last < self.patience:
            return
        reason = next((agent.reason for agent in agents if agent.reason), "")
        raise no_server(self.address, self.patience, reason)

    def close(self) -> None:
        """Ends all workers."""
        for agent in self._agents:
            agent.close()
        self._agents.clear()

    def __enter__(self) -> RpcMeasurer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
