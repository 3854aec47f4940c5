"""Shows the stages of a compilation on a terminal; anywhere else, one line that it began."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .console import error_console, working


@contextmanager
def stages_shown(message: str, lines: bool = True) -> Iterator[Callable[[str], None]]:
    """Shows the stage on a terminal and, if `lines`, leaves a line with the time of each stage.

    What it gives names a stage that is not one of the compiler's.
    """
    console = error_console()
    if not console.is_terminal:
        with working(message):
            yield lambda title: None
        return
    from rich.markup import escape

    from relay_passes.ir.stages import Stage, listening

    began = time.perf_counter()
    open_stage = ""

    def close() -> None:
        nonlocal began
        now = time.perf_counter()
        if open_stage and lines:
            console.print(f"{now - began:7.2f} s  {open_stage}", highlight=False, markup=False)
        began = now

    def begin(title: str) -> None:
        nonlocal open_stage
        close()
        open_stage = title
        status.update(f"{escape(message)}: {escape(title)}")

    def show(stage: Stage) -> None:
        size = f" ({stage.size})" if stage.size else ""
        title = f"{stage.number}/{stage.count} {stage.title}{size}"
        if stage.done:
            parts = f"{stage.done} of {stage.parts} done"
            status.update(f"{escape(message)}: {escape(title)}, {parts}")
        else:
            begin(title)

    with console.status(escape(message)) as status, listening(show):
        begin("reading the model")
        yield begin
        close()
