"""Profile: where the time of a run goes, kernel by kernel.

The virtual machine calls an instrument before and after every kernel. A kernel's time includes one
call of the instrument, about half a microsecond. Whole runs are timed without the instrument.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from microkernels.base.files import write_whole
from relay_passes.ir.decisions import Decision

from .explanation import Shown
from .origins import by_function, origins_in_run, short, together

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Event:
    """One call of one kernel.

    Attributes
    ----------
    function : str
        The kernel's name in the compiled module.
    start_ns, end_ns : int
        Nanoseconds of a monotonic clock.
    origins : tuple of str
        The nodes of an ONNX model that the call comes from, each with its operator.
    """

    function: str
    start_ns: int
    end_ns: int
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProfileRow:
    """The calls of one kernel.

    Attributes
    ----------
    function : str
        The kernel's name in the compiled module.
    kernel : str
        The microkernel or schedule; "" for functions of the runtime.
    calls : int
        Number of calls in one run.
    microseconds : float
        Time in the kernel per run, averaged over the runs.
    share : float
        The kernel's part of the time of all functions together, 0 to 1.
    gflops : float
        Operations per nanosecond; 0 if they are not counted, or the kernel has dynamic sizes.
    origins : tuple of str
        The nodes of an ONNX model that its calls come from, each with its operator.
    """

    function: str
    kernel: str
    calls: int
    microseconds: float
    share: float
    gflops: float
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile(Shown):
    """The result of `Executable.profile`.

    Attributes
    ----------
    rows : tuple of ProfileRow
        The most expensive kernel first.
    events : tuple of Event
        Every call of every run.
    repeat : int
        Number of runs.
    total_us : float
        Mean time of a whole run, in microseconds, without the instrument.
    runs_us : tuple of float
        Time of each of these runs, in microseconds.
    """

    rows: tuple[ProfileRow, ...]
    events: tuple[Event, ...]
    repeat: int
    total_us: float
    runs_us: tuple[float, ...] = ()

    def table(self) -> Table:
        """The rows as a table."""
        from rich.table import Table

        table = Table(title=f"{self.total_us:.1f} us a run, mean of {self.repeat}")
        table.add_column("function", overflow="fold")
        table.add_column("kernel", overflow="fold")
        for column in ("calls", "us", "%", "GFLOP/s"):
            table.add_column(column, justify="right")
        has_origins = any(row.origins for row in self.rows)
        if has_origins:
            table.add_column("ONNX nodes", overflow="fold")
        for row in self.rows:
            cells = [row.function, row.kernel, str(row.calls), f"{row.microseconds:.2f}"]
            cells += [f"{100 * row.share:.1f}", f"{row.gflops:.1f}" if row.gflops else ""]
            table.add_row(*cells, *([short(row.origins)] if has_origins else []))
        return table

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace for chrome://tracing and ui.perfetto.dev.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        kernels = {row.function: row.kernel for row in self.rows}
        origin = self.events[0].start_ns if self.events else 0
        trace = []
        for event in self.events:
            arguments = {"kernel": kernels[event.function]}
            if event.origins:
                arguments["onnx"] = ", ".join(event.origins)
            start, length = event.start_ns - origin, event.end_ns - event.start_ns
            # The id of the main thread; Perfetto takes 0 for an idle CPU.
            entry: dict[str, Any] = {"pid": os.getpid(), "tid": os.getpid()}
            entry |= {"name": event.function, "ts": start / 1e3, "dur": length / 1e3}
            trace.append({**entry, "cat": "kernel", "ph": "X", "args": arguments})
        write_whole(path, json.dumps({"traceEvents": trace, "displayTimeUnit": "ns"}), "the trace")


def profile_runs(
    machine: Any, inputs: Sequence[Any], decisions: Sequence[Decision], repeat: int
) -> Profile:
    """Runs `main` of a virtual machine `repeat` times, without and then with an instrument.

    Parameters
    ----------
    machine : tvm.runtime.VirtualMachine
        It must not be used for anything else, as it keeps the instrument.
    inputs : sequence of tvm.runtime.Tensor
        Inputs of the runs.
    decisions : sequence of Decision
        Give the names and operation counts of the kernels.
    repeat : int
        Number of runs, from 1 up.
    """
    main = machine["main"]
    main(*inputs)
    runs_us = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        main(*inputs)
        runs_us.append((time.perf_counter_ns() - start) / 1e3)
    events: list[Event] = []
    starts: list[int] = []
    clock = time.perf_counter_ns

    def record(_function: Any, name: str, before: bool, *_: Any) -> int:
        now = clock()
        if before:
            starts.append(clock())
        else:
            events.append(Event(str(name), starts.pop(), now))
        return 0

    machine.set_instrument(record)
    main(*inputs)
    events.clear()
    for _ in range(repeat):
        main(*inputs)
    about = by_function(decisions)
    length = max(len(events) // repeat, 1)
    named: list[Event] = []  # with the nodes of each call; all runs make equal calls
    for first in range(0, len(events), length):
        run = events[first : first + length]
        origins = origins_in_run([each.function for each in run], about)
        named += (replace(each, origins=o) for each, o in zip(run, origins, strict=True))
    total = sum(runs_us) / repeat
    return Profile(_rows(events, about, repeat), tuple(named), repeat, total, tuple(runs_us))


def _rows(
    events: Sequence[Event], about: Mapping[str, Sequence[Decision]], repeat: int
) -> tuple[ProfileRow, ...]:
    calls: dict[str, list[int]] = {}
    everything = sum(event.end_ns - event.start_ns for event in events)
    for event in events:
        calls.setdefault(event.function, []).append(event.end_ns - event.start_ns)
    rows = []
    for function, times in calls.items():
        mine = about.get(function, ())
        decision = mine[-1] if mine else None
        nanoseconds, operations = sum(times), 0
        if decision and not decision.at_run_time:  # with dynamic sizes, flops are those of a sample
            operations = decision.flops * len(times)
        rows.append(
            ProfileRow(
                function=function,
                kernel=decision.kernel if decision else "",
                calls=round(len(times) / repeat),
                microseconds=nanoseconds / 1e3 / repeat,
                share=nanoseconds / everything if everything else 0.0,
                gflops=operations / nanoseconds if nanoseconds else 0.0,
                origins=together(mine),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.microseconds))
