"""The sections of a survey, in the order in which they are measured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import msgspec

from .defaults import defaults
from .machine import calibration, kernels, overhead, peaks
from .models import compile_times, decoders, dynamic_shapes, models
from .peers import OneDnn
from .race import race_model
from .section import Case, Job, Section, all_threads, one_thread
from .store import ONEDNN, Row
from .workloads import Workload, workloads


def of_kind(kind: str) -> Callable[[Job], list[Case]]:
    """Cases of the workloads of a kind, with oneDNN's primitives as a contestant, too."""

    def cases(job: Job) -> list[Case]:
        def one(workload: Workload) -> Iterator[Row]:
            primitives = functools.partial(OneDnn, job.onednn, workload.arguments, job.threads)
            more = {ONEDNN: primitives} if job.onednn else {}
            row = race_model(workload.label, workload.model(), job, more=more)
            yield msgspec.structs.replace(row, dtype=workload.dtype)

        return [
            Case(f"{each.label}, {each.dtype}", functools.partial(one, each))
            for each in workloads(kind)
        ]

    return cases


SECTIONS = {
    section.name: section
    for section in (
        Section("peaks", "Peaks", 1.0, peaks),
        Section("calibrate", "Clocks, bandwidths and forks", 1.0, calibration, all_threads),
        Section("kernels", "Microkernels", 0.5, kernels, one_thread),
        Section("calls", "What a call costs", 0.5, overhead),
        Section("products", "Products", 5.0, of_kind("matmul")),
        Section("perceptrons", "Perceptrons", 5.5, of_kind("mlp")),
        Section("attention", "Attention", 4.0, of_kind("mha")),
        Section("models", "Models", 9.0, models),
        Section("dynamic", "Dynamic shapes", 3.0, dynamic_shapes),
        Section("decoding", "Decoding", 4.5, decoders),
        Section("compiling", "Compile times", 2.5, compile_times, one_thread),
        Section("defaults", "Defaults", 3.5, defaults, one_thread),
    )
}
"""All sections by name; together they take 40 minutes."""
