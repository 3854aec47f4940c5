"""Saves all kernels of a corpus of models, and compares them after a change.

    .venv/torch/bin/python -m tools.kernel_snapshot save FOLDER
    .venv/torch/bin/python -m tools.kernel_snapshot compare FOLDER

12 ONNX models and 4 modules of torch, static and dynamic, of f32, bf16 and int8, are compiled for a
CPU of each instruction set level, which need not be this CPU. A change that only moves code keeps
every kernel's TIR and machine code. Models of torch need a Python that has torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import click
from rich.progress import Progress

from microkernels.base.cpu_quota import busy_cpus
from tools.compile_times.corpus import chosen_of
from tvm_hybrid.cli.base.console import error_console, say

from .kernels import LEVELS, PROGRAMS, differences, path_of, read, taken, write

_LINES = 40
"""Most lines that are shown of one kernel's difference."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that both commands have."""
    chosen = (("--programs", PROGRAMS), ("--levels", LEVELS))
    for option, known in reversed(chosen):
        text = "Names, with commas; default: all."
        command = click.option(option, default="", callback=chosen_of(known), help=text)(command)
    jobs = busy_cpus()
    return click.option("--jobs", default=jobs, show_default=True, help="Programs at once.")(
        command
    )


@click.group(help=__doc__.partition("\n")[0])
def main() -> None:
    pass


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@_options
def save(folder: Path, programs: list[str], levels: list[str], jobs: int) -> None:
    """Writes the kernels of all programs to FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    _each(partial(_save, folder, levels), programs, jobs)


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_options
def compare(folder: Path, programs: list[str], levels: list[str], jobs: int) -> None:
    """Compiles again and shows all differences from FOLDER; ends with 1 if there are any."""
    paths = [path_of(folder, name, level) for name in programs for level in levels]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise click.ClickException(f"there is no {missing[0]}; save a snapshot of it first")
    found = _each(partial(_compare, folder, levels), programs, jobs)
    for place, text in found:
        say(f"{place}:", *text.splitlines()[:_LINES])
    count = len(programs) * len(levels)
    say(f"{len(found)} kernels differ in {count} programs" if found else f"{count} programs: equal")
    sys.exit(bool(found))


Found = list[tuple[str, str]]
"""Places, each with its difference."""


def _each(work: Callable[[str], Found], programs: list[str], jobs: int) -> Found:
    """Does the work for each program, in a pool of processes."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting = [pool.submit(work, name) for name in programs]
        found = []
        with Progress(console=error_console()) as progress:
            task = progress.add_task("programs", total=len(programs))
            for each in as_completed(waiting):
                found += each.result()
                progress.advance(task)
        return sorted(found)


def _save(folder: Path, levels: list[str], name: str) -> Found:
    for level, snapshot in taken(name, levels):
        write(snapshot, path_of(folder, name, level))
    return []


def _compare(folder: Path, levels: list[str], name: str) -> Found:
    found = []
    for level, after in taken(name, levels):
        try:
            before = read(path_of(folder, name, level))
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        if before.versions != after.versions:
            raise click.ClickException(
                f"saved with TVM and LLVM {before.versions}, here are {after.versions}; "
                "save the snapshot again"
            )
        for kernel, text in differences(before, after).items():
            found.append((f"{name}, {level}, {kernel}", text))
    return found


if __name__ == "__main__":
    # Spawned processes cannot import what is defined in a package's `__main__`.
    from tools.kernel_snapshot.__main__ import main as found_by_name

    found_by_name()
