"""ONNX Runtime's attention operators compared with ONNX Runtime.

Many forms are nodes of one model, so that each test compiles once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError
from tests.onnx_builder import CONTRIB
from tvm_hybrid import InferenceSession
from tvm_hybrid.frontend import import_onnx

from .attention_forms import (
    ATOL,
    RTOL,
    B,
    D,
    Forms,
    H,
    N,
    S,
    attention,
    caches,
    heads,
    integers,
    rows,
)
from .models import compare, f32, make_model, onnxruntime_run, random

pytestmark = pytest.mark.turns

# Attention and QAttention --------------------------------------------------------------------


def test_packed_attention() -> None:
    g = Forms("Attention")
    x = g.feed(random(B, S, 16))
    w, b = g.constant(random(16, 3 * H, seed=1) / 4), g.constant(random(3 * H, seed=2))
    lengths, ends = g.feed(integers(5, 3)), g.feed(integers(5, 4, 1, 2))
    rows = g.feed(integers([1, 1, 1, 0, 0], [0, 1, 1, 1, 1]))
    whole = (np.arange(B * S * S).reshape(B, S, S) % 3 > 0).astype(np.int32)
    bias = g.feed(random(1, N, S, S, seed=3))
    past = g.feed(random(2, B, N, 4, D, seed=4))
    longer = g.feed(integers([1] * 9, [0, 0, 1, 1, 1, 1, 1, 1, 0]))
    g.add(x, w, b, num_heads=N)
    g.add(x, w, b, num_heads=N, scale=0.3)
    g.add(x, w, b, num_heads=N, unidirectional=1)
    g.add(x, w, b, lengths, num_heads=N)
    g.add(x, w, b, ends, num_heads=N, mask_filter_value=-3.0)
    g.add(x, w, b, rows, num_heads=N, unidirectional=1)
    g.add(x, w, b, g.feed(whole), num_heads=N)
    g.add(x, w, b, rows, "", bias, num_heads=N)
    g.add(x, w, b, "", past, num_heads=N, outputs=2, ranks=[3, 5], unidirectional=1)
    g.add(x, w, b, longer, past, num_heads=N, outputs=2, ranks=[3, 5])
    narrow = g.constant(random(16, 2 * H + 6, seed=5) / 4)
    g.add(x, narrow, g.constant(random(2 * H + 6)), num_heads=N, qkv_hidden_sizes=[H, H, 6])
    g.check()


def test_mask_of_every_position_of_the_longest_sequence() -> None:
    """ONNX Runtime's CPU kernel lacks it; its CUDA kernel reads rows and columns up to here."""
    g = Forms("Attention")
    x, w = random(B, S, 16), random(16, 3 * H, seed=1) / 4
    mask = (np.random.default_rng(0).random((B, 1, 7, 7)) < 0.7).astype(np.int32)
    g.add(g.feed(x), g.constant(w), "", g.feed(mask), num_heads=N)
    q, k, v = (heads(part) for part in np.split(x @ w, 3, axis=2))
    added = np.where(mask[:, :, :S, :S], 0.0, -10000.0)
    g.check([rows(attention(q, k, v, added))])


def test_quantized_attention() -> None:
    """8-bit products are exact; later values are compared as floats."""
    rng = np.random.default_rng(3)
    g = Forms("QAttention")
    x = g.feed(rng.integers(0, 256, (B, S, 16)).astype(np.uint8))
    w = g.constant(rng.integers(-127, 128, (16, 3 * H)).astype(np.int8))
    b, x_scale = g.constant(random(3 * H, seed=2)), g.feed(np.array(0.011, np.float32))
    w_scale = g.constant(np.array(0.004, np.float32))
    x_zero, w_zero = g.feed(np.array(131, np.uint8)), g.constant(np.array(0, np.int8))
    lengths = g.feed(integers(5, 3))
    g.add(x, w, b, x_scale, w_scale, "", x_zero, w_zero, num_heads=N)
    g.add(x, w, b, x_scale, w_scale, lengths, x_zero, w_zero, num_heads=N, unidirectional=1)
    g.check()


# MultiHeadAttention --------------------------------------------------------------------------


