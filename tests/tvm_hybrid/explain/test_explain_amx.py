"""`explain` for a target with AMX: what is on tiles, and why the others are not. Nothing is run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import saved
from tir_schedules.cost.amx_cost import DYNAMIC
from tvm_hybrid.cli import main
from tvm_hybrid.explain.explanation import Explanation

FLOAT32 = "AMX multiplies 8-bit integers and bfloat16, not float32"


def many_and_one() -> onnx.ModelProto:
    """x [64, 256] and y [1, 256], each times its own weight [256, 256]."""
    g, rng = OnnxBuilder(), np.random.default_rng(0)
    for name, rows in (("x", 64), ("y", 1)):
        weight = g.constant(rng.standard_normal((256, 256)), np.float32)
        g.output(g.node("MatMul", g.input(name, (rows, 256)), weight), (rows, 256))
    return g.model()


def explained(target: str, precision: str) -> Explanation:
    model = many_and_one()
    return tvm_hybrid.compile(model, target=target, precision=precision, num_threads=1).explain()


@pytest.mark.parametrize("target", ["spr", "emeraldrapids", "tvm_hybrid/sapphirerapids"])
def test_one_row_stays_on_vectors_with_a_reason(target: str) -> None:
    explanation = explained(target, "bf16")
    reasons = {each.kernel: each.on_vectors for each in explanation.taken if each.flops}
    many, one = sorted(reasons)
    assert many.startswith("amx_bf16_") and reasons[many] == ""
    assert one.startswith("avx512_bf16_") and reasons[one].startswith("1 row fills 6% of AMX tiles")
    assert one in reasons[one] and "as fast" in reasons[one]
    shown = " ".join(str(explanation).split())
    assert "on vectors:" in shown


def test_dynamic_rows_stay_on_vectors_with_a_reason() -> None:
    g, rng = OnnxBuilder(), np.random.default_rng(0)
    weight = g.constant(rng.standard_normal((256, 256)), np.float32)
    g.output(g.node("MatMul", g.input("x", ("rows", 256)), weight), ("rows", 256))
    model = g.model()
    found = tvm_hybrid.compile(model, target="spr", precision="bf16", keep_dynamic=True).explain()
    (product,) = (each for each in found.taken if each.op == "matmul")
    assert product.kernel.startswith("avx512_bf16_")
    assert product.on_vectors == DYNAMIC


def test_float32_is_never_on_tiles() -> None:
    reasons = [each.on_vectors for each in explained("spr", "auto").taken if each.flops]
    assert reasons == [FLOAT32] * 2


def test_one_row_of_float16_is_computed_as_ever_and_says_so() -> None:
    g, rng = OnnxBuilder(), np.random.default_rng(0)
    for name, size in (("x", 64), ("y", 2)):
        weight = g.constant(rng.standard_normal((size, size)), np.float16)
        g.output(
            g.node("MatMul", g.input(name, (size, size), np.float16), weight),
            (size, size),
            np.float16,
        )
    explanation = tvm_hybrid.compile(g.model(), target="gnr", num_threads=1).explain()
    products = {each.kernel for each in explanation.taken if each.flops}
    assert {name.split("_")[1] for name in products} == {"fp16", "f32"}
    (note,) = (each for each in explanation if each.op == "float16 product")
    assert note.reason.startswith("computed in float32, not on tiles of fp16: tiles are estimated")


def test_nothing_is_said_without_tiles() -> None:
    for precision in ("bf16", "auto"):
        explanation = explained("cooperlake", precision)
        assert not any(decision.on_vectors for decision in explanation)
        assert "on vectors" not in str(explanation)


def test_the_command_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(saved(tmp_path, many_and_one()))
    options = ["--target", "tvm_hybrid/sapphirerapids", "--precision", "bf16", "--threads", "1"]
    assert main(["explain", path, "--json", *options]) == 0
    decisions = json.loads(capsys.readouterr().out)
    assert sorted(bool(each["on_vectors"]) for each in decisions if each["flops"]) == [False, True]
