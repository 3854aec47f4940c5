"""Ctrl-C: KeyboardInterrupt in Python; commands exit with code 130 and leave nothing behind."""

from __future__ import annotations

import configparser
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tvm_hybrid
from microkernels.base.files import undisturbed
from relay_passes.lower import lower_regions
from tests.tvm_hybrid.onnx_models import saved
from tests.tvm_hybrid.small_models import ROOT, mlp, mlp_module, run_python
from tests.tvm_hybrid.tuning.forked import Child
from tvm_hybrid.cli import group, main

pytestmark = pytest.mark.turns

RUN = "import runpy, sys; runpy.run_module('tests.tvm_hybrid.cli.interrupted', run_name='__main__')"


def test_every_command_at_some_moments(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    done = run_python(RUN, saved(tmp_path), folder, 7, path=ROOT)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["command"] for row in rows} == {"compile", "run", "verify", "bench", "tune"}, done
    for row in rows:
        assert not row["temporary"] and not row["orphans"], row
        assert row["code"] == 130 and "interrupted" in row["said"], row
        assert "Traceback" not in row["said"], row
        # Finished tuning records are kept; an output is kept if Ctrl-C came just after it was
        # written.
        outputs = {"compile": {"m.so"}, "run": {"y.npz"}, "tune": {"r.jsonl", "r.jsonl.lock"}}
        assert set(row["files"]) <= outputs.get(row["command"], set()), row
        assert not row["torn"], row


# Ctrl-C is pressed when the module named by the command's last word is imported.
EARLY = """
import signal, sys
import tvm_hybrid_command

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[-1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Presses())
sys.argv = ["tvm-hybrid", "doctor", sys.argv[-1]]
sys.exit(tvm_hybrid_command.main())
"""


@pytest.mark.parametrize(
    "module",
    [
        "tvm_hybrid",
        "microkernels.base.logs",
        "click",
        "tvm_hybrid.cli.group",
        "tvm_hybrid.cli.machine",
    ],
)
def test_ctrl_c_while_modules_are_imported(module: str) -> None:
    done = run_python(EARLY, module)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "Error: interrupted"


def test_the_installed_command_is_outside_of_the_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    script = setup["options.entry_points"]["console_scripts"].strip()
    assert script == "tvm-hybrid = tvm_hybrid_command:main"
    assert setup["options"]["py_modules"] == "tvm_hybrid_command"


def test_a_pass_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM runs passes from C++, which used to turn Ctrl-C into a RuntimeError without a message."""

    def pressed(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(lower_regions, "build_kernel", pressed)
    for use in (tvm_hybrid.compile, tvm_hybrid.InferenceSession):
        with pytest.raises(KeyboardInterrupt):
            use(mlp_module(), num_threads=1)


def test_a_compiler_and_its_children_end_with_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, pids = tmp_path / "compiler", tmp_path / "pids"
    compiler.write_text(
        f'#!/bin/sh\ntouch "$TMPDIR/scratch"\nsleep 100 &\necho $$ $! > {pids}.new\n'
        f"mv {pids}.new {pids}\nwait\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    folder = tmp_path / "folder"
    folder.mkdir()
    executable = mlp()

    def work(_: Callable[[int], None]) -> None:
        try:
            executable.export(folder / "m.so")
        except KeyboardInterrupt:
            os._exit(130)

    child = Child(work)
    _until(pids.exists)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait() == 130
    assert list(folder.iterdir()) == []
    _until(lambda: not any(map(_lives, pids.read_text().split())))


def _until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.01)


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


class _Swallows:
    """A Ctrl-C in its destructor is only reported, and the program goes on."""

    def __init__(self) -> None:
        self.me = self  # only the collector frees a cycle

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def _swallowed() -> None:
    _Swallows()
    gc.collect()
    time.sleep(60)


def _disguised() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("numpy._core.umath failed to import") from None


@pytest.mark.parametrize("command", [_swallowed, _disguised])
def test_what_is_swallowed_or_comes_as_another_error(
    command: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group.cli, "main", lambda **_: command())
    begun = time.monotonic()
    assert main(["doctor"]) == 130
    assert time.monotonic() - begun < 50
    assert "interrupted" in capsys.readouterr().err


def test_swallowed_while_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that repeats Ctrl-C may be ready before the hook that started it returns."""
    start = threading.Timer.start

    def starts_late(timer: threading.Timer) -> None:
        start(timer)
        time.sleep(0.2)

    monkeypatch.setattr(threading.Timer, "start", starts_late)
    monkeypatch.setattr(group.cli, "main", lambda **_: _swallowed())
    begun = time.monotonic()
    assert main(["doctor"]) == 130
    assert time.monotonic() - begun < 50


def test_swallowed_and_pressed_where_it_does_not_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal between Python's last check and the wait of `time.sleep` does not end the wait."""
    kill, lost = signal.pthread_kill, []

    def loses_one(thread: int, number: int) -> None:
        if lost:
            kill(thread, number)
        lost.append(number)

    monkeypatch.setattr(signal, "pthread_kill", loses_one)
    monkeypatch.setattr(group.cli, "main", lambda **_: _swallowed())
    begun = time.monotonic()
    assert main(["doctor"]) == 130
    assert time.monotonic() - begun < 50
    assert len(lost) > 1


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(group.cli, "main", fails)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_ctrl_c_waits_where_it_would_do_harm() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt), undisturbed():
        signal.raise_signal(signal.SIGINT)
        steps.append("after it")
    assert steps == ["after it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def elsewhere() -> None:
        with undisturbed():
            steps.append("elsewhere")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert steps[1:] == ["elsewhere"]
