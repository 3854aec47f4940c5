"""Predictions: what they cover, that they add up, and that they are labelled as predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from microkernels.base.errors import TargetError
from microkernels.isa import isa_named
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.registry import all_microkernels
from tests.tvm_hybrid.onnx_models import saved
from tvm_hybrid.bench.predict import LABEL, SHAPES, TYPES, predict_model, predict_shapes
from tvm_hybrid.cli import main
from tvm_hybrid.demo.models import mlp_model
from tvm_hybrid.options import CompileOptions

pytestmark = pytest.mark.turns

PRODUCT = {"predicted_cycles", "predicted_share_of_peak", "predicted_instructions"}


@pytest.fixture(scope="module")
def shapes() -> dict[str, Any]:
    return msgspec.to_builtins(predict_shapes("spr"))


def wide_layer(m: int = 64, k: int = 256, n: int = 96) -> onnx.ModelProto:
    """x[m, k] times a weight, and a bias."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((k, n)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(n).astype(np.float32), "b"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (m, k))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (m, n))],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_every_amx_kernel_is_predicted_to_reach_five_sixths(shapes: dict[str, Any]) -> None:
    spr = isa_named("amx")
    kernels = [kernel for kernel in all_microkernels() if isinstance(kernel, AmxMicrokernel)]
    names = [kernel.name for kernel in kernels if spr.includes(kernel.isa)]
    assert [row["kernel"] for row in shapes["kernels"]] == names and len(names) >= 10
    for row in shapes["kernels"]:
        assert row["k"] == 1024 and 0.83 <= row["predicted_share_of_peak"] <= 1


def test_the_table_has_every_shape_on_tiles(shapes: dict[str, Any]) -> None:
    assert len(shapes["products"]) == len(SHAPES) * len(set(TYPES) - {"fp16"})
    for row in shapes["products"]:
        assert row["kernel"].startswith("amx_")
        assert 0.3 < row["predicted_share_of_peak"] <= 1
        tiles = -(-row["m"] // 16) * -(-row["n"] // 16)
        depth = 64 if "8" in row["kernel"].split("_")[1] else 32
        tdp = next(v for name, v in row["predicted_instructions"].items() if "tdp" in name)
        assert tdp == tiles * -(-row["k"] // depth)
        assert row["predicted_cycles"] >= 16 * tdp
        loads = row["predicted_instructions"]["tileloadd"]
        assert sum(row["predicted_bytes_loaded"].values()) == 1024 * loads


def test_fp16_is_predicted_where_there_are_such_tiles() -> None:
    """fp16 uses the tiles of bf16 in an equal order."""
    products = predict_shapes("gnr").products
    half, bfloat = (
        [row.predicted_cycles for row in products if row.name.endswith(types)]
        for types in (" fp16", " bf16")
    )
    assert half == bfloat and len(half) == len(SHAPES)


def test_nothing_passes_for_a_measurement(shapes: dict[str, Any]) -> None:
    assert shapes["label"] == LABEL == "prediction, not measured"
    for row in [*shapes["kernels"], *shapes["products"]]:
        assert row["label"] == LABEL
        given = {"label", "name", "workload", "kernel", "m", "n", "k", "copies", "blocks"}
        assert {name for name in row if not name.startswith("predicted_")} == given
        assert set(row) >= PRODUCT


def test_a_model_in_bf16(tmp_path: Path) -> None:
    path = saved(tmp_path, wide_layer())
    report = predict_model(path, CompileOptions(target="tvm_hybrid/spr", precision="bf16"))
    (product,) = report.products
    assert (product.m, product.n, product.k) == (64, 96, 256)
    assert product.kernel.startswith("amx_bf16") and not report.without_prediction
    # 4 row tiles x 6 column tiles x 8 tiles of K.
    assert product.predicted_instructions["tdpbf16ps"] == 4 * 6 * 8
    assert product.name == "matmul + add" and "bfloat16[256x96]c" in product.workload
    assert report.model == "model" and report.cpu == "sapphirerapids"


def test_products_of_a_chain(tmp_path: Path) -> None:
    path = saved(tmp_path, mlp_model("MLP_1", 512))
    report = predict_model(path, CompileOptions(target="spr", precision="bf16"))
    assert [product.n for product in report.products] == [512, 256, 128]
    for product in report.products:
        assert product.name.startswith("matmul + ") and product.name.endswith(", of mlp_chain")
        assert product.m * product.copies == 512


def test_what_does_not_run_on_tiles_says_why(tmp_path: Path) -> None:
    report = predict_model(saved(tmp_path, wide_layer()), CompileOptions(target="spr"))  # f32
    assert not report.products
    (left,) = report.without_prediction
    assert "avx512_f32" in left.reason and "without AMX tiles" in left.reason
    assert left.name == "matmul + add" and left.workload.startswith("matmul(float32[64x256]")


def test_threads_share_a_product(tmp_path: Path) -> None:
    path = saved(tmp_path, wide_layer(512, 256, 96))
    alone, shared = (
        predict_model(path, CompileOptions(target="spr", precision="bf16"), threads).products[0]
        for threads in (1, 4)
    )
    assert alone.m * alone.n >= 4 * shared.m * shared.n * 0.9
    assert shared.predicted_cycles < alone.predicted_cycles / 2


def test_a_target_without_amx_is_refused() -> None:
    with pytest.raises(TargetError, match="icelake-server has avx512_vnni; name a target such as"):
        predict_shapes("icx")


def test_bench_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--predict"]) == 0
    shown = capsys.readouterr().out
    # One in the title and one below each of the two tables.
    assert shown.count(LABEL) == 4 and "BERT-base" in shown
    assert shown.count("predicted") >= 2 * 6 and "amx_bf16_32x32" in shown
    model = str(saved(tmp_path, wide_layer()))
    options = ["--predict", "--target", "gnr", "--precision", "bf16", "--threads", "1"]
    assert main(["bench", model, *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["label"], report["cpu"]) == (LABEL, "graniterapids")
    assert report["products"][0]["predicted_cycles"] > 0
    assert main(["bench", model, "--predict"]) == 0
    assert "without AMX tiles" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench"], "Missing argument 'MODEL'"),
        (["bench", "--predict", "--target", "zen4"], "znver4 has avx512_bf16"),
        (["bench", "--predict", "--variants"], "--predict runs nothing"),
        (["bench", "nothing.onnx", "--predict"], "nothing.onnx"),
    ],
)
def test_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
