"""Benchmark of one model: this plugin, ONNX Runtime, stock TVM, OpenVINO in one interleaved run.

The plugin may take part several times, with and without parts of its fusion: the three variants of
the oneDNN Graph Compiler's evaluation (arXiv 2301.01333). All results are compared with those of
ONNX Runtime without optimisation, as in `verify`.
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
        None if it could not run.
    requests_per_second : float or None
        One run after the other.
    gflops : float or None
        Matrix products' and convolutions' operations over the smallest time, in 1e9 a second;
        None if the model has none.
    ratio : float or None
        This contestant's smallest time over ours: above 1, we are faster.
    agrees : bool
        Whether its outputs are right, within the tolerance.
    max_rel : float or None
        How far they are from the right ones, as `Distance.max_rel`.
    note : str
        Why it is missing, or by how much it differs, where and why.
    kernels : tuple of str
        What each kernel of one run computes, in the report of a run with variants; else empty.
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
    """All contestants' results on one model, ours first; the options are those of ours alone."""

    model: str
    threads: int
    flops: int
    rows: list[BenchRow]

    @property
    def wrong(self) -> list[BenchRow]:
        """The rows of ours, one for each level of fusion that took part, with wrong results."""
        return [row for row in self.rows if row.name.startswith(OURS) and not row.agrees]

    def row(self, name: str) -> BenchRow | None:
        """The row of a contestant that was measured, or None."""
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
    """Measures a model.

    Parameters
    ----------
    session : InferenceSession
        Our session, compiled for `threads`.
    model : Path
        The ONNX file that it was made from.
    feeds : mapping
        The inputs that every contestant gets.
    threads : int
        Threads of every contestant.
    flops : int
        As `flops.ProductSums` counts them.
    tolerance : Tolerance
        How far outputs may be from the judge's; a contestant's row says if they are further. The
        judge is ONNX Runtime without optimisation, or ours where it is missing.
    options : CompileOptions, optional
        How our session was compiled; stock TVM gets its target, shapes and values, too.
    peers : sequence of str
        Keys of `PEERS`.
    rounds, seconds, warmup
        As for `timing.interleave`.
    variants : mapping, optional
        Level of fusion -> the same model compiled with it; each gets a row of its own.
    openvino_python : str or None
        The Python that has OpenVINO; see `peers.openvino_python`.
    progress : callable
        Gets a line for every step.
    turns : callable
        As `progress` of `timing.interleave`.
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
    """The fields of a row that say whether its results are right; the precision is that of ours."""
    computed = precision if name.startswith(OURS) else "auto"
    found = judge.verdict(contestant.outputs, name in SATURATING, computed)
    return {"agrees": not found.complaint, "max_rel": found.max_rel, "note": found.complaint}


def _prepared(
    makers: Mapping[str, Callable[[], Any]], stack: ExitStack, progress: Callable[[str], object]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The contestants, which `stack` closes, and why others are left out."""
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


# Throughput of one model: several callers at once, by streams, beside ONNX Runtime and OpenVINO.
#
# Every contestant has the same threads in all. ONNX Runtime has no streams: its users call a
# session from several threads, each run with threads // streams threads, which is what is done
# here. OpenVINO runs in throughput mode with so many streams, through its asynchronous queue.


BRIEF_ROUNDS, BRIEF_SECONDS = 3, 0.2
"""Turns of each number of streams, of which the best is chosen."""


class ThroughputRow(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant's result with some number of streams.

    Attributes
    ----------
    name : str
        The contestant.
    streams : int
        How many runs at once get a share of the threads.
    threads : int
        Threads of one run.
    callers : int
        How many requests are under way.
    timing : Timing or None
        Of requests, waiting included; None if it could not run.
    requests_per_second : float or None
        Of all callers together.
    ratio : float or None
        Our requests a second over this contestant's, with as many streams: above 1, we are faster.
    agrees : bool
        Whether its outputs are right, within the tolerance.
    max_rel : float or None
        How far they are from the right ones, as `Distance.max_rel`.
    note : str
        Why it is missing, or by how much it differs, where and why.
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
        Our best requests a second over the best of all peers, whatever their streams.
    tried : dict of int to float
        Our requests a second in brief turns, by number of streams, if they chose the number; the
        rows have the best one.
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
    """Measures a model.

    Parameters
    ----------
    sessions : mapping
        Number of streams -> our session with so many.
    model : Path
        The ONNX file that they were made from.
    feeds : mapping
        The inputs of every request.
    threads : int
        Threads of all streams together.
    tolerance : Tolerance
        As for `bench`.
    known : sequence of str
        Inputs that our sessions do not take.
    callers : int or None
        How many requests are under way; None: as many as streams.
    choose : bool
        Whether each number of streams is first tried briefly, without peers, and only the best one
        is measured.
    peers : sequence of str
        "ort", "openvino".
    rounds, seconds, warmup
        As for `timing.take_turns`.
    precision : str
        What our sessions were compiled with; peers run the model as it is.
    openvino_python : str or None
        The Python that has OpenVINO.
    progress : callable
        Gets a line for every step.
    turns : callable
        As `progress` of `timing.take_turns`.
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
                each.close()  # its threads would wait beside those that are measured
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
    """Requests a second of each, in turns of some seconds after one that does not count."""
    calls = {str(count): each.load_for for count, each in contestants.items()}
    found, _ = take_turns(calls, BRIEF_ROUNDS, seconds, lambda turn: turn.seconds, warmup=seconds)
    return {int(count): total_rate(turns) for count, turns in found.items()}
