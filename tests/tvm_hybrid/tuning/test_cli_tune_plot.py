"""`tvm-hybrid tune --plot` for a search and for a replay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_hybrid.cli import main
from tvm_hybrid.report import kernel_speed


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weight = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.slow
def test_a_search_is_plotted_and_replayed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_speed, "TILES_FOR_PEAK", 1)
    monkeypatch.setattr(kernel_speed, "LARGEST_COPY", 1 << 20)
    path = tmp_path / "r.jsonl"

    def tune(plot: Path, *more: object) -> int:
        common = ["--records", path, "--trials", 3, "--threads", 1, "--strategy", "random"]
        return main(list(map(str, ["tune", model, *common, "--plot", plot, *more])))

    assert tune(tmp_path / "search.png") == 0
    assert (tmp_path / "search.png").read_bytes().startswith(b"\x89PNG")
    before = path.read_bytes()
    assert tune(tmp_path / "replay.png", "--replay", path) == 0
    assert (tmp_path / "replay.png").read_bytes().startswith(b"\x89PNG")
    assert path.read_bytes() == before
    assert tune(tmp_path / "no folder" / "search.png") == 2
