"""StageClock: seconds by stage of what a process does, and by part of a stage."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO


class Seconds(NamedTuple):
    """Of all threads and of children that have ended; since some moment."""

    cpu: float
    wall: float

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.cpu - other.cpu, self.wall - other.wall)


class StageClock:
    """Writes a line for every stage that begins or ends, so that what is killed has said where.

    Parameters
    ----------
    output : TextIO
        Gets lines of JSON.
    began : float
        When the process was started, by `time.perf_counter`.
    """

    def __init__(self, output: TextIO, began: float) -> None:
        self._output, self._began = output, began
        self._thread = threading.get_ident()
        self._title, self._since = "", Seconds(0, 0)
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._part_of: dict[int, str] = {}  # by thread: the innermost one that runs
        self._counted: dict[int, float] = {}
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def begin(self, title: str) -> str:
        """The running stage ends, this one begins; returns the one that ended."""
        ended, now = self._title, self._now()
        if ended:
            spent = now - self._since
            self.say(stage=ended, cpu=spent.cpu, wall=spent.wall)
        self._title, self._since = title, now
        self.say(begins=title)
        return ended

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """Inside, another stage runs; nothing happens in other threads than the first."""
        if threading.get_ident() != self._thread:
            yield
            return
        outer = self.begin(title)
        try:
            yield
        finally:
            self.begin(outer)

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """CPU seconds of this thread inside are those of a part, but for parts inside it."""
        thread = threading.get_ident()
        outer = self._part_of.get(thread, "")
        self._count_part(outer)
        self._part_of[thread] = title
        try:
            yield
        finally:
            self._count_part(title)
            self._part_of[thread] = outer

    def _count_part(self, title: str) -> None:
        """What this thread has taken since the last call is a part's."""
        thread, now = threading.get_ident(), time.thread_time()
        with self._lock:
            if title:
                self._parts[title] += now - self._counted[thread]
            self._counted[thread] = now

    def timed(self, function: Callable[..., Any], stage: str = "", part: str = "") -> Any:
        """A function whose calls are a stage, a part, or both."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if part:
                with self.part(part):
                    return function(*args, **kwargs)
            with self.stage(stage):
                return function(*args, **kwargs)

        return call

    def end(self, **rest: Any) -> None:
        """The last stage ends; says parts, counts and whatever else there is."""
        self.begin("")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.say(done=True, parts=dict(self._parts), counts=dict(self.counts), peak_mb=peak, **rest)

    def say(self, **line: Any) -> None:
        """One line."""
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()

    def _now(self) -> Seconds:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = time.process_time() + children.ru_utime + children.ru_stime
        return Seconds(cpu, time.perf_counter() - self._began)
