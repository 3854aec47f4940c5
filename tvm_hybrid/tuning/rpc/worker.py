"""The process that measures at servers: `python -m ...rpc.worker PARENT_PID SETTING FOLDER`.

It works like `measuring.worker`: jobs arrive on standard input, one JSON object a line; on what was
standard output it answers with the stages it enters and finally with what came of it. Candidates
are compiled and first tried in it, and calls of a server that is gone may never return: both are
why it is a process of its own, which can be killed.
"""

from __future__ import annotations

import functools
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from microkernels.base.errors import ServerError, TvmHybridError
from microkernels.base.tvm_compat.runtime import configure_threads, system_cpu
from microkernels.isa import Isa, host_features

from ..measuring.child_answers import Answers
from ..measuring.measure import Measurement, error_text
from ..measuring.worker import Benches, Job, Reply, Stage, fatal_reply
from .bench import Library, RemoteBench
from .driver import Linker
from .tracker import Address, Server, Tracker

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
        from tvm.error import RPCError, RPCSessionTimeoutError

        seconds = self.setting.seconds_for(job)
        server, session = self._connected(seconds)
        try:
            self.answer(Stage("inspect", str(server)))
            require_suitable(session, server, bench.isa, self.setting.cpu, bench.threads)
            self.answer(Stage("send", str(server)))
            return Reply(
                bench.measure(
                    session,
                    server.port,
                    library,
                    job.effort,
                    lambda stage: self.answer(Stage(stage, str(server))),
                )
            )
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
        return system_cpu(session.get_function)
    except AttributeError:
        return ""


def require_suitable(session: Any, server: Server, isa: Isa, cpu: str, threads: int) -> None:
    """Refuses a server that cannot run the code, or is not like the others; sets its threads.

    Raises
    ------
    ServerError
        Saying what to do.
    """
    from tvm.target import Target, codegen

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
        available = configure_threads(session.get_function, threads)
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


if __name__ == "__main__":
    main()
