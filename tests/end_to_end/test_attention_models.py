"""Attention as exporters write it becomes one kernel a layer with ONNX Runtime's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tvm_hybrid
from tests.end_to_end.attention_models import MODELS, Sizes, bert, feeds
from tests.end_to_end.quantized_models import static
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

pytestmark = pytest.mark.turns


def literal(model: onnx.ModelProto, inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """ONNX Runtime's result, computed node by node."""
    return literal_session(model).run(None, inputs)[0]


def attentions(session: tvm_hybrid.InferenceSession) -> list[str]:
    """The workloads of the attention kernels."""
    taken = session.explain().taken
    return [decision.workload for decision in taken if decision.workload.startswith("attention(")]


def one_a_layer(session: tvm_hybrid.InferenceSession) -> list[str]:
    """Attention workloads; checks that no operator of attention remains outside."""
    found = attentions(session)
    assert len(found) == Sizes().layers, str(session.explain())
    left = [d for d in session.explain() if "softmax" in d.op and "attention" not in d.workload]
    assert not [d for d in left if d.workload.startswith(("softmax", "batch_matmul"))]
    return found


def distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Root mean square of the differences."""
    return float(np.sqrt(np.mean(np.square(a.astype(np.float64) - b))))


@pytest.mark.sampled
@pytest.mark.parametrize("name", MODELS)
def test_one_kernel_a_layer(name: str) -> None:
    """One attention kernel for each layer, within f32 rounding of ONNX Runtime.

    Two layers of three products in a row, of 64 terms at most 8 times as large as their sum: each
    is off by 64 * 8 * 2^-24 = 3e-5 of values about 1 at most, on both sides; residual sums add
    these up. 2 * 6 * 3e-5 < 4e-4.
    """
    model = MODELS[name]()
    session = tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=1)
    found = one_a_layer(session)
    if name in ("gpt2", "llama"):
        assert all("causal=0" in workload for workload in found)
    if name == "llama":
        assert all("batch=2,2,2" in workload for workload in found)
    inputs = feeds(model)
    result, wanted = session.run(None, inputs)[0], literal(model, inputs)
    assert result.shape == wanted.shape and result.dtype == wanted.dtype
    assert np.abs(result - wanted).max() <= 4e-4


def test_bfloat16() -> None:
    """Results are within bfloat16 rounding of f32: 2^-8 for each of six products in two layers."""
    model = bert()
    session = tvm_hybrid.InferenceSession(
        model.SerializeToString(), num_threads=1, precision="bf16"
    )
    assert all("bfloat16" in workload for workload in one_a_layer(session))
    inputs = feeds(model)
    wanted = literal(model, inputs)
    result = session.run(None, inputs)[0]
    size = float(np.sqrt(np.mean(np.square(wanted))))
    assert distance(result, wanted) <= 6 * 2.0**-8 * size


@pytest.mark.parametrize("kinds", [("MatMul",), None], ids=["products", "everything"])
def test_quantized(kinds: tuple[str, ...] | None) -> None:
    """Results match ONNX Runtime node by node, except for quantisation steps at ties.

    Rounding differently near a tie gives neighbouring integers (see test_transformers); the
    distance allowed is half of what quantising itself changes.
    """
    plain = bert()
    model = static(plain, [feeds(plain, seed) for seed in range(4)], kinds=kinds)
    session = tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=1)
    assert all("uint8[" in workload for workload in one_a_layer(session))
    for seed in (4, 5):
        inputs = feeds(plain, seed)
        wanted = literal(model, inputs)
        moved = distance(wanted, literal(plain, inputs))
        assert distance(session.run(None, inputs)[0], wanted) <= 0.5 * moved


def test_two_threads_and_an_exported_library(tmp_path: Path) -> None:
    """Two threads and an exported library use the kernels of the session on one thread."""
    model = MODELS["llama"]()
    inputs = feeds(model)
    session = tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=2)
    result = session.run(None, inputs)[0]
    assert np.abs(result - literal(model, inputs)).max() <= 4e-4
    path = session.executable.export(tmp_path / "model.so")
    loaded = tvm_hybrid.InferenceSession(path)
    assert attentions(loaded) == attentions(session)
    np.testing.assert_array_equal(loaded.run(None, inputs)[0], result)


def test_fine_fusion_leaves_three_kernels_a_layer() -> None:
    """Level "fine" merges nothing and gives equal results within rounding."""
    model = bert()
    inputs = feeds(model)
    session = tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=1, fusion="fine")
    assert not attentions(session)
    keys = [decision.workload for decision in session.explain().taken]
    assert sum(key.startswith("softmax(") for key in keys) == Sizes().layers
    assert np.abs(session.run(None, inputs)[0] - literal(model, inputs)).max() <= 4e-4
