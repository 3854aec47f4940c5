"""From float32 to a quantised model: settings, kernels, accuracy, errors, the command."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_hybrid
from microkernels.base.errors import FeedError, QuantizeError
from microkernels.isa import LADDER, isa_named
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.cli import main
from tvm_hybrid.quantization.onnx_quantizer import Settings, opset_of, settings_for
from tvm_hybrid.quantization.quantize_model import accuracies

from ..onnx_models import saved, two_layers

pytestmark = pytest.mark.turns

SAMPLES = np.random.default_rng(3).standard_normal((6, 4, 8)).astype(np.float32)


def convolution(opset: int = 17) -> onnx.ModelProto:
    """x[1, 3, 8, 8] -> Conv -> Relu -> global pool -> y[1, 4, 1, 1]."""
    g = OnnxBuilder(opset)
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3))
    x = g.input("x", (1, 3, 8, 8))
    y = g.node("Relu", g.node("Conv", x, g.constant(weight, np.float32), pads=[1, 1, 1, 1]))
    g.output(g.node("GlobalAveragePool", y), (1, 4, 1, 1))
    return g.model()


def quantized(tmp_path: Path, model: onnx.ModelProto, **options: Any) -> Any:
    options = {"num_threads": 1, "seconds": 0, **options}
    return tvm_hybrid.quantize(model, tmp_path / "out.onnx", **options)


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def kernels(path: Path) -> list[str]:
    return [each.kernel for each in tvm_hybrid.compile(path, num_threads=1).explain()]


def test_static_quantisation_multiplies_bytes(tmp_path: Path) -> None:
    report = quantized(tmp_path, two_layers(), data={"x": SAMPLES})
    assert report.passed and report.samples == 6 and report.narrow_kernels == 1
    assert operators(tmp_path / "out.onnx") == {"QuantizeLinear", "DequantizeLinear", "MatMul"}
    assert any("u8s8" in kernel for kernel in kernels(tmp_path / "out.onnx"))
    rows = {row.by: row for row in report.accuracy}
    # A step of 8 bits is 1/255 of a range; two products and three quantisations of a signal that
    # fills a third of its range give an error of a few hundredths.
    assert 1e-4 < rows["tvm_hybrid quantised"].error < 0.1
    assert rows["tvm_hybrid float32"].error < 1e-5
    assert rows["tvm_hybrid quantised"].cosine > 0.99
    weights = onnx.load(tmp_path / "out.onnx").graph.initializer
    scales = [each for each in weights if each.name.startswith("w0") and "scale" in each.name]
    assert [list(each.dims) for each in scales] == [[16]]  # one scale for each column


def test_dynamic_quantisation_needs_no_data(tmp_path: Path) -> None:
    report = quantized(tmp_path, two_layers("rows"), mode="dynamic")
    assert report.passed and report.samples == 0 and report.narrow_kernels == 2
    assert "MatMulInteger" in operators(tmp_path / "out.onnx")


@pytest.mark.parametrize("bits", [4, 8])
def test_narrow_weights(bits: int, tmp_path: Path) -> None:
    report = quantized(tmp_path, two_layers(), mode="weights", bits=bits, block=16)
    assert report.passed and report.narrow_kernels == 2
    found = [n for n in onnx.load(tmp_path / "out.onnx").graph.node if n.op_type == "MatMulNBits"]
    assert {a.name: a.i for a in found[0].attribute}["bits"] == bits


def test_convolutions_keep_what_lies_between_in_bytes(tmp_path: Path) -> None:
    data = {"x": np.random.default_rng(1).standard_normal((3, 1, 3, 8, 8)).astype(np.float32)}
    report = quantized(tmp_path, convolution(), data=data, seconds=1e-4)
    assert report.passed and (report.narrow_kernels, report.other_kernels) == (1, 0)
    assert "GlobalAveragePool" in report.settings
    assert set(report.timings) == {
        f"{by} {what}" for by in ("tvm_hybrid", "ONNX Runtime") for what in ("float32", "quantised")
    }


OPSETS = range(9, 13)


@pytest.mark.parametrize("opset", OPSETS)
def test_static_quantisation_converts_an_old_opset(opset: int, tmp_path: Path) -> None:
    """Per-channel scales are an attribute since opset 13."""
    data = {"x": np.random.default_rng(1).standard_normal((3, 1, 3, 8, 8)).astype(np.float32)}
    model = convolution(opset)
    report = quantized(tmp_path, model, data=data)
    assert report.passed and (report.narrow_kernels, report.other_kernels) == (1, 0)
    assert report.notes == [f"converted from opset {opset} to 13"]
    assert opset_of(onnx.load(tmp_path / "out.onnx")) == 13 and opset_of(model) == opset
    rows = {row.by: row for row in report.accuracy}
    assert rows["tvm_hybrid quantised"].error < 0.1  # the bound of the two layers above


def test_operators_of_an_old_opset_keep_their_meaning(tmp_path: Path) -> None:
    """Softmax of opset 11 covers all axes from the first on, of opset 13 one axis."""
    g = OnnxBuilder(11)
    rng = np.random.default_rng(0)
    x = g.input("x", (2, 3, 8))
    weight = g.constant(rng.standard_normal((8, 16)), np.float32)
    y = g.node("Softmax", g.node("MatMul", x, weight), axis=1)
    g.output(g.node("Squeeze", g.node("Unsqueeze", y, axes=[0]), axes=[0]), (2, 3, 16))
    data = {"x": rng.standard_normal((3, 2, 3, 8)).astype(np.float32)}
    report = quantized(tmp_path, g.model(), data=data)
    assert report.passed and report.narrow_kernels == 1
    rows = {row.by: row for row in report.accuracy}
    # Over the last axis alone, values would be three times as large: an error of 2.
    assert rows["tvm_hybrid quantised"].error < 0.3


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("mode", ["dynamic", "weights"])
def test_other_modes_take_an_old_opset(mode: str, opset: int, tmp_path: Path) -> None:
    """These modes use no per-channel scales as an attribute."""
    g = OnnxBuilder(opset)
    weight = np.random.default_rng(0).standard_normal((32, 16))
    g.output(g.node("MatMul", g.input("x", (4, 32)), g.constant(weight, np.float32)), (4, 16))
    report = quantized(tmp_path, g.model(), mode=mode, block=16)
    assert report.passed and report.narrow_kernels == 1


def test_an_old_opset_that_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    """ImageScaler was an experimental operator of ONNX; no version has it now."""
    model = convolution(11)
    scaled = onnx.helper.make_node("ImageScaler", ["x"], ["scaled"], scale=1.0)
    model.graph.node.insert(0, scaled)
    next(node for node in model.graph.node if node.op_type == "Conv").input[0] = "scaled"
    data = {"x": np.zeros((1, 1, 3, 8, 8), np.float32)}
    with pytest.raises(QuantizeError, match=r"opset 11 cannot be converted: .*mode dynamic"):
        quantized(tmp_path, model, data=data)
    assert not list(tmp_path.iterdir())


def test_incomplete_shapes_leave_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shapes are incomplete because positions are cut to the input's length."""
    g = OnnxBuilder()
    x = g.input("x", ("rows", 8))
    table = g.constant(np.ones((512, 8)), np.float32)
    length = g.node("Shape", x, end=1)
    positions = g.node("Slice", table, g.constant([0]), length, g.constant([0]))
    weight = g.constant(np.random.default_rng(0).standard_normal((8, 16)), np.float32)
    g.output(g.node("MatMul", g.node("Add", x, positions), weight), ("rows", 16))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    report = quantized(tmp_path, g.model(), mode="dynamic")
    assert report.passed and report.narrow_kernels == 1
    assert report.notes == ["without symbolic shapes: incomplete symbolic shape inference"]
    assert list((tmp_path / "here").iterdir()) == []


