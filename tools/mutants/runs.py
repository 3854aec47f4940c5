"""Applies a mutation in a copy of the project, and runs the tests that should notice it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .mutations import Mutation, MutationError

KILLED, SURVIVED, STALE = "killed", "survived", "does not apply"
TIMEOUT, BROKEN = "timeout", "broken"
_LEFT_OUT = (".git", ".venv", ".tox", ".*_cache", ".hypothesis", "build", "dist")
_FAILED = 1  # pytest's exit code when a test failed
_LINES = 12


class Verdict(msgspec.Struct, frozen=True):
    """What became of a mutation.

    Attributes
    ----------
    status : str
        `KILLED` if a test failed or crashed, `SURVIVED` if all passed, `STALE` if the source has
        changed, `TIMEOUT`, or `BROKEN` if pytest could not run the tests.
    detail : str
        The test that failed, or what else there is to say.
    seconds : float
        How long it took.
    """

    status: str
    detail: str = ""
    seconds: float = 0.0


def copy_tree(root: Path, folder: Path) -> Path:
    """A copy of the project in a new folder, with the bytecode that is there."""
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    return folder


def judge(tree: Path, mutation: Mutation, timeout: float) -> Verdict:
    """Applies a mutation to a copy, runs its tests, and puts the source back.

    Parameters
    ----------
    tree : Path
        The copy.
    mutation : Mutation
    timeout : float
        Seconds for all of its tests.
    """
    begin = time.monotonic()
    try:
        with _mutated(tree, mutation):
            code, output = _pytest(tree, mutation, timeout)
    except MutationError as error:
        return Verdict(STALE, str(error))
    seconds = time.monotonic() - begin
    lines = [line for line in output.splitlines() if line.strip()]
    failed = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    if code is None:
        return Verdict(TIMEOUT, f"no end after {timeout:g} s", seconds)
    if code == 0:
        return Verdict(SURVIVED, seconds=seconds)
    if code == _FAILED or code < 0:
        crash = f"the process ended with {code}"
        return Verdict(KILLED, failed[0].split(" - ")[0] if failed else crash, seconds)
    return Verdict(BROKEN, "\n".join(lines[-_LINES:]), seconds)


@contextlib.contextmanager
def _mutated(tree: Path, mutation: Mutation) -> Iterator[None]:
    path = tree / mutation.file
    if not path.is_file():
        raise MutationError(f"{mutation.name}: there is no {mutation.file}")
    source = path.read_bytes()
    path.write_bytes(mutation.applied(source.decode()).encode())
    try:
        yield
    finally:
        path.write_bytes(source)


def _pytest(tree: Path, mutation: Mutation, timeout: float) -> tuple[int | None, str]:
    """pytest's exit code, None after the timeout; and what it said."""
    # No bytecode is written: bytecode of a mutated source could outlive it.
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [_python(mutation), "-m", "pytest", "-x", "-q", "-m", "not slow"]
    command += ["--tb=short", "-p", "no:cacheprovider", *mutation.tests]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # tests start processes, which have to end, too
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, output


def _python(mutation: Mutation) -> str:
    """The Python of this environment, or of the one with PyTorch in it."""
    if not mutation.torch:
        return sys.executable
    python = Path(sys.prefix, "torch", "bin", "python")
    if not python.exists():
        raise MutationError(f"{mutation.name}: its tests need {python}; `make test` makes it")
    return str(python)
