"""`tvm-hybrid report MODEL -o report.html`: a page that says where a model's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from microkernels.base.files import require_writable

from .base.console import print_json, say, working
from .base.models import executable_of, input_options, note_random
from .base.options import AT_LEAST_ONE, FILE, compile_options, json_option, model_argument

if TYPE_CHECKING:
    from ..options import CompileOptions


@click.command("report")
@model_argument
@click.option("-o", "--output", metavar="FILE.html", type=FILE, help="The page to write.")
@input_options
@click.option(
    "--repeat", type=AT_LEAST_ONE, default=20, show_default=True, help="Runs that are timed."
)
@compile_options()
@json_option
def command(
    model: Path,
    output: Path | None,
    arrays: tuple[str, ...],
    archive: Path | None,
    seed: int,
    repeat: int,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Writes a page that says why MODEL is slow: graph, kernels, roofline, memory, decisions.

    MODEL is an ONNX file or a library that `compile` wrote. The page is one HTML file that loads
    nothing. Machine and model are measured for it: nothing else should run.
    --json prints what the page shows, and needs no -o.
    """
    if output is None and not as_json:
        raise click.UsageError("name the page to write, such as -o report.html, or give --json")
    from ..bench.feeds import feeds_of, load_feeds
    from ..report.page.collect import collect
    from ..report.page.write import write_page

    if output is not None:
        require_writable(output)
    given = load_feeds(arrays, archive)
    executable = executable_of(model, options)
    feeds, made_up = feeds_of(executable, given, seed)
    note_random(made_up)
    with working("measuring"):
        data = collect(executable, feeds, model=str(model), repeat=repeat)
    if output is not None:
        write_page(data, output)
    if as_json:
        print_json(data)
        return 0
    say(f"{output}: {len(data.regions)} calls of {len(data.kernels)} kernels")
    for advice in data.advice:
        share = "" if advice.share is None else f" ({advice.share:.0%} of the time)"
        say(f"{advice.title}{share}: {advice.command or advice.text}")
    return 0
