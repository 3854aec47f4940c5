"""Shows what the demonstration is doing, on standard error, and its results, on standard output."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..cli.console import output_console


class Steps:
    """Shows what is being done: a bar on a terminal, one line a step anywhere else."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self.bar = Progress(
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=total)
        self._label = ""

    def begin(self, label: str) -> None:
        """A step begins; the one before it is over."""
        self.bar.update(self._task, advance=1 if self._label else 0, description=label)
        self._label = label
        self._line(label)

    def detail(self, text: str) -> None:
        """What the step is doing just now."""
        self.bar.update(self._task, description=f"{self._label}: {text}")
        self._line(f"  {text}")

    def show(self, result: RenderableType) -> None:
        """Prints a result on standard output; above the bar if both are on one terminal."""
        output = output_console()
        (self._console if output.is_terminal and self._console.is_terminal else output).print(
            result
        )

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
