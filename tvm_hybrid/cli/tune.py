"""`tvm-hybrid tune MODEL` and `layouts MODEL`: measure configurations and record them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from microkernels.base.logs import logger

from .base import options as shared
from .base.console import error_console, say, show, working
from .base.models import Inputs, array_options, sized
from .group import INTERRUPTED

if TYPE_CHECKING:
    from ..options import CompileOptions
    from ..tuning.tune_result import Callback, TaskInfo, Trial, TuneResult


@shared.model_command("tune")
@array_options
@click.option(
    "--records",
    default="records.jsonl",
    metavar="FILE",
    type=shared.FILE,
    help="File to append measurements to.",
)
@click.option(
    "--trials",
    default=1000,
    type=shared.AT_LEAST_ONE,
    help="Most configurations of the whole model, including those in the file.",
)
@click.option(
    "--trials-per-region",
    type=shared.AT_LEAST_ONE,
    help="Most configurations of each region, including those in the file.",
)
@click.option(
    "--time-limit", metavar="SECONDS", type=shared.SECONDS, help="Most seconds for the search."
)
@click.option(
    "--min-gain",
    default=0.005,
    type=click.FloatRange(min=0),
    help="End when the model is expected to gain less than this share of its time.",
)
@click.option(
    "--strategy",
    default="model",
    help="How to choose the next configuration: model (learns), evolutionary, random or grid.",
)
@click.option(
    "--batch",
    default=8,
    type=shared.AT_LEAST_ONE,
    help="Configurations that a region gets at a time.",
)
@click.option("--seed", default=0, help="Seed of the search.")
@click.option(
    "--timeout", default=30.0, type=shared.SECONDS, help="Most seconds for one configuration."
)
@click.option(
    "--resume/--again",
    default=True,
    show_default=False,
    help="Use the measurements in the file, or measure them again.",
)
@click.option(
    "--replay",
    metavar="FILE",
    type=shared.FILE,
    help="Simulate the search from these records; nothing is measured or written.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=shared.OutputFile(),
    help="Draw progress, predictions and a roofline into this file, such as out.png.",
)
@click.option(
    "--tracker",
    metavar="HOST:PORT",
    help="Measure on the servers of this TVM RPC tracker, for their CPU, instead of here.",
)
@click.option(
    "--key", default="", show_default=False, help="Key that the servers were started with."
)
@click.option(
    "--rpc-timeout",
    default=10.0,
    metavar="SECONDS",
    type=shared.SECONDS,
    help="Most seconds that one configuration may occupy a server, in addition to its samples.",
)
@click.option(
    "--layouts",
    default="fixed",
    type=click.Choice(["fixed", "joint"]),
    help="joint: first search layouts together with loops. fixed: use layouts from the file.",
)
@shared.compile_options(*shared.OF_CODE, "threads", "strict", "dump_ir")
def tune(
    model: Path,
    inputs: Inputs,
    plot: Path | None,
    options: CompileOptions,
    as_json: bool,
    **settings: Any,
) -> int:
    """Measures configurations of the regions of MODEL into a record file.

    Regions come first where tuning shortens the model's time most. Other commands apply the records
    with --records: only configurations that were confirmed to be faster than the default are used.
    Ctrl-C keeps all finished measurements; the same command continues.
    """
    from ..tuning.tune_model import tune as tune_model

    if plot is not None:  # fail before an hour of measurements, not after it
        from ..tuning.study.tune_plot import new_figure

        formats = new_figure(1, 1).canvas.get_supported_filetypes()
        if plot.suffix.lstrip(".").lower() not in formats:
            raise click.BadParameter(
                f"{plot} does not end in one of {', '.join(sorted(formats))}", param_hint="--plot"
            )
    options = sized(model, options, inputs.given)
    with shown() as callback:
        result = tune_model(model, options, callbacks=[callback], **settings)
    if plot is not None and not result.records:
        logger.warning("nothing was measured, so there is no plot %s", plot)
    elif plot is not None:
        from ..tuning.study.tune_plot import plot_tuning, roof_of

        with working("measuring what the machine can do at most"):
            roof = roof_of(result.records)
        plot_tuning(result.records, plot, roof)
    parts = _parts(result, settings["replay"] or settings["records"])
    show(_as_json(result), as_json, *parts)
    return INTERRUPTED if result.interrupted else 0


def _parts(result: TuneResult, records: Path) -> Iterator[RenderableType]:
    """Yields the parts of the result for a terminal."""

    table = Table("speed-up", "runs", "default us", "best us", "tried", "failed", "region", "best")
    for region in result.regions:
        config = " ".join(f"{name}={value}" for name, value in (region.best or {}).items())
        times = (
            "failed" if value is None else f"{value:.2f}"
            for value in (region.default_us, region.best_us)
        )
        tried = f"{region.tried:,} of {region.size:,}", str(region.failures)
        texts = escape(region.region.key), escape(config)
        table.add_row(f"{region.speedup:.3f}", f"{region.weight} x", *times, *tried, *texts)
    yield table
    if result.best_us:
        yield (
            f"all regions: {result.default_us:.1f} us by default, {result.best_us:.1f} us tuned, "
            f"{result.default_us / result.best_us:.3f}x"
        )
    yield from map(str, result.arrangements)
    if result.layouts is not None:
        yield str(result.layouts)
    yield f"ended: {result.reason}; records in {records}"


def _as_json(result: TuneResult) -> dict[str, object]:
    regions = []
    for region in result.regions:
        fields = dict(vars(region))
        workload, measured = fields.pop("region").key, fields.pop("trials")
        regions.append({"workload": workload, "measured": measured, **fields})
    names = ("default_us", "best_us", "interrupted", "reason", "seconds")
    return {
        "regions": regions,
        **{name: getattr(result, name) for name in names},
        "layouts": None if result.layouts is None else result.layouts.to_dict(),
        "arrangements": [vars(arrangement) for arrangement in result.arrangements],
    }


@shared.model_command("layouts")
@click.option(
    "--folder",
    default=".",
    type=shared.FOLDER,
    help="Folder for the record files loops.jsonl and joint.jsonl, which must not exist.",
)
@click.option(
    "--trials",
    default=400,
    type=shared.AT_LEAST_ONE,
    help="Configurations that each of the two runs measures.",
)
@click.option(
    "--time-limit", metavar="SECONDS", type=shared.SECONDS, help="Most seconds for each run."
)
@click.option("--strategy", default="model", help="Strategy of both searches; see tune.")
@click.option("--seed", default=0, help="Seed of both searches.")
@shared.compile_options(*shared.OF_CODE, "num_threads")
def layouts(
    model: Path, folder: Path, options: CompileOptions, as_json: bool, **settings: Any
) -> None:
    """Tunes MODEL twice with equal trials, with and without its layouts, and compares both."""
    from ..bench.compare_layouts import compare_layouts

    options = sized(model, options, {})
    with shown() as callback:
        found = compare_layouts(
            model, folder, options, min_gain=0.0, callbacks=[callback], **settings
        )
    names = ("speedup", "chance", "loops_trials", "joint_trials")
    fields = {
        "loops_us": statistics.median(found.loops_us),
        "joint_us": statistics.median(found.joint_us),
        **{name: getattr(found, name) for name in names},
        "layouts": None if found.layouts is None else found.layouts.to_dict(),
    }
    show(fields, as_json, str(found))


LINE_SECONDS = 10.0
"""Seconds between two plain lines while one region is searched."""

LONGEST_KEY = 72
"""Longest part of a region's key in a line of progress, in characters."""


