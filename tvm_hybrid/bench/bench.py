"""Benchmark of one model: this plugin, ONNX Runtime, stock TVM, OpenVINO in one interleaved run.

The plugin may take part several times, at several levels of fusion: the three variants of the
oneDNN Graph Compiler's evaluation (arXiv 2301.01333). As in `verify`, all results are compared with
those of ONNX Runtime without optimisation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from microkernels.base.logs import logger

from ..library.manifest import ChosenOptions
from ..options import CompileOptions
from ..report.timing import ContestantError, Progress, Timing, interleave, take_turns
from .compare import Judge, Tolerance
from .peers.contestants import OpenVino, SessionContestant, StockTvm, total_rate
from .peers.peers import ONNX_RUNTIME, OPENVINO, OURS, PEERS, SATURATING

if TYPE_CHECKING:
    from ..session.inference_session import InferenceSession


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant's result.

    Attributes
    ----------
    name : str
        The contestant.
    timing : Timing or None
        None if the contestant could not run.
    requests_per_second : float or None
        Runs a second, one after the other.
    gflops : float or None
        Operations of matrix products and convolutions over the smallest time, in 1e9 a second; None
        if the model has none.
    ratio : float or None
        This contestant's smallest time over ours: above 1, we are faster.
    agrees : bool
        Whether its outputs are within the tolerance.
    max_rel : float or None
        Error of its outputs, as `Distance.max_rel`.
    note : str
        Why the contestant is missing, or how, where and why its outputs differ.
    kernels : tuple of str
        What each kernel of one run computes, if there are variants; else empty.
    """

    name: str
    timing: Timing | None = None
    requests_per_second: float | None = None
    gflops: float | None = None
    ratio: float | None = None
    agrees: bool = True
    max_rel: float | None = None
    note: str = ""
    kernels: tuple[str, ...] = ()


class BenchReport(ChosenOptions, frozen=True, kw_only=True):
    """All contestants' results on one model, ours first; the options apply only to ours."""

    model: str
    threads: int
    flops: int
    rows: list[BenchRow]

    @property
    def wrong(self) -> list[BenchRow]:
        """Our rows, one for each measured level of fusion, that have wrong results."""
        return [row for row in self.rows if row.name.startswith(OURS) and not row.agrees]

    def row(self, name: str) -> BenchRow | None:
        """Returns the row of a contestant; None if it was not measured."""
        return next((row for row in self.rows if row.name == name and row.timing), None)


def bench(
    session: Any,
    model: Path,
    feeds: Mapping[str, np.ndarray],
    *,
    threads: int,
    flops: int,
    tolerance: Tolerance,
    options: CompileOptions | None = None,
    peers: Sequence[str] = ("ort", "stock"),
    rounds: int = 10,
    seconds: float = 0.1,
    warmup: float = 0.0,
    variants: Mapping[str, InferenceSession] | None = None,
    openvino_python: str | None = None,
    progress: Callable[[str], object] = lambda message: None,
    turns: Progress = lambda done, total: None,
) -> BenchReport:
    """Measures all contestants on one model.

    Parameters
    ----------
    session : InferenceSession
        Our session, compiled for `threads`.
    model : Path
        The ONNX file that the session was made from.
    feeds : mapping
        The inputs of every contestant.
    threads : int
        Threads of every contestant.
    flops : int
        See `ProductSums.flops`.
    tolerance : Tolerance
        Largest difference from the judge's outputs; a row notes if it is exceeded. The judge is
        ONNX Runtime without optimisation, or our session if that is missing.
    options : CompileOptions, optional
        How our session was compiled; stock TVM gets its target, shapes and values, too.
    peers : sequence of str
        Keys of `PEERS`.
    rounds, seconds, warmup
        See `timing.interleave`.
    variants : mapping, optional
        Level of fusion -> the model compiled with it; each gets a row.
    openvino_python : str or None
        The Python that has OpenVINO; see `peers.openvino_python`.
    progress : callable
        Receives a line for every step.
    turns : callable
        See `progress` of `timing.interleave`.
    """
    options = options or CompileOptions()
    known = list(options.values or {})
    ours_feeds = {name: feed for name, feed in feeds.items() if name not in known}
    sessions = {OURS: session}
    sessions |= {f"{OURS} ({level})": each for level, each in (variants or {}).items()}

    def prepare(name: str) -> Any:
        if name in sessions:
            return SessionContestant(sessions[name], ours_feeds)
        if name == ONNX_RUNTIME:
            return SessionContestant.of_onnx(model, feeds, threads)
        if name == OPENVINO:
            return OpenVino(model, feeds, threads, openvino_python)
        return StockTvm(model, feeds, options, threads)

    with ExitStack() as stack:
        names = [*sessions, *(PEERS[peer] for peer in peers)]
        makers = {name: functools.partial(prepare, name) for name in names}
        contestants, failures = _prepared(makers, stack, progress)
        progress("judging")
        judge = Judge.of(model, feeds, tolerance, contestants[OURS].outputs)
        progress("measuring")
        times, failed = interleave(contestants, rounds, seconds, warmup=warmup, progress=turns)
    missing = [BenchRow(name=name, note=note) for name, note in (failures | failed).items()]
    ours = Timing.of(times[OURS])
    rows = []
    for name in times:
        timing = Timing.of(times[name])
        explained = sessions[name].explain() if variants and name in sessions else ()
        rows.append(
            BenchRow(
                name=name,
                timing=timing,
                requests_per_second=timing.runs_per_second,
                gflops=flops / timing.min_us / 1e3 if flops else None,
                ratio=timing.min_us / ours.min_us,
                **_judged(judge, name, contestants[name], options.precision),
                kernels=tuple(each.op for each in explained if each.function),
            )
        )
    return BenchReport(
        model=model.stem, threads=threads, flops=flops, rows=rows + missing, **options.code()
    )


