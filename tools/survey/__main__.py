"""Measures this CPU in at most 40 minutes, and makes the pages about speed.

    python -m tools.survey                                     # a second start continues
    python -m tools.survey --only products --minutes 2 --output build/survey.json
    python -m tools.survey --pages                             # measures nothing

The result is docs/measured/CPU-DATE.json; docs/performance.md, the README's table and its picture
are made from the newest file of each CPU. At the end it lists what fell short: rows below 0.97 of
the best other library, and defaults more than 5% behind a neighbour. Nothing else should run
meanwhile. Libraries to compare with are installed into the cache folder at the first start.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import click
from rich.console import Console

from microkernels.base.host_cpu import processor
from tools.compile_times.corpus import chosen_of
from tvm_hybrid.cli.base.console import say
from tvm_hybrid.runtime.threads import default_threads
from tvm_hybrid.targets.resolve import cpu_name, host_target

from .page import write_pages
from .peers import Peers, prepare_peers
from .run import Run
from .sections import SECTIONS
from .store import BUSY, Survey, file_for, resumed, shortfalls, source_state

MINUTES = 38.0  # the last case may take two more


def new_survey(peers: Peers, threads: int, load: float) -> Survey:
    """A survey of today, without sections."""
    return Survey(
        cpu=cpu_name(host_target()),
        processor=processor(),
        threads=threads,
        date=f"{datetime.datetime.now(datetime.timezone.utc).date()}",
        commit=source_state(),
        load=round(load, 2),
        versions=peers.versions,
        missing=peers.missing,
    )


@click.command(help=__doc__.partition("\n")[0])
@click.option("--only", default="", callback=chosen_of(SECTIONS),
              help="Measure these sections, with commas, even if results exist.")  # fmt: skip
@click.option(
    "--minutes",
    default=MINUTES,
    show_default=True,
    help="Time limit of all sections together, in minutes.",
)
@click.option("--threads", default=0, help="Largest number of threads; default: one for each core.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write results to this file instead of docs/measured; write no pages.",
)
@click.option("--anew", is_flag=True, help="Discard the results in the file.")
@click.option("--pages", "only_pages", is_flag=True, help="Write the pages; measure nothing.")
def main(
    only: list[str], minutes: float, threads: int, output: Path | None, anew: bool, only_pages: bool
) -> None:
    """Measures missing sections, writes pages, and lists what fell short."""
    errors = Console(stderr=True)
    if not only_pages:
        say("libraries to compare with", to=errors)
        before = os.getloadavg()[0]
        peers = prepare_peers()
        for name, why in peers.missing.items():
            say(f"missing: {name}: {why}", to=errors)
        new = new_survey(peers, threads or default_threads(), before)
        if before > BUSY:
            say(f"something else runs here (load {before:.1f}): times will say little", to=errors)
        path = output or file_for(new)
        survey, reason = (new, "") if anew else resumed(path, new)
        if survey.commit != new.commit:
            other = f"{path} is of commit {survey.commit}, the source of {new.commit}"
            raise click.ClickException(f"{other}: add --anew, or name another file by --output")
        say(*filter(None, [reason]), to=errors)
        run = Run(survey, path, peers, SECTIONS, lambda line: say(line, to=errors))
        names = only if len(only) < len(SECTIONS) else run.missing()
        run.go(names, 60 * minutes)
        say(*(shortfalls(survey.rows) or ["nothing fell short"]), f"{path} is written")
    if output is None:
        say(*(f"{page} is new" for page in write_pages()))


if __name__ == "__main__":
    main()
