"""How `tvm-hybrid tune` shows what it is doing: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .base.console import error_console, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..tuning.tune_result import Callback, TaskInfo, Trial

LINE_SECONDS = 10.0
"""So often a plain line is printed while one region is searched."""

LONGEST_KEY = 72
"""Of a region's key in a line of progress, in characters."""


@contextmanager
def shown() -> Iterator[Callback]:
    """A callback of `tune` that shows progress on standard error."""
    console = error_console()
    if console.is_terminal:
        with _bars(console) as callback:
            yield callback
    else:
        lines = _Lines(console)
        yield lines


def table_of(tasks: tuple[TaskInfo, ...]) -> Table:
    """What will be tuned."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("#", "runs", "configurations", "known", "region")
    for column in table.columns[:-1]:
        column.justify = "right"
    for task in tasks:
        table.add_row(
            str(task.number + 1),
            f"{task.weight} x",
            f"{task.size:,}",
            f"{task.known:,}",
            escape(task.region.key),
        )
    return table


def describe(trial: Trial) -> str:
    """One line of text."""
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
    if len(key) > LONGEST_KEY:  # the table at the beginning has all of it
        key = f"{key[: LONGEST_KEY - 3]}..."
    return f"{', '.join(parts)}: {key}"


def _found(task: TaskInfo) -> list[str]:
    """What the search of a region has found, and what it expects."""
    best = [] if task.best is None else [f"best {task.best:.3f}x of the default"]
    gain = task.predicted_gain
    return best if gain is None else [*best, f"predicted {gain:+.1%}"]


def duration(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _of(trial: Trial) -> str:
    return "" if trial.trials_left is None else f" of {trial.trials_done + trial.trials_left:,}"


class _Lines:
    """A line when another region's turn comes, when a better one is found, and now and then."""

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
        improved = before is not None and before.number == trial.number and _better(before, trial)
        if improved or self.clock() - self.at > LINE_SECONDS:
            self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        self.printed, self.at = trial, self.clock()
        say(describe(trial), to=self.console)


def _better(before: Trial, now: Trial) -> bool:
    return (now.best or 0.0) > (before.best or 0.0)


@contextmanager
def _bars(console: Console) -> Iterator[Callback]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    def columns() -> list[Any]:
        text: list[Any] = [BarColumn(20), TextColumn("{task.fields[count]}"), TimeElapsedColumn()]
        return [*text, TextColumn("{task.description}", markup=False)]

    with Progress(*columns(), console=console, transient=True) as bars:
        whole = bars.add_task("partitioning", total=None, count="")
        region = bars.add_task("", total=None, count="", visible=False)

        def show(trial: Trial) -> None:
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

        yield show