def test_multi_head_attention() -> None:
    g = Forms("MultiHeadAttention")
    q, k, v = (g.feed(random(B, S, H, seed=seed)) for seed in range(3))
    far_k, far_v = g.feed(random(B, 7, H, seed=3)), g.feed(random(B, 7, N * 4, seed=4))
    bias, narrow = g.constant(random(3 * H, seed=5)), g.constant(random(2 * H + N * 4, seed=6))
    lengths = g.feed(integers(2, 5))
    keys = g.feed(integers([1, 1, 0, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]))
    added = g.feed(random(B, 1, S, S, seed=7))
    past = [g.feed(random(B, N, 3, D, seed=seed)) for seed in (8, 9)]
    longer = g.feed(integers([0, 1, 1, 1, 1, 1, 1, 0], [1] * 8))
    g.add(q, k, v, num_heads=N)
    g.add(q, k, v, bias, num_heads=N, scale=0.2, unidirectional=1)
    g.add(q, far_k, far_v, num_heads=N)
    g.add(q, far_k, far_v, narrow, keys, num_heads=N, mask_filter_value=-5.0)
    g.add(q, k, v, "", lengths, added, num_heads=N)
    g.add(q, k, v, bias, num_heads=N, outputs=3, ranks=[3, 4, 4])
    g.add(q, k, v, "", "", "", *past, num_heads=N, outputs=3, ranks=[3, 4, 4], unidirectional=1)
    g.add(q, k, v, bias, longer, "", *past, num_heads=N, outputs=3, ranks=[3, 4, 4])
    cached = [g.feed(random(B, N, 6, D, seed=seed)) for seed in (10, 11)]
    g.add(q, *cached, num_heads=N)
    g.check()


def test_unidirectional_with_other_numbers_of_keys() -> None:
    """The diagonal begins behind the past; the last or only query sees all keys."""
    g = Forms("MultiHeadAttention")
    q, one = g.feed(random(B, S, H)), g.feed(random(B, 1, H, seed=1))
    far_k, far_v = (g.feed(random(B, 7, H, seed=seed)) for seed in (2, 3))
    near_k, near_v = (g.feed(random(B, 3, H, seed=seed)) for seed in (4, 5))
    past = [g.feed(random(B, N, 4, D, seed=seed)) for seed in (6, 7)]
    keys = g.feed(integers([0, 1, 0, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]))
    common: dict[str, Any] = {"num_heads": N, "unidirectional": 1}
    g.add(q, far_k, far_v, **common)
    g.add(q, far_k, far_v, "", keys, **common)
    g.add(q, near_k, near_v, **common)
    g.add(q, far_k, far_v, "", "", "", *past, **common, outputs=3, ranks=[3, 4, 4])
    g.add(q, near_k, near_v, "", "", "", *past, **common, outputs=3, ranks=[3, 4, 4])
    g.add(one, far_k, far_v, "", keys, **common)
    g.check()


LEAST = float(np.finfo(np.float32).min)


def test_a_causal_mask_is_the_lowest_number_where_others_are_as_low() -> None:
    """Rows whose keys are all padded, or all have the lowest number as bias, see later keys."""
    g = Forms("MultiHeadAttention")
    q, k, v = (g.feed(random(B, S, H, seed=seed)) for seed in range(3))
    keys = g.feed(integers([0, 0, 1, 1, 1], [1, 1, 0, 0, 0]))
    low, hidden = random(B, 1, S, S, seed=3), random(B, N, S, S, seed=4)
    low[..., :2] = LEAST
    hidden[..., :2] = -np.inf
    common: dict[str, Any] = {"num_heads": N, "unidirectional": 1}
    for number in (-1e9, LEAST):  # sums of these numbers with scores are exact
        g.add(q, k, v, "", keys, **common, mask_filter_value=number)
    g.add(q, k, v, "", "", g.feed(low), **common)
    g.add(q, k, v, "", "", g.feed(hidden), **common)
    g.add(q, k, v, "", keys, g.feed(hidden), **common, mask_filter_value=-1e9)
    g.check()
    g = Forms("Attention")
    x, w = g.feed(random(B, S, 16)), g.constant(random(16, 3 * H, seed=1) / 4)
    g.add(x, w, "", g.feed(integers([0, 0, 1, 1, 1], [1, 1, 0, 0, 0])), **common,
          mask_filter_value=LEAST)  # fmt: skip
    g.check()


