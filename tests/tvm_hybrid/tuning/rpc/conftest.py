"""A tracker with servers on this machine, which tests may kill, and a measurer for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from microkernels.machines.machine import Machine
from tests.tvm_hybrid.tuning.processes import children
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.rpc.measurer import RpcMeasurer
from tvm_hybrid.tuning.rpc.worker import Address, Tracker

KEY = "loopback"
COUNT = 4
SECONDS = 60.0


class Servers:
    """The tracker and its servers.

    Attributes
    ----------
    pids : list of int
        Process (group) ids of the servers that no test has signalled.
    """

    def __init__(self) -> None:
        script = Path(__file__).with_name("servers.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), KEY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0", "TVM_NUM_THREADS": "1"},
        )
        self.address = Address("127.0.0.1", self._number(), KEY)
        self.pids: list[int] = []
        self._signalled: list[int] = []

    def _number(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def replenish(self) -> None:
        """Replaces signalled servers, so that the tracker knows `COUNT` again."""
        assert self.process.stdin is not None
        for pid in self._signalled:
            os.killpg(pid, signal.SIGKILL)
        self._signalled.clear()
        self._wait(lambda count: count <= len(self.pids))
        for _ in range(COUNT - self.count()):
            self.process.stdin.write(b"another\n")
            self.process.stdin.flush()
            self.pids.append(self._number())
        self.wait_for(COUNT)

    def count(self) -> int:
        """Number of servers that the tracker knows."""
        with Tracker(self.address) as tracker:
            return tracker.servers()

    def wait_for(self, count: int) -> None:
        """Waits until the tracker knows `count` servers."""
        self._wait(lambda found: found == count)

    def _wait(self, right: Callable[[int], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not right(found := self.count()):
            assert time.monotonic() < end, f"there are {found} servers"
            time.sleep(0.02)

    def send(self, pid: int, number: signal.Signals) -> None:
        """Sends a signal to a server's process group and removes the server from `pids`."""
        self.pids.remove(pid)
        self._signalled.append(pid)
        os.killpg(pid, number)

    def signal_a_busy_one(self, number: signal.Signals) -> None:
        """Sends a signal to a server in the middle of a session."""
        since: dict[int, float] = {}
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for pid in self.pids:
                for session in children(pid):
                    began = since.setdefault(session, time.monotonic())
                    # A session that has lasted 0.2 s is neither about to begin nor to end.
                    if time.monotonic() - began > 0.2:
                        self.send(pid, number)
                        return
            time.sleep(0.02)
        raise AssertionError("no server is ever busy")

    def close(self) -> None:
        """Ends the tracker and all servers."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def started() -> Iterator[Servers]:
    """One tracker for all tests of a file."""
    made = Servers()
    yield made
    made.close()


@pytest.fixture
def servers(started: Servers) -> Servers:
    """All servers, whatever an earlier test did to them."""
    started.replenish()
    return started


@pytest.fixture(scope="module")
def shared_measurer(started: Servers) -> Iterator[RpcMeasurer]:
    with make_measurer(started.address, workers=2) as made:
        yield made


@pytest.fixture
def measurer(servers: Servers, shared_measurer: RpcMeasurer) -> RpcMeasurer:
    """A measurer with two workers; a server that is two seconds late counts as lost."""
    del servers  # they are running
    return shared_measurer


def make_measurer(address: Address, **changes: Any) -> RpcMeasurer:
    """For serial kernels of this CPU, with sessions that also end on a busy machine."""
    target = resolve_target(None)
    machine = Machine.from_target(target)
    options = {"timeout": 60.0, "session_seconds": 5.0, "footprint_bytes": 1 << 16, "grace": 2.0}
    return RpcMeasurer(machine, str(target), address, **{**options, **changes})
