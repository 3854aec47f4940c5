"""Consoles: results go to standard output, progress and errors to standard error."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ...explain.tables import FittingConsole

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


_PLAIN_WIDTH = 140


def output_console() -> Console:
    """Makes a console for results; lines in a file or a pipe are not wrapped at 80 columns.

    Made again for each use, so that it follows a redirected `sys.stdout`.
    """
    console = FittingConsole()
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)
    return console


def error_console() -> Console:
    """Makes a console for progress, warnings and errors."""
    return FittingConsole(stderr=True)


def say(*lines: object, to: Console | None = None) -> None:
    """Prints lines exactly as they are, without wrapping, colour or markup.

    Parameters
    ----------
    to : Console or None
        The console; None: standard output.
    """
    console = to or output_console()
    for line in lines:
        console.print(str(line), highlight=False, soft_wrap=True, markup=False)


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output; inf and NaN become null, as JSON has neither.

    Structs and dataclasses become objects.
    """
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    output_console().file.write(text.decode() + "\n")


def show(value: Any, as_json: bool, *parts: RenderableType) -> None:
    """Prints a command's result: `value` as JSON, or its tables and lines of text."""
    if as_json:
        print_json(value)
        return
    for part in parts:
        if isinstance(part, str):
            say(part)
        else:
            output_console().print(part)


@contextmanager
def working(message: str) -> Iterator[Callable[[str], None]]:
    """Shows activity: a spinner on a terminal, one line anywhere else.

    Yields a function that shows another message.
    """
    console = error_console()
    if console.is_terminal:
        with console.status(message) as status:
            yield status.update
    else:

        def show(line: str) -> None:
            console.print(line, highlight=False, soft_wrap=True)

        show(message)
        yield show


@contextmanager
def turns_bar(message: str) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """Shows activity like `working`, on a terminal with a progress bar and the remaining time.

    Yields a function that shows another message, and one that takes the finished and all turns.
    """
    console = error_console()
    if not console.is_terminal:
        with working(message) as show:
            yield show, lambda done, total: None
        return

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(message, total=None)
        yield (
            lambda line: bar.update(task, description=line),
            lambda done, total: bar.update(task, completed=done, total=total),
        )


_MANY = 1 << 12
_MOMENT = 0.05


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Keeps Ctrl-C from being lost in our own programs; the library does not touch signals.

    Python reports and then ignores a KeyboardInterrupt in a destructor, or in a callback that may
    not fail. In other places, as when NumPy is imported from C, it becomes another error. Inside
    this context, a Ctrl-C that was swallowed is sent again.

    Yields a function that tells whether Ctrl-C was pressed, as an error may be a result of that.
    Outside the main thread, which alone gets signals, it returns False.
    """
    former = sys.unraisablehook
    again: list[threading.Timer] = []
    hooked, left = threading.Event(), threading.Event()

    def hook(swallowed: UnraisableHookArgs) -> None:
        if not issubclass(swallowed.exc_type, KeyboardInterrupt):
            former(swallowed)
            return
        # Send it later: while this hook runs, it would be swallowed again, and for good.
        hooked.set()
        again.append(threading.Timer(_MOMENT, _press_after, [hooked, left]))
        again[-1].start()
        hooked.clear()

    sys.unraisablehook = hook
    try:
        if threading.current_thread() is threading.main_thread():
            with _listening() as pressed:
                yield pressed
        else:
            yield lambda: False
    finally:
        sys.unraisablehook = former
        left.set()
        for timer in again:
            timer.cancel()


def _press_after(hooked: threading.Event, left: threading.Event) -> None:
    """Sends Ctrl-C again, from the return of the hook until the main thread has moved on."""
    while hooked.is_set():  # may take long on a busy machine
        time.sleep(_MOMENT)
    main = threading.main_thread().ident
    assert main is not None
    # A signal between Python's check for signals and the wait of `time.sleep` does not wake the
    # main thread: it must be sent again. A pending signal is not doubled.
    while not left.is_set():
        signal.pthread_kill(main, signal.SIGINT)
        # Read the place after the signal: an earlier move is no reaction to it.
        place = _place(main)
        time.sleep(_MOMENT)
        if _place(main) != place:
            return


def _place(thread: int) -> tuple[int, int]:
    """Identifies a thread's current frame and instruction."""
    frame = sys._current_frames()[thread]
    return id(frame), frame.f_lasti


@contextmanager
def _listening() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether a SIGINT came, even if other code handled it."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    seen = bytearray()

    def pressed() -> bool:
        with suppress(BlockingIOError):  # no signal came
            seen.extend(os.read(reading, _MANY))
        return signal.SIGINT in seen

    former = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield pressed
    finally:
        signal.set_wakeup_fd(former)
        os.close(reading)
        os.close(writing)
