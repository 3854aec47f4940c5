"""OpenVINO as a contestant, played by a module of the test: it is optional and not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tvm_hybrid.bench.bench import bench
from tvm_hybrid.bench.compare import Tolerance
from tvm_hybrid.bench.peers.contestants import OpenVino, openvino_version
from tvm_hybrid.bench.peers.peers import OPENVINO, OURS, PYTHON_VARIABLE, openvino_python
from tvm_hybrid.report.timing import ContestantError

# Returns twice its input, in bfloat16 three times. Its counters are means over all runs, as the
# real ones are: 100 us for the first run, 20 us for each later run, and 7 us for an entry that is
# no kernel.
PLAYED = """
from datetime import timedelta
from types import SimpleNamespace

import numpy as np

__version__ = "1.2.3-build"


class Request:
    def __init__(self, counting, factor):
        self.counting, self.factor, self.runs, self.micros = counting, factor, 0, 0
        self.tensor = SimpleNamespace(shape=None, data=np.zeros((2, 3), np.float32))
        self.output_tensors = [SimpleNamespace(data=np.zeros((2, 3), np.float32))]

    def get_tensor(self, name):
        assert name == "x"
        return self.tensor

    def infer(self):
        self.runs += 1
        self.micros += 20 if self.runs > 1 else 100
        self.output_tensors[0].data = self.factor * self.tensor.data

    def get_profiling_info(self):
        assert self.counting
        kernel = timedelta(microseconds=self.micros / self.runs)
        return [
            SimpleNamespace(node_type="Convolution", real_time=kernel),
            SimpleNamespace(node_type="Reorder", real_time=timedelta(microseconds=7)),
        ]


class AsyncInferQueue:
    # Each request is done when it is sent.

    def __init__(self, compiled, jobs):
        self.requests = [compiled.create_infer_request() for _ in range(jobs)]
        self.next = 0

    def __len__(self):
        return len(self.requests)

    def __iter__(self):
        return iter(self.requests)

    def __getitem__(self, place):
        return self.requests[place]

    def set_callback(self, callback):
        self.callback = callback

    def get_idle_request_id(self):
        return self.next

    def start_async(self, userdata):
        self.requests[self.next].infer()
        assert (self.requests[self.next].output_tensors[0].data == 2 * self[0].tensor.data).all()
        self.callback(self.requests[self.next], userdata)
        self.next = (self.next + 1) % len(self)

    def wait_all(self):
        pass


class Core:
    def read_model(self, path):
        if open(path, "rb").read() != b"model":
            raise RuntimeError("many lines\\nnot a model")
        return path

    def compile_model(self, model, device, options):
        assert (device, options["INFERENCE_NUM_THREADS"]) == ("CPU", 3)
        mode = options["PERFORMANCE_HINT"], options["NUM_STREAMS"]
        assert mode in (("LATENCY", 1), ("THROUGHPUT", 1), ("THROUGHPUT", 2))
        factor = {"f32": 2, "bf16": 3}[options["INFERENCE_PRECISION_HINT"]]
        return SimpleNamespace(create_infer_request=lambda: Request(options["PERF_COUNT"], factor))
"""

FEEDS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model; workers started in the test import the stand-in for OpenVINO."""
    (tmp_path / "openvino.py").write_text(PLAYED)
    (tmp_path / "model.onnx").write_bytes(b"model")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(("precision", "factor"), [("f32", 2), ("bf16", 3)])
def test_whole_runs(model: Path, precision: str, factor: int) -> None:
    contestant = OpenVino(model, FEEDS, 3, precision=precision)
    try:
        assert np.array_equal(contestant.outputs[0], factor * FEEDS["x"])
        times = contestant.run_for(0.002)
        assert len(times) > 1 and all(0 < time < 0.1 for time in times)
    finally:
        contestant.close()


def test_kernels_without_the_first_run(model: Path) -> None:
    contestant = OpenVino(model, FEEDS, 3, kernels=True)
    try:
        for _ in range(2):
            # Adds half a tick. timedelta rounds the mean of R runs to a tick, so it is off by at
            # most half a tick; for R - 1 runs the error is R / (R - 1) times that, and R may be 2.
            assert contestant.run_for(0.001) == [pytest.approx(20.5e-6, abs=1.01e-6)]
    finally:
        contestant.close()


def test_the_version(model: Path) -> None:
    assert openvino_version(sys.executable) == "1.2.3"


def test_which_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    assert openvino_python() == sys.executable
    monkeypatch.setenv(PYTHON_VARIABLE, "/some/python")
    assert openvino_python() == "/some/python"
    assert openvino_python("/other/python") == "/other/python"


def test_a_model_that_openvino_refuses(model: Path) -> None:
    model.write_bytes(b"damaged")
    with pytest.raises(ContestantError, match="OpenVINO: RuntimeError: not a model"):
        OpenVino(model, FEEDS, 3)


def test_a_python_that_is_not_there(model: Path, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "python")
    with pytest.raises(ContestantError, match="OpenVINO: cannot start"):
        OpenVino(model, FEEDS, 3, nowhere)
    with pytest.raises(ContestantError, match=f"not installed for .*{PYTHON_VARIABLE}"):
        openvino_version(nowhere)


def test_throughput_mode(model: Path) -> None:
    contestant = OpenVino(model, FEEDS, 3, streams=2, callers=4)
    try:
        turn = contestant.load_for(0.002)
        assert len(turn.times) >= 4 and all(0 < time < 10 for time in turn.times)
        assert turn.rate > 0
    finally:
        contestant.close()
    alone = OpenVino(model, FEEDS, 3, streams=1, callers=1)
    try:
        turn = alone.load_for(0.0)
        assert turn.rate == pytest.approx(1 / turn.times[0]) and len(turn.times) == 1
    finally:
        alone.close()


def test_how_to_get_it_is_said(model: Path) -> None:
    (model.parent / "openvino.py").write_text("raise ImportError('no openvino here')")
    with pytest.raises(ContestantError, match=r"not installed: .*pip install openvino numpy"):
        OpenVino(model, FEEDS, 3)


class Doubling:
    """A stand-in for our session in the benchmark."""

    def run(self, names: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [2 * inputs["x"]]


def test_it_takes_part_in_benchmarks(model: Path) -> None:
    report = bench(
        Doubling(),
        model,
        FEEDS,
        threads=3,
        flops=0,
        tolerance=Tolerance(0.0),
        peers=["openvino"],
        rounds=1,
        seconds=0.0,
    )
    assert [row.name for row in report.rows] == [OURS, OPENVINO]
    assert report.rows[1].agrees and report.rows[1].ratio
