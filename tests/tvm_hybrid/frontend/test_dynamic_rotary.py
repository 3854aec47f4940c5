"""Rotary embeddings with a dynamic number of tokens before attention: one program."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.onnx_builder import CONTRIB, OnnxBuilder
from tvm_hybrid import InferenceSession

from .attention_forms import ATOL, RTOL, caches
from .models import onnxruntime_run, random

pytestmark = pytest.mark.turns

HEADS, SHARED, SIZE = 4, 2, 16
COUNTS = {"q": HEADS, "k": SHARED, "v": SHARED}
Feeds = dict[str, NDArray[Any]]


def value(build: OnnxBuilder, name: str, rank: int) -> str:
    """A value with three or four axes."""
    heads = COUNTS[name]
    three = ["batch", "n", heads * SIZE]
    return build.input(name, three if rank == 3 else ["batch", heads, "n", SIZE])


def cache(build: OnnxBuilder) -> list[str]:
    """Cached keys and values."""
    return [build.input(f"past_{x}", ["batch", SHARED, "past", SIZE]) for x in "kv"]


def feeds_of(model: onnx.ModelProto, batch: int, n: int, past: int) -> Feeds:
    """Values for all inputs of a model."""
    sizes = {"batch": batch, "n": n, "past": past}
    feeds: Feeds = {}
    for seed, item in enumerate(model.graph.input):
        tensor = item.type.tensor_type
        shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in tensor.shape.dim]
        feeds[item.name] = random(*shape, seed=seed)
    if "positions" in feeds:
        feeds["positions"] = np.broadcast_to(np.arange(past, past + n), (batch, n)).copy()
    if "last" in feeds:
        feeds["last"] = np.full(batch, past + n - 1, np.int32)
        feeds["total"] = np.array(past + n, np.int32)
    return feeds


def check(model: onnx.ModelProto, found: list[NDArray[Any]], wanted: list[Any]) -> None:
    """Asserts that the results of two runs agree."""
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, RTOL, ATOL)


@pytest.mark.sampled
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("positions", ["of each token", ""])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [SIZE, SIZE // 2])
def test_standard_rotary_embedding_before_attention(
    rank: int, positions: str, interleaved: int, rotated: int
) -> None:
    build = OnnxBuilder(23)
    q, k, v = (value(build, name, rank) for name in COUNTS)
    if positions:
        tables = [build.constant(table) for table in caches(rotated // 2)]
        tables.append(build.input("positions", ["batch", "n"], np.int64))
    else:
        tables = [build.input(name, ["batch", "n", rotated // 2]) for name in ("cos", "sin")]
    q, k = (
        build.node("RotaryEmbedding", x, *tables, num_heads=heads, interleaved=interleaved,
                   rotary_embedding_dim=0 if rotated == SIZE else rotated)
        for x, heads in ((q, HEADS), (k, SHARED))
    )  # fmt: skip
    heads = {"q_num_heads": HEADS, "kv_num_heads": SHARED} if rank == 3 else {}
    for name in build.nodes("Attention", 3, q, k, v, "", *cache(build), is_causal=1, **heads):
        build.output(name, None)
    model = build.model()
    session, reference = InferenceSession(model, num_threads=1), ReferenceEvaluator(model)
    assert len(session.programs) == 1
    for sizes in ((1, 1, 7), (2, 5, 0), (2, 3, 9)):
        feeds = feeds_of(model, *sizes)
        check(model, session.run(None, feeds), reference.run(None, feeds))


@pytest.mark.sampled
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("positions", ["of each token", "of the first"])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_contrib_rotary_embedding_before_group_query_attention(
    rank: int, positions: str, interleaved: int
) -> None:
    build = OnnxBuilder()
    rows = {name: value(build, name, rank) for name in COUNTS}
    first = positions == "of the first"
    where = build.constant([3]) if first else build.input("positions", ["batch", "n"], np.int64)
    tables = [build.constant(table) for table in caches(SIZE // 2)]
    for name in "qk":
        rows[name] = build.node(
            "RotaryEmbedding", rows[name], where, *tables, domain=CONTRIB, interleaved=interleaved
        )
    if rank == 4:
        for name, heads in COUNTS.items():
            apart = build.node("Transpose", rows[name], perm=[0, 2, 1, 3])
            rows[name] = build.node("Reshape", apart, build.constant([0, 0, heads * SIZE]))
    counts = [build.input("last", ["batch"], np.int32), build.input("total", [], np.int32)]
    outputs = build.nodes(
        "GroupQueryAttention", 3, *rows.values(), *cache(build), *counts, domain=CONTRIB,
        num_heads=HEADS, kv_num_heads=SHARED,
    )  # fmt: skip
    for name in outputs:
        build.output(name, None)
    model = build.model()
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    for sizes in ((1, 1, 7), (2, 5, 0), (2, 1, 9), (1, 4, 3)):
        feeds = feeds_of(model, *sizes)
        check(model, session.run(None, feeds), onnxruntime_run(model, feeds))
