"""`tvm-hybrid tune --layouts joint`, with real kernels."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.cnn_blocks import Image, Net
from tvm_hybrid.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A 3x3 convolution and a head with two channels, as in detectors."""
    net = Net(1)
    image = net.input(4, 6, 7)
    for channels, extent in ((4, 3), (2, 1)):
        weight = net.weight(channels, image.channels, extent, extent)
        made = net.g.node("Conv", image.name, weight, pads=[extent // 2] * 4)
        image = Image(made, channels)
    net.output(image, 6, 7)
    path = tmp_path / "head.onnx"
    onnx.save(net.g.model(), path)
    return path


@pytest.mark.slow
def test_layouts_are_searched_and_reported(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether they pay depends on the machine; either way the file must work."""
    path = tmp_path / "r.jsonl"
    tune = ["tune", model, "--records", path, "--trials", 10, "--threads", 1, "--layouts", "joint"]
    tune += ["--strategy", "random", "--json"]
    assert main(list(map(str, tune))) == 0
    result = json.loads(capsys.readouterr().out)
    found = result["layouts"]
    assert found["choices"] == 1
    assert [len(step["changed"]) for step in found["steps"]] == [0, 1]
    assert all(step["us"] > 0 for step in found["steps"])
    assert bool(found["changed"]) == (found["best_us"] < found["default_us"])
    kept = [line for line in path.read_text().splitlines() if '"kind":"layout"' in line]
    assert len(kept) == found["chosen"]
    measured = sum(found["measured"].values()) + sum(r["measured"] for r in result["regions"])
    assert measured >= 4

    assert main(["explain", str(model), "--records", str(path), "--threads", "1", "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)
    assert sum(decision["op"] == "layouts" for decision in decisions) == len(kept)


def test_layouts_of_other_machines_are_refused(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(model), "--layouts", "joint", "--replay", str(model)]) != 0
    assert "timed on this machine" in capsys.readouterr().err
