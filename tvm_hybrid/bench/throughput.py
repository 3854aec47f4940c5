"""Throughput of one model: several callers at once, by streams, beside ONNX Runtime and OpenVINO.

Every contestant has the same threads in all. ONNX Runtime has no streams: its users call a session
from several threads, each run with threads // streams threads, which is what is done here. OpenVINO
runs in throughput mode with so many streams, through its asynchronous queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..report.timing import ContestantError, Progress, Timing, take_turns
from .compare import Judge, Tolerance
from .peers.contestants import OpenVino, SessionContestant, onnx_runtime_contestant, total_rate
from .peers.peers import ONNX_RUNTIME, OURS, PEERS, SATURATING

if TYPE_CHECKING:
    from ..session.inference_session import InferenceSession

logger = logging.getLogger("tvm_hybrid")


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
    """

    model: str
    threads: int
    rows: list[ThroughputRow]
    best_ratio: float | None = None

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
    contestants: dict[str, Any] = {}
    rows: dict[str, ThroughputRow] = {}  # by name and streams
    told: set[str] = set()
    ours = {name: feed for name, feed in feeds.items() if name not in known}

    def prepare(row: ThroughputRow) -> Any:
        if row.name == OURS:
            return SessionContestant(sessions[row.streams], ours, row.callers)
        if row.name == ONNX_RUNTIME:
            return onnx_runtime_contestant(str(model), feeds, row.threads, row.callers)
        count, python = row.threads * row.streams, openvino_python
        return OpenVino(model, feeds, count, python, streams=row.streams, callers=row.callers)

    with ExitStack() as stack:
        for streams, session in sessions.items():
            for name in [OURS, *(PEERS[peer] for peer in peers)]:
                key, each = _key(name, streams), session.executable.num_threads
                row = ThroughputRow(
                    name=name, streams=streams, threads=each, callers=callers or streams
                )
                progress(f"preparing {key}")
                try:
                    contestants[key] = prepare(row)
                except ContestantError as error:
                    if str(error) not in told:
                        logger.warning("left out: %s", error)
                    told.add(str(error))
                    row = msgspec.structs.replace(row, note=str(error))
                else:
                    stack.callback(contestants[key].close)
                rows[key] = row
        progress("judging")
        first = next(iter(contestants.values()))
        judge = Judge.of(model, feeds, tolerance, first.outputs)
        progress("measuring")
        calls = {key: each.load_for for key, each in contestants.items()}
        found, failures = take_turns(
            calls, rounds, seconds, lambda turn: turn.seconds, warmup=warmup, progress=turns
        )
    rates = {key: total_rate(each) for key, each in found.items()}
    for key, row in rows.items():
        if key in failures:
            rows[key] = msgspec.structs.replace(row, note=failures[key])
        if key not in found:
            continue
        computed = precision if row.name == OURS else "auto"
        verdict = judge.verdict(contestants[key].outputs, row.name in SATURATING, computed)
        rows[key] = msgspec.structs.replace(
            row,
            timing=Timing.of([time for turn in found[key] for time in turn.times]),
            requests_per_second=rates[key],
            ratio=rates[_key(OURS, row.streams)] / rates[key],
            agrees=not verdict.complaint,
            max_rel=verdict.max_rel,
            note=verdict.complaint,
        )
    best = [
        max((rates[key] for key in rates if (rows[key].name == OURS) is ours_are), default=0.0)
        for ours_are in (True, False)
    ]
    ratio = best[0] / best[1] if best[1] else None
    return ThroughputReport(
        model=model.stem, threads=threads, rows=list(rows.values()), best_ratio=ratio
    )


def _key(name: str, streams: int) -> str:
    return f"{name}, streams: {streams}"
