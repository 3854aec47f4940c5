"""Profiler: records when kernels of a session's runs begin and end, and writes them as a trace.

The virtual machine calls an instrument before and after every function that it calls. Its own work
between kernels, such as allocation, has no event: the trace shows a gap.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from microkernels.base.files import require_writable, write_whole
from microkernels.base.logs import logger
from relay_passes.ir.decisions import Decision
from relay_passes.ir.entries import BITS_ENTRY, INTO_ENTRY, MAIN, SHAPES_ENTRY

from ...executable.executable import Executable
from ...executable.machine_code import releasing
from ...explain.origins import by_function, origins_in_run
from .random_seed import Instrument

MOST_EVENTS = 1_000_000
_OWN_FUNCTIONS = "vm.builtin."  # prefix of the virtual machine's own functions
_RUN = "model_run"


class _Event(NamedTuple):
    name: str
    start_ns: int
    end_ns: int
    thread: int
    kernels: dict[str, list[Decision]]  # by function


class Profiler:
    """The events of one session; `prefix` begins the file's name.

    Raises
    ------
    OutputError
        If the file could not be written.
    """

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.monotonic_ns()
        moment, milliseconds = time.localtime(), time.time_ns() // 1_000_000 % 1000
        self.path = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S', moment)}_{milliseconds:03d}.json"
        require_writable(self.path)
        self._events: list[_Event] = []
        self._lost = 0
        self._ended = False
        self._lock = threading.Lock()

    def note(self, event: _Event) -> None:
        """Stores an event, up to the first million."""
        if self._ended:
            return
        if len(self._events) < MOST_EVENTS:
            self._events.append(event)
        else:
            self._lost += 1

    def end(self) -> str:
        """Writes the trace once; returns its path, or "" if it was written before.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        with self._lock:
            if self._ended:
                return ""
            self._ended = True
        if self._lost:
            logger.warning(
                "%s has the first %d events; %d more were lost", self.path, MOST_EVENTS, self._lost
            )
        process = os.getpid()
        ordered = sorted(self._events, key=lambda each: (each.start_ns, -each.end_ns))
        origins = _origins(ordered)
        lines = []
        for place, event in enumerate(ordered):
            # The format of chrome://tracing and ui.perfetto.dev; times are in microseconds.
            entry: dict[str, Any] = {
                "cat": "Session" if event.name == _RUN else "Runtime",
                "pid": process,
                "tid": event.thread,
                "ts": (event.start_ns - self.start_ns) / 1e3,
                "dur": (event.end_ns - event.start_ns) / 1e3,
                "ph": "X",
                "name": event.name,
                "args": {},
            }
            if event.name in event.kernels:
                last = event.kernels[event.name][-1]
                args = {"op_name": last.op, "kernel": last.kernel}
                args |= {"onnx": ", ".join(origins[place])} if origins.get(place) else {}
                entry |= {"cat": "Node", "args": args}
            lines.append(json.dumps(entry))
        write_whole(self.path, "[\n" + ",\n".join(lines) + "\n]\n", "the profile")
        self._events.clear()
        return self.path


def _origins(events: Sequence[_Event]) -> dict[int, tuple[str, ...]]:
    """Finds the model's nodes that each event comes from; `events` are ordered by their begin."""
    runs: dict[int, list[list[int]]] = {}  # by thread
    for place, event in enumerate(events):
        mine = runs.setdefault(event.thread, [[]])
        if event.name == _RUN:
            mine.append([])
        else:
            mine[-1].append(place)
    found: dict[int, tuple[str, ...]] = {}
    for run in (run for each in runs.values() for run in each if run):
        names = [events[place].name for place in run]
        found.update(zip(run, origins_in_run(names, events[run[0]].kernels), strict=True))
    return found


class WatchedExecutable:
    """An executable whose machines call instruments; it behaves like `executable` otherwise.

    Parameters
    ----------
    executable : Executable
        The executable.
    profiler : Profiler or None
        Records the functions that machines call.
    replace_key : Instrument or None
        See `RandomKeys.instrument`.
    """

    def __init__(
        self, executable: Executable, profiler: Profiler | None, replace_key: Instrument | None
    ) -> None:
        self._executable, self._profiler, self._replace_key = executable, profiler, replace_key
        self._kernels = by_function(executable.manifest.decisions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def numpy_main(self) -> Any:
        """`Executable.numpy_main` with instruments."""
        starts: list[int] = []
        name = BITS_ENTRY if self.has_bfloat16 else MAIN
        return self._noted(releasing(self._machine(starts), name), starts)

    def into_entries(self) -> tuple[Any, Any]:
        """`Executable.into_entries` with instruments."""
        starts: list[int] = []
        machine = self._machine(starts)
        return self._noted(machine[INTO_ENTRY], starts), machine[SHAPES_ENTRY]

    def bare_kernel(self) -> None:
        """Returns None, because a kernel called without a machine calls no instrument."""
        return None

    def _machine(self, starts: list[int]) -> Any:
        """Makes a machine for the calling thread."""
        machine, replace_key = self._executable.new_machine(), self._replace_key
        if self._profiler is None:
            machine.set_instrument(replace_key)
            return machine
        thread, clock, note = threading.get_native_id(), time.monotonic_ns, self._profiler.note
        kernels = self._kernels

        def record(function: Any, name: str, before: bool, *others: Any) -> int:
            now = clock()
            if replace_key is not None:
                replace_key(function, name, before, *others)
            if before:
                starts.append(clock())
            else:
                start = starts.pop()
                if not name.startswith(_OWN_FUNCTIONS):
                    note(_Event(str(name), start, now, thread, kernels))
            return 0

        machine.set_instrument(record)
        return machine

    def _noted(self, main: Callable[..., Any], starts: list[int]) -> Callable[..., Any]:
        """Wraps an entry so that the profiler records an event for every run."""
        if self._profiler is None:
            return main
        thread, clock, note = threading.get_native_id(), time.monotonic_ns, self._profiler.note

        def run(*arguments: Any) -> Any:
            starts.clear()  # from a run that failed
            start = clock()
            try:
                return main(*arguments)
            finally:
                note(_Event(_RUN, start, clock(), thread, {}))

        return run
