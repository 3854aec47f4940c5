"""Slots: at most so many at once, and whoever waits is served in the order of coming."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Slots:
    """A semaphore that nobody overtakes: a slot that gets free is handed to who waited longest.

    Parameters
    ----------
    count : int
        How many there are.
    """

    def __init__(self, count: int) -> None:
        self._free = count  # none while somebody waits
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def take(self) -> None:
        """Takes a slot; waits for one if none is free."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()  # until a slot is handed over
        except BaseException:  # Ctrl-C
            with self._lock:
                handed = turn not in self._waiting
                if not handed:
                    self._waiting.remove(turn)
            if handed:
                self.give()
            raise

    def give(self) -> None:
        """Gives a slot back, or on to who waits."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1

    def limited(self, function: Callable[P, T]) -> Callable[P, T]:
        """The same function; each call of it has a slot."""

        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            self.take()
            try:
                return function(*arguments, **named)
            finally:
                self.give()

        return call
