"""The process that measures on servers: `python -m ...rpc.worker PARENT_PID SETTING FOLDER`.

It works like `measuring.worker`: jobs arrive on standard input, one JSON object a line, and it
answers on the original standard output with the stages that it enters and finally with the outcome.
It compiles and first tries candidates itself, and calls of a lost server may never return. So it is
a separate process, which can be killed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import tvm
from tvm.error import RPCError, RPCSessionTimeoutError
from tvm.target import Target, codegen

from microkernels.base.errors import ServerError, TvmHybridError
from microkernels.base.tvm_compat import runtime
from microkernels.isa import Isa, allowed_on_host, host_features
from tir_schedules.core.config import Config
from tir_schedules.core.template import Template

from ...runtime.threads import use_threads
from ..measuring.case import MOST_COPIES, Case, PreparedCase, Sampled, never_right
from ..measuring.child_process import Answers, Closing
from ..measuring.measure import Measurement, Report, error_text, measured
from ..measuring.sampling import Effort, sample_in_turns
from ..measuring.worker import Benches, Job, Reply, Stage, fatal_reply
from .driver import KERNELS, Linker

SECONDS = 10.0
Answer = TypeVar("Answer")


class Place(msgspec.Struct, frozen=True):
    """Host and port of a listening process."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Address(Place, frozen=True):
    """Address of a tracker, and the key of its servers to use."""

    key: str

    @staticmethod
    def parse(text: str, key: str) -> Address:
        """Parses HOST:PORT.

        Raises
        ------
        ServerError
            If the text has another form, or the key is empty.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ServerError(f"a tracker is written HOST:PORT, such as localhost:9190: {text!r}")
        if not key:
            raise ServerError(
                "a tracker needs the key of the servers that may measure; "
                "name it with --key, as they were started with"
            )
        return Address(host.strip("[]"), int(port), key)


class Server(Place, frozen=True):
    """A server from the tracker, with the password that it expects of its client."""

    password: str


class Tracker(Closing):
    """A connection to a tracker; raises ServerError if none is at that address."""

    def __init__(self, address: Address) -> None:
        self.address = address
        try:
            self._socket = socket.create_connection((address.host, address.port), SECONDS)
            answer = runtime.greet(self._socket)
        except (OSError, struct.error) as error:
            raise self._unreachable(error) from error
        if answer is not None:
            raise self._unreachable(f"something else answers there: {answer:#x}")

    def servers(self) -> int:
        """Counts the servers of the key, free or not."""
        return self._ask(runtime.count_servers)

    def request(self) -> Server:
        """Waits for the next free server of the key, and returns it."""
        self._socket.settimeout(None)
        return Server(*self._ask(runtime.request_server))

    def _ask(self, question: Callable[[socket.socket, str], Answer]) -> Answer:
        try:
            return question(self._socket, self.address.key)
        except (OSError, ValueError, TypeError, struct.error) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, reason: object) -> ServerError:
        return ServerError(
            f"no tracker at {self.address} ({reason}); start one there: "
            f"python -m tvm.exec.rpc_tracker --port {self.address.port}"
        )

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()


PAUSE_SECONDS = 0.5
"""Pause between two attempts to get a server."""

# Stages that a worker measuring on this machine does not have.
TRYING = "try here"
WAITING = "wait for a server"
CONNECTING = "connect"


class RemoteSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all candidates of a measurer share.

    Attributes
    ----------
    address : Address
        The tracker to get servers from.
    cpu : str
        LLVM's name of the CPU that servers must have; "": any that can run the code.
    session_seconds : float
        How long a candidate may occupy a server, in addition to the seconds for its samples.
    """

    address: Address
    cpu: str
    session_seconds: float

    def seconds_for(self, job: Job) -> float:
        """How long a candidate may occupy a server in all."""
        return self.session_seconds + job.effort.seconds


