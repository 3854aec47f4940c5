"""Benchmark of one model: this plugin, ONNX Runtime and stock TVM in one interleaved run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .compare import distance
from .contestants import SessionContestant, StockTvm, onnx_runtime_contestant
from .timing import ContestantError, Timing, interleave

logger = logging.getLogger("tvm_hybrid")

OURS = "tvm_hybrid"
ONNX_RUNTIME = "ONNX Runtime"
STOCK_TVM = "stock TVM"
PEERS = {"ort": ONNX_RUNTIME, "stock": STOCK_TVM}


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant's result.

    Attributes
    ----------
    name : str
        The contestant.
    timing : Timing or None
        None if it could not run.
    gflops : float or None
        Matrix products' and convolutions' operations over the smallest time, in 1e9 a second;
        None if the model has none.
    ratio : float or None
        This contestant's smallest time over ours: above 1, we are faster.
    agrees : bool
        Whether its outputs are ours, within the tolerance.
    note : str
        Why it is missing, or what is odd.
    """

    name: str
    timing: Timing | None = None
    gflops: float | None = None
    ratio: float | None = None
    agrees: bool = True
    note: str = ""


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """All contestants' results on one model, ours first; `precision` is that of ours alone."""

    model: str
    threads: int
    flops: int
    rows: list[BenchRow]
    precision: str = "auto"

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
    tolerance: float,
    shapes: Mapping[str, Any] | None = None,
    target: str | Mapping[str, Any] | None = None,
    peers: Sequence[str] = ("ort", "stock"),
    rounds: int = 10,
    seconds: float = 0.1,
    precision: str = "auto",
    progress: Callable[[str], object] = lambda message: None,
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
    tolerance : float
        Relative difference of outputs above which a contestant's row says so.
    shapes, target
        As for `tvm_hybrid.compile`; stock TVM compiles with them too.
    peers : sequence of str
        "ort", "stock".
    rounds, seconds
        As for `timing.interleave`.
    precision : str
        What our session was compiled with; peers run the model as it is.
    progress : callable
        Gets a line for every step.
    """
    missing: list[BenchRow] = []
    contestants: dict[str, Any] = {OURS: SessionContestant(session, feeds)}

    def prepare(name: str) -> Any:
        if name == ONNX_RUNTIME:
            return onnx_runtime_contestant(str(model), feeds, threads)
        return StockTvm(model, feeds, shapes, target, threads)

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
        progress("measuring")
        times, failures = interleave(contestants, rounds, seconds)
    missing += [BenchRow(name=name, note=note) for name, note in failures.items()]
    ours = Timing.of(times[OURS])
    rows = [
        _row(
            name,
            Timing.of(times[name]),
            ours,
            flops,
            _same(contestants[name].outputs, contestants[OURS].outputs, tolerance),
        )
        for name in times
    ]
    return BenchReport(
        model=model.stem,
        threads=threads,
        flops=flops,
        rows=rows + missing,
        precision=precision,
    )


def _row(name: str, timing: Timing, ours: Timing, flops: int, agrees: bool) -> BenchRow:
    return BenchRow(
        name=name,
        timing=timing,
        gflops=flops / timing.min_us / 1e3 if flops else None,
        ratio=timing.min_us / ours.min_us,
        agrees=agrees,
        note="" if agrees else "computes something else",
    )


def _same(theirs: Sequence[Any], ours: Sequence[Any], tolerance: float) -> bool:
    return len(theirs) == len(ours) and all(
        distance(np.asarray(one), np.asarray(other)).within(tolerance)
        for one, other in zip(theirs, ours, strict=True)
    )
