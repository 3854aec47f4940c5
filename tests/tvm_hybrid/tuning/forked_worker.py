"""Workers forked from the tests' process, which has imported TVM, instead of started anew."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from tvm_hybrid.tuning.measuring import child_process, worker


class ForkedWorker:
    """The parts of `subprocess.Popen` that `ChildProcess` uses."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> None:
        assert stdin == stdout == subprocess.PIPE and start_new_session
        assert command[:3] == [sys.executable, "-m", worker.__name__]
        questions, ask = os.pipe()
        answer, answers = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ask)
            os.close(answer)
            os.setsid()
            for number, descriptor in enumerate((questions, answers, stderr)):
                os.dup2(descriptor, number)
            os.close(questions)
            os.close(answers)
            os.environ.update(env)
            _work(command[2:])
        os.close(questions)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(ask, "wb", 0), os.fdopen(answer, "rb", 0)

    def poll(self) -> int | None:
        """Exit code or negative signal number; None if the process is alive."""
        return self._reaped(os.WNOHANG)

    def wait(self) -> int:
        """Waits for the end; returns as `poll`."""
        code = self._reaped(0)
        assert code is not None
        return code

    def kill(self) -> None:
        """Kills the process."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _work(arguments: Sequence[str]) -> None:
    """Runs the worker program and ends the process."""
    code = 1
    try:
        faulthandler.disable()
        gc.freeze()
        sys.argv, sys.stdin = list(arguments), os.fdopen(0)
        worker.main()
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a worker takes milliseconds instead of the second in which TVM is imported."""
    instead = SimpleNamespace(Popen=ForkedWorker, PIPE=subprocess.PIPE)
    monkeypatch.setattr(child_process, "subprocess", instead)
