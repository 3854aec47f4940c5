"""Times of kernels alone: what is counted, never the duration."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

import tvm_hybrid
from tvm_hybrid.bench.conv_layers import OnnxRuntimeKernels, OurKernels, mean_kernel_seconds
from tvm_hybrid.bench.layer_models import FLOAT32, Layer, layer_input, layer_model
from tvm_hybrid.bench.peers.contestants import ContestantError
from tvm_hybrid.explain.profile import Profile

LAYER = Layer("S1", 8, 16, 16, 3, 2)


def event(name: str, operator: str, duration: int, category: str = "Node") -> dict[str, object]:
    return {"cat": category, "name": name, "dur": duration, "args": {"op_name": operator}}


def profile(*events: dict[str, object]) -> bytes:
    return json.dumps(events).encode()


def test_the_mean_of_all_runs_but_the_first() -> None:
    events = [
        {"cat": "Session", "name": "model_run", "dur": 500},
        *(event("c", "QLinearConv", duration) for duration in (90, 10, 20)),
        *(event("r", "ReorderOutput", 7) for _ in range(3)),
        event("c", "Conv", 1000, category="Api"),
    ]
    assert mean_kernel_seconds(profile(*events), 3) == pytest.approx(15.5e-6)


def test_several_kernels_add_up() -> None:
    events = [event(name, "Conv", duration) for name in "ab" for duration in (9, 4)]
    assert mean_kernel_seconds(profile(*events), 2) == pytest.approx(9e-6)


@pytest.mark.parametrize("events", [(), (event("c", "Conv", 1),)])
def test_a_profile_that_lacks_runs(events: tuple[dict[str, object], ...]) -> None:
    with pytest.raises(ContestantError, match="every run"):
        mean_kernel_seconds(profile(*events), 2)


def test_of_ours_all_but_reorders_count(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = tvm_hybrid.compile(layer_model(LAYER, FLOAT32), num_threads=1)
    feeds = {"x": layer_input(LAYER, FLOAT32)}
    kernels = OurKernels(executable, feeds)
    called = {d.function: d.op for d in executable.explain() if d.function}
    assert [called[name].partition(" ")[0] for name in kernels.functions] == ["conv2d"]
    assert len(kernels.names) == 1 and kernels.names[0].startswith("conv2d ")
    seen: list[Profile] = []
    right = executable.profile

    def spy(inputs: dict[str, Any], repeat: int) -> Profile:
        seen.append(right(inputs, repeat))
        return seen[-1]

    monkeypatch.setattr(executable, "profile", spy)
    (mean,) = kernels.run_for(0.0)
    (row,) = (row for row in seen[0].rows if row.function in kernels.functions)
    assert mean == pytest.approx(row.microseconds * 1e-6)
    assert 0 < mean < sum(row.microseconds for row in seen[0].rows) * 1e-6


def test_onnx_runtime_tells_of_its_convolution(tmp_path: Path) -> None:
    path = tmp_path / "layer.onnx"
    onnx.save(layer_model(LAYER, FLOAT32), path)
    kernels = OnnxRuntimeKernels(path, {"x": layer_input(LAYER, FLOAT32)}, 1)
    (mean,) = kernels.run_for(0.001)
    assert 0 < mean < 1
    path.write_bytes(b"no model")
    with pytest.raises(ContestantError, match="ONNX Runtime"):
        kernels.run_for(0.0)


def test_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ContestantError, match="not installed"):
        OnnxRuntimeKernels(tmp_path / "layer.onnx", {}, 1).run_for(0.0)
