"""RpcMeasurer: measures candidates on all servers of a tracker, and survives lost servers.

Every worker process builds a candidate, waits for a free server, and measures there, so that a
batch spreads over the servers as they become free. When a server is lost (killed, frozen,
unplugged), its candidate goes to another server. A candidate that lost two is a runtime error.
"""

from __future__ import annotations

import contextlib
import math
import queue
import tempfile
import threading
import time
from typing import NamedTuple

import msgspec

from microkernels.base.cpu_quota import busy_cpus
from microkernels.base.errors import ConfigError, ServerError, TvmHybridError
from microkernels.base.tvm_compat.runtime import available_threads
from microkernels.machines.machine import Machine

from ..measuring.child_process import ChildProcess, wait_for
from ..measuring.local_measurer import ProcessMeasurer
from ..measuring.measure import Measurement
from ..measuring.worker import BUILDING, Job, Lost, Stage, WorkerProcess
from .worker import CONNECTING, TRYING, WAITING, Address, RemoteSetting, Tracker, server_cpu

CONNECT_SECONDS = 10.0
"""A server that does not answer a connection for this long is lost."""
GRACE_SECONDS = 5.0
"""A server ends a session that takes too long; it is lost if it does not within this time."""


class RemoteWorker(WorkerProcess):
    """A worker process that measures on servers.

    Parameters
    ----------
    setting : RemoteSetting
        The tracker, and how long a candidate may occupy a server.
    grace : float
        See `GRACE_SECONDS`.

    Attributes
    ----------
    waiting_since : float or None
        Monotonic time when it began to wait for a server; None if it does not wait.
    at_server : bool
        Whether it is using a server.
    served : float
        Monotonic time when it last left a server; 0.0: never.
    reason : str
        Why it got no server.
    """

    def __init__(self, setting: RemoteSetting, grace: float = GRACE_SECONDS) -> None:
        self.setting, self.grace = setting, grace
        self.waiting_since: float | None = None
        self.at_server = False
        self.served = 0.0
        self.reason = ""
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_hybrid_")
        arguments = [msgspec.json.encode(setting).decode(), self._folder.name]
        child = ChildProcess.of_module(f"{__package__}.worker", arguments, {"TVM_NUM_THREADS": "1"})
        super().__init__(child)

    def give(self, number: int, job: Job, timeout: float) -> None:
        """Gives it a candidate to build and try here in `timeout` s, then measure on a server."""
        self.waiting_since, self.at_server = None, False
        super().give(number, job, timeout)

    def outcome(self) -> Measurement | Lost | None:
        """See `WorkerProcess.outcome`; also updates the state of waiting and serving."""
        try:
            return super().outcome()
        finally:
            if self.job is None:
                if self.at_server:
                    self.served = time.monotonic()
                self.waiting_since, self.at_server = None, False

    def _enter(self, message: Stage) -> None:
        self.stage, self.server = message.stage, message.server
        now = time.monotonic()
        if self.stage.startswith(WAITING):
            self.waiting_since = self.waiting_since or now
            self.reason = self.stage.removeprefix(WAITING).lstrip(": ")
            self._end = math.inf
        elif self.stage == CONNECTING:
            self._end = now + CONNECT_SECONDS
        elif self.server and not self.at_server:
            assert self.job is not None
            self.waiting_since, self.at_server = None, True
            self._end = now + self.setting.seconds_for(self.job) + self.grace

    def _late(self) -> Measurement | Lost:
        if not self.server:
            return super()._late()
        text = f"{self.server} does not answer, in stage {self.stage!r}"
        return Lost(text, self.stage, self.stage != CONNECTING)

    def _died(self, text: str) -> Measurement | Lost:
        if self.stage in (*BUILDING, TRYING):
            return super()._died(text)
        return Lost(text, self.stage, bool(self.server) and self.stage != CONNECTING)

    def close(self) -> None:
        """Ends the process, at the end of its session if that comes soon.

        TVM's server dies with a session whose client dies before it reads an answer.
        """
        end = time.monotonic() + self.grace
        while self.job is not None and self.child.pid is not None and self.seconds_left != 0.0:
            with contextlib.suppress(TvmHybridError):
                super().outcome()
            left = min(self.seconds_left or 0.0, end - time.monotonic())
            if self.job is None or not self.server or left <= 0.0:
                break
            wait_for([self.child], left)
        self.at_server = False
        super().close()

    def end(self) -> None:
        """Ends the process and deletes its folder."""
        self.close()
        self._folder.cleanup()


