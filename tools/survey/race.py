"""Runs a model in our library and in others, in turns, for a row of the survey."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import onnx

import tvm_hybrid
from tools.compile_times.feeds import feeds_of
from tools.compile_times.graph import Model
from tvm_hybrid.bench.compare import Judge
from tvm_hybrid.bench.feeds import ProductSums
from tvm_hybrid.bench.peers.contestants import OpenVino, SessionContestant
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS, SATURATING
from tvm_hybrid.report.timing import ContestantError, interleave

from .section import Job
from .store import SHORT, Row

ROUNDS = 8
ATTEMPTS = 3
SECONDS = 0.04  # of one turn


@dataclass(frozen=True)
class Racer:
    """A model with its inputs."""

    path: Path  # an ONNX file
    feeds: Mapping[str, np.ndarray]
    precision: str = "auto"  # as in `CompileOptions`

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs."""
        return {name: feed.shape for name, feed in self.feeds.items()}

    def session(self, threads: int) -> tvm_hybrid.InferenceSession:
        """Our session for the shapes of the inputs."""
        return tvm_hybrid.InferenceSession(
            str(self.path),
            shapes=self.shapes,
            num_threads=threads,
            precision=self.precision,
            cache=False,
            progress=False,
        )

    def makers(self, job: Job) -> dict[str, Callable[[], Any]]:
        """Functions that make the contestants; ours is the first."""
        floats = "bf16" if self.precision == "bf16" else "f32"
        found: dict[str, Callable[[], Any]] = {
            OURS: lambda: SessionContestant(self.session(job.threads), self.feeds),
            ONNX_RUNTIME: lambda: SessionContestant.of_onnx(self.path, self.feeds, job.threads),
        }
        if job.openvino:
            given = self.path, self.feeds, job.threads, job.openvino
            found[OPENVINO] = lambda: OpenVino(*given, precision=floats)
        return found

    def judge(self, ours: Any) -> Judge:
        """The judge of results; its reference is unoptimised ONNX Runtime if that can run."""
        sums = ProductSums(tvm_hybrid.import_onnx(self.path, shapes=self.shapes).mod)
        return Judge.of(self.path, self.feeds, sums.tolerance(self.precision), ours.outputs)


def race(case: str, racer: Racer, job: Job, more: Mapping[str, Callable[[], Any]] = {}) -> Row:
    """Least microseconds of a run of every contestant.

    `case` names the row; `more` makes further contestants, whose results are not compared.
    """
    contestants: dict[str, Any] = {}
    notes: dict[str, str] = {}
    with ExitStack() as stack:
        for name, make in {**racer.makers(job), **more}.items():
            try:
                contestants[name] = made = make()
            except ContestantError as error:
                notes[name] = str(error)
            else:
                stack.callback(made.close)
        row = _measured(case, contestants, job)
        judged = {name: one for name, one in contestants.items() if name not in more}
        notes |= _complaints(racer, judged)
    return msgspec.structs.replace(row, notes=notes | row.notes)


def _measured(case: str, contestants: Mapping[str, Any], job: Job) -> Row:
    """Least times of all; a row that falls short is measured longer, because it may be noise."""
    least: dict[str, float] = {}
    notes: dict[str, str] = {}
    for _ in range(ATTEMPTS):
        times, failed = interleave(
            {name: one for name, one in contestants.items() if name not in notes}, ROUNDS, SECONDS
        )
        notes |= failed
        for name, found in times.items():
            least[name] = min(least.get(name, math.inf), round(1e6 * min(found), 3))
        row = Row(case=case, threads=job.threads, values=least, notes=notes)
        if row.ratio is None or row.ratio >= SHORT:
            break
    return row


def _complaints(racer: Racer, contestants: Mapping[str, Any]) -> dict[str, str]:
    """Errors in the results, by contestant."""
    ours: Sequence[np.ndarray] = contestants[OURS].outputs
    judge, found = racer.judge(contestants[OURS]), {}
    for name, one in contestants.items():
        # OpenVINO shows bfloat16 as another type of two bytes.
        outputs = [
            array.view(mine.dtype) if array.dtype.itemsize == mine.dtype.itemsize == 2 else array
            for array, mine in zip(one.outputs, ours, strict=True)
        ]
        verdict = judge.verdict(outputs, name in SATURATING, racer.precision)
        if verdict.complaint:
            found[name] = verdict.complaint
    return found


def race_model(case: str, model: Model, job: Job, **how: Any) -> Row:
    """Least microseconds of a run of a model in memory; `how` is for `Racer` and `race`."""
    more = how.pop("more", {})
    with TemporaryDirectory(prefix="survey-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model.proto, path)
        return race(case, Racer(path, feeds_of(model), **how), job, more)
