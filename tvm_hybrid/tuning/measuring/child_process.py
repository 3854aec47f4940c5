"""A child process that may crash or hang: it is asked and answers in lines of JSON."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from microkernels.base.errors import CompileError
from microkernels.base.files import undisturbed

START_SECONDS = 120.0
_READ_BYTES = 1 << 16

# A child that asks the kernel to die with its parent dies with the thread that started it. The
# thread that uses a child may end sooner than the child should, so this one starts all of them.
_STARTER = ThreadPoolExecutor(1, "starter of children")


def _start_on(cpus: Iterable[int], command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """Starts a process on the CPUs of the caller, not on those of the thread that starts it."""
    os.sched_setaffinity(0, cpus)
    return subprocess.Popen(command, **how)


class ChildProcess:
    """A child process that starts when it is first needed, and again after each death.

    Parameters
    ----------
    command : sequence of str
        What to run. The process must print a line when it is ready.
    environment : mapping
        Variables that are added to this process's environment.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] = {}) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: int | None = None
        self._unread = b""
        self._ready = False

    @staticmethod
    def of_module(
        module: str, arguments: Sequence[str] = (), environment: Mapping[str, str] = {}
    ) -> ChildProcess:
        """Runs `python -m MODULE PARENT_PID ARGUMENT...`.

        The module should end with its parent, whose process id it gets; see `die_with`.
        """
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = [sys.executable, "-m", module, str(os.getpid()), *arguments]
        return ChildProcess(command, {**environment, "PYTHONPATH": path})

    @property
    def pid(self) -> int | None:
        """The process's id; None if it is not running."""
        return self._process.pid if self._process is not None else None

    def spawn(self) -> None:
        """Starts the process if it is not running, without waiting until it is ready."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died between two questions
        if self._process is not None:
            return
        self._errors = os.memfd_create("errors of a child")
        # A session of its own: Ctrl-C in the terminal goes to the tuner, which then ends the child.
        with undisturbed():
            self._process = _STARTER.submit(
                _start_on,
                os.sched_getaffinity(0),
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **self._environment},
                start_new_session=True,
            ).result()
        self._ready = False

    def start(self) -> None:
        """Starts the process if it is not running, and waits until it is ready.

        Raises
        ------
        CompileError
            If it does not become ready.
        """
        self.spawn()
        if self._ready:
            return
        try:
            ready = self.answer(START_SECONDS)
        except TimeoutError as error:
            self.close()
            raise CompileError("the measuring process does not start") from error
        if ready is None:
            raise CompileError(f"the measuring process {self.ended()[1]} while it started")
        self._ready = True

    def ask(self, question: object) -> None:
        """Sends a question when the process is ready; a death shows in `answer`."""
        self.start()
        self.send(question)

    def send(self, question: object) -> None:
        """Sends a question, as a line of JSON, to a process that was started."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()

    def answer(self, seconds: float) -> bytes | None:
        """Returns the next line; None if the process is dead.

        Raises
        ------
        TimeoutError
            If there is no line after this many seconds.
        """
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(pipe, _READ_BYTES)
                if not chunk:
                    return None
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def ended(self) -> tuple[int, str]:
        """Returns the exit code (negative: a signal) and a description, and forgets the process."""
        assert self._process is not None and self._errors is not None
        code = self._process.wait()
        size = os.fstat(self._errors).st_size
        tail = os.pread(self._errors, _READ_BYTES, max(0, size - _READ_BYTES))
        lines = tail.decode(errors="replace").splitlines()
        self.close()
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        telling = [line for line in lines if "LLVM ERROR" in line or "Error:" in line]
        return code, f"{how} ({telling[-1].strip()[:300]})" if telling else how

    def close(self) -> None:
        """Kills the process."""
        process, errors = self._process, self._errors
        self._process = self._errors = None
        self._unread = b""
        if process is not None:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if errors is not None:
            os.close(errors)


def wait_for(children: Iterable[ChildProcess], seconds: float | None) -> None:
    """Waits until a child has an answer or is dead, at most this many seconds."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            process = child._process
            if process is None or process.stdout is None or b"\n" in child._unread:
                return
            selector.register(process.stdout, selectors.EVENT_READ)
        selector.select(seconds)


C = TypeVar("C", bound="Closing")


class Closing(ABC):
    """An object that `with` closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Releases what the object holds."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_PR_SET_PDEATHSIG = 1


class Answers:
    """Writes JSON lines to the parent, on the original standard output.

    From now on standard output goes to standard error, so that a candidate's own output does not
    get between the answers.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def __call__(self, message: msgspec.Struct) -> None:
        """Sends one message."""
        self._file.write(msgspec.json.encode(message) + b"\n")
        self._file.flush()


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)  # the parent ended before the call
