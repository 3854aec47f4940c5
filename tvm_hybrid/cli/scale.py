"""`tvm-hybrid scale MODEL`: predicts a model's time on any number of threads of any machine."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from ..report.console import output_console, print_json, say, working
from .options import AT_LEAST_ONE, CompileSettings, compile_options, json_option, model_argument


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
    "--threads", type=Counts(), default="1,2", show_default=True, help="Numbers of threads."
)


@click.command("scale")
@model_argument
@click.option("--rows", type=AT_LEAST_ONE, help="Show so many regions at most.")
@functools.partial(compile_options, threads=_threads)
@json_option
def command(
    model: Path,
    threads: tuple[int, ...],
    rows: int | None,
    settings: CompileSettings,
    as_json: bool,
) -> int:
    """Predicts the time of MODEL and of its regions by threads; nothing is run.

    The numbers come from the machine's description: instructions of the kernels as they would be
    built, bytes at each level of the memory, forks, and how unequal the threads' shares are. For
    each region the table names what limits it on the most threads.
    """
    from ..report.scale import scale_model
    from ..report.scale_table import scale_table

    with working(f"predicting {model.name}"):
        report = scale_model(
            model,
            threads,
            target=settings.target,
            shapes=settings.shapes,
            values=settings.values,
            precision=settings.precision,
            fusion=settings.fusion,
            fast_math=settings.fast_math,
            records=settings.records,
            name=model.name,
        )
    if as_json:
        print_json(report)
        return 0
    output_console().print(scale_table(report, rows or 0))
    for line in report.slower:
        say(f"slower with twice the threads: {line}")
    return 0
