"""Keeps Ctrl-C from being lost in our own programs; the library does not touch signals.

Python ignores a KeyboardInterrupt in a destructor, or in a callback that may not fail, after
reporting it. In other places, as when NumPy is imported from C, it becomes another error.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_MANY = 1 << 12
_MOMENT = 0.05


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C that is swallowed is pressed again.

    What it gives tells whether Ctrl-C was pressed: an error may then be none of its own. Outside
    the main thread, which alone gets signals, it never was.
    """
    former = sys.unraisablehook
    again: list[threading.Timer] = []
    hooked, left = threading.Event(), threading.Event()

    def hook(swallowed: UnraisableHookArgs) -> None:
        if not issubclass(swallowed.exc_type, KeyboardInterrupt):
            former(swallowed)
            return
        # Not while this runs, where it would be swallowed as well, and for good.
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
    """Presses Ctrl-C once the hook has returned; a busy machine may hold it up.

    A signal that comes after Python looked for one and before `time.sleep` waits does not wake it.
    So it is pressed until the main thread has moved on: one that is pending stays one.
    """
    while hooked.is_set():
        time.sleep(_MOMENT)
    main = threading.main_thread().ident
    assert main is not None
    while not left.is_set():
        place = _place(main)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(_MOMENT)
        if _place(main) != place:
            return


def _place(thread: int) -> tuple[int, int]:
    """Which instruction of which frame a thread is at."""
    frame = sys._current_frames()[thread]
    return id(frame), frame.f_lasti


@contextmanager
def _listening() -> Iterator[Callable[[], bool]]:
    """Whether a SIGINT came, whoever handles it and whatever becomes of it."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    seen = bytearray()

    def pressed() -> bool:
        with suppress(BlockingIOError):  # nothing came
            seen.extend(os.read(reading, _MANY))
        return signal.SIGINT in seen

    former = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield pressed
    finally:
        signal.set_wakeup_fd(former)
        os.close(reading)
        os.close(writing)
