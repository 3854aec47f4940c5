"""The benchmark and its contestants: who takes part and what it reports, never the time."""

import logging
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvm_hybrid import InferenceSession
from tvm_hybrid.bench import compare
from tvm_hybrid.bench.bench import BenchReport, bench
from tvm_hybrid.bench.compare import Tolerance
from tvm_hybrid.bench.peers import contestants
from tvm_hybrid.bench.peers.contestants import ContestantError, StockTvm
from tvm_hybrid.bench.peers.onnx_runtime import optimised_session
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OURS, STOCK_TVM
from tvm_hybrid.options import CompileOptions

from ..onnx_models import reference, saved, two_layers

pytestmark = pytest.mark.turns

DIFFERS = (
    r"differs by .* of the largest value; most at output 'y'\[\d, \d\], which is .* instead of .*; "
    "20 of 20 elements by more than the 1.0e-05 that rounding explains"
)


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}


def test_all_three_run_and_agree(tmp_path: Path) -> None:
    path = saved(tmp_path)
    session = InferenceSession(path, num_threads=1)
    report = bench(
        session,
        path,
        feeds(),
        threads=1,
        flops=1000,
        tolerance=Tolerance(1e-5),
        rounds=2,
        seconds=0.001,
    )
    assert [row.name for row in report.rows] == [OURS, ONNX_RUNTIME, STOCK_TVM]
    for row in report.rows:
        assert row.timing is not None and row.timing.runs >= 2
        assert 0 < row.timing.min_us <= row.timing.median_us <= row.timing.p90_us
        assert row.requests_per_second == pytest.approx(1e6 / row.timing.mean_us)
        assert row.max_rel is not None and row.max_rel <= 1e-5
        assert row.gflops == pytest.approx(1.0 / row.timing.min_us)
        assert row.agrees and not row.note
    ours, ort, _ = (row.timing.min_us for row in report.rows if row.timing)
    assert report.rows[1].ratio == pytest.approx(ort / ours)


class Liar:
    """A session that returns a wrong result."""

    def run(self, names: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [reference(inputs["x"]).astype(np.float32) + 1]


def liars_report(path: Path) -> BenchReport:
    return bench(
        Liar(),
        path,
        feeds(),
        threads=1,
        flops=0,
        tolerance=Tolerance(1e-5),
        peers=["ort"],
        rounds=1,
        seconds=0.0,
    )


def test_wrong_results_of_ours_are_noticed(tmp_path: Path) -> None:
    report = liars_report(saved(tmp_path))
    (ours,) = report.wrong
    assert ours.name == OURS and re.fullmatch(DIFFERS, ours.note)
    assert ours.max_rel is not None and ours.max_rel > 1e-5
    row = report.row(ONNX_RUNTIME)
    assert row is not None and row.agrees and not row.note
    assert row.gflops is None


def test_wrong_results_of_others_are_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer's wrong results, as with saturating u8s8 kernels, are not counted against us."""
    monkeypatch.setattr(compare, "why_products_differ", lambda model: "a reason")
    monkeypatch.setattr(contestants, "optimised_session", lambda *arguments: Liar())
    path = saved(tmp_path)
    report = bench(
        InferenceSession(path, num_threads=1),
        path,
        feeds(),
        threads=1,
        flops=0,
        tolerance=Tolerance(1e-5),
        peers=["ort"],
        rounds=1,
        seconds=0.0,
    )
    row = report.row(ONNX_RUNTIME)
    assert row is not None and not row.agrees and not report.wrong
    assert re.fullmatch(f"{DIFFERS}: a reason", row.note)


def test_without_a_judge_ours_are_taken_for_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise ContestantError("no kernel for that")

    monkeypatch.setattr(compare, "literal_session", refuse)
    with caplog.at_level(logging.WARNING, logger="tvm_hybrid"):
        report = liars_report(saved(tmp_path))
    assert "our own results are not checked: no kernel for that" in caplog.text
    row = report.row(ONNX_RUNTIME)
    assert row is not None and not row.agrees and not report.wrong


class Bytes:
    """A session whose result exceeds ONNX Runtime's by a fixed amount."""

    def __init__(self, more: int) -> None:
        self._more = more

    def run(self, names: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [inputs["x"] + np.uint8(self._more)]


@pytest.mark.parametrize(("more", "steps", "agrees"), [(1, 0, False), (1, 1, True), (2, 1, False)])
def test_quantised_results_may_be_some_steps_apart(
    tmp_path: Path, more: int, steps: int, agrees: bool
) -> None:
    info = [helper.make_tensor_value_info(name, TensorProto.UINT8, (3,)) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "same", info[:1], info[1:]
    )
    path = tmp_path / "same.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    report = bench(
        Bytes(more),
        path,
        {"x": np.arange(3, dtype=np.uint8)},
        threads=1,
        flops=0,
        tolerance=Tolerance(0.5, steps),
        peers=["ort"],
        rounds=1,
        seconds=0.0,
    )
    assert report.rows[0].agrees == agrees and report.rows[1].agrees


def test_a_missing_onnxruntime_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    path = saved(tmp_path)
    with caplog.at_level(logging.WARNING, logger="tvm_hybrid"):
        report = bench(
            InferenceSession(path, num_threads=1),
            path,
            feeds(),
            threads=1,
            flops=0,
            tolerance=Tolerance(1e-5),
            peers=["ort"],
            rounds=1,
            seconds=0.0,
        )
    assert report.row(ONNX_RUNTIME) is None
    assert "onnxruntime is not installed" in report.rows[1].note
    assert "onnxruntime is not installed" in caplog.text


def test_stock_tvm_computes_what_the_model_means(tmp_path: Path) -> None:
    inputs = feeds()
    stock = StockTvm(
        saved(tmp_path, two_layers("rows")), inputs, CompileOptions(shapes={"x": (4, 8)}), 1
    )
    try:
        assert np.allclose(stock.outputs[0], reference(inputs["x"]), rtol=1e-5, atol=1e-5)
        assert len(stock.run_for(0.0)) == 1
        process = stock._child._process
        assert process is not None
        process.kill()
        with pytest.raises(ContestantError, match="the worker died of SIGKILL"):
            stock.run_for(0.0)
    finally:
        stock.close()
    assert process.poll() is not None


def test_a_model_that_stock_tvm_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ContestantError, match="stock TVM: ModelError"):
        StockTvm(tmp_path / "model.onnx", feeds(), CompileOptions(), 1)


def test_a_worker_that_takes_too_long(tmp_path: Path) -> None:
    with pytest.raises(ContestantError, match="no answer within"):
        StockTvm(saved(tmp_path), feeds(), CompileOptions(), 1, limit=0.01)


def test_a_model_that_onnx_runtime_refuses() -> None:
    with pytest.raises(ContestantError, match="ONNX Runtime"):
        optimised_session(b"not a model")
