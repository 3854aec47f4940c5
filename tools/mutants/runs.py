"""Applies a mutation in a copy of the project, and runs the tests that should notice it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "mutations"


class MutationError(Exception):
    """A mutation or a list of mutations cannot be used."""


class Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of a source; it is read from a list of mutations."""

    name: str
    file: str  # relative to the root of the project
    old: str  # a piece of the source that occurs exactly once
    new: str  # its replacement
    why: str  # what goes wrong with the replacement
    tests: tuple[str, ...]  # files or names of tests, for pytest; at least one must fail
    equivalent: str = ""  # why no result changes, if so; it then runs only if it is named
    torch: bool = False  # whether the tests run in the environment with PyTorch

    def applied(self, source: str) -> str:
        """A source with the replacement; raises `MutationError` unless `old` is there once."""
        count = source.count(self.old)
        if count != 1:
            raise MutationError(
                f"{self.name}: {self.file} has the text to replace {count} times, not once: "
                f"{self.old!r}. Rewrite the mutation for the current source."
            )
        return source.replace(self.old, self.new)


def load(folder: Path = FOLDER) -> list[Mutation]:
    """All mutations in a folder's files, sorted by file."""
    found: list[Mutation] = []
    for path in sorted(folder.glob("*.json")):
        try:
            found += msgspec.json.decode(path.read_bytes(), type=list[Mutation])
        except msgspec.DecodeError as error:
            raise MutationError(f"{path}: {error}") from error
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MutationError(f"mutations share a name: {', '.join(twice)}")
    return found


def chosen(mutations: Sequence[Mutation], patterns: Sequence[str]) -> list[Mutation]:
    """The mutations whose names match a pattern; without patterns, all that change a result."""
    if not patterns:
        return [each for each in mutations if not each.equivalent]
    for pattern in patterns:
        if not any(fnmatch(each.name, pattern) for each in mutations):
            raise MutationError(f"no mutation is named {pattern}; --list shows their names")
    return [each for each in mutations if any(fnmatch(each.name, p) for p in patterns)]


KILLED, SURVIVED, STALE = "killed", "survived", "does not apply"
TIMEOUT, BROKEN = "timeout", "broken"
_LEFT_OUT = (".git", ".venv", ".tox", ".*_cache", ".hypothesis", "build", "dist")
_FAILED = 1  # pytest's exit code when a test failed
_LINES = 12


class Verdict(msgspec.Struct, frozen=True):
    """The result of testing a mutation.

    Attributes
    ----------
    status : str
        `KILLED` if a test failed or crashed, `SURVIVED` if all passed, `STALE` if the source has
        changed, `TIMEOUT`, or `BROKEN` if pytest could not run the tests.
    detail : str
        The test that failed, or another explanation.
    """

    status: str
    detail: str = ""
    seconds: float = 0.0


def copy_tree(root: Path, folder: Path) -> Path:
    """Copies the project, with its bytecode, to a new folder."""
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    return folder


def judge(tree: Path, mutation: Mutation, timeout: float) -> Verdict:
    """Applies a mutation to a copy, runs its tests, and restores the source.

    `timeout` is in seconds, for all of its tests.
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
    """pytest's exit code (None after the timeout), and its output."""
    # Write no bytecode: bytecode of a mutated source could outlive it.
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
        start_new_session=True,  # to end processes that tests start
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
    """The Python of this environment, or of the one with PyTorch."""
    if not mutation.torch:
        return sys.executable
    python = Path(sys.prefix, "torch", "bin", "python")
    if not python.exists():
        raise MutationError(f"{mutation.name}: its tests need {python}; `make test` makes it")
    return str(python)