def test_multi_head_attention_of_packed_operands() -> None:
    """Packed operands are those of ONNX Runtime's GPU kernels."""
    g = Forms("MultiHeadAttention")
    q, kv, qkv = random(B, S, H), random(B, 7, N, 2, D, seed=1), random(B, S, N, 3, D, seed=2)
    lengths = np.arange(3 * B + 2, dtype=np.int32) + 1
    g.add(g.feed(q), g.feed(kv), num_heads=N)
    g.add(g.feed(qkv), "", "", "", g.feed(lengths), num_heads=N)
    k, v = (kv[:, :, :, i].swapaxes(1, 2) for i in range(2))
    a, b, c = (qkv[:, :, :, i].swapaxes(1, 2) for i in range(3))
    hidden = np.where(np.arange(S) < lengths[:B, None, None, None], 0, -10000.0)
    g.check([rows(attention(heads(q), k, v)), rows(attention(a, b, c, hidden))])


# GroupQueryAttention and RotaryEmbedding -----------------------------------------------------


def test_group_query_attention_of_one_sequence() -> None:
    """Prompt, continuation and decoding; the cache has the exact size, more room, or is absent."""
    g = Forms("GroupQueryAttention")
    common: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}
    q, k, v = (g.feed(random(1, S, n * 16, seed=i)) for i, n in enumerate((4, 2, 2)))
    qkv = g.feed(random(1, S, 8 * 16, seed=3))
    one = [g.feed(random(1, 1, n * 16, seed=4 + i)) for i, n in enumerate((4, 2, 2))]
    past = [g.feed(random(1, 2, 6, 16, seed=7 + i)) for i in range(2)]
    cos_sin = [g.constant(table) for table in caches(8)]

    def total(count: int) -> list[str]:
        return [g.feed(integers(count - 1)), g.constant(np.array(count, np.int32))]

    shapes: dict[str, Any] = {"outputs": 3, "ranks": [3, 4, 4]}
    g.add(q, k, v, "", "", *total(S), **common, **shapes)
    g.add(qkv, "", "", "", "", *total(S), *cos_sin, **common, **shapes, do_rotary=1)
    g.add(q, k, v, *past, *total(6 + S), **common, **shapes, scale=0.3, softcap=1.5)
    g.add(*one, *past, *total(7), *cos_sin, **common, **shapes, do_rotary=1)
    g.add(*one, *past, *total(7), *cos_sin, **common, **shapes, do_rotary=1, rotary_interleaved=1)
    g.add(q, k, v, *past, *total(6 + S), **common, **shapes, local_window_size=3)
    g.add(q, k, v, "", "", *total(S), **common, **shapes, local_window_size=2)
    g.check()


def test_group_query_attention_of_sequences_of_different_lengths() -> None:
    g = Forms("GroupQueryAttention")
    common: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 1}
    q, k, v = (g.feed(random(B, 1, n * 16, seed=i)) for i, n in enumerate((4, 1, 1)))
    past = [g.feed(random(B, 1, 6, 16, seed=7 + i)) for i in range(2)]
    cos_sin = [g.constant(table) for table in caches(8)]
    lengths, total = g.feed(integers(6, 3)), g.constant(np.array(7, np.int32))
    shapes: dict[str, Any] = {"outputs": 3, "ranks": [3, 4, 4]}
    g.add(q, k, v, *past, lengths, total, *cos_sin, **common, **shapes, do_rotary=1)
    g.add(q, k, v, *past, lengths, total, **common, **shapes, local_window_size=3)
    prompt = [g.feed(random(B, S, n * 16, seed=i)) for i, n in enumerate((4, 1, 1))]
    whole = [g.feed(integers(S - 1, S - 1)), g.constant(np.array(S, np.int32))]
    g.add(*prompt, "", "", *whole, *cos_sin, **common, **shapes, do_rotary=1)
    g.check(ranks=(3,))  # rows behind the end of a sequence are undefined


def test_softmax_with_one_more_key() -> None:
    """smooth_softmax adds a key with score 0; head_sink adds a key with a score for each head."""
    g = Forms("GroupQueryAttention")
    common: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2, "outputs": 3, "ranks": [3, 4, 4]}
    q, k, v = (g.feed(random(B, S, n * 16, seed=i)) for i, n in enumerate((4, 2, 2)))
    sink = g.constant(np.array([0.5, -1, 2, 0.25], np.float32))
    given = g.feed(np.array([3, 1, -2, 0], np.float32))
    whole = [g.feed(integers(S - 1, S - 1)), g.constant(np.array(S, np.int32))]
    g.add(q, k, v, "", "", *whole, **common, smooth_softmax=1)
    g.add(q, k, v, "", "", *whole, "", "", "", "", sink, **common)
    one = [g.feed(random(B, 1, n * 16, seed=4 + i)) for i, n in enumerate((4, 2, 2))]
    past = [g.feed(random(B, 2, 6, 16, seed=7 + i)) for i in range(2)]
    counts = [g.feed(integers(6, 3)), g.constant(np.array(7, np.int32))]
    g.add(*one, *past, *counts, "", "", "", "", given, **common, softcap=1.5)
    g.check(ranks=(3,))


