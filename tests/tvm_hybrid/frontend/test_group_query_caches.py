"""Caller-owned caches of GroupQueryAttention: only new rows are written."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx_builder import CONTRIB, OnnxBuilder
from tvm_hybrid.errors import FeedError

from .attention_forms import ATOL, RTOL
from .models import onnxruntime_run
from .test_dynamic_attention import (
    SHARED,
    SIZE,
    Feeds,
    attention_kernels,
    decoder,
    decoder_feeds,
    finished,
    fixed_cache,
    random,
    session_of,
)

pytestmark = pytest.mark.turns

ROOM = 40
PASTS = ("past_k", "past_v")


def caches_of(feeds: Feeds, fill: float = 7) -> dict[str, np.ndarray]:
    """Larger arrays whose first rows are the pasts."""
    found = {}
    for name in PASTS:
        batch, heads, rows, size = feeds[name].shape
        found[name] = np.full((batch, heads, ROOM, size), fill, np.float32)
        found[name][:, :, :rows] = feeds[name]
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("total", ["input", "mask"])
@pytest.mark.parametrize("past", ["past", 24])
def test_only_new_rows_of_bound_caches_are_written(past: int | str, total: str) -> None:
    """Growing caches are rows of a larger array; fixed-size caches share memory with their past."""
    model = decoder(past, total)
    session = session_of(model)
    kernels = [node.kernel for node in session.explain()]
    assert kernels.count("row_update") == 2
    assert attention_kernels(session)
    copied = [node.op for node in session.explain() if "gather" in node.op or "pick" in node.op]
    assert not copied
    bound = session.executable.manifest.bound_outputs
    names = [each.name for each in session.get_inputs()]
    assert [each.cache for each in bound] == [None, *map(names.index, PASTS)]
    assert [each.has_room for each in bound] == [False, True, True]
    for lengths, n in (([0], 5), ([5], 1), ([5, 3], 1), ([0, 0], 3), ([7], 4), ([6, 6], 1)):
        feeds = decoder_feeds(lengths, n, past, total)
        for room in {feeds["past_k"].shape[2], 24}:
            for name in PASTS:
                feeds[name] = random(len(lengths), SHARED, room, SIZE, seed=5)
            expected = onnxruntime_run(model, feeds)
            present = expected[1].shape[2]
            caches, binding = caches_of(feeds), session.io_binding()
            old = {name: cache.copy() for name, cache in caches.items()}
            out, *presents = (each.name for each in session.get_outputs())
            binding.bind_output(out)
            for name, value in feeds.items():
                cached = name in PASTS
                binding.bind_input(name, caches[name][:, :, :room] if cached else value)
            for name, output in zip(PASTS, presents, strict=True):
                binding.bind_output(output, caches[name][:, :, :present])
            binding.run()
            np.testing.assert_allclose(binding.get_outputs()[0], expected[0], RTOL, ATOL)
            for name, wanted in zip(PASTS, expected[1:], strict=True):
                for b, length in enumerate(lengths):
                    new = slice(length, length + n)
                    np.testing.assert_allclose(
                        caches[name][b, :, new], wanted[b, :, new], RTOL, ATOL
                    )
                    old[name][b, :, new] = caches[name][b, :, new]
                np.testing.assert_array_equal(caches[name], old[name])


def test_a_total_that_an_array_has_no_rows_for_is_refused() -> None:
    model = decoder("past", "input")
    session = session_of(model)
    feeds, binding = decoder_feeds([5], 1, "past", "input"), session.io_binding()
    caches = caches_of(feeds)
    for name, value in feeds.items():
        binding.bind_input(name, caches[name][:, :, :5] if name in PASTS else value)
    out, *presents = (each.name for each in session.get_outputs())
    binding.bind_output(out)
    for name, output in zip(PASTS, presents, strict=True):
        binding.bind_output(output, caches[name][:, :, :9])
    with pytest.raises(FeedError, match=r"float32\[1, 2, 6, 16\]; it is bound to"):
        binding.run()
    for output in presents:  # outputs without arrays take the computed size
        binding.bind_output(output)
    binding.run()
    for found, wanted in zip(binding.get_outputs(), session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_attention_of_known_keys_does_not_read_rows_of_a_larger_array() -> None:
    """Such caches are copied, and results are right."""
    session, past = session_of(fixed_cache(24, 1)), [f"cache_{x}" for x in "kv"]
    assert not any(each.has_room for each in session.executable.manifest.bound_outputs)
    start = np.array([3, 9])
    feeds: Feeds = {"q": random(2, 4, 1, SIZE), "start": start, "count": start + 1}
    feeds |= {x: random(2, SHARED, 1, SIZE, seed=1) for x in "kv"}
    feeds |= {x: random(2, SHARED, 24, SIZE, seed=2) for x in past}
    expected, binding = session.run(None, feeds), session.io_binding()
    for name, value in feeds.items():
        binding.bind_input(name, value)
    out, *presents = (each.name for each in session.get_outputs())
    binding.bind_output(out)
    for output in presents:
        binding.bind_output(output, np.zeros((2, SHARED, ROOM, SIZE), np.float32)[:, :, :24])
    binding.run()
    for found, wanted in zip(binding.get_outputs(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("filled", [19, 23])
def test_a_buffer_of_a_known_total_gets_new_rows_where_it_ends(filled: int) -> None:
    """The total is constant, and the only sequence may be shorter."""
    build = OnnxBuilder()
    rows = [build.input(x, [1, 1, heads * SIZE]) for x, heads in (("q", 4), ("k", 2), ("v", 2))]
    cached = [build.input(name, [1, SHARED, 24, SIZE]) for name in PASTS]
    counts = [build.input("last", [1], np.int32), build.constant(np.array(24, np.int32))]
    outputs = build.nodes(
        "GroupQueryAttention", 3, *rows, *cached, *counts, domain=CONTRIB,
        num_heads=4, kv_num_heads=SHARED,
    )  # fmt: skip
    model = finished(build, *outputs)
    session = session_of(model)
    assert [node.kernel for node in session.explain()].count("row_update") == 2
    assert [each.cache for each in session.executable.manifest.bound_outputs] == [None, 3, 4]
    feeds = decoder_feeds([24], 1, 24, "input")
    feeds["last"] = np.array([filled], np.int32)
    del feeds["total"]
    expected = onnxruntime_run(model, feeds)
    old = feeds["past_k"].copy()
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_input(name, value)
    out, *presents = (each.name for each in session.get_outputs())
    binding.bind_output(out)
    for name, output in zip(PASTS, presents, strict=True):
        binding.bind_output(output, feeds[name])
    binding.run()
    np.testing.assert_allclose(binding.get_outputs()[0], expected[0], RTOL, ATOL)
    np.testing.assert_array_equal(feeds["past_k"][:, :, filled], expected[1][:, :, filled])
    old[:, :, filled] = feeds["past_k"][:, :, filled]
    np.testing.assert_array_equal(feeds["past_k"], old)