class _Worker:
    def __init__(self, answer: Answers, setting: RemoteSetting, folder: Path) -> None:
        self.answer, self.setting = answer, setting
        self.benches = Benches(functools.partial(RemoteBench, linker=Linker(folder)))
        self.tracker: Tracker | None = None

    def handle(self, job: Job) -> Reply:
        self.answer(Stage("prepare"))
        try:
            bench, config, baseline = self.benches.prepare(job)
        except (TvmHybridError, ImportError) as error:
            return fatal_reply(error)
        self.answer(Stage("compile"))
        try:
            library = bench.build(config, baseline)
        except Exception as error:  # any failure of a candidate is a result
            return Reply(Measurement(status="compile_error", error=error_text(error)))
        self.answer(Stage(TRYING))
        try:
            wrong = bench.try_here(library)
        except Exception as error:
            return Reply(Measurement(status="runtime_error", error=error_text(error)))
        if wrong is not None:
            return Reply(Measurement(status="wrong_result", error=wrong))
        return self._at_a_server(job, bench, library)

    def _at_a_server(self, job: Job, bench: RemoteBench, library: Library) -> Reply:
        seconds = self.setting.seconds_for(job)
        server, session = self._connected(seconds)
        try:
            self.answer(Stage("inspect", str(server)))
            require_suitable(session, server, bench.isa, self.setting.cpu, bench.threads)
            self.answer(Stage("send", str(server)))

            def report(stage: str) -> None:
                self.answer(Stage(stage, str(server)))

            return Reply(bench.measure(session, server.port, library, job.effort, report))
        except TvmHybridError as error:
            return fatal_reply(error)
        except RPCSessionTimeoutError:
            text = f"not done after {seconds:g} s at {server}"
            return Reply(Measurement(status="timeout", error=text))
        except RPCError as error:  # the server lives, but the candidate failed
            return Reply(Measurement(status="runtime_error", error=error_text(error)))
        except Exception as error:
            return Reply(lost=error_text(error))

    def _connected(self, seconds: float) -> tuple[Server, Any]:
        """Connects to the next free server; retries forever, as the tuner limits the time."""
        from tvm import rpc

        reason = ""
        while True:
            self.answer(Stage(f"{WAITING}{reason and ': '}{reason}"))
            try:
                if self.tracker is None:
                    self.tracker = Tracker(self.setting.address)
                server = self.tracker.request()
                self.answer(Stage(CONNECTING, str(server)))
                options = f" -timeout={seconds}"
                return server, rpc.connect(server.host, server.port, server.password + options)
            except ServerError as error:
                self.tracker, reason = None, str(error)
            except Exception as error:  # TVM raises several kinds
                reason = f"{server}: {error_text(error)}"
            time.sleep(PAUSE_SECONDS)


def server_cpu(session: Any) -> str:
    """LLVM's name of a server's CPU; "" if the server has only TVM's runtime."""
    try:
        return runtime.system_cpu(session.get_function)
    except AttributeError:
        return ""


def require_suitable(session: Any, server: Server, isa: Isa, cpu: str, threads: int) -> None:
    """Sets a server's threads; raises ServerError if it cannot run the code or has another CPU."""
    found = server_cpu(session)
    if found:
        if found == codegen.llvm_get_system_cpu():
            has = host_features()  # complete, while LLVM's list is not
        else:
            listed = codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": found}))
            has = frozenset(map(str, listed))
        missing = sorted(set(isa.features).difference(has))
        if missing:
            raise ServerError(
                f"the server {server}, a {found}, cannot run {isa.name} code: it lacks "
                f"{', '.join(missing)}; name another --target, or give it another key"
            )
    if cpu and found and found != cpu:
        raise ServerError(
            f"the server {server} is a {found} and not a {cpu} like others of its key: times of "
            "different CPUs cannot be compared; give each kind of CPU a key of its own"
        )
    if threads > 1:
        # Use all cores: TVM would bind the threads of every server of a machine to the same cores.
        available = runtime.configure_threads(session.get_function, threads)
        if available < threads:
            raise ServerError(
                f"the server {server} runs {available} threads at most, not {threads}; start it "
                f"with TVM_NUM_THREADS={threads} in its environment, or tune with fewer threads"
            )


def _lines(folder: Path) -> Iterator[bytes]:
    """Yields lines of standard input; at its end, deletes the folder and ends the process."""
    arrived: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            arrived.put(line)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # even in the middle of a measurement

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield arrived.get()


def main() -> None:
    """Answers jobs until standard input ends."""
    answer = Answers()
    setting = msgspec.json.decode(sys.argv[2], type=RemoteSetting)
    folder = Path(sys.argv[3])
    worker = _Worker(answer, setting, folder)
    answer(Stage("ready"))
    for line in _lines(folder):
        answer(worker.handle(msgspec.json.decode(line, type=Job)))


# Measuring candidates of a region on a server: built here, checked and timed there.
#
# A candidate first runs here, if this CPU can run its code: one that crashes or is wrong then costs
# no server time. A session on a server is a process of its own there, and serves one candidate, so
# that nothing of it can affect the next one.


@dataclass(frozen=True)
class Library:
    """A candidate, perhaps with its baseline, ready to be sent.

    Attributes
    ----------
    path : Path
        The shared library.
    constants : list of dict
        For each kernel: number of an argument -> array that it reads as a constant.
    """

    path: Path
    constants: list[dict[int, np.ndarray]]


