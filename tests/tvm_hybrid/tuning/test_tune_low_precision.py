"""Quantised and bfloat16 models are tuned, and compiled with the records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.cli import main
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.records.record_store import RecordStore

from .forked_worker import fork_workers

pytestmark = pytest.mark.turns

M, K, N = 7, 40, 36
F32 = np.float32


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start at once."""
    fork_workers(monkeypatch)


def generator() -> np.random.Generator:
    return np.random.default_rng(11)


def bytes_of_weight(g: OnnxBuilder, k: int = K, n: int = N) -> str:
    return g.constant(generator().integers(-128, 128, (k, n), np.int8))


def bias(g: OnnxBuilder, n: int = N) -> str:
    return g.constant(generator().standard_normal(n), F32)


def qdq() -> onnx.ModelProto:
    """Quantise, multiply, add a bias, quantise and multiply again."""
    g = OnnxBuilder()
    scale, zero = g.constant(0.02, F32), g.constant(117, np.uint8)
    x = g.input("x", (M, K))
    for size in (N, 24):
        x = g.node("DequantizeLinear", g.node("QuantizeLinear", x, scale, zero), scale, zero)
        k = K if size == N else N
        scales = g.constant(generator().uniform(0.001, 0.004, size), F32)
        zeros = g.constant(np.zeros(size, np.int8))
        w = g.node("DequantizeLinear", bytes_of_weight(g, k, size), scales, zeros, axis=1)
        x = g.node("Add", g.node("MatMul", x, w), bias(g, size))
    g.output(x, (M, 24))
    return g.model()


def dynamic() -> onnx.ModelProto:
    """One linear layer as onnxruntime's quantize_dynamic writes it."""
    g = OnnxBuilder()
    q, scale, zero = g.nodes("DynamicQuantizeLinear", 3, g.input("x", (M, K)))
    product = g.node("MatMulInteger", q, bytes_of_weight(g), zero)
    scales = g.node("Mul", scale, g.constant(generator().uniform(0.001, 0.004, N), F32))
    y = g.node("Mul", g.node("Cast", product, to=onnx.TensorProto.FLOAT), scales)
    g.output(g.node("Relu", g.node("Add", y, bias(g))), (M, N))
    return g.model()


def weight_only() -> onnx.ModelProto:
    """A f32 input times a dequantised weight."""
    g = OnnxBuilder()
    w = g.node("DequantizeLinear", bytes_of_weight(g), g.constant(0.003, F32))
    g.output(g.node("MatMul", g.input("x", (M, K)), w), (M, N))
    return g.model()


def real() -> onnx.ModelProto:
    """An f32 layer."""
    g = OnnxBuilder()
    weight = g.constant(generator().standard_normal((K, N)) / np.sqrt(K), F32)
    y = g.node("Add", g.node("MatMul", g.input("x", (M, K)), weight), bias(g))
    g.output(g.node("Relu", y), (M, N))
    return g.model()


@dataclass(frozen=True)
class Case:
    """A model, how it is compiled, and the names of its products' kernels.

    Attributes
    ----------
    exact : bool
        Whether every configuration gives the same bits.
    """

    model: Callable[[], onnx.ModelProto]
    kernel: str
    products: int = 1
    precision: str = "auto"
    fusion: str = "coarse"
    exact: bool = True


CASES = {
    "qdq": Case(qdq, "u8s8s32", products=2, fusion="fine"),
    "dynamic": Case(dynamic, "u8s8s32"),
    "weight_only": Case(weight_only, "+int8", exact=False),
    "bf16": Case(real, "bf16", precision="bf16", exact=False),
}


def products(executable: Executable, kernel: str) -> int:
    return sum(kernel in decision.kernel for decision in executable.explain().taken)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_what_is_tuned_is_compiled(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.model().SerializeToString()
    path = tmp_path / "r.jsonl"
    options: dict[str, Any] = {"precision": case.precision, "fusion": case.fusion, "num_threads": 1}
    result = tvm_hybrid.tune(
        model, trials_per_region=2, min_gain=0, strategy="random", records=path, seed=5, **options
    )
    located = list(RecordStore(path))
    assert {found.record.status for found in located} == {"ok"}, [r.record.error for r in located]
    assert all(region.trials >= 2 for region in result.regions)

    plain = tvm_hybrid.compile(model, **options)
    tuned = tvm_hybrid.compile(model, records=path, **options)
    best = {region.region.key: region.best for region in result.regions}
    assert len(tuned.explain().taken) == len(best)
    for decision in tuned.explain().taken:
        assert decision.source.startswith(f"record {path}:")
        assert decision.config == best[decision.workload]
    assert products(plain, case.kernel) == products(tuned, case.kernel) == case.products
    assert {decision.source for decision in plain.explain().taken} == {"default"}

    x = generator().standard_normal((M, K)).astype(F32)
    (before,), (after,) = (executable.run(x) for executable in (plain, tuned))
    if case.exact:
        np.testing.assert_array_equal(after.numpy(), before.numpy())
    else:
        # Both sum K products and a bias in some order, with partial sums below 64: each is off by
        # at most (K + 2) * u * 64 (Higham, section 3.1).
        np.testing.assert_allclose(
            after.numpy(), before.numpy(), rtol=0, atol=2 * (K + 2) * 64 * 2.0**-24
        )


@pytest.mark.slow
def test_every_configuration_of_an_integer_product_gives_the_same_bits(tmp_path: Path) -> None:
    model = dynamic().SerializeToString()
    path = tmp_path / "r.jsonl"
    tvm_hybrid.tune(model, trials=3, records=path, num_threads=1, strategy="grid", min_gain=0)
    x = generator().standard_normal((M, K)).astype(F32)
    results, configs = set(), set()
    for record, _ in RecordStore(path):
        one = tmp_path / "one.jsonl"
        # Written as if by hand: a configuration known to be slower than the default would not be
        # used.
        by_hand = msgspec.structs.replace(record, baseline_us=None, confirmed=None)
        one.write_bytes(by_hand.to_line())
        executable = tvm_hybrid.compile(model, num_threads=1, records=one)
        (decision,) = executable.explain().taken
        assert decision.source == f"record {one}:1"
        configs.add(json.dumps(decision.config, sort_keys=True))
        results.add(executable.run(x)[0].numpy().tobytes())
    assert len(configs) == 3 and len(results) == 1


def test_records_of_one_precision_are_not_those_of_another(tmp_path: Path) -> None:
    model = real().SerializeToString()
    path = tmp_path / "r.jsonl"
    tvm_hybrid.tune(model, precision="bf16", trials=1, records=path, num_threads=1)
    for precision in ("auto", "f32"):
        executable = tvm_hybrid.compile(model, precision=precision, num_threads=1, records=path)
        assert {decision.source for decision in executable.explain()} == {"default"}


def test_the_command_takes_a_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = tmp_path / "m.onnx", tmp_path / "r.jsonl"
    onnx.save(real(), model)
    arguments = ["--records", str(path), "--precision", "bf16", "--threads", "1"]
    assert main(["tune", str(model), "--trials", "1", *arguments]) == 0
    assert "bfloat16[40x36]c" in capsys.readouterr().out
    assert main(["explain", str(model), "--json", *arguments]) == 0
    assert "r.jsonl:1" in capsys.readouterr().out


def test_a_precision_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(tvm_hybrid.errors.CompileError, match="unknown precision 'int3'"):
        tvm_hybrid.tune(real(), precision="int3", records=tmp_path / "r.jsonl")
    assert not (tmp_path / "r.jsonl").exists()
