"""`tvm-hybrid tune MODEL`: measures configurations of every region into a record file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..report.console import error_console, output_console, print_json
from .options import (
    NamedShape,
    NamedSize,
    fast_math_option,
    fusion_option,
    json_option,
    model_argument,
    precision_option,
)

if TYPE_CHECKING:
    from ..tuning.tune_regions import Progress, Trial, TuneResult

INTERRUPTED = 130


@click.command("tune")
@model_argument
@click.option(
    "--records",
    default="records.jsonl",
    show_default=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to append measurements to.",
)
@click.option(
    "--trials",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Configurations of each region, those in the file included.",
)
@click.option("--strategy", default="random", show_default=True, help="random or grid.")
@click.option("--seed", default=0, show_default=True, help="Of the search.")
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that one configuration may take.",
)
@click.option(
    "--resume/--again", default=True, help="Leave out, or measure again, what the file holds."
)
@click.option(
    "--replay",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Simulate the search from these records; nothing is measured or written.",
)
@click.option("--shape", "named_shapes", type=NamedShape(), multiple=True, help="Input shape.")
@click.option("--dim", "sizes", type=NamedSize(), multiple=True, help="Size of a symbolic one.")
@click.option("--target", help="CPU to compile for; this machine must run its code.")
@click.option("--threads", "num_threads", type=click.IntRange(min=1), help="Threads of one run.")
@precision_option
@fusion_option
@fast_math_option
@json_option
def command(
    model: Path,
    records: Path,
    trials: int,
    strategy: str,
    seed: int,
    timeout: float,
    resume: bool,
    replay: Path | None,
    named_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    sizes: tuple[tuple[str, int], ...],
    target: str | None,
    num_threads: int | None,
    precision: str,
    fusion: str,
    fast_math: str,
    as_json: bool,
) -> int:
    """Measures configurations of every distinct region of MODEL into a record file.

    Apply them with --records of the other commands. Ctrl-C keeps everything that was measured;
    the same command continues.
    """
    from ..tuning.tune_model import tune

    with _shown() as progress:
        result = tune(
            model,
            target=target,
            shapes={**dict(named_shapes), **dict(sizes)} or None,
            precision=precision,
            fusion=fusion,
            fast_math=fast_math,
            trials=trials,
            records=records,
            num_threads=num_threads,
            strategy=strategy,
            seed=seed,
            timeout=timeout,
            resume=resume,
            replay=replay,
            progress=progress,
        )
    if as_json:
        print_json(_as_json(result))
    else:
        _print(result, replay or records)
    return INTERRUPTED if result.interrupted else 0


@contextmanager
def _shown() -> Iterator[Progress]:
    """Progress on standard error: a bar on a terminal, one line a region anywhere else."""
    console = error_console()
    if not console.is_terminal:

        def line(trial: Trial) -> None:
            if trial.trial == trial.trials:
                console.print(_describe(trial), highlight=False, soft_wrap=True, markup=False)

        yield line
        return

    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("partitioning", total=None)

        def bar(trial: Trial) -> None:
            bars.update(
                task, description=_describe(trial), completed=trial.trial, total=trial.trials
            )

        yield bar


def _describe(trial: Trial) -> str:
    best = "" if trial.best is None else f"best {trial.best:.3f}x of the default, "
    return f"region {trial.region + 1} of {trial.regions}, {best}{trial.workload}"


def _print(result: TuneResult, records: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("speed-up", "default us", "best us", "tried", "failed", "region", "best config")
    for region in result.regions:
        config = " ".join(f"{name}={value}" for name, value in (region.best or {}).items())
        table.add_row(
            f"{region.speedup:.3f}",
            _number(region.default_us),
            _number(region.best_us),
            str(region.trials + region.known),
            str(region.failures),
            escape(region.region.key),
            escape(config),
        )
    console = output_console()
    console.print(table)
    state = "interrupted; everything measured is kept in" if result.interrupted else "records in"
    console.print(f"{state} {records}", highlight=False, soft_wrap=True, markup=False)


def _number(value: float | None) -> str:
    return "failed" if value is None else f"{value:.2f}"


def _as_json(result: TuneResult) -> dict[str, object]:
    regions = [
        {
            "workload": region.region.key,
            "default_us": region.default_us,
            "best_us": region.best_us,
            "best": region.best,
            "speedup": region.speedup,
            "measured": region.trials,
            "known": region.known,
            "failures": region.failures,
        }
        for region in result.regions
    ]
    return {"regions": regions, "interrupted": result.interrupted}
