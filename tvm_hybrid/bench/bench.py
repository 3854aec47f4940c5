"""Benchmark of one model: this plugin, ONNX Runtime, stock TVM, OpenVINO in one interleaved run.

The plugin may take part several times, with and without parts of its fusion: the three variants of
the oneDNN Graph Compiler's evaluation (arXiv 2301.01333). All results are compared with those of
ONNX Runtime without optimisation, as in `verify`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..library.manifest import ChosenOptions
from ..options import CompileOptions
from ..report.timing import ContestantError, Progress, Timing, interleave
from .compare import Judge, Tolerance
from .peers.contestants import OpenVino, SessionContestant, StockTvm, onnx_runtime_contestant
from .peers.peers import ONNX_RUNTIME, OPENVINO, OURS, PEERS, SATURATING

if TYPE_CHECKING:
    from ..session.inference_session import InferenceSession

logger = logging.getLogger("tvm_hybrid")


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
    missing: list[BenchRow] = []
    options = options or CompileOptions()
    known = list(options.values or {})
    ours_feeds = {name: feed for name, feed in feeds.items() if name not in known}
    contestants: dict[str, Any] = {OURS: SessionContestant(session, ours_feeds)}
    kernels: dict[str, tuple[str, ...]] = {OURS: _kernels(session)} if variants else {}
    for level, variant in (variants or {}).items():
        contestants[variant_name(level)] = SessionContestant(variant, ours_feeds)
        kernels[variant_name(level)] = _kernels(variant)

    def prepare(name: str) -> Any:
        if name == ONNX_RUNTIME:
            return onnx_runtime_contestant(str(model), feeds, threads)
        if name == OPENVINO:
            return OpenVino(model, feeds, threads, openvino_python)
        return StockTvm(model, feeds, options.shapes, options.target, threads, known=known)

    with ExitStack() as stack:
        for name in (PEERS[peer] for peer in peers):
            progress(f"preparing {name}")
            try:
                contestants[name] = prepare(name)
            except ContestantError as error:
                logger.warning("left out: %s", error)
                missing.append(BenchRow(name=name, note=str(error)))
            else:
                stack.callback(contestants[name].close)
        progress("judging")
        judge = Judge.of(model, feeds, tolerance, contestants[OURS].outputs)
        progress("measuring")
        times, failures = interleave(contestants, rounds, seconds, warmup=warmup, progress=turns)
    missing += [BenchRow(name=name, note=note) for name, note in failures.items()]
    ours = Timing.of(times[OURS])
    rows = []
    for name in times:
        timing, precision = Timing.of(times[name]), options.precision
        verdict = judge.verdict(
            contestants[name].outputs,
            name in SATURATING,
            precision if name.startswith(OURS) else "auto",
        )
        rows.append(
            BenchRow(
                name=name,
                timing=timing,
                requests_per_second=timing.runs_per_second,
                gflops=flops / timing.min_us / 1e3 if flops else None,
                ratio=timing.min_us / ours.min_us,
                agrees=not verdict.complaint,
                max_rel=verdict.max_rel,
                note=verdict.complaint,
                kernels=kernels.get(name, ()),
            )
        )
    return BenchReport(
        model=model.stem, threads=threads, flops=flops, rows=rows + missing, **options.code()
    )


def variant_name(level: str) -> str:
    """What a row is called in which we take part with a lower level of fusion."""
    return f"{OURS} ({level})"


def _kernels(session: InferenceSession) -> tuple[str, ...]:
    """What each kernel that a run calls computes."""
    return tuple(decision.op for decision in session.explain() if decision.function)
