"""Measures convolutions of a network one by one: us, ONNX Runtime and OpenVINO, interleaved.

There are two times for each contestant. The time of the whole model, NCHW in and out, includes
reorders. The time of the kernel alone is what the convolution takes inside a network, where layouts
stay (see `kernel_times`): the least of several means of a few runs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ... import InferenceSession
from ...frontend import import_onnx
from ...options import CompileOptions
from ...report.roof import peak_gops
from ...report.timing import ContestantError, interleave
from ...targets.resolve import cpu_name, host_target
from ..bench import BenchReport, bench
from ..flops import ProductSums
from ..peers.onnx_runtime import import_runtime
from ..peers.openvino_peer import OpenVino, openvino_version
from ..peers.openvino_python import openvino_python
from ..peers.peers import ONNX_RUNTIME, OPENVINO, OURS, PEERS
from .kernel_times import OnnxRuntimeKernels, OurKernels
from .layer_models import DTYPES, INT8, Layer, layer_input, layer_model
from .layer_report import LayerReport, LayerTimes

logger = logging.getLogger("tvm_hybrid")


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
        What the layers are called together.
    layers : sequence of Layer
        The convolutions.
    threads : sequence of int
        Numbers of threads; all layers are measured with each.
    peers : sequence of str
        "ort", "openvino". One that is not installed is left out, with a note.
    rounds, seconds
        As for `timing.interleave`, for whole models and for kernels.
    openvino : str or None
        The Python that has OpenVINO; see `openvino_peer.openvino_python`.
    options : CompileOptions, optional
        How layers are compiled; the number of threads is that of `threads`.
    progress : callable
        Gets a line for every step.
    """
    versions, left_out = {}, {}
    for peer in peers:
        try:
            versions[peer] = _version(peer, openvino)
        except ContestantError as error:
            logger.warning("left out: %s", error)
            left_out[PEERS[peer]] = str(error)
    progress("measuring peaks")
    peaks = {dtype: _peak(dtype) for dtype in DTYPES}
    rows = []
    with tempfile.TemporaryDirectory(prefix="tvm_hybrid-layers-") as folder:
        for count in threads:
            for dtype in DTYPES:
                for layer in layers:
                    progress(f"{layer.name} {dtype}, threads: {count}")
                    path = Path(folder) / f"{layer.name} {dtype}.onnx"
                    onnx.save(layer_model(layer, dtype), path)
                    session = InferenceSession(
                        path, options=options, num_threads=count, progress=False
                    )
                    rows.append(
                        _measure(
                            session,
                            path,
                            layer,
                            dtype,
                            peers=list(versions),
                            rounds=rounds,
                            seconds=seconds,
                            openvino=openvino,
                            peak=peaks[dtype] * count,
                        )
                    )
    from ...version_check import __version__

    return LayerReport(
        network=network,
        cpu=cpu_name(host_target()),
        versions={OURS: __version__, **{PEERS[peer]: text for peer, text in versions.items()}},
        peaks=peaks,
        rows=rows,
        left_out=left_out,
    )


def _measure(
    session: InferenceSession,
    path: Path,
    layer: Layer,
    dtype: str,
    *,
    peers: Sequence[str],
    rounds: int,
    seconds: float,
    openvino: str | None,
    peak: float,
) -> LayerTimes:
    """One layer in one type; `peak` in 1e9 operations a second of all threads."""
    executable = session.executable
    feeds = {"x": layer_input(layer, dtype)}
    sums = ProductSums(import_onnx(path).mod)
    whole = bench(
        session,
        path,
        feeds,
        threads=executable.num_threads,
        flops=layer.flops,
        tolerance=sums.tolerance(),
        peers=peers,
        rounds=rounds,
        seconds=seconds,
        openvino_python=openvino,
    )
    ours = OurKernels(executable, feeds)
    notes = [f"{row.name}: {row.note}" for row in whole.rows if row.note]
    kernels, failures = _kernel_times(
        ours, path, feeds, executable.num_threads, _present(whole), rounds, seconds, openvino
    )
    notes += [f"{name}: {note}" for name, note in failures.items()]
    return LayerTimes(
        layer=layer,
        dtype=dtype,
        threads=executable.num_threads,
        kernel=", ".join(ours.names),
        whole_us={row.name: row.timing.min_us for row in whole.rows if row.timing},
        kernel_us=kernels,
        share=layer.flops / kernels[OURS] / 1e3 / peak,
        notes=notes,
        wrong=bool(whole.wrong),
    )


def _present(whole: BenchReport) -> list[str]:
    return [row.name for row in whole.rows if row.timing]


def _kernel_times(
    ours: OurKernels,
    path: Path,
    feeds: Mapping[str, np.ndarray],
    threads: int,
    present: Sequence[str],
    rounds: int,
    seconds: float,
    openvino: str | None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Least mean of a slice in microseconds by contestant; why, by contestant that failed."""
    contestants: dict[str, Any] = {OURS: ours}
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        if ONNX_RUNTIME in present:
            contestants[ONNX_RUNTIME] = OnnxRuntimeKernels(path, feeds, threads)
        if OPENVINO in present:
            try:
                worker = OpenVino(path, feeds, threads, openvino, kernels=True)
            except ContestantError as error:
                failures[OPENVINO] = str(error)
            else:
                stack.callback(worker.close)
                contestants[OPENVINO] = worker
        times, failed = interleave(contestants, rounds, seconds)
    return {name: min(means) * 1e6 for name, means in times.items()}, failures | failed


def _version(peer: str, openvino: str | None) -> str:
    """The version of a peer that is installed."""
    if peer == "openvino":
        return openvino_version(openvino_python(openvino))
    return str(import_runtime().__version__)


def _peak(dtype: str) -> float:
    """1e9 operations a second of one thread with operands of a type."""
    return peak_gops("uint8" if dtype == INT8 else dtype)
