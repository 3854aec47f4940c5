"""The process that measures at servers: `python -m ...rpc.worker PARENT_PID SETTING FOLDER`.

It works like `measuring.worker`: jobs arrive on standard input, one JSON object a line; on what was
standard output it answers with the stages it enters and finally with what came of it. Candidates
are compiled and first tried in it, and calls of a server that is gone may never return: both are
why it is a process of its own, which can be killed.
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
    """Where somebody listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Address(Place, frozen=True):
    """Where a tracker listens, and the key of the servers to ask it for.

    Attributes
    ----------
    host : str
    port : int
    key : str
    """

    key: str

    @staticmethod
    def parse(text: str, key: str) -> Address:
        """The address written as HOST:PORT.

        Raises
        ------
        ServerError
            If it is not written so, or there is no key.
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
    """A server that the tracker handed out.

    Attributes
    ----------
    host : str
    port : int
    password : str
        What it expects of the client that it was handed to.
    """

    password: str


class Tracker(Closing):
    """A connection to a tracker.

    Raises
    ------
    ServerError
        If there is no tracker at that address.
    """

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
        """How many servers of the key there are, free or not."""
        return self._ask(runtime.count_servers)

    def request(self) -> Server:
        """The next free server of the key; waits until there is one."""
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
        """Ends the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()


PAUSE_SECONDS = 0.5
"""Between two attempts to get a server."""

# Stages besides those of a worker that measures here.
TRYING = "try here"
WAITING = "wait for a server"
CONNECTING = "connect"


class RemoteSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What all candidates of a measurer have in common.

    Attributes
    ----------
    address : Address
        The tracker to get servers from.
    cpu : str
        LLVM's name of the CPU that servers must have; "": any that can run the code.
    session_seconds : float
        How long a candidate may occupy a server, besides the seconds of its samples.
    """

    address: Address
    cpu: str
    session_seconds: float

    def seconds_for(self, job: Job) -> float:
        """How long a candidate may occupy a server."""
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
        except Exception as error:  # whatever a candidate does is a result
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
        except RPCError as error:  # the server lives, and what it was asked to do failed
            return Reply(Measurement(status="runtime_error", error=error_text(error)))
        except Exception as error:
            return Reply(lost=error_text(error))

    def _connected(self, seconds: float) -> tuple[Server, Any]:
        """A session at the next free server; tries for ever: the tuner decides how long."""
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
    """LLVM's name of a server's CPU; "" if it has only TVM's runtime, which does not know."""
    try:
        return runtime.system_cpu(session.get_function)
    except AttributeError:
        return ""


def require_suitable(session: Any, server: Server, isa: Isa, cpu: str, threads: int) -> None:
    """Refuses a server that cannot run the code, or is not like the others; sets its threads.

    Raises
    ------
    ServerError
        Saying what to do.
    """
    found = server_cpu(session)
    if found:
        if found == codegen.llvm_get_system_cpu():
            has = host_features()  # of this CPU, more is known
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
        # All cores: TVM would bind its threads to the same ones in every server of a machine.
        available = runtime.configure_threads(session.get_function, threads)
        if available < threads:
            raise ServerError(
                f"the server {server} runs {available} threads at most, not {threads}; start it "
                f"with TVM_NUM_THREADS={threads} in its environment, or tune with fewer threads"
            )


def _lines(folder: Path) -> Iterator[bytes]:
    """What arrives on standard input; when that ends, so do this process and its folder."""
    arrived: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            arrived.put(line)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # whatever it is doing

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


# Measuring candidates of a region at a server: built and checked here, checked and timed there.
#
# A candidate first runs here, if this CPU can run its code: one that crashes or is wrong then costs
# no server anything. A session at a server, which is a process of its own there, is for one
# candidate, so that nothing is left of it for the next one.


@dataclass(frozen=True)
class Library:
    """A candidate, perhaps with its baseline, ready to be sent.

    Attributes
    ----------
    path : Path
        The shared library.
    constants : list of dict
        For each kernel the arrays that it reads as constants, by the number of the argument.
    """

    path: Path
    constants: list[dict[int, np.ndarray]]


class RemoteKernel(Sampled):
    """One of the kernels of a library at a server."""

    def __init__(self, module: Any, number: int, serial: bool) -> None:
        self._seconds, self._number, self._serial = module["seconds"], number, int(serial)

    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        del clock  # it is the server's that counts
        return float(self._seconds(self._number, calls, self._serial))


class RemoteBench(PreparedCase):
    """Measures candidates of one region at servers, one after the other.

    Parameters
    ----------
    case, template
        See `PreparedCase`.
    linker : Linker
        Where files go.
    """

    def __init__(self, case: Case, template: Template[Any], linker: Linker) -> None:
        super().__init__(case, template)
        self.linker = linker
        self._baseline: tuple[Config, Path, dict[int, np.ndarray]] | None = None

    def build(self, config: Config, baseline: Config | None) -> Library:
        """Compiles a candidate, and a baseline that is not that of the last call."""
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
        """Runs a candidate once on this machine, if it can; what is wrong with its result."""
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
        """Checks and times a candidate at a server.

        Parameters
        ----------
        session : tvm.rpc.RPCSession
            A new session there.
        port : int
            The server's.
        library : Library
            What `build` made.
        effort : Effort
            How long.
        report : callable
            Told the name of every stage before it begins.
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
            kept.append(rows)  # what is bound must live
        for kernel in reversed(kernels):
            kernel.warm_up(time.perf_counter)
        count = module["interruptions"]
        kernel, other = kernels[0], kernels[1] if len(kernels) > 1 else None
        clock = time.perf_counter  # for the end; kernels are timed where they run
        return measured(
            *sample_in_turns(kernel, other, effort, clock, lambda: int(count(int(serial))))
        )

    def _row(self, constants: dict[int, np.ndarray], device: Any) -> tuple[list[Any], Any]:
        """A kernel's arguments on a device, and the last of them: its output."""
        arrays = [constants.get(i, array) for i, array in enumerate(self.arrays)]
        output = never_right(self.region, self.expected.value)
        row = [tvm.runtime.tensor(array, device) for array in (*arrays, output)]
        return row, row[-1]

    def _rows(
        self, row: Sequence[Any], constants: dict[int, np.ndarray], device: Any
    ) -> list[list[Any]]:
        """Rows of arguments that differ in the copies of their constants, made at the server."""
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
