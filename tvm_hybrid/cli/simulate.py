"""`tvm-hybrid simulate` and `record-spaces`: search and record completely measured spaces."""

from __future__ import annotations

import lzma
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from microkernels.base.cpu_quota import busy_cpus
from microkernels.base.files import write_whole

from .base.console import error_console, show, working
from .base.options import AT_LEAST_ONE, FOLDER, FileCommand, OutputFile, json_option

FAILED = 1


@click.command("simulate", cls=FileCommand)
@click.argument("recordings", nargs=-1, metavar="[RECORDING]...")
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME",
    help="model, transfer (the model, with all other recordings as history), evolutionary, random "
    "or grid; may be given several times.  [default: random, evolutionary, model, transfer]",
)
@click.option(
    "--seeds", default=10, type=AT_LEAST_ONE, help="Searches of each recording by each strategy."
)
@click.option(
    "--share",
    default=0.98,
    type=click.FloatRange(min=0, min_open=True, max=1),
    help="Share of the optimum's speed at which a search ends.",
)
@click.option(
    "--batch", default=8, type=AT_LEAST_ONE, help="Trials before a strategy learns their results."
)
@click.option("--jobs", default=min(2, busy_cpus()), type=AT_LEAST_ONE, help="Processes.")
@click.option(
    "--plot", type=OutputFile(), help="Draw best-so-far curves into this file, such as out.png."
)
@click.option(
    "--markdown",
    type=OutputFile(".md"),
    help="Write the tables as a page of documentation into this file.",
)
@click.option(
    "--borrowing",
    is_flag=True,
    help="Show instead which configuration each region would borrow if only the others were tuned.",
)
@click.option("--check", is_flag=True, help="Exit with 1 if a goal of the project is missed.")
@json_option
def simulate(
    recordings: tuple[str, ...],
    strategies: tuple[str, ...],
    plot: Path | None,
    markdown: Path | None,
    borrowing: bool,
    check: bool,
    as_json: bool,
    **numbers: Any,
) -> int:
    """Counts the trials that search strategies need on recorded spaces.

    RECORDING is a record file (JSON lines, plain or compressed by xz) with every configuration of a
    region, or the name of one that the package ships. Without any, all shipped ones are searched.
    """
    from ..tuning.recordings.simulate import shipped_recordings
    from ..tuning.study.search_study import (
        CONTESTANTS,
        search_json,
        search_page,
        search_tables,
        study_searches,
    )

    sources = recordings or shipped_recordings()
    if not sources:
        raise click.UsageError("this package holds no recordings; name a record file")
    if borrowing:
        _show_loans(sources, as_json)
        return 0
    with working("simulating searches") as step:
        study = study_searches(sources, strategies or CONTESTANTS, progress=step, **numbers)
    if plot is not None:
        from ..tuning.study.search_study import plot_study

        plot_study(study, plot)
    if markdown is not None:
        picture = None if plot is None else os.path.relpath(plot, markdown.parent)
        write_whole(markdown, search_page(study, picture))
    show(search_json(study), as_json, *search_tables(study))
    return FAILED if check and not all(bar.holds for bar in study.bars()) else 0


def _show_loans(sources: Sequence[str], as_json: bool) -> None:

    from ..tuning.recordings.simulate import load_recordings, simulate_borrowing

    loans = simulate_borrowing([one for source in sources for one in load_recordings(source)])
    table = Table(
        "region", "would borrow of", "distance", "gain there", "gain here", "optimum here"
    )
    for loan in loans:
        gain = "not measured" if loan.gain is None else f"{loan.gain:.3f}x"
        numbers = f"{loan.distance:.2f}", f"{loan.promised:.3f}x", gain, f"{loan.best:.3f}x"
        table.add_row(loan.borrower, loan.lender, *numbers)
    show(loans, as_json, table)


@click.command("record-spaces")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--folder",
    default=".",
    type=FOLDER,
    help="Folder for NAME.jsonl and, when it is complete, NAME.jsonl.xz.",
)
@click.option("--cpu", type=click.IntRange(min=0), help="The CPU to measure on.")
@click.option("--list", "only_list", is_flag=True, help="Name the regions; measure nothing.")
def record_spaces(names: tuple[str, ...], folder: Path, cpu: int | None, only_list: bool) -> None:
    """Measures every configuration of public regions on one thread, minutes for each.

    NAME is one of the names that --list shows; without any, all are measured. The same command
    continues after an interruption, and measures the fastest of a finished space again.
    """
    from relay_passes.pipeline_options import PipelineOptions
    from tir_schedules.core.template import template_for

    from ..bench.layer_models import public_names, public_regions
    from ..records.record_file import require_appendable
    from ..records.record_store import ConfigSpace, RecordStore, latest
    from ..targets.resolve import resolve_target
    from ..tuning.measuring.local_measurer import LocalMeasurer
    from ..tuning.recordings.record_space import SpaceRecorder

    unknown = ", ".join(sorted(set(names) - set(public_names())))
    if unknown:
        raise click.UsageError(f"no public region {unknown}; --list names them")
    for name in () if only_list else names or public_names():
        require_appendable(folder / f"{name}.jsonl")
    options = PipelineOptions(target=resolve_target(None), threads=1)
    regions = public_regions(options, names)
    if only_list:
        for name, region in regions.items():
            size = len(ConfigSpace.of(region, template_for(region.op), options.machine))
            click.echo(f"{name:22} {size:5} configurations  {region.key}")
        return
    console = error_console()
    for name, region in regions.items():
        path = folder / f"{name}.jsonl"
        store = RecordStore(path, must_exist=False)
        with LocalMeasurer(options.machine, str(options.target), cpu=cpu) as measurer:
            tell = partial(console.print, f"{name}:", highlight=False)
            SpaceRecorder(region, options.machine, measurer, store, tell).run()
        tried = latest(store.tried(region, template_for(region.op), options.machine))
        lines = b"".join(located.record.to_line() for located in tried)
        write_whole(path.with_suffix(".jsonl.xz"), lzma.compress(lines, preset=9))
