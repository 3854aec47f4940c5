"""`tvm-hybrid simulate`: compares search strategies on recorded spaces, without measuring."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from microkernels.base.files import require_writable, write_whole

from .base.console import output_console, print_json, working
from .base.options import AT_LEAST_ONE, FILE, json_option

FAILED = 1


@click.command("simulate")
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
    "--seeds",
    default=10,
    show_default=True,
    type=AT_LEAST_ONE,
    help="Searches of each recording by each strategy.",
)
@click.option(
    "--share",
    default=0.98,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True, max=1),
    help="Of the optimum's speed, at which a search ends.",
)
@click.option(
    "--batch",
    default=8,
    show_default=True,
    type=AT_LEAST_ONE,
    help="Trials after which their results are told.",
)
@click.option(
    "--jobs",
    default=min(2, os.cpu_count() or 1),
    show_default=True,
    type=AT_LEAST_ONE,
    help="Processes.",
)
@click.option(
    "--plot",
    type=FILE,
    help="Draw best-so-far curves into this file, such as out.png.",
)
@click.option(
    "--markdown",
    type=FILE,
    help="Write the tables as a page of documentation into this file.",
)
@click.option(
    "--borrowing",
    is_flag=True,
    help="Show instead which configuration each region would borrow if only the others were tuned.",
)
@click.option("--check", is_flag=True, help="Exit with 1 if one of the project's bars is missed.")
@json_option
def command(
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

    RECORDING is a record file (JSON lines, or those compressed by xz) that holds every
    configuration of a region, or the name of one that the package holds; without any, all of those
    are searched.
    """
    from ..tuning.recordings.simulate import shipped_recordings
    from ..tuning.study.search_plot import search_json, search_page, search_tables
    from ..tuning.study.search_study import CONTESTANTS, study_searches

    for file in (plot, markdown):
        if file is not None:
            require_writable(file)
    sources = recordings or shipped_recordings()
    if not sources:
        raise click.UsageError("this package holds no recordings; name a record file")
    if borrowing:
        _show_loans(sources, as_json)
        return 0
    with working("simulating searches") as step:
        study = study_searches(sources, strategies or CONTESTANTS, progress=step, **numbers)
    if plot is not None:
        from ..tuning.study.search_plot import plot_study

        plot_study(study, plot)
    if markdown is not None:
        picture = None if plot is None else os.path.relpath(plot, markdown.parent)
        write_whole(markdown, search_page(study, picture))
    if as_json:
        print_json(search_json(study))
    else:
        for table in search_tables(study):
            output_console().print(table)
    return FAILED if check and not all(bar.holds for bar in study.bars()) else 0


def _show_loans(sources: Sequence[str], as_json: bool) -> None:
    from rich.table import Table

    from ..tuning.recordings.simulate import load_recordings, simulate_borrowing

    loans = simulate_borrowing([one for source in sources for one in load_recordings(source)])
    if as_json:
        print_json(loans)
        return
    table = Table(
        "region", "would borrow of", "distance", "gain there", "gain here", "optimum here"
    )
    for loan in loans:
        gain = "not measured" if loan.gain is None else f"{loan.gain:.3f}x"
        numbers = f"{loan.distance:.2f}", f"{loan.promised:.3f}x", gain, f"{loan.best:.3f}x"
        table.add_row(loan.borrower, loan.lender, *numbers)
    output_console().print(table)