def table_of(tasks: tuple[TaskInfo, ...]) -> Table:
    """Makes the table of regions that will be tuned."""
    table = Table("#", "runs", "configurations", "known", "region")
    for column in table.columns[:-1]:
        column.justify = "right"
    for task in tasks:
        numbers = str(task.number + 1), f"{task.weight} x", f"{task.size:,}", f"{task.known:,}"
        table.add_row(*numbers, escape(task.region.key))
    return table


def describe(trial: Trial) -> str:
    """Describes a trial in one line."""
    task = trial.task
    parts = [
        f"trial {trial.trials_done:,}{_of(trial)}",
        f"region {task.number + 1} of {len(trial.tasks)}",
        f"{task.tried:,} of {task.size:,} configurations",
    ]
    if trial.stage == "final":
        parts[0] = "confirming"
    parts += _found(task)
    if trial.seconds_left is not None:
        parts.append(f"{duration(trial.seconds_left)} left at most")
    key = task.region.key
    if len(key) > LONGEST_KEY:  # the table at the beginning shows the whole key
        key = f"{key[: LONGEST_KEY - 3]}..."
    return f"{', '.join(parts)}: {key}"


def _found(task: TaskInfo) -> list[str]:
    """Describes the best and the predicted speed of a region."""
    best = [] if task.best is None else [f"best {task.best:.3f}x of the default"]
    gain = task.predicted_gain
    return best if gain is None else [*best, f"predicted {gain:+.1%}"]


