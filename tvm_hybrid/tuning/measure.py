"""Measuring one candidate in this process: build, compile, check, time.

Runs inside a worker process only, because a candidate may crash or never return.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from microkernels.isa import Isa
from relay_passes.kernel_context import kernel_context
from tir_schedules.config import Config
from tir_schedules.region import Region
from tir_schedules.template import Template

from .arguments import element_type, random_arguments
from .chains import chain_arguments, expected_of_chain, is_chain
from .check import Expected, expected_result
from .record import Status

SAMPLE_SECONDS = 1e-3
LARGEST_ROTATION = 256 << 20
HOPELESS = 2.0

Report = Callable[[str], None]


class Effort(msgspec.Struct, frozen=True):
    """How much time a measurement may take.

    Attributes
    ----------
    samples : int
        Samples of the candidate, each in turns with one of the default configuration.
    seconds : float
        After this time no further sample is begun, once there are three.
    """

    samples: int = 9
    seconds: float = 1.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    status: Status
    times_us: list[float] = []
    baseline_us: float | None = None
    error: str = ""


class Kernel:
    """A compiled candidate with its arguments.

    Parameters
    ----------
    expected : ndarray
        What a right kernel stores.
    rotation_bytes : int
        Constants are kept in so many copies that a round over all of them reads this many bytes:
        in a model, other layers' weights pass through the caches between two runs of a kernel.
    """

    def __init__(
        self,
        region: Region,
        template: Template,
        config: Config,
        isa: Isa,
        target: Any,
        arrays: Sequence[np.ndarray],
        expected: np.ndarray,
        rotation_bytes: int,
    ) -> None:
        import tvm

        function = template.build(region, config, isa).with_attr("global_symbol", "candidate")
        with kernel_context():  # the code that a model gets
            self.function = tvm.compile(function, target=target)["candidate"]
        packed = list(arrays)
        constants = [i for i, tensor in enumerate(region.inputs) if tensor.constant]
        if template.packing is not None:
            for i in constants:
                packed[i] = template.packing.pack(region, config, isa, i, arrays[i])
        size = sum(packed[i].nbytes for i in constants)
        copies = max(1, min(256, math.ceil(rotation_bytes / size))) if size else 1
        shared = [tvm.runtime.tensor(array) for array in packed]
        self.output = tvm.runtime.tensor(never_right(region, expected))
        self.arguments = []
        for copy in range(copies):
            row = list(shared)
            if copy:
                for i in constants:
                    row[i] = tvm.runtime.tensor(packed[i])
            self.arguments.append((*row, self.output))
        self.next = 0

    def run(self) -> np.ndarray:
        """One call; the output."""
        self.function(*self.arguments[0])
        return self.output.numpy()

    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        """The time of so many calls."""
        function, rows = self.function, self.arguments
        order = [rows[(self.next + i) % len(rows)] for i in range(calls)]
        self.next += calls
        start = clock()
        for row in order:
            function(*row)
        return clock() - start

    def calibrate(self, clock: Callable[[], float]) -> int:
        """Calls that one sample needs; warms everything up."""
        calls = 1
        while True:
            taken = self.seconds(calls, clock)
            if taken >= SAMPLE_SECONDS / 2 or calls >= 1 << 16:
                return max(1, round(calls * SAMPLE_SECONDS / max(taken, SAMPLE_SECONDS / 8)))
            calls *= 2


def never_right(region: Region, expected: np.ndarray) -> np.ndarray:
    """An output buffer in which an element that was not written shows."""
    dtype = element_type(region.output.dtype)
    if dtype.kind == "b":
        return np.ascontiguousarray(expected == 0)
    if dtype.kind not in "iu":
        return np.full(expected.shape, np.nan, dtype)
    # Half of all values further on: off by more than any tolerance.
    half = np.array(1 << 8 * dtype.itemsize - 1, np.dtype(f"u{dtype.itemsize}"))
    return np.ascontiguousarray((expected.astype(dtype).view(half.dtype) ^ half).view(dtype))


class Bench:
    """Measures candidates of one region, one after the other."""

    def __init__(
        self,
        region: Region,
        template: Template,
        isa: Isa,
        target: Any,
        threads: int,
        footprint_bytes: int,
        seed: int,
    ) -> None:
        self.region, self.template, self.isa, self.target = region, template, isa, target
        self.rotation = min(footprint_bytes, LARGEST_ROTATION)
        # A serial kernel is timed by its own CPU time, which other processes do not disturb.
        self.clock = time.thread_time if threads == 1 else time.perf_counter
        self.expected: Expected
        if is_chain(region):
            self.arrays = chain_arguments(region, seed)
            self.expected = expected_of_chain(region, self.arrays, seed)
        else:
            self.arrays = random_arguments(region, template, seed)
            self.expected = expected_result(region, template, self.arrays)
        self.baseline: tuple[Config, Kernel] | None = None

    def measure(
        self, config: Config, baseline: Config | None, effort: Effort, report: Report
    ) -> Measurement:
        """Builds, checks and times one candidate.

        Parameters
        ----------
        config : Config
            The candidate.
        baseline : Config or None
            The configuration to sample in turns with it.
        effort : Effort
            How long.
        report : callable
            Told the name of every stage before it begins.
        """
        report("compile")
        try:
            kernel = self._kernel(config)
        except Exception as error:  # whatever a candidate does is a result
            return Measurement(status="compile_error", error=_text(error))
        report("check")
        try:
            wrong = self.expected.difference(kernel.run())
            if wrong is not None:
                return Measurement(status="wrong_result", error=wrong)
            report("baseline")
            other = None if baseline is None else self._baseline(baseline)
            report("measure")
            return self._time(kernel, other, effort)
        except Exception as error:
            return Measurement(status="runtime_error", error=_text(error))

    def _kernel(self, config: Config) -> Kernel:
        return Kernel(
            self.region,
            self.template,
            config,
            self.isa,
            self.target,
            self.arrays,
            self.expected.value,
            self.rotation,
        )

    def _baseline(self, config: Config) -> Kernel:
        if self.baseline is None or self.baseline[0] != config:
            self.baseline = (config, self._kernel(config))
        return self.baseline[1]

    def _time(self, kernel: Kernel, other: Kernel | None, effort: Effort) -> Measurement:
        gc.collect()
        gc.disable()
        try:
            return self._samples(kernel, other, effort)
        finally:
            gc.enable()

    def _samples(self, kernel: Kernel, other: Kernel | None, effort: Effort) -> Measurement:
        clock = self.clock
        contestants = [kernel] if other is None else [kernel, other]
        calls = [contestant.calibrate(clock) for contestant in contestants]
        times: list[list[float]] = [[] for _ in contestants]
        end = time.perf_counter() + effort.seconds
        for sample in range(effort.samples):
            # In turns, and in turns who is first, so that neither drift nor order favours one.
            order = range(len(contestants)) if sample % 2 else reversed(range(len(contestants)))
            for i in order:
                contestants[i].seconds(1, clock)
                taken = contestants[i].seconds(calls[i], clock)
                times[i].append(taken / calls[i] * 1e6)
            if sample >= 2 and (
                time.perf_counter() > end
                or (other is not None and min(times[0]) > HOPELESS * max(times[1]))
            ):
                break
        return Measurement(
            status="ok",
            times_us=[round(value, 4) for value in times[0]],
            baseline_us=round(float(np.median(times[1])), 4) if other is not None else None,
        )


def _text(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]
