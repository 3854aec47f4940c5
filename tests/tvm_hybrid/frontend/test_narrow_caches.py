"""GroupQueryAttention with float16, bfloat16 and 8-bit caches, with sinks, windows and caps."""

from __future__ import annotations

import mmap
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.onnx_builder import CONTRIB, OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.errors import UnsupportedOperatorError

from .attention_forms import ATOL, RTOL, caches
from .models import onnxruntime_run, random
from .test_dynamic_attention import (
    HEADS,
    SHARED,
    SIZE,
    Feeds,
    attention_kernels,
    run_bound,
    session_of,
)

pytestmark = pytest.mark.turns

ROOM = 24
PASTS = ("past_k", "past_v")
SINKS = np.array([0.5, -1, 2, 0.25], np.float32)
SCALES = {
    "PER_TENSOR": np.array([0.02], np.float32),
    "PER_CHANNEL": (0.01 + 0.02 * np.random.default_rng(0).random((1, SHARED, 1, SIZE))).astype(
        "f"
    ),
}
BF16 = ml_dtypes.bfloat16


def decoder(
    cache: Any = np.float32,
    queries: Any = np.float32,
    n: int | str = "n",
    past: int | str = "past",
    count: int = 0,
    cache_scale: np.ndarray | None = None,
    sink: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """Uses rotary embedding; `count` is a constant total if not 0; v has half of `cache_scale`."""
    build = OnnxBuilder()
    rows = [
        build.input(name, ["batch" if n == "n" else 1, n, heads * SIZE], queries)
        for name, heads in (("q", HEADS), ("k", SHARED), ("v", SHARED))
    ]
    batch = "batch" if n == "n" else 1
    cached = [build.input(name, [batch, SHARED, past, SIZE], cache) for name in PASTS]
    total = build.constant(count, np.int32) if count else build.input("total", [], np.int32)
    counts = [build.input("last", [batch], np.int32), total]
    tables = [build.constant(table.astype(queries)) for table in caches(SIZE // 2, length=1024)]
    others = ["", "", build.constant(SINKS.astype(queries)) if sink else ""]
    if cache_scale is not None:
        others += [build.constant(cache_scale), build.constant(cache_scale / 2)]
    outputs = build.nodes(
        "GroupQueryAttention", 3, *rows, *cached, *counts, *tables, *others,
        domain=CONTRIB, num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1, **attributes,
    )  # fmt: skip
    for name, dtype in zip(outputs, (queries, cache, cache), strict=True):
        build.output(name, None, dtype)
    return build.model()


def feeds_of(
    lengths: list[int], n: int, cache: Any = np.float32, queries: Any = np.float32, room: int = 0
) -> Feeds:
    """Sequences of `lengths` cached and `n` new keys; the past has `room` or the needed rows."""
    batch, most = len(lengths), max(lengths)
    feeds: Feeds = {
        name: random(batch, n, heads * SIZE, seed=seed).astype(queries)
        for seed, (name, heads) in enumerate((("q", HEADS), ("k", SHARED), ("v", SHARED)))
    }
    for seed, name in enumerate(PASTS, 5):
        array = random(batch, SHARED, room or most, SIZE, seed=seed)
        feeds[name] = (array * 40 if cache == np.int8 else array).astype(cache)
    feeds["last"] = np.array(lengths, np.int32) + n - 1
    feeds["total"] = np.array(most + n, np.int32)
    return feeds


STEPS = (([0], 5), ([5], 1), ([5, 3], 1), ([7], 4), ([20], 1), ([0], 40))


def check(
    session: InferenceSession, feeds: Feeds, expected: Any, atol: float = ATOL, rtol: float = RTOL
) -> None:
    """Compares the result and the valid rows of the caches."""
    found = session.run(None, feeds)
    result, wanted = (np.asarray(each[0], np.float64) for each in (found, expected))
    np.testing.assert_allclose(result, wanted, rtol, atol)
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        assert mine.dtype == theirs.dtype
        for number, last in enumerate(feeds["last"]):
            # Rotations round differently in the last place, and thus 8-bit keys at ties.
            rows = (np.asarray(x[number, :, : last + 1], np.float64) for x in (mine, theirs))
            one = mine.dtype == np.int8
            np.testing.assert_allclose(*rows, 0 if one else max(rtol, 1e-5), 1 if one else atol)


def stored(session: InferenceSession) -> str:
    """The workload, which names the types of q, k and v that the attention kernel reads."""
    (workload,) = [d.workload for d in session.explain() if "template attention" in d.reason]
    return workload


FORMS: dict[str, dict[str, Any]] = {
    "smooth": {"smooth_softmax": 1},
    "sink": {"sink": True},
    "window": {"local_window_size": 4},
    "cap": {"softcap": 1.5},
    "gemma": {"softcap": 1.5, "local_window_size": 4, "scale": 0.4},
    "gpt_oss": {"sink": True, "local_window_size": 4},
}


@pytest.mark.sampled
@pytest.mark.parametrize("past", ["past", ROOM])
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_softmax_are_one_kernel(form: str, past: int | str) -> None:
    model = decoder(past=past, **FORMS[form])
    session = session_of(model)
    assert len(attention_kernels(session)) == 1
    for lengths, n in STEPS:
        if past == "past" or max(lengths) + n <= ROOM:
            feeds = feeds_of(lengths, n, room=0 if past == "past" else ROOM)
            check(session, feeds, onnxruntime_run(model, feeds))


@pytest.mark.parametrize("form", ["gpt_oss", "gemma"])
def test_static_prompts_and_steps(form: str) -> None:
    for n, filled, kernel in ((9, 0, "avx512_f32"), (1, 23, "skinny")):
        model = decoder(n=n, past=ROOM, count=filled + n, **FORMS[form])
        session = InferenceSession(model, num_threads=1)
        (name,) = attention_kernels(session)
        assert kernel in name or "avx512" not in name
        feeds = feeds_of([filled], n, room=ROOM)
        del feeds["total"]
        check(session, feeds, onnxruntime_run(model, feeds))


@pytest.mark.sampled
@pytest.mark.parametrize("queries", [np.float32, np.float16])
@pytest.mark.parametrize("past", ["past", ROOM])
def test_caches_of_float16(past: int | str, queries: Any) -> None:
    """float16 caches are read directly; scores and probabilities are float32."""
    model = decoder(np.float16, queries, past=past)
    session = session_of(model)
    assert stored(session).count("float16") >= 2
    for lengths, n in STEPS:
        if past == "past" or max(lengths) + n <= ROOM:
            feeds = feeds_of(lengths, n, np.float16, queries, 0 if past == "past" else ROOM)
            check(session, feeds, onnxruntime_run(model, feeds), 2e-3, 2e-3)


def test_caches_of_bfloat16() -> None:
    """ONNX Runtime lacks this kernel: it runs with the cache's numbers as float32."""
    model, wide = decoder(BF16), decoder()
    session = session_of(model)
    assert "bfloat16" in stored(session)
    for lengths, n in STEPS:
        feeds = feeds_of(lengths, n, BF16)
        same = {**feeds, **{name: feeds[name].astype(np.float32) for name in PASTS}}
        # New keys are rounded, too: each score term by 2^-9.
        result, *presents = onnxruntime_run(wide, same)
        expected = [result, *(each.astype(BF16) for each in presents)]
        check(session, feeds, expected, 2e-2, 2e-2)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("queries", [np.float32, np.float16])
def test_caches_of_8_bits(kind: str, queries: Any) -> None:
    quantised = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 8}
    model = decoder(np.int8, queries, past=ROOM, cache_scale=SCALES[kind], sink=True, **quantised)
    session = session_of(model)
    assert stored(session).count("int8") == 2
    for lengths, n in STEPS:
        if max(lengths) + n <= ROOM:
            feeds = feeds_of(lengths, n, np.int8, queries, ROOM)
            near = 1e-4 if queries == np.float32 else 4e-3
            check(session, feeds, onnxruntime_run(model, feeds), near, near)


@pytest.mark.parametrize(
    ("cache", "change", "message"),
    [
        (np.uint8, {}, "8 bits in uint8"),
        (np.int8, {"kv_cache_bit_width": 4}, "4 bits in int8"),
        (np.float32, {}, "8 bits in float32"),
        (np.int8, {"cache_scale": None}, "needs k_scale"),
        (np.int8, {"k_quant_type": "NONE"}, "k_scale"),
    ],
)
def test_caches_that_are_refused(cache: Any, change: dict[str, Any], message: str) -> None:
    kind = "PER_TENSOR"
    attributes: dict[str, Any] = {"k_quant_type": kind, "v_quant_type": kind,
                                  "kv_cache_bit_width": 8, "cache_scale": SCALES[kind]}  # fmt: skip
    with pytest.raises(UnsupportedOperatorError, match=message):
        InferenceSession(decoder(cache, n=1, past=ROOM, **{**attributes, **change}), num_threads=1)


@pytest.mark.parametrize("cache", [np.float16, BF16, np.int8])
def test_past_and_present_in_one_buffer(cache: Any) -> None:
    """As onnxruntime-genai binds caches: new rows are written, and no other page is touched."""
    page = mmap.PAGESIZE // (np.dtype(cache).itemsize * SIZE)  # rows of a page
    room, kind = 3 * page, "PER_TENSOR"
    quantised: dict[str, Any] = {}
    if cache == np.int8:
        quantised = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 8,
                     "cache_scale": SCALES[kind]}  # fmt: skip
    session = session_of(decoder(cache, past=room, local_window_size=9, **quantised))
    kernels = [node.kernel for node in session.explain()]
    assert kernels.count("row_update") == 2
    assert len(attention_kernels(session)) == 1
    run_bound(session, feeds_of([page + 7], 1, cache, room=room), PASTS, page)
