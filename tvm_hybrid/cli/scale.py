"""`tvm-hybrid scale MODEL`: predicts a model's time on any number of threads of any machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .base.console import output_console, print_json, say, working
from .base.models import executable_of, input_options, note_random
from .base.options import ALL, AT_LEAST_ONE, compile_options, json_option, model_argument

if TYPE_CHECKING:
    from ..bench.scaling.scale import ScaleReport
    from ..options import CompileOptions


class Counts(click.ParamType[tuple[int, ...]]):
    """`1,2,4`."""

    name = "1,2,4"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The example."""
        return self.name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers."""
        if isinstance(value, tuple):
            return value
        items = str(value).split(",")
        if not all(item.isascii() and item.isdigit() and int(item) > 0 for item in items):
            self.fail(f"{value!r} is not a list of numbers of threads, such as 1,2,4", param, ctx)
        return tuple(map(int, items))


_threads = click.option(
    "--threads",
    "counts",
    type=Counts(),
    default="1,2",
    show_default=True,
    help="Numbers of threads.",
)


@click.command("scale")
@model_argument
@input_options
@click.option(
    "--measure", is_flag=True, help="Also run it here, which must be idle, and show both times."
)
@click.option("--rows", type=AT_LEAST_ONE, help="Show so many regions at most.")
@_threads
@compile_options(*(name for name in ALL if name != "threads"))
@json_option
def command(
    model: Path,
    arrays: tuple[str, ...],
    archive: Path | None,
    seed: int,
    measure: bool,
    counts: tuple[int, ...],
    rows: int | None,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Predicts the time of MODEL and of its regions by threads; nothing is run.

    The numbers come from the machine's description: instructions of the kernels as they would be
    built, bytes at each level of the memory, forks, and how unequal the threads' shares are. For
    each region the table names what limits it on the most threads.
    """
    if measure and options.target is not None:
        raise click.UsageError("--measure is for this machine, and excludes --target")
    if options.keep_open:
        raise click.UsageError("times are predicted for known sizes: give --shape or --dim")
    from ..bench.scaling.scale import measured_table, scale_model, scale_table

    with working(f"predicting {model.name}"):
        report = scale_model(
            model,
            counts,
            options,
            name=model.name,
        )
    if measure:
        report = _measured(report, model, options, (arrays, archive, seed))
    if as_json:
        print_json(report)
        return 0
    output_console().print(scale_table(report, rows or 0))
    for run in report.runs:
        if run.measured_us is not None:
            output_console().print(measured_table(run, rows or 0))
    for line in report.slower:
        say(f"slower with twice the threads: {line}")
    return 0


def _measured(
    report: ScaleReport,
    model: Path,
    options: CompileOptions,
    inputs: tuple[tuple[str, ...], Path | None, int],
) -> ScaleReport:
    """The report with times of this machine."""
    from ..bench.feeds import feeds_of, load_feeds
    from ..bench.scaling.scale import with_measured

    arrays, archive, seed = inputs
    executables = {
        run.threads: executable_of(model, replace(options, num_threads=run.threads))
        for run in report.runs
    }
    feeds, made_up = feeds_of(executables[1], load_feeds(arrays, archive), seed)
    note_random(made_up)
    with working("measuring"):
        return with_measured(report, executables, feeds)
