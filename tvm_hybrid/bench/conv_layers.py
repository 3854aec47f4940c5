"""Measures convolutions of a network one by one, in turns with ONNX Runtime and OpenVINO.

There are two times for each contestant. The time of the whole model, NCHW in and out, includes
reorders. The time of the kernel alone is what the convolution takes inside a network, where layouts
stay: the smallest of several means of a few runs.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from microkernels.base.logs import logger
from relay_passes.ir.decisions import REORDER

from .. import InferenceSession
from ..executable.executable import Executable
from ..frontend import import_onnx
from ..options import CompileOptions
from ..report.kernel_speed import peak_gops
from ..report.timing import SLICE_SECONDS, ContestantError, interleave, time_calls, time_slices
from ..targets.resolve import cpu_name, host_target
from ..version_check import __version__
from .bench import bench
from .feeds import ProductSums
from .layer_models import DTYPES, INT8, Layer, LayerReport, LayerTimes, layer_input, layer_model
from .peers.contestants import OpenVino, openvino_version
from .peers.onnx_runtime import import_runtime, last_line, optimised_session
from .peers.peers import ONNX_RUNTIME, OPENVINO, OURS, PEERS, openvino_python


def measure_layers(
    network: str,
    layers: Sequence[Layer],
    threads: Sequence[int],
    *,
    peers: Sequence[str] = ("ort", "openvino"),
    rounds: int = 20,
    seconds: float = 0.03,
    openvino: str | None = None,
    options: CompileOptions | None = None,
    progress: Callable[[str], object] = lambda message: None,
) -> LayerReport:
    """Measures layers on this machine.

    Parameters
    ----------
    network : str
        Common name of the layers.
    layers : sequence of Layer
        The convolutions.
    threads : sequence of int
        Numbers of threads; all layers are measured with each.
    peers : sequence of str
        "ort", "openvino". A missing one is left out, with a note.
    rounds, seconds
        See `timing.interleave`; for whole models and for kernels.
    openvino : str or None
        The Python that has OpenVINO; see `peers.openvino_python`.
    options : CompileOptions, optional
        How layers are compiled; the number of threads comes from `threads`.
    progress : callable
        Receives a line for every step.
    """
    versions, left_out = {}, {}
    for peer in peers:
        try:
            if peer == "openvino":
                versions[peer] = openvino_version(openvino_python(openvino))
            else:
                versions[peer] = str(import_runtime().__version__)
        except ContestantError as error:
            logger.warning("left out: %s", error)
            left_out[PEERS[peer]] = str(error)
    progress("measuring peaks")
    peaks = {dtype: peak_gops("uint8" if dtype == INT8 else dtype) for dtype in DTYPES}
    run = _Measurement(list(versions), rounds, seconds, openvino, options, peaks)
    rows = []
    with tempfile.TemporaryDirectory(prefix="tvm_hybrid-layers-") as folder:
        for count, dtype, layer in itertools.product(threads, DTYPES, layers):
            progress(f"{layer.name} {dtype}, threads: {count}")
            path = Path(folder) / f"{layer.name} {dtype}.onnx"
            onnx.save(layer_model(layer, dtype), path)
            rows.append(run.measure(path, layer, dtype, count))
    named = {OURS: __version__} | {PEERS[peer]: text for peer, text in versions.items()}
    cpu = cpu_name(host_target())
    return LayerReport(
        network=network, cpu=cpu, versions=named, peaks=peaks, rows=rows, left_out=left_out
    )


@dataclass(frozen=True)
class _Measurement:
    """Settings shared by all layers; see `measure_layers`."""

    peers: Sequence[str]
    rounds: int
    seconds: float
    openvino: str | None
    options: CompileOptions | None
    peaks: Mapping[str, float]

    def measure(self, path: Path, layer: Layer, dtype: str, count: int) -> LayerTimes:
        """Measures one layer in one type with one number of threads."""
        session = InferenceSession(path, options=self.options, num_threads=count, progress=False)
        executable = session.executable
        feeds = {"x": layer_input(layer, dtype)}
        whole = bench(
            session,
            path,
            feeds,
            threads=executable.num_threads,
            flops=layer.flops,
            tolerance=ProductSums(import_onnx(path).mod).tolerance(),
            peers=self.peers,
            rounds=self.rounds,
            seconds=self.seconds,
            openvino_python=self.openvino,
        )
        ours = OurKernels(executable, feeds)
        contestants: dict[str, Any] = {OURS: ours}
        failures: dict[str, str] = {}
        with ExitStack() as stack:
            if whole.row(ONNX_RUNTIME):
                contestants[ONNX_RUNTIME] = OnnxRuntimeKernels(path, feeds, whole.threads)
            if whole.row(OPENVINO):
                try:
                    worker = OpenVino(path, feeds, whole.threads, self.openvino, kernels=True)
                    stack.callback(worker.close)
                    contestants[OPENVINO] = worker
                except ContestantError as error:
                    failures[OPENVINO] = str(error)
            times, failed = interleave(contestants, self.rounds, self.seconds)
        # The smallest mean of a slice.
        kernels = {name: min(means) * 1e6 for name, means in times.items()}
        notes = [f"{row.name}: {row.note}" for row in whole.rows if row.note]
        return LayerTimes(
            layer=layer,
            dtype=dtype,
            threads=whole.threads,
            kernel=", ".join(ours.names),
            whole_us={row.name: row.timing.min_us for row in whole.rows if row.timing},
            kernel_us=kernels,
            share=layer.flops / kernels[OURS] / 1e3 / (self.peaks[dtype] * count),
            notes=notes + [f"{name}: {note}" for name, note in (failures | failed).items()],
            wrong=bool(whole.wrong),
        )


# Contestants that time only the kernels of a model, without reorders at its borders and calls.
#
# A model of one convolution has NCHW inputs and outputs, a layout that fast kernels reorder on the
# way in and out. Such a contestant reports the time of one run without reorders and calls: ours by
# the virtual machine's instrument, half a microsecond too long; ONNX Runtime's by its profile,
# whose ticks are microseconds (half a tick is added, the mean loss of rounding down).
# `contestants.OpenVino` does the same for OpenVINO.
#
# OpenVINO reports only the mean of several runs, so all contestants do: a turn is cut into slices
# of a few runs, so short that another process seldom interrupts one, and returns each slice's mean.


# Parts of the names of ONNX Runtime's operators that count as kernels.
ONNX_RUNTIME_KERNELS = ("Conv", "MatMul", "Gemm")
HALF_A_TICK = 0.5e-6


class OurKernels:
    """The kernels of a compiled model, except reorders.

    Attributes
    ----------
    functions : frozenset of str
        The kernels in the compiled module.
    names : tuple of str
        First operator of each kernel, and its microkernel or schedule.
    """

    def __init__(self, executable: Executable, feeds: Mapping[str, np.ndarray]) -> None:
        self._executable, self._feeds = executable, dict(feeds)
        decisions = [d for d in executable.explain() if d.function and d.op != REORDER]
        self.functions = frozenset(decision.function for decision in decisions)
        self.names = tuple(f"{d.op.partition(' + ')[0]} {d.kernel}" for d in decisions)
        times = time_calls(lambda: executable.run(self._feeds), SLICE_SECONDS)
        self._runs = max(int(SLICE_SECONDS / min(times)), 1)

    def run_for(self, seconds: float) -> list[float]:
        """Returns mean seconds of the kernels per run, for every slice in about `seconds`."""
        return time_slices(self._slice, seconds)

    def _slice(self) -> float:
        profile = self._executable.profile(self._feeds, self._runs)
        rows = (row for row in profile.rows if row.function in self.functions)
        return sum(row.microseconds for row in rows) * 1e-6


class OnnxRuntimeKernels:
    """The convolutions and matrix products of a model in ONNX Runtime."""

    def __init__(self, model: Path, feeds: Mapping[str, np.ndarray], threads: int) -> None:
        self._model, self._feeds, self._threads = str(model), dict(feeds), threads

    def run_for(self, seconds: float) -> list[float]:
        """Returns mean seconds of the kernels per run, for every slice in about `seconds`.

        Raises
        ------
        ContestantError
            If onnxruntime is not installed, or cannot run the model.
        """
        return time_slices(self._slice, seconds)

    def _slice(self) -> float:
        with tempfile.TemporaryDirectory(prefix="tvm_hybrid-profile-") as folder:
            # A session can end its profile only once, so every slice has a new session.
            prefix = str(Path(folder) / "profile")
            session = optimised_session(self._model, self._threads, profile=prefix)
            try:
                session.run(None, self._feeds)
                runs = len(time_calls(lambda: session.run(None, self._feeds), SLICE_SECONDS))
                profile = Path(session.end_profiling()).read_bytes()
            except Exception as error:  # onnxruntime's exceptions have no common base
                raise ContestantError(f"ONNX Runtime: {last_line(error)}") from error
        return mean_kernel_seconds(profile, 1 + runs)


def mean_kernel_seconds(profile: bytes, runs: int) -> float:
    """Mean seconds of the kernels per run, from ONNX Runtime's profile of `runs` runs.

    The first run does not count, as it may do work that later runs need not do.
    """
    durations: dict[str, list[int]] = {}
    for event in json.loads(profile):
        operator = event.get("args", {}).get("op_name", "")
        if event.get("cat") == "Node" and any(name in operator for name in ONNX_RUNTIME_KERNELS):
            durations.setdefault(event["name"], []).append(event["dur"])
    if not durations or any(len(times) != runs for times in durations.values()):
        raise ContestantError("ONNX Runtime: its profile does not show every run of the model")
    return sum(sum(times[1:]) / (runs - 1) * 1e-6 + HALF_A_TICK for times in durations.values())
