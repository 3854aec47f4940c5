"""A tracker with servers on this machine, which tests may kill, and a measurer that knows them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tvm.target import Target, codegen

from tir_schedules.machine import Machine
from tvm_hybrid.tuning.rpc.measurer import RpcMeasurer
from tvm_hybrid.tuning.rpc.tracker import Address, Tracker

KEY = "loopback"
COUNT = 4
SECONDS = 60.0


class Servers:
    """The tracker and its servers."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("servers.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), KEY, str(COUNT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0", "TVM_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        port, *self.pids = [int(self.process.stdout.readline()) for _ in range(1 + COUNT)]
        self.address = Address("127.0.0.1", port, KEY)
        self.wait_for(COUNT)

    def count(self) -> int:
        """How many the tracker knows."""
        with Tracker(self.address) as tracker:
            return tracker.servers()

    def wait_for(self, count: int) -> None:
        """Returns when the tracker knows so many."""
        end = time.monotonic() + SECONDS
        while self.count() != count:
            assert time.monotonic() < end, f"{self.count()} servers, not {count}"
            time.sleep(0.02)

    def signal_a_busy_one(self, number: signal.Signals) -> None:
        """Sends a signal to a server in the middle of a session; it no longer is one of ours."""
        since: dict[str, float] = {}
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for pid in self.pids:
                for tasks in Path(f"/proc/{pid}/task").iterdir():
                    session = (tasks / "children").read_text()
                    began = since.setdefault(session, time.monotonic())
                    # A session that has lasted a while is neither about to begin nor to end.
                    if session and time.monotonic() - began > 0.2:
                        os.killpg(pid, number)
                        self.pids.remove(pid)
                        return
            time.sleep(0.02)
        raise AssertionError("no server is ever busy")

    def close(self) -> None:
        """Ends all."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    started = Servers()
    yield started
    started.close()


@pytest.fixture(scope="module")
def measurer(servers: Servers) -> Iterator[RpcMeasurer]:
    """With two workers; a server that is a second late has been lost."""
    with make_measurer(servers.address, workers=2) as made:
        yield made


def make_measurer(address: Address, **changes: Any) -> RpcMeasurer:
    """For serial kernels of this machine's CPU, and sessions of a second besides the samples."""
    target = Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
    machine = Machine.from_target(target)
    options = {"timeout": 60.0, "session_seconds": 1.0, "footprint_bytes": 1 << 16, "grace": 1.0}
    return RpcMeasurer(machine, str(target), address, **{**options, **changes})