def test_weights_have_seven_bits_where_there_is_no_vnni() -> None:
    for isa in LADDER:
        reduced = settings_for(two_layers(), isa, Settings("static", ()), "auto").reduced
        assert reduced == (isa.name in ("scalar", "avx2", "avx512"))
    full = settings_for(two_layers(), isa_named("avx2"), Settings("static", ()), "full")
    assert not full.reduced


def test_a_target_without_vnni_gets_weights_of_seven_bits(tmp_path: Path) -> None:
    quantized(tmp_path, two_layers(), data={"x": SAMPLES}, target="hsw")
    weights = {each.name: each for each in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert np.abs(onnx.numpy_helper.to_array(weights["w0_quantized"])).max() <= 64


def test_accuracy_of_all_samples_counts() -> None:
    right = [np.array([[1.0, 3.0]]), np.array([[2.0, 1.0]])]
    found = iter([np.array([[1.0, 3.0]]), np.array([[1.0, 2.0]])])
    wanted = iter(right)
    (row,) = accuracies(["y"], [{}, {}], lambda _: [next(wanted)], {"us": lambda _: [next(found)]})
    assert row.top1 == 0.5 and row.largest == pytest.approx(1 / 3)
    assert row.error == pytest.approx(np.sqrt(2 / 15))
    assert row.cosine == pytest.approx(14 / 15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "static quantisation needs data"),
        ({"data": {"x": SAMPLES}, "operators": ["Conv"]}, r"has no Conv \(it has MatMul, Relu\)"),
        ({"data": {"x": SAMPLES}, "operators": ["Relu"]}, "nothing was quantised: no Relu"),
        ({"data": {"x": SAMPLES}, "exclude": ["third"]}, "no node 'third'"),
        ({"mode": "weights", "bits": 3}, "4 or 8 bits, not 3"),
        ({"mode": "weights", "block": 24}, "power of two"),
    ],
)
def test_what_cannot_be_quantised_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(QuantizeError, match=message):
        quantized(tmp_path, two_layers(), **options)
    assert not list(tmp_path.iterdir())  # neither a file nor a part of one


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    quantized(tmp_path, two_layers(), mode="weights")
    with pytest.raises(QuantizeError, match="quantised already: it has MatMulNBits"):
        tvm_hybrid.quantize(tmp_path / "out.onnx", tmp_path / "again.onnx", mode="dynamic")