def duration(seconds: float) -> str:
    """Formats seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _of(trial: Trial) -> str:
    return "" if trial.trials_left is None else f" of {trial.trials_done + trial.trials_left:,}"


class _Lines:
    """Prints a line when the region changes, when a better configuration is found, and at times."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self.last: Trial | None = None
        self.printed: Trial | None = None
        self.at = clock()

    def __call__(self, trial: Trial) -> None:
        if trial.stage == "begin":
            for task in trial.tasks:
                say(
                    f"region {task.number + 1}: {task.weight} x, {task.size:,} configurations, "
                    f"{task.known:,} known: {task.region.key}",
                    to=self.console,
                )
            return
        before, self.last = self.last, trial
        if before is not None and before is not self.printed:
            changed = (before.stage, before.number) != (trial.stage, trial.number)
            if changed or trial.stage == "end":
                self._tell(before)
        if trial.stage == "end":
            return
        improved = (
            before is not None
            and before.number == trial.number
            and (trial.best or 0.0) > (before.best or 0.0)
        )
        if improved or self.clock() - self.at > LINE_SECONDS:
            self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        self.printed, self.at = trial, self.clock()
        say(describe(trial), to=self.console)


@contextmanager
def shown() -> Iterator[Callback]:
    """Yields a callback of `tune` that shows progress on standard error: bars, or else lines."""
    console = error_console()
    if not console.is_terminal:
        yield _Lines(console)
        return
    count = TextColumn("{task.fields[count]}")
    description = TextColumn("{task.description}", markup=False)
    columns = BarColumn(20), count, TimeElapsedColumn(), description
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("partitioning", total=None, count="")
        region = bars.add_task("", total=None, count="", visible=False)

        def update(trial: Trial) -> None:
            if trial.stage == "begin":
                console.print(table_of(trial.tasks))
            task = trial.task
            left = trial.seconds_left
            total = None if trial.trials_left is None else trial.trials_done + trial.trials_left
            bars.update(
                whole,
                completed=trial.trials_done,
                total=total,
                count=f"trial {trial.trials_done:,}{_of(trial)}",
                description="" if left is None else f"{duration(left)} left at most",
            )
            stage = ["confirming"] if trial.stage == "final" else []
            place = f"region {task.number + 1} of {len(trial.tasks)}"
            bars.update(
                region,
                visible=True,
                completed=task.tried,
                total=task.size,
                count=f"{task.tried:,} of {task.size:,}",
                description=", ".join([*stage, *_found(task), place, task.region.key]),
            )

        yield update
