"""`tvm-hybrid scale MODEL`: predicts a model's time on any number of threads of any machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .base.console import output_console, print_json, say, working
from .base.models import Inputs, executable_of, input_options
from .base.options import ALL, AT_LEAST_ONE, Counts, compile_options, json_option, model_argument

if TYPE_CHECKING:
    from ..options import CompileOptions


@click.command("scale")
@model_argument
@input_options
@click.option(
    "--measure", is_flag=True, help="Also run it here, which must be idle, and show both times."
)
@click.option("--rows", type=AT_LEAST_ONE, help="Show so many regions at most.")
@click.option(
    "--threads",
    "counts",
    metavar="1,2,4",
    type=Counts("numbers of threads"),
    default="1,2",
    help="Numbers of threads.",
)
@compile_options(*(name for name in ALL if name != "threads"))
@json_option
def command(
    model: Path,
    inputs: Inputs,
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
    from ..bench.scaling.scale import measured_table, scale_model, scale_table, with_measured

    with working(f"predicting {model.name}"):
        report = scale_model(model, counts, options, name=model.name)
    if measure:
        executables = {
            run.threads: executable_of(model, replace(options, num_threads=run.threads))
            for run in report.runs
        }
        feeds, _ = inputs.feeds_of(executables[1])
        with working("measuring"):
            report = with_measured(report, executables, feeds)
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
