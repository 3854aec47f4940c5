"""Attention and RotaryEmbedding of opset 23 compared with ONNX's reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tvm_hybrid import InferenceSession
from tvm_hybrid.frontend import import_onnx

from .attention_forms import B, D, Forms, H, N, S, attention, caches
from .models import compare, f32, make_model, operators, random

pytestmark = pytest.mark.turns


def test_standard_rotary_embedding() -> None:
    g = Forms("RotaryEmbedding", "", 23)
    x, y = g.feed(random(B, S, H)), g.feed(random(B, N, S, D, seed=1))
    tables = [g.feed(table) for table in caches(D // 2)]
    short = [g.constant(table) for table in caches(2)]
    each = g.feed(np.random.default_rng(0).integers(0, 32, (B, S)))
    given = [g.feed(table.reshape(B, S, D // 2)) for table in caches(D // 2, length=B * S)]
    g.add(x, *tables, each, num_heads=N)
    g.add(y, *tables, each, ranks=[4], interleaved=1)
    g.add(y, *given, ranks=[4])
    g.add(x, *short, each, num_heads=N, rotary_embedding_dim=4)
    g.check(ReferenceEvaluator(g.model()).run(None, g.feeds))


def test_standard_attention() -> None:
    """Includes rows that see no key: their result is 0."""
    g = Forms("Attention", "", 23)
    q, k, v = (g.feed(random(B, S, H, seed=seed)) for seed in range(3))
    q4, k4, v4 = (
        g.feed(random(B, n, t, e, seed=3 + i))
        for i, (n, t, e) in enumerate(((4, S, D), (2, 7, D), (2, 7, 6)))
    )
    past = [g.feed(random(B, 2, 3, e, seed=6 + i)) for i, e in enumerate((D, 6))]
    rng = np.random.default_rng(1)
    seen = rng.random((B, 1, S, S)) < 0.5
    seen[0, 0, 2] = False
    added = random(S, 10, seed=8)
    added[:, 4] = -np.inf
    added[1] = -np.inf
    keys = rng.random((B, 1, 1, 7)) < 0.6
    three: dict[str, Any] = {"q_num_heads": N, "kv_num_heads": N}
    g.add(q, k, v, **three)
    g.add(q, k, v, g.feed(seen), **three, scale=0.4)
    g.add(q, k, v, g.feed(seen), **three, is_causal=1)
    g.add(q, k, v, g.constant(seen[1, 0]), **three, softcap=0.7)
    g.add(q4, k4, v4, ranks=[4], is_causal=1)
    g.add(q4, k4, v4, g.feed(keys), ranks=[4], softcap=2.0)
    g.add(q4, k4, v4, g.feed(added), *past, ranks=[4, 4, 4], outputs=3, is_causal=1)
    g.add(q4, k4, v4, g.constant(added), *past, ranks=[4, 4, 4], outputs=3)
    g.add(q4, k4, v4, g.feed(added[:, :3]), *past, ranks=[4])  # shorter than the keys
    g.check(ReferenceEvaluator(g.model()).run(None, g.feeds))


def test_scores_as_an_output_windows_and_lengths() -> None:
    """Behind a window of two keys, queries see nothing: their result is 0."""
    g = Forms("Attention", "", 25)
    q, k, v = (
        g.feed(random(B, n, t, D, seed=i)) for i, (n, t) in enumerate(((4, S), (2, 7), (2, 7)))
    )
    few = [g.feed(random(B, 2, 2, D, seed=3 + i)) for i in range(2)]
    lengths = g.feed(np.array([7, 5], np.int64))
    seen = np.random.default_rng(1).random((S, 7)) < 0.3
    g.add(q, k, v, outputs=4, ranks=[4] * 4, qk_matmul_output_mode=3, is_causal=1)
    g.add(q, k, v, "", "", "", lengths, ranks=[4], is_causal=1)
    g.add(q, k, v, ranks=[4], left_window_size=2, right_window_size=1)
    g.add(q, k, v, "", "", "", lengths, ranks=[4], left_window_size=1, right_window_size=2)
    g.add(q, *few, ranks=[4], left_window_size=1)
    g.add(q, k, v, g.feed(seen), outputs=4, ranks=[4] * 4, qk_matmul_output_mode=3)
    g.add(q, k, v, g.constant(seen), ranks=[4], left_window_size=2)
    g.check(ReferenceEvaluator(g.model()).run(None, g.feeds))


def test_attention_in_bfloat16() -> None:
    """Scores are float32; operands, probabilities and the result are rounded by 2^-9 each.

    Numbers are up to 3, and probabilities add up to 1.
    """
    shape = (B, N, S, D)
    arrays = {n: random(*shape, seed=i).astype(ml_dtypes.bfloat16) for i, n in enumerate("qkv")}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    declared = [(n, TensorProto.BFLOAT16, shape) for n in "qkv"]
    model = make_model([node], declared, [("y", TensorProto.BFLOAT16, shape)], opset=23)
    imported = import_onnx(model)
    counts = operators(imported)
    assert counts["matmul"] == 2 and counts["astype"] == 4
    got = InferenceSession(model, num_threads=1).run(None, arrays)[0]
    q, k, v = (arrays[n].astype(np.float64) for n in "qkv")
    wanted = attention(q, k, v, np.where(np.tri(S), 0, -np.inf))
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=3 * 2**-8)


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 2**-45), ("float32", 2**-18)])
def test_a_softmax_in_float64(dtype: str, bound: float) -> None:
    """Covers a row that sees nothing. Sums of up to 8 products near 1, in float64 or float32
    before and behind the softmax."""
    shape = (B, N, S, D)
    feeds = {n: random(*shape, seed=i).astype(dtype) for i, n in enumerate("qkv")}
    seen = np.random.default_rng(1).random((S, S)) < 0.7
    seen[1] = False
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Attention", [*"qkv", "m"], ["y"], softcap=3.0, softmax_precision=11)
    inputs = [(n, code, shape) for n in "qkv"] + [("m", TensorProto.BOOL, (S, S))]
    model = make_model([node], inputs, [("y", code, shape)], opset=25)
    model.ir_version = 10
    (got,) = InferenceSession(model, num_threads=1).run(None, feeds | {"m": seen})
    (wanted,) = ReferenceEvaluator(model).run(None, feeds | {"m": seen})
    np.testing.assert_allclose(got, wanted, rtol=0, atol=bound)


def test_a_causal_mask_is_no_constant() -> None:
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    model = make_model([node], [f32(n, 1, 2, 9, 8) for n in "qkv"], [f32("y", 1, 2, 9, 8)],
                       opset=23)  # fmt: skip
    counts = operators(compare(model, {n: random(1, 2, 9, 8) for n in "qkv"}, rtol=1e-4))
    assert counts == {
        "permute_dims": 1, "matmul": 2, "multiply": 1, "broadcast_to": 1, "triu": 1, "add": 1,
        "nn.softmax": 1,
    }  # fmt: skip
