"""Measures how long models take until their first answer.

    python -m tools.compile_times --models yolo,yolo_dynamic --timeout 60
    python -m tools.compile_times --json times.json --markdown docs/compile_times.md
    python -m tools.compile_times --onnx model.onnx --size batch=1 --size height=320
    python -m tools.compile_times --budgets > tests/compile_budgets.txt

The corpus is made here, with seeded weights. Every start is a new process: "cold" has an empty
program cache, "fast start" lets NumPy answer first, "again" has the cache of the cold start, "other
head" and "other batch" are models of the same family with that cache, "counting" compiles once more
under a profiler. CPU seconds are those of all threads, and of compilers and linkers that are
called. They exclude Python's import of modules, and include the first run.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from tvm_hybrid.bench.peers.contestants import openvino_version
from tvm_hybrid.bench.peers.peers import openvino_python as default_openvino
from tvm_hybrid.cli.base.console import output_console, say
from tvm_hybrid.report.timing import ContestantError
from tvm_hybrid.targets.resolve import cpu_name, host_target

from . import results
from .corpus import NAMES, chosen_of, has_relative
from .feeds import feeds_of
from .graph import Model
from .results import AGAIN, COLD, COUNTING, FAST, ONNXRUNTIME, OPENVINO, STARTS, Row, page
from .starts import Files, Start, start, written


@dataclass(frozen=True)
class Settings:
    """How starts are measured."""

    starts: Collection[str]  # names of the starts to measure
    threads: int = 1  # of every engine
    limit: float = 60  # CPU seconds of a start
    openvino: str = sys.executable  # a Python that has OpenVINO
    target: str | None = None  # CPU to compile for when counting; None for this one


def measured(name: str, settings: Settings) -> Iterator[tuple[str, Start]]:
    """Yields every start of a model of the corpus when it ends."""
    with TemporaryDirectory(prefix="compile_times-") as folder:
        files = written(name, Path(folder) / "model")
        relatives = {
            each: functools.partial(written, name, Path(folder) / each, each)
            for each in settings.starts
            if has_relative(name, each)
        }
        yield from _measured(files, relatives, Path(folder) / "cache", settings)


def measured_file(
    path: Path, sizes: dict[str, int], settings: Settings
) -> Iterator[tuple[str, Start]]:
    """Yields every start of a model in a file, which has no relatives, when it ends."""
    with TemporaryDirectory(prefix="compile_times-") as folder:
        feeds = Path(folder) / "feeds.npz"
        model = Model(onnx.load(path, load_external_data=False), sizes)
        np.savez(feeds, **feeds_of(model))  # type: ignore[arg-type]
        files = Files(path.resolve(), feeds)
        yield from _measured(files, {}, Path(folder) / "cache", settings)


def _measured(
    files: Files, relatives: Mapping[str, Callable[[], Files]], cache: Path, settings: Settings
) -> Iterator[tuple[str, Start]]:
    threads, limit, wanted = settings.threads, settings.limit, settings.starts
    ends = True
    if relatives or {COLD, AGAIN} & set(wanted):
        cache.mkdir()
        cold = start("tvm_hybrid", files, threads, limit, cache)
        ends = not cold.fault
        yield COLD, cold
    if FAST in wanted:
        yield FAST, start("early", files, threads, limit)
    if AGAIN in wanted and ends:
        yield AGAIN, start("loading", files, threads, limit, cache)
    for name, second in relatives.items() if ends else ():
        yield name, start("tvm_hybrid", second(), threads, limit, cache)
    if COUNTING in wanted and ends:
        # Counting makes Python code up to three times as slow.
        yield COUNTING, start("counting", files, threads, 3 * limit, target=settings.target)
    if ONNXRUNTIME in wanted:
        yield ONNXRUNTIME, start("onnxruntime", files, threads, limit)
    if OPENVINO in wanted:
        yield OPENVINO, start("openvino", files, threads, limit, python=settings.openvino)


BUDGET_TARGET = "icelake-server"
"""Budgets are counted for one CPU, so that they are equal on all machines."""


def _sizes(_context: object, _option: object, values: tuple[str, ...]) -> dict[str, int]:
    try:
        return {name: int(size) for name, _, size in (each.partition("=") for each in values)}
    except ValueError:
        raise click.BadParameter("a size is NAME=NUMBER") from None


@click.command(help=__doc__.partition("\n")[0])
@click.option(
    "--models",
    default="",
    callback=chosen_of(NAMES),
    help="Names of models, with commas; default: all.",
)
@click.option("--onnx", "paths", multiple=True, type=click.Path(exists=True, path_type=Path),
              help="A model in a file, instead of the corpus; may be repeated.")  # fmt: skip
@click.option("--size", "sizes", multiple=True, callback=_sizes,
              help="NAME=NUMBER: size of a dynamic dimension of an --onnx model.")  # fmt: skip
@click.option(
    "--starts",
    "wanted",
    default=",".join(STARTS),
    callback=chosen_of(STARTS),
    show_default=True,
    help="Kinds of starts, with commas.",
)
@click.option("--threads", default=1, show_default=True)
@click.option("--timeout", default=60.0, show_default=True,
              help="Most CPU seconds of a start; a longer start is ended and marked.")  # fmt: skip
@click.option("--openvino-python", metavar="PYTHON", help="A Python with OpenVINO.")
@click.option(
    "--json", "output", type=click.Path(path_type=Path), help="Write the results to this file."
)
@click.option("--from", "source", type=click.Path(exists=True, path_type=Path),
              help="Show results that --json wrote; measure nothing.")  # fmt: skip
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the page to this file.")
@click.option(
    "--budgets",
    is_flag=True,
    help="Only run the start `counting`; print tests/compile_budgets.txt.",
)
def main(
    models: list[str],
    paths: tuple[Path, ...],
    sizes: dict[str, int],
    wanted: list[str],
    threads: int,
    timeout: float,
    openvino_python: str | None,
    output: Path | None,
    source: Path | None,
    markdown: Path | None,
    budgets: bool,
) -> None:
    """Measures the models, and prints tables."""
    errors = Console(stderr=True)
    if budgets:
        settings = Settings([COUNTING], limit=timeout, target=BUDGET_TARGET)
        rows = [_row(errors, name, measured(name, settings)) for name in models]
        say(*results.budgets(rows))
        say(*results.notes(rows), to=errors)
        return
    if source is not None:
        found = json.loads(source.read_text())
    else:
        settings, version = _with_openvino(Settings(wanted, threads, timeout), openvino_python)
        found = {
            "command": f"python -m tools.compile_times --threads {threads} --timeout {timeout:.0f}",
            "cpu": cpu_name(host_target()),
            "threads": threads,
            "limit": timeout,
            "OpenVINO": version,
            "models": {},
        }
        measurements = {name: measured(name, settings) for name in ([] if paths else models)}
        measurements |= {str(path): measured_file(path, sizes, settings) for path in paths}
        for name, starts in measurements.items():
            found["models"][name] = _row(errors, name, starts).as_json()
            if output is not None:
                output.write_text(json.dumps(found, indent=1) + "\n")
    rows = [Row.of(name, starts) for name, starts in found["models"].items()]
    console = output_console()
    for columns, lines in (results.overview(rows), results.stages(rows)):
        table = Table(*columns)
        for line in lines:
            table.add_row(*line)
        console.print(table)
    say(*results.notes(rows), f"OpenVINO: {found['OpenVINO']}")
    if markdown is not None:
        markdown.write_text(page(rows, found))


def _with_openvino(settings: Settings, python: str | None) -> tuple[Settings, str]:
    """Adds the Python that has OpenVINO or removes OpenVINO; returns its version or why not."""
    if OPENVINO not in settings.starts:
        return settings, "not asked for"
    program = default_openvino(python)
    try:
        version = openvino_version(program)
    except ContestantError:
        starts = [each for each in settings.starts if each != OPENVINO]
        return replace(settings, starts=starts), "not installed"
    return replace(settings, openvino=program), version


def _row(errors: Console, name: str, starts: Iterator[tuple[str, Start]]) -> Row:
    """Collects the starts of a model, and prints the time of each."""
    row = Row(name)
    for kind, found in starts:
        row.starts[kind] = found
        text = found.fault or f"{found.seconds().cpu:.2f} CPU s"
        say(f"{name}, {kind}: {text}", to=errors)
        if kind == COLD:
            for title, (cpu, wall) in found.stages.items():
                say(f"    {cpu:8.2f} CPU s {wall:8.2f} s  {title}", to=errors)
            for title, cpu in found.parts.items():
                say(f"    {cpu:8.2f} CPU s             of it {title}", to=errors)
    return row


if __name__ == "__main__":
    main()