def test_a_cache_is_updated_where_each_sequence_ends() -> None:
    g = Forms("GroupQueryAttention")
    q, k, v = (random(B, 2, 16, seed=i) for i in range(3))
    past = [random(B, 1, 6, 16, seed=3 + i) for i in range(2)]
    names = [g.feed(x) for x in (q, k, v, *past)]
    lengths, total = g.feed(integers(5, 3)), g.constant(np.array(6, np.int32))
    g.add(*names, lengths, total, num_heads=1, kv_num_heads=1, outputs=3, ranks=[3, 4, 4])
    present = [np.copy(x) for x in past]
    results = []
    for b, before in enumerate((4, 2)):
        for buffer, new in zip(present, (k, v), strict=True):
            buffer[b, 0, before : before + 2] = new[b]
        hidden = np.where(np.arange(6) > before + np.arange(2)[:, None], -np.inf, 0)
        seen_k, seen_v = (x[b : b + 1] for x in present)
        results.append(attention(q[b : b + 1, None], seen_k, seen_v, hidden)[:, 0])
    g.check([np.concatenate(results), *present])


def test_contrib_rotary_embedding() -> None:
    g = Forms("RotaryEmbedding")
    x, y = g.feed(random(B, S, H)), g.feed(random(B, N, S, D, seed=1))
    cos, sin = (g.constant(table) for table in caches(D // 2))
    short = [g.constant(table) for table in caches(2)]
    first = g.feed(np.array([3], np.int64))
    each = g.feed(np.random.default_rng(0).integers(0, 32, (B, S)))
    g.add(x, first, cos, sin)
    g.add(x, each, cos, sin, interleaved=1)
    g.add(y, each, cos, sin, ranks=[4])
    g.add(x, each, *short, num_heads=N, rotary_embedding_dim=4)
    g.check()


# Decisions -----------------------------------------------------------------------------------


def test_forms_through_the_whole_compiler() -> None:
    """Fused: a mask of lengths and positions, shared keys after a past, a single query."""
    nodes = [
        helper.make_node("Attention", ["x", "w", "b", "m"], ["a"], domain=CONTRIB, num_heads=N,
                         unidirectional=1),
        helper.make_node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "s", "t"],
                         ["g", "nk", "nv"], domain=CONTRIB, num_heads=4, kv_num_heads=2),
    ]  # fmt: skip
    feeds: dict[str, NDArray[Any]] = {
        "x": random(B, 21, 16), "m": integers(21, 13), "q": random(1, 1, 64),
        "k": random(1, 1, 32, seed=1), "v": random(1, 1, 32, seed=2),
        "pk": random(1, 2, 18, 16, seed=3), "pv": random(1, 2, 18, 16, seed=4), "s": integers(18),
    }  # fmt: skip
    constants = {
        "w": random(16, 3 * H) / 4, "b": random(3 * H, seed=5), "t": np.array(19, np.int32)
    }  # fmt: skip
    declared = [(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
    outputs = [f32("a", B, 21, H), f32("g", 1, 1, 64)]
    outputs += [f32(n, 1, 2, 19, 16) for n in ("nk", "nv")]
    model = make_model(nodes, declared, outputs, constants)
    session = InferenceSession(model, num_threads=1)
    for got, wanted in zip(session.run(None, feeds), onnxruntime_run(model, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, RTOL, ATOL)
    assert sum("causal=0" in decision.workload for decision in session.explain().taken) == 1


def test_embeddings_and_lengths_of_a_whole_model() -> None:
    """Shapes behind ONNX Runtime's own operators are known."""
    words, places, kinds = (random(n, H, seed=i) for i, n in enumerate((20, 9, 2)))
    constants = {
        "words": words, "places": places, "kinds": kinds, "gamma": random(H), "beta": random(H),
        "w": random(H, 3 * H, seed=4) / 5, "b": random(3 * H, seed=5),
    }  # fmt: skip
    names = ["words", "places", "kinds", "gamma", "beta", "mask"]
    nodes = [
        helper.make_node(
            "EmbedLayerNormalization", ["ids", "types", *names], ["e", "count", "sum"],
            domain=CONTRIB, epsilon=1e-5,
        ),
        helper.make_node("Attention", ["e", "w", "b", "count"], ["y"], domain=CONTRIB,
                         num_heads=N),
    ]  # fmt: skip
    declared = [(n, TensorProto.INT32, (B, S)) for n in ("ids", "types", "mask")]
    outputs = [f32("y", B, S, H), ("count", TensorProto.INT32, [B]), f32("sum", B, S, H)]
    model = make_model(nodes, declared, outputs, constants)
    feeds = {
        "ids": integers(*np.arange(B * S).reshape(B, S)), "types": integers([0] * S, [1] * S),
        "mask": integers([1] * S, [1, 1, 0, 0, 0]),
    }  # fmt: skip
    compare(model, feeds, onnxruntime_run(model, feeds), atol=ATOL)


def test_embeddings_in_8_bits() -> None:
    rng = np.random.default_rng(5)
    shapes = {"words": (20, H), "places": (9, H), "kinds": (2, H), "gamma": (H,), "beta": (H,)}
    constants: dict[str, NDArray[Any]] = {
        name: rng.integers(0, 256, shape).astype(np.uint8) for name, shape in shapes.items()
    }
    for i, name in enumerate(shapes):
        constants[f"{name}_scale"] = np.array(0.01 * (i + 1), np.float32)
        constants[f"{name}_zero"] = np.array(100 + i, np.uint8)
    names = [*shapes, "mask", *(f"{n}_scale" for n in shapes), *(f"{n}_zero" for n in shapes)]
    node = helper.make_node("QEmbedLayerNormalization", ["ids", "types", *names], ["e", "count"],
                            domain=CONTRIB)  # fmt: skip
    declared = [(n, TensorProto.INT32, (B, S)) for n in ("ids", "types", "mask")]
    outputs = [f32("e", B, S, H), ("count", TensorProto.INT32, [B])]
    model = make_model([node], declared, outputs, constants)
    feeds = {
        "ids": integers(*np.arange(B * S).reshape(B, S)), "types": integers([0] * S, [1] * S),
        "mask": integers([1] * S, [1, 1, 0, 0, 0]),
    }  # fmt: skip
    compare(model, feeds, onnxruntime_run(model, feeds), atol=ATOL)


# Refusals ------------------------------------------------------------------------------------

_X, _W = ("x", (B, S, 16)), ("w", (16, 3 * H))
_Q = tuple((n, (B, S, H)) for n in "qkv")


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("Attention", (_X, _W), {"num_heads": N, "do_rotary": 1}, "do_rotary"),
        ("Attention", (_X, ("w", (16, 70))), {"num_heads": N}, "70 columns"),
        ("Attention", (_X, _W), {"num_heads": 5}, "24 columns for 5 heads"),
        ("Attention", (_X, _W, ("b", (3 * H,)), ("m", (4, 4))), {"num_heads": N}, "mask has"),
        ("MultiHeadAttention", _Q[:2], {"num_heads": N}, "shapes"),
        ("MultiHeadAttention", (*_Q, ("b", (7,))), {"num_heads": N}, r"bias.*\(7,\)"),
        ("GroupQueryAttention", _Q, {"num_heads": 3, "kv_num_heads": 2}, "kv_num_heads"),
        ("GroupQueryAttention", _Q, {"num_heads": 3, "kv_num_heads": 3, "qk_output": 1},
         "qk_output"),
        ("GroupQueryAttention", _Q, {"num_heads": 3, "kv_num_heads": 3, "causal": 0}, "causal"),
        ("GroupQueryAttention", _Q, {"num_heads": 3, "kv_num_heads": 3, "local_window_size": 2,
         "sliding_window_cache": 1}, "sliding_window_cache"),
        ("RotaryEmbedding", (_X, ("p", (B, 3)), ("c", (9, 8)), ("s", (9, 8))), {}, "position_ids"),
    ],
)  # fmt: skip
def test_refused_forms_name_the_node_and_what_is_wrong(
    op_type: str, inputs: Any, attributes: dict[str, Any], message: str
) -> None:
    node = helper.make_node(
        op_type, [n for n, _ in inputs], ["y"], name="the node", domain=CONTRIB, **attributes
    )
    whole = {"m", "s", "t", "p"}
    declared = [
        (n, TensorProto.INT32 if n in whole and n != "s" else TensorProto.FLOAT, shape)
        for n, shape in inputs
    ]
    model = make_model([node], declared, [f32("y", None, None, None)])
    with pytest.raises((ModelError, UnsupportedOperatorError), match=f"the node.*{message}"):
        import_onnx(model)
