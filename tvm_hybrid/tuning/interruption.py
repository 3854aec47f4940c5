"""Ctrl-C that loses nothing: it ends a measurement at once, and everything else at the next step.

Python raises KeyboardInterrupt wherever it happens to be: between a measurement and its writing, or
inside a destructor, where it is swallowed and the program goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interruption:
    """Whether Ctrl-C was pressed; in force while it is entered as a context.

    Outside the main thread, or if the program has a SIGINT handler of its own, nothing is changed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._may_raise = False
        self._former: Any = None

    def __enter__(self) -> Interruption:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._former = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if self._may_raise:
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, Ctrl-C raises KeyboardInterrupt where it finds the program."""
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.requested:
            raise KeyboardInterrupt