def _judged(judge: Judge, name: str, contestant: Any, precision: str) -> dict[str, Any]:
    """Fields of a row that say whether results are right; `precision` is that of our session."""
    computed = precision if name.startswith(OURS) else "auto"
    found = judge.verdict(contestant.outputs, name in SATURATING, computed)
    return {"agrees": not found.complaint, "max_rel": found.max_rel, "note": found.complaint}


def _prepared(
    makers: Mapping[str, Callable[[], Any]], stack: ExitStack, progress: Callable[[str], object]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Makes the contestants, which `stack` closes; returns them and why others are missing."""
    found: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for name, make in makers.items():
        progress(f"preparing {name}")
        try:
            found[name] = make()
        except ContestantError as error:
            if str(error) not in failures.values():
                logger.warning("left out: %s", error)
            failures[name] = str(error)
        else:
            stack.callback(found[name].close)
    return found, failures


# Throughput of one model: several callers at once, by streams, against ONNX Runtime and OpenVINO.
#
# Every contestant has equally many threads in total. ONNX Runtime has no streams: its users call a
# session from several threads, and so do we, with threads // streams threads for each run. OpenVINO
# runs in throughput mode with that number of streams, through its asynchronous queue.


BRIEF_ROUNDS, BRIEF_SECONDS = 3, 0.2
"""Brief turns that choose the best number of streams."""


class ThroughputRow(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant's result with one number of streams.

    Attributes
    ----------
    name : str
        The contestant.
    streams : int
        Number of concurrent runs that share the threads.
    threads : int
        Threads of one run.
    callers : int
        Number of concurrent requests.
    timing : Timing or None
        Times of requests, waiting included; None if the contestant could not run.
    requests_per_second : float or None
        Rate of all callers together.
    ratio : float or None
        Our requests a second over this contestant's, with equally many streams: above 1, we are
        faster.
    agrees : bool
        Whether its outputs are within the tolerance.
    max_rel : float or None
        Error of its outputs, as `Distance.max_rel`.
    note : str
        Why the contestant is missing, or how, where and why its outputs differ.
    """

    name: str
    streams: int
    threads: int
    callers: int
    timing: Timing | None = None
    requests_per_second: float | None = None
    ratio: float | None = None
    agrees: bool = True
    max_rel: float | None = None
    note: str = ""


class ThroughputReport(msgspec.Struct, frozen=True, kw_only=True):
    """All contestants' results on one model, by streams, ours first.

    Attributes
    ----------
    best_ratio : float or None
        Our best requests a second over the best of all peers, each with its best number of streams.
    tried : dict of int to float
        Number of streams -> our requests a second in brief turns, if these chose the number; then
        the rows have only the best number.
    """

    model: str
    threads: int
    rows: list[ThroughputRow]
    best_ratio: float | None = None
    tried: dict[int, float] = {}

    @property
    def wrong(self) -> list[ThroughputRow]:
        """Our rows with wrong results."""
        return [row for row in self.rows if row.name == OURS and not row.agrees]


def measure_throughput(
    sessions: Mapping[int, InferenceSession],
    model: Path,
    feeds: Mapping[str, np.ndarray],
    *,
    threads: int,
    tolerance: Tolerance,
    known: Sequence[str] = (),
    callers: int | None = None,
    choose: bool = False,
    peers: Sequence[str] = ("ort", "openvino"),
    rounds: int = 5,
    seconds: float = 1.0,
    warmup: float = 0.0,
    precision: str = "auto",
    openvino_python: str | None = None,
    progress: Callable[[str], object] = lambda message: None,
    turns: Progress = lambda done, total: None,
) -> ThroughputReport:
    """Measures the throughput of all contestants on one model.

    Parameters
    ----------
    sessions : mapping
        Number of streams -> our session with these streams.
    model : Path
        The ONNX file that the sessions were made from.
    feeds : mapping
        The inputs of every request.
    threads : int
        Threads of all streams together.
    tolerance : Tolerance
        See `bench`.
    known : sequence of str
        Inputs that our sessions do not take.
    callers : int or None
        Number of concurrent requests; None: one for each stream.
    choose : bool
        Whether every number of streams is first tried briefly, without peers, and only the best one
        is measured.
    peers : sequence of str
        "ort", "openvino".
    rounds, seconds, warmup
        See `timing.take_turns`.
    precision : str
        Precision of our sessions; peers run the model as it is.
    openvino_python : str or None
        The Python that has OpenVINO.
    progress : callable
        Receives a line for every step.
    turns : callable
        See `progress` of `timing.take_turns`.
    """
    ours = {name: feed for name, feed in feeds.items() if name not in known}
    tried: dict[int, float] = {}
    if choose:
        progress(f"trying {', '.join(map(str, sessions))} streams")
        loads = {
            count: SessionContestant(each, ours, callers or count)
            for count, each in sessions.items()
        }
        tried = _rates(loads, min(seconds, BRIEF_SECONDS))
        best = max(tried, key=lambda count: tried[count])
        progress(f"chosen: {best} streams")
        for count, each in sessions.items():
            if count != best:
                each.close()  # its idle threads would disturb the measured ones
        sessions = {best: sessions[best]}
    rows = {}
    for streams, session in sessions.items():
        threads_each, load = session.executable.num_threads, callers or streams
        for name in [OURS, *(PEERS[peer] for peer in peers)]:
            rows[f"{name}, streams: {streams}"] = ThroughputRow(
                name=name, streams=streams, threads=threads_each, callers=load
            )

    def prepare(row: ThroughputRow) -> Any:
        if row.name == OURS:
            return SessionContestant(sessions[row.streams], ours, row.callers)
        if row.name == ONNX_RUNTIME:
            return SessionContestant.of_onnx(model, feeds, row.threads, row.callers)
        count, python = row.threads * row.streams, openvino_python
        return OpenVino(model, feeds, count, python, streams=row.streams, callers=row.callers)

    with ExitStack() as stack:
        makers = {key: functools.partial(prepare, row) for key, row in rows.items()}
        contestants, failures = _prepared(makers, stack, progress)
        progress("judging")
        first = next(iter(contestants.values()))
        judge = Judge.of(model, feeds, tolerance, first.outputs)
        progress("measuring")
        calls = {key: each.load_for for key, each in contestants.items()}
        found, failed = take_turns(
            calls, rounds, seconds, lambda turn: turn.seconds, warmup=warmup, progress=turns
        )
    for key, note in (failures | failed).items():
        rows[key] = msgspec.structs.replace(rows[key], note=note)
    rates = {key: total_rate(each) for key, each in found.items()}
    of_ours = {rows[key].streams: rate for key, rate in rates.items() if rows[key].name == OURS}
    for key in found:
        row = rows[key]
        rows[key] = msgspec.structs.replace(
            row,
            timing=Timing.of([time for turn in found[key] for time in turn.times]),
            requests_per_second=rates[key],
            ratio=of_ours[row.streams] / rates[key],
            **_judged(judge, row.name, contestants[key], precision),
        )
    theirs = [rate for key, rate in rates.items() if rows[key].name != OURS]
    ratio = max(of_ours.values(), default=0.0) / max(theirs) if theirs else None
    return ThroughputReport(
        model=model.stem, threads=threads, rows=list(rows.values()), best_ratio=ratio, tried=tried
    )


def _rates(contestants: Mapping[int, SessionContestant], seconds: float) -> dict[int, float]:
    """Requests a second of each, in turns of `seconds` after a warm-up turn."""
    calls = {str(count): each.load_for for count, each in contestants.items()}
    found, _ = take_turns(calls, BRIEF_ROUNDS, seconds, lambda turn: turn.seconds, warmup=seconds)
    return {int(count): total_rate(turns) for count, turns in found.items()}
