"""RpcMeasurer: measures candidates at all servers that a tracker has, and outlives them.

Every worker process builds a candidate, waits for a free server, and measures there, so a batch is
spread over the servers as they get done. When a server is lost (killed, frozen, unplugged), its
candidate goes to another one; a candidate with which two were lost is a runtime error.
"""

from __future__ import annotations

import os
import time

from microkernels.base.errors import ConfigError
from microkernels.machines.machine import Machine

from ..measuring.local_measurer import ProcessMeasurer
from .remote_worker import GRACE_SECONDS, RemoteWorker
from .servers import PATIENCE_SECONDS, no_server
from .tracker import Address, Tracker
from .worker import RemoteSetting

MOST_WORKERS = 32


class RpcMeasurer(ProcessMeasurer):
    """Measures candidates at the servers of a tracker.

    Parameters
    ----------
    machine : Machine
        ISA and threads; its name is the servers' CPU (see `servers.find_servers`), "" for any.
    target, footprint_bytes, seed
        See `ProcessMeasurer`.
    address : Address
        The tracker, and the key of the servers.
    timeout : float
        Seconds that building a candidate and trying it here may take.
    session_seconds : float
        Seconds that a candidate may occupy a server, besides those that are meant for its samples.
    patience : float
        Seconds without any server after which it gives up.
    workers : int or None
        Worker processes; None: one for each server, and some more that build meanwhile.
    grace : float
        Seconds after which a server that should have ended a session is lost.

    Raises
    ------
    ConfigError
        If a time is not positive.
    """

    poll_seconds = 0.5

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
        super().__init__(machine, target, timeout, footprint_bytes, seed)
        self.address, self.session_seconds, self.grace = address, session_seconds, grace
        self.patience, self.workers = patience, workers
        self._workers: list[RemoteWorker] = []

    def _prepare(self, candidates: int) -> None:
        """Starts as many workers as can be busy."""
        if self.workers is None:
            with Tracker(self.address) as tracker:
                servers = max(1, tracker.servers())
            wanted = servers + min(servers, len(os.sched_getaffinity(0)))
        else:
            wanted = self.workers
        setting = RemoteSetting(
            address=self.address, cpu=self.machine.name, session_seconds=self.session_seconds
        )
        while len(self._workers) < max(1, min(wanted, candidates, MOST_WORKERS)):
            self._workers.append(RemoteWorker(setting, self.grace))
        for worker in self._workers:
            worker.child.spawn()  # all at once

    def _watch(self) -> None:
        """Gives up when there has been no server for too long."""
        workers = self._workers
        waiting = [one.waiting_since for one in workers if one.waiting_since is not None]
        if not waiting or any(worker.at_server for worker in workers):
            return
        last = max(min(waiting), *(worker.served for worker in workers))
        if time.monotonic() - last >= self.patience:
            reason = next((worker.reason for worker in workers if worker.reason), "")
            raise no_server(self.address, self.patience, reason)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
