"""A process of ours that may crash or hang: JSON lines go in, JSON lines come out, or nothing."""

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
from typing import TypeVar

import msgspec

from microkernels.base.errors import CompileError
from microkernels.base.files import undisturbed

START_SECONDS = 120.0
_READ_BYTES = 1 << 16

# A child that asks to end with its parent ends with the parent's thread that started it. Whoever
# uses a child may be a thread that ends sooner than the child should.
_STARTER = ThreadPoolExecutor(1, "starter of children")


class ChildProcess:
    """Started when it is first needed, and again after each death.

    Parameters
    ----------
    command : sequence of str
        What to run. It says a first line when it is ready.
    environment : mapping
        Variables that it gets besides this process's.
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

        The module should end with its parent, whose id it is told.
        """
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = [sys.executable, "-m", module, str(os.getpid()), *arguments]
        return ChildProcess(command, {**environment, "PYTHONPATH": path})

    @property
    def pid(self) -> int | None:
        """The process's id while it lives."""
        return self._process.pid if self._process is not None else None

    def spawn(self) -> None:
        """Starts it if it does not live; whoever asks it something waits until it is ready."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died of something else than a question
        if self._process is not None:
            return
        self._errors = os.memfd_create("errors of a child")
        # A session of its own: Ctrl-C in the terminal is for the tuner, which then ends the child.
        with undisturbed():
            self._process = _STARTER.submit(
                subprocess.Popen,
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **self._environment},
                start_new_session=True,
            ).result()
        self._ready = False

    def start(self) -> None:
        """Starts it if it does not live, and waits until it is ready.

        Raises
        ------
        CompileError
            If it does not get ready.
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
        """Sends a question when it is ready; if it is dead, `answer` will tell."""
        self.start()
        self.send(question)

    def send(self, question: object) -> None:
        """Sends a question, as a line of JSON, to a child that was started."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()

    def answer(self, seconds: float) -> bytes | None:
        """The next line; None if the process is dead.

        Raises
        ------
        TimeoutError
            If there is none after so many seconds.
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
        """How it died, as an exit code (negative: a signal) and in words; forgets it."""
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
        """Ends it, whatever it is doing."""
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
    """Returns when one of them has something to say or is dead, or after so many seconds."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            process = child._process
            if process is None or process.stdout is None or b"\n" in child._unread:
                return
            selector.register(process.stdout, selectors.EVENT_READ)
        selector.select(seconds)


C = TypeVar("C", bound="Closing")


class Closing(ABC):
    """Something that is closed at the end of a `with`."""

    @abstractmethod
    def close(self) -> None:
        """Ends it."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_PR_SET_PDEATHSIG = 1


class Answers:
    """JSON lines to the parent, on what was standard output.

    What a candidate prints must not end up among them: it goes to standard error from now on.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def __call__(self, message: msgspec.Struct) -> None:
        """Sends one message."""
        self._file.write(msgspec.json.encode(message) + b"\n")
        self._file.flush()


def die_with(parent: int) -> None:
    """Has the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)  # it was gone before we asked