@pytest.mark.parametrize(("mode", "missing"), [("static", "sympy"), ("weights", "onnx_ir")])
def test_a_missing_package_is_named(
    mode: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    name = "onnxruntime.quantization.matmul_nbits_quantizer"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(
        QuantizeError, match=rf"{missing} is not installed; pip install .*{missing}"
    ):
        quantized(tmp_path, two_layers(), mode=mode, data={"x": SAMPLES})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = str(saved(tmp_path)), str(tmp_path / "int8.onnx")
    np.savez(tmp_path / "s.npz", x=SAMPLES)
    options = ["-o", output, "--threads", "1", "--seconds", "0.001"]
    assert main(["quantize", model, *options, "--data", str(tmp_path / "s.npz")]) == 0
    shown = capsys.readouterr().out
    assert "top-1" in shown and "median us" in shown and "1 narrow, 0 of floats" in shown
    assert main(["quantize", model, *options, "--weights", "4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mode"] == "weights" and len(report["timings"]) == 4
    for arguments, message in (
        ([], "--static needs samples: give --data"),
        (["--dynamic", "--weights", "4"], "exclude each other"),
        (["--data", str(tmp_path / "none")], "none cannot be read"),
    ):
        assert main(["quantize", model, *options, *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_samples_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(FeedError, match="data has no x"):
        quantized(tmp_path, two_layers(), data={"y": SAMPLES})
    assert not list(tmp_path.iterdir())