class RemoteKernel(Sampled):
    """One of the kernels of a library on a server."""

    def __init__(self, module: Any, number: int, serial: bool) -> None:
        self._seconds, self._number, self._serial = module["seconds"], number, int(serial)

    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        del clock  # the server's clock counts
        return float(self._seconds(self._number, calls, self._serial))


class RemoteBench(PreparedCase):
    """Measures candidates of one region on servers, one after the other."""

    def __init__(self, case: Case, template: Template[Any], linker: Linker) -> None:
        super().__init__(case, template)
        self.linker = linker
        self._baseline: tuple[Config, Path, dict[int, np.ndarray]] | None = None

    def build(self, config: Config, baseline: Config | None) -> Library:
        """Compiles a candidate, and its baseline if that differs from the last call's."""
        kernels = [self._written(config, KERNELS[0])]
        if baseline is not None:
            if self._baseline is None or self._baseline[0] != baseline:
                self._baseline = (baseline, *self._written(baseline, KERNELS[1]))
            kernels.append(self._baseline[1:])
        path = self.linker.link([path for path, _ in kernels], self.isa)
        return Library(path, [constants for _, constants in kernels])

    def _written(self, config: Config, name: str) -> tuple[Path, dict[int, np.ndarray]]:
        code, constants = self.compile(config, name)
        return self.linker.write(code.mod, name), constants

    def try_here(self, library: Library) -> str | None:
        """Runs a candidate once here, if this CPU can; returns what is wrong, or None."""
        if not allowed_on_host(self.isa):
            return None
        use_threads(self.threads)
        module = tvm.runtime.load_module(str(library.path))
        row, output = self._row(library.constants[0], tvm.cpu())
        module[KERNELS[0]](*row)
        return self.expected.difference(output.numpy())

    def measure(
        self, session: Any, port: int, library: Library, effort: Effort, report: Report
    ) -> Measurement:
        """Checks and times a candidate on a server.

        Parameters
        ----------
        session : tvm.rpc.RPCSession
            A new session.
        port : int
            The server's port.
        library : Library
            Result of `build`.
        effort : Effort
            How much time to spend.
        report : callable
            Called with the name of every stage before it begins.
        """
        session.upload(str(library.path))
        module = session.load_module(library.path.name)
        module["guard"](port)
        device, serial = session.cpu(), self.threads == 1
        row, output = self._row(library.constants[0], device)
        report("check")
        module[KERNELS[0]](*row)
        wrong = self.expected.difference(output.numpy())
        if wrong is not None:
            return Measurement(status="wrong_result", error=wrong)
        report("measure")
        kernels, kept = [], []
        for number, constants in enumerate(library.constants):
            rows = self._rows(row, constants, device)
            module["bind"](number, len(rows), *(tensor for each in rows for tensor in each))
            kernels.append(RemoteKernel(module, number, serial))
            kept.append(rows)  # bound tensors must stay alive
        for kernel in reversed(kernels):
            kernel.warm_up(time.perf_counter)
        count = module["interruptions"]
        kernel, other = kernels[0], kernels[1] if len(kernels) > 1 else None
        clock = time.perf_counter  # limits the total time; kernels are timed on the server
        return measured(
            *sample_in_turns(kernel, other, effort, clock, lambda: int(count(int(serial))))
        )

    def _row(self, constants: dict[int, np.ndarray], device: Any) -> tuple[list[Any], Any]:
        """Makes a kernel's arguments on a device; returns them and the last one, the output."""
        arrays = [constants.get(i, array) for i, array in enumerate(self.arrays)]
        output = never_right(self.region, self.expected.value)
        row = [tvm.runtime.tensor(array, device) for array in (*arrays, output)]
        return row, row[-1]

    def _rows(
        self, row: Sequence[Any], constants: dict[int, np.ndarray], device: Any
    ) -> list[list[Any]]:
        """Makes rows of arguments on the server that differ in the copies of their constants."""
        size = sum(array.nbytes for array in constants.values())
        copies = max(1, min(MOST_COPIES, math.ceil(self.footprint_bytes / size))) if size else 1
        originals = {i: tvm.runtime.tensor(array, device) for i, array in constants.items()}
        rows = []
        for copy in range(copies):
            rows.append(list(row))
            for i, original in originals.items():
                rows[-1][i] = original
                if copy:
                    rows[-1][i] = tvm.runtime.empty(original.shape, original.dtype, device)
                    original.copyto(rows[-1][i])
        return rows


if __name__ == "__main__":
    main()
