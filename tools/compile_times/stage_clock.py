"""StageClock: measures the seconds of stages of a process, and of parts of stages."""

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
    """Seconds of all threads and of ended children, since some moment."""

    cpu: float
    wall: float

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.cpu - other.cpu, self.wall - other.wall)


class StageClock:
    """Writes a line when a stage begins or ends, so that a killed process has told its stage.

    Lines are JSON; `began` is when the process was started, by `time.perf_counter`.
    """

    def __init__(self, output: TextIO, began: float) -> None:
        self._output, self._began = output, began
        self._thread = threading.get_ident()
        self._title, self._since = "", Seconds(0, 0)
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._part_of: dict[int, str] = {}  # thread -> the innermost running part
        self._counted: dict[int, float] = {}
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def begin(self, title: str) -> str:
        """Ends the running stage and begins another; returns the title of the ended one."""
        ended, now = self._title, self._now()
        if ended:
            spent = now - self._since
            self.say(stage=ended, cpu=spent.cpu, wall=spent.wall)
        self._title, self._since = title, now
        self.say(begins=title)
        return ended

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """Runs another stage while the context is open; does nothing in other threads."""
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
        """Counts CPU seconds of this thread, while the context is open, except inner parts."""
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
        """Adds this thread's CPU seconds since the last call to a part."""
        thread, now = threading.get_ident(), time.thread_time()
        with self._lock:
            if title:
                self._parts[title] += now - self._counted[thread]
            self._counted[thread] = now

    def timed(self, function: Callable[..., Any], stage: str = "", part: str = "") -> Any:
        """Wraps a function so that its calls are a stage or a part."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if part:
                with self.part(part):
                    return function(*args, **kwargs)
            with self.stage(stage):
                return function(*args, **kwargs)

        return call

    def end(self, **rest: Any) -> None:
        """Ends the last stage; writes parts, counts and the fields of `rest`."""
        self.begin("")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.say(done=True, parts=dict(self._parts), counts=dict(self.counts), peak_mb=peak, **rest)

    def say(self, **line: Any) -> None:
        """Writes one line."""
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()

    def _now(self) -> Seconds:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = time.process_time() + children.ru_utime + children.ru_stime
        return Seconds(cpu, time.perf_counter() - self._began)