PATIENCE_SECONDS = 60.0
"""How long to wait for a server."""


class Servers(NamedTuple):
    """A group of equal servers.

    Attributes
    ----------
    address : Address
        The tracker, and the servers' key.
    cpu : str
        LLVM's name of their CPU.
    threads : int
        A kernel's default number of threads there.
    """

    address: Address
    cpu: str
    threads: int


def find_servers(address: Address, patience: float = PATIENCE_SECONDS) -> Servers:
    """Asks the next free server for its CPU and threads; waits `patience` seconds for a server.

    Raises
    ------
    ServerError
        If there is no tracker, no server, or the server does not know its CPU.
    """
    from tvm import rpc

    answers: queue.Queue[Servers | Exception] = queue.Queue()

    def ask() -> None:
        server = None
        try:
            with Tracker(address) as tracker:
                server = tracker.request()
            session = rpc.connect(server.host, server.port, server.password)
            threads = available_threads(session.get_function)
            answers.put(Servers(address, server_cpu(session), threads))
        except ServerError as error:
            answers.put(error)
        except Exception as error:  # TVM raises several kinds
            answers.put(ServerError(f"the server {server} is lost: {error}"))

    # In a thread, because connecting to a server that hangs never returns.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=patience)
    except queue.Empty:
        raise no_server(address, patience) from None
    if isinstance(answer, Exception):
        raise answer
    if not answer.cpu:
        raise ServerError(
            f"the servers with the key {address.key!r} cannot tell what CPU they have: they need "
            "the whole of TVM, as pip installs it, and not just its runtime"
        )
    return answer


def no_server(address: Address, seconds: float, reason: str = "") -> ServerError:
    """Makes the error that no server came in this time."""
    because = f" ({reason})" if reason else ""
    return ServerError(
        f"no server with the key {address.key!r} for {seconds:g} s{because}; start some: "
        f"python -m tvm.exec.rpc_server --tracker {address} --key {address.key}"
    )


MOST_WORKERS = 32


class RpcMeasurer(ProcessMeasurer):
    """Measures candidates on the servers of a tracker.

    Parameters
    ----------
    machine : Machine
        Gives ISA and threads; its name is the servers' CPU (see `find_servers`), "" for any.
    target, footprint_bytes, seed
        See `ProcessMeasurer`.
    address : Address
        The tracker, and the servers' key.
    timeout : float
        Most seconds for building a candidate and trying it here.
    session_seconds : float
        Most seconds that a candidate may occupy a server, in addition to those for its samples.
    patience : float
        Gives up after this many seconds without any server.
    workers : int or None
        Worker processes; None: one for each server, and some more that build meanwhile.
    grace : float
        A server that should have ended a session is lost after this many seconds.

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
            wanted = servers + min(servers, busy_cpus())
        else:
            wanted = self.workers
        setting = RemoteSetting(
            address=self.address, cpu=self.machine.name, session_seconds=self.session_seconds
        )
        while len(self._workers) < max(1, min(wanted, candidates, MOST_WORKERS)):
            self._workers.append(RemoteWorker(setting, self.grace))
        for worker in self._workers:
            worker.child.spawn()  # does not wait, so that all start at once

    def _watch(self) -> None:
        """Raises ServerError when there has been no server for too long."""
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
