"""Attention with dynamic numbers of sequences, tokens and cached keys: one program."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.guard import on_pages, read_only
from tests.onnx_builder import CONTRIB, OnnxBuilder
from tvm_hybrid import InferenceSession

from .attention_forms import ATOL, RTOL, caches
from .models import onnxruntime_run, random

pytestmark = pytest.mark.turns

HEADS, SHARED, SIZE = 4, 2, 16
Feeds = dict[str, NDArray[Any]]


def session_of(model: onnx.ModelProto) -> InferenceSession:
    """A session with one program for all sizes."""
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1, "some sizes cannot stay dynamic"
    return session


def attention_kernels(session: InferenceSession) -> list[str]:
    """Kernels of the attention template."""
    return [each.kernel for each in session.explain() if "template attention" in each.reason]


def finished(build: OnnxBuilder, *outputs: str) -> onnx.ModelProto:
    """The model, with outputs of undeclared shape."""
    for name in outputs:
        build.output(name, None)
    return build.model()


def decoder(past: int | str, total: str) -> onnx.ModelProto:
    """GroupQueryAttention with rotary embedding; an input or a mask gives the total of keys."""
    build = OnnxBuilder()
    q, k, v = (
        build.input(name, ["batch", "n", heads * SIZE])
        for name, heads in (("q", HEADS), ("k", SHARED), ("v", SHARED))
    )
    cached = [build.input(name, ["batch", SHARED, past, SIZE]) for name in ("past_k", "past_v")]
    if total == "input":
        counts = [build.input("last", ["batch"], np.int32), build.input("total", [], np.int32)]
    else:
        mask = build.input("mask", ["batch", "total"], np.int64)
        length = build.node("Gather", build.node("Shape", mask), build.constant(1), axis=0)
        count = build.node("ReduceSum", mask, build.constant([1]), keepdims=0)
        last = build.node("Sub", count, build.constant(1))
        counts = [build.node("Cast", each, to=onnx.TensorProto.INT32) for each in (last, length)]
    tables = [build.constant(table) for table in caches(SIZE // 2)]
    outputs = build.nodes(
        "GroupQueryAttention", 3, q, k, v, *cached, *counts, *tables,
        domain=CONTRIB, num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1,
    )  # fmt: skip
    return finished(build, *outputs)


def decoder_feeds(lengths: list[int], n: int, past: int | str, total: str) -> Feeds:
    """Feeds of sequences with `lengths` cached keys each and `n` new keys."""
    batch, most = len(lengths), max(lengths)
    room = past if isinstance(past, int) else most
    feeds: Feeds = {
        name: random(batch, n, heads * SIZE, seed=seed)
        for seed, (name, heads) in enumerate((("q", HEADS), ("k", SHARED), ("v", SHARED)))
    }
    feeds |= {f"past_{x}": random(batch, SHARED, room, SIZE, seed=5) for x in "kv"}
    if total == "input":
        feeds["last"] = np.array(lengths, np.int32) + n - 1
        feeds["total"] = np.array(most + n, np.int32)
    else:
        columns = np.arange(most + n)
        feeds["mask"] = (columns < np.array(lengths)[:, None] + n).astype(np.int64)
    return feeds


@pytest.mark.sampled
@pytest.mark.parametrize("total", ["input", "mask"])
@pytest.mark.parametrize("past", ["past", 24])
def test_group_query_attention_of_any_cache(past: int | str, total: str) -> None:
    """A growing cache and one of fixed size; sequences of different lengths."""
    model = decoder(past, total)
    session = session_of(model)
    for lengths, n in (([0], 5), ([5], 1), ([5, 3], 1), ([0, 0], 3), ([9, 1, 4], 1), ([7], 4)):
        feeds = decoder_feeds(lengths, n, past, total)
        found, expected = session.run(None, feeds), onnxruntime_run(model, feeds)
        np.testing.assert_allclose(found[0], expected[0], RTOL, ATOL)
        for mine, theirs, old in zip(
            found[1:], expected[1:], (feeds["past_k"], feeds["past_v"]), strict=True
        ):
            assert mine.shape == theirs.shape
            for b, length in enumerate(lengths):
                end = length + n
                np.testing.assert_allclose(mine[b, :, :end], theirs[b, :, :end], RTOL, ATOL)
                room = old.shape[2]
                np.testing.assert_array_equal(mine[b, :, end:room], old[b, :, end:room])
    assert attention_kernels(session)


@pytest.mark.parametrize("keys", ["n", "m"])
def test_unidirectional_attention_of_any_lengths(keys: str) -> None:
    """The kernel applies the diagonal if there are as many keys as queries; otherwise a mask does,
    whose last row shows all keys."""
    build = OnnxBuilder()
    q = build.input("q", ["batch", "n", HEADS * SIZE])
    k, v = (build.input(name, ["batch", keys, HEADS * SIZE]) for name in "kv")
    past = [build.input(f"past_{x}", ["batch", HEADS, "past", SIZE]) for x in "kv"]
    model = finished(build, *build.nodes(
        "MultiHeadAttention", 3, q, k, v, "", "", "", *past, domain=CONTRIB, num_heads=HEADS,
        unidirectional=1,
    ))  # fmt: skip
    session = session_of(model)
    for n, m, before in ((1, 1, 0), (1, 9, 0), (5, 5, 3), (5, 40, 2), (1, 7, 3), (6, 2, 4)):
        new = n if keys == "n" else m
        feeds: Feeds = {"q": random(2, n, HEADS * SIZE)}
        feeds |= {x: random(2, new, HEADS * SIZE, seed=1) for x in "kv"}
        feeds |= {f"past_{x}": random(2, HEADS, before, SIZE, seed=2) for x in "kv"}
        found, expected = session.run(None, feeds), onnxruntime_run(model, feeds)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, RTOL, ATOL)
    (workload,) = [d.workload for d in session.explain() if "template attention" in d.reason]
    assert ("causal=past" in workload) == (keys == "n")


@pytest.mark.sampled
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("mask", ["", "float32", "bool"])
def test_standard_attention_of_any_past(is_causal: int, mask: str) -> None:
    build = OnnxBuilder(23)
    q = build.input("q", ["batch", "n", HEADS * SIZE])
    k, v = (build.input(name, ["batch", "n", SHARED * SIZE]) for name in "kv")
    past = [build.input(f"past_{x}", ["batch", SHARED, "past", SIZE]) for x in "kv"]
    seen = build.input("seen", ["batch", 1, "n", "past + n"], np.dtype(mask)) if mask else ""
    model = finished(build, *build.nodes(
        "Attention", 3, q, k, v, seen, *past, is_causal=is_causal, q_num_heads=HEADS,
        kv_num_heads=SHARED,
    ))  # fmt: skip
    model.ir_version = 10
    session, reference = session_of(model), ReferenceEvaluator(model)
    for batch, n, before in ((1, 1, 0), (1, 1, 7), (2, 5, 0), (2, 5, 9), (1, 40, 3)):
        feeds: Feeds = {"q": random(batch, n, HEADS * SIZE)}
        feeds |= {x: random(batch, n, SHARED * SIZE, seed=1) for x in "kv"}
        feeds |= {f"past_{x}": random(batch, SHARED, before, SIZE, seed=2) for x in "kv"}
        if mask:
            feeds["seen"] = random(batch, 1, n, before + n, seed=3)
            feeds["seen"] = feeds["seen"] > -0.5 if mask == "bool" else feeds["seen"]
        for mine, theirs in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
            np.testing.assert_allclose(mine, theirs, RTOL, ATOL)
    assert attention_kernels(session)


def fixed_cache(room: int, is_causal: int) -> onnx.ModelProto:
    """TensorScatter writes new keys into a cache of `room` rows, to which queries attend."""
    build = OnnxBuilder(24)
    q = build.input("q", ["batch", HEADS, "n", SIZE])
    k, v = (build.input(name, ["batch", SHARED, "n", SIZE]) for name in "kv")
    cached = [build.input(f"cache_{x}", ["batch", SHARED, room, SIZE]) for x in "kv"]
    start = build.input("start", ["batch"], np.int64)
    count = build.input("count", ["batch"], np.int64)
    present = [
        build.node("TensorScatter", old, new, start, axis=2)
        for old, new in zip(cached, (k, v), strict=True)
    ]
    y = build.node("Attention", q, *present, "", "", "", count, is_causal=is_causal)
    model = finished(build, y, *present)
    model.ir_version = 10
    return model


@pytest.mark.parametrize("is_causal", [0, 1])
def test_a_cache_of_fixed_size_outside(is_causal: int) -> None:
    """TensorScatter writes the new keys, Attention gets their number; some queries see no key."""
    model = fixed_cache(12, is_causal)
    session = session_of(model)
    for starts, n in (([0], 3), ([6], 1), ([2, 7], 1), ([1, 4, 0], 2)):
        batch = len(starts)
        feeds: Feeds = {"q": random(batch, HEADS, n, SIZE)}
        feeds |= {x: random(batch, SHARED, n, SIZE, seed=1) for x in "kv"}
        feeds |= {f"cache_{x}": random(batch, SHARED, 12, SIZE, seed=2) for x in "kv"}
        feeds["start"] = np.array(starts, np.int64)
        feeds["count"] = feeds["start"] + n - (n == 2)
        found = session.run(None, feeds)
        keys, values = (np.repeat(each, HEADS // SHARED, 1) for each in found[1:])
        scores = feeds["q"].astype(float) @ keys.swapaxes(2, 3) / np.sqrt(SIZE)
        limit = feeds["count"][:, None, None, None] + np.arange(1, n + 1)[:, None] - n
        limit = limit if is_causal else feeds["count"][:, None, None, None]
        weights = np.exp(np.where(np.arange(12) < limit, scores, -np.inf))
        expected = weights @ values / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
        np.testing.assert_allclose(found[0], expected, RTOL, ATOL)
        for b, first in enumerate(starts):
            np.testing.assert_array_equal(found[1][b, :, first : first + n], feeds["k"][b])
    assert attention_kernels(session)


def run_bound(session: InferenceSession, feeds: Feeds, pasts: Sequence[str], page: int) -> None:
    """Runs with past and present in one array; results equal a run with separate arrays.

    A page of rows is written in each head; the pages before and behind it are read-only.
    """
    expected, binding = session.run(None, feeds), session.io_binding()
    out, *presents = (each.name for each in session.get_outputs())
    binding.bind_output(out)
    with ExitStack() as scope:
        for name, value in feeds.items():
            if name in pasts:
                value = on_pages(value)
                binding.bind_output(presents[pasts.index(name)], value)
                for head in value.reshape(-1, *value.shape[-2:]):
                    scope.enter_context(read_only(head[:page]))
                    scope.enter_context(read_only(head[2 * page :]))
            binding.bind_input(name, value)
        binding.run()
    for found, wanted in zip(binding.get_outputs(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("form", ["input", "mask", "TensorScatter"])
def test_a_bound_cache_of_fixed_size_is_not_copied(form: str) -> None:
    """The other pages of the past are read-only during the run."""
    page = mmap.PAGESIZE // (4 * SIZE)  # rows of a page
    room, lengths = 3 * page, [page, page + 7]
    if form in ("input", "mask"):  # total is an input of GroupQueryAttention
        model = decoder(room, form)
        feeds = decoder_feeds(lengths, 1, room, form)
        past = [f"past_{x}" for x in "kv"]
    else:
        model, past = fixed_cache(room, 1), [f"cache_{x}" for x in "kv"]
        feeds = {"q": random(2, HEADS, 1, SIZE), "start": np.array(lengths)}
        feeds |= {x: random(2, SHARED, 1, SIZE, seed=1) for x in "kv"}
        feeds |= {x: random(2, SHARED, room, SIZE, seed=2) for x in past}
        feeds["count"] = feeds["start"] + 1
    session = session_of(model)
    kernels = [node.kernel for node in session.explain()]
    assert kernels.count("row_update") == 2
    run_bound(session, feeds, past, page)
