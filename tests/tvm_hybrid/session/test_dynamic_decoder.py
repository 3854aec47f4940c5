"""A decoder layer with a key-value cache: one program for every batch, length and past.

Grouped queries, rotary positions, an RMS norm, a mask that hides later keys, and a cache that is
empty at first. Written as exporters do, with casts that change nothing.
"""

from __future__ import annotations

import mmap
from contextlib import ExitStack

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.guard import on_pages, read_only
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError

pytestmark = pytest.mark.turns

HEADS, GROUPS, SIZE = 4, 2, 16
WIDTH = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)


def decoder() -> onnx.ModelProto:
    """Rows, their positions, a mask and a cache -> rows, and the cache with theirs."""
    build = OnnxBuilder()
    rng = np.random.default_rng(0)

    def ints(*values: int) -> str:
        return build.constant(list(values), np.int64)

    def weight(rows: int, columns: int) -> str:
        return build.constant(rng.standard_normal((rows, columns)) / 8, np.float32)

    def heads(x: str, count: int) -> str:
        product = build.node("MatMul", x, weight(WIDTH, count * SIZE))
        return build.node(
            "Transpose", build.node("Reshape", product, ints(0, -1, count, SIZE)), perm=[0, 2, 1, 3]
        )

    def rotated(x: str) -> str:
        first, second = (
            build.node("Slice", x, ints(start), ints(start + SIZE // 2), ints(3))
            for start in (0, SIZE // 2)
        )
        turned = build.node("Concat", build.node("Neg", second), first, axis=-1)
        return build.node("Add", build.node("Mul", x, cosine), build.node("Mul", turned, sine))

    def repeated(x: str) -> str:
        """Repeats each key head for the query heads that share it."""
        one = build.node("Unsqueeze", x, ints(2))
        sizes = [
            build.node("Slice", build.node("Shape", x), ints(i), ints(i + 1)) for i in range(4)
        ]
        wide = build.node("Concat", sizes[0], sizes[1], ints(HEADS // GROUPS), *sizes[2:], axis=0)
        flat = build.node("Concat", sizes[0], ints(HEADS), *sizes[2:], axis=0)
        return build.node("Reshape", build.node("Expand", one, wide), flat)

    x = build.input("x", ["batch", "n", WIDTH])
    positions = build.input("positions", ["batch", "n"], np.int64)
    mask = build.input("mask", ["batch", "total"], np.int64)
    past = [build.input(name, ["batch", GROUPS, "past", SIZE]) for name in ("keys", "values")]

    at = build.node("Cast", build.node("Unsqueeze", positions, ints(2)), to=1)
    angles = build.node("Mul", at, build.constant(0.1 ** np.arange(SIZE // 2), np.float32))
    angles = build.node("Unsqueeze", build.node("Concat", angles, angles, axis=-1), ints(1))
    cosine, sine = build.node("Cos", angles), build.node("Sin", angles)

    total = build.node("Gather", build.node("Shape", mask), build.constant(1, np.int64))
    keys = build.node("Range", build.constant(0, np.int64), total, build.constant(1, np.int64))
    queries = build.node("Unsqueeze", positions, ints(1, 3))
    visible = build.node(
        "And",
        build.node("LessOrEqual", build.node("Unsqueeze", keys, ints(0, 1, 2)), queries),
        build.node("Greater", build.node("Unsqueeze", mask, ints(1, 2)), ints(0)),
    )
    hidden = build.node(
        "Where", visible, build.constant(0, np.float32), build.constant(LOWEST, np.float32)
    )

    square = build.node("ReduceMean", build.node("Mul", x, x), axes=[-1], keepdims=1)
    root = build.node("Sqrt", build.node("Add", square, build.constant(1e-6, np.float32)))
    scales = build.constant(1 + rng.random(WIDTH), np.float32)
    normal = build.node("Mul", build.node("Div", x, root), scales)
    q = rotated(heads(normal, HEADS))
    k = build.node("Concat", past[0], rotated(heads(normal, GROUPS)), axis=2)
    v = build.node("Concat", past[1], heads(normal, GROUPS), axis=2)
    scores = build.node(
        "Mul",
        build.node("MatMul", q, build.node("Transpose", repeated(k), perm=[0, 1, 3, 2])),
        build.constant(SIZE**-0.5, np.float32),
    )
    weights = build.node("Softmax", build.node("Add", scores, hidden), axis=-1)
    mixed = build.node("MatMul", build.node("Cast", weights, to=1), repeated(v))
    rows = build.node("Transpose", mixed, perm=[0, 2, 1, 3])
    rows = build.node("Reshape", rows, ints(0, -1, WIDTH))
    out = build.node("Add", build.node("MatMul", rows, weight(WIDTH, WIDTH)), x)
    build.output(out, ["batch", "n", WIDTH])
    for each in (k, v):
        build.output(each, ["batch", GROUPS, "total", SIZE])
    return build.model()


def bound_of(keys: int) -> float:
    """Error bound between two runtimes for a number of keys.

    Chained sums of WIDTH, SIZE, `keys` and WIDTH products, with one rounding for each product in
    either runtime; values are below 8.
    """
    return float(2 * 8 * (2 * WIDTH + SIZE + keys) * np.finfo(np.float32).eps)


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.slow), 2],
    ids=["one thread", "two threads"],
)
def session(request: pytest.FixtureRequest) -> tvm_hybrid.InferenceSession:
    return tvm_hybrid.InferenceSession(decoder(), num_threads=request.param)


def test_in_bfloat16_it_is_one_program_too() -> None:
    session = tvm_hybrid.InferenceSession(decoder(), precision="bf16", num_threads=1)
    assert len(session.programs) == 1
    kernels = [str(node.kernel) for node in session.explain() if node.op.startswith("attention")]
    assert len(kernels) == 1
    assert "_bf16_" in kernels[0]


def test_attention_is_one_kernel(session: tvm_hybrid.InferenceSession) -> None:
    (program,) = session.programs
    assert program.shapes["mask"] == ("batch", "past + n")
    ops = [node.op.split()[0] for node in session.explain() if node.taken and node.kernel]
    assert sorted(set(ops)) == ["attention", "matmul", "rms_norm"]
    assert ops.count("attention") == 1


def test_the_cache_is_written_by_attention_and_not_copied(
    session: tvm_hybrid.InferenceSession,
) -> None:
    (reason,) = (node.reason for node in session.explain() if node.op.startswith("attention"))
    assert "it writes k and v as well" in reason
    (program,) = session.programs
    assert program.executable.manifest.shared_outputs == (False, False, False)


@pytest.mark.parametrize(("batch", "prompt"), [(1, 7), (1, 100), (3, 5), (2, 1)])
def test_a_prompt_and_then_single_rows(
    session: tvm_hybrid.InferenceSession, batch: int, prompt: int
) -> None:
    peer = literal_session(decoder())
    rng = np.random.default_rng(prompt)
    ours = theirs = [np.zeros((batch, GROUPS, 0, SIZE), np.float32)] * 2
    for rows in (prompt, 1, 1, 4, 1):
        past = ours[0].shape[2]
        given = {
            "x": rng.standard_normal((batch, rows, WIDTH)).astype(np.float32),
            "positions": np.tile(np.arange(past, past + rows), (batch, 1)),
            "mask": np.ones((batch, past + rows), np.int64),
        }
        given["mask"][-1, : past // 2] = 0
        found = session.run(None, {**given, "keys": ours[0], "values": ours[1]})
        wanted = peer.run(None, {**given, "keys": theirs[0], "values": theirs[1]})
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=0, atol=bound_of(107))
        ours, theirs = found[1:], wanted[1:]
    assert len(session.programs) == 1


@pytest.mark.parametrize(("rows", "grows"), [(2, True), (5, False)])
def test_a_known_number_of_rows_and_any_past(rows: int, grows: bool) -> None:
    """Speculative decoding guesses several tokens and checks them together."""
    model = decoder()
    session = tvm_hybrid.InferenceSession(model, shapes={"n": rows}, num_threads=2)
    (reason,) = (node.reason for node in session.explain() if node.op.startswith("attention"))
    assert ("it writes k and v as well" in reason) == grows
    rng = np.random.default_rng(rows)
    for batch, past in ((1, 0), (2, 5), (1, 40), (3, 129)):
        shape = (batch, GROUPS, past, SIZE)
        feeds = {
            "x": rng.standard_normal((batch, rows, WIDTH)).astype(np.float32),
            "positions": np.tile(np.arange(past, past + rows), (batch, 1)),
            "mask": np.ones((batch, past + rows), np.int64),
            "keys": rng.standard_normal(shape).astype(np.float32),
            "values": rng.standard_normal(shape).astype(np.float32),
        }
        wanted = literal_session(model).run(None, feeds)
        for one, other in zip(session.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=bound_of(134))


def page_rows() -> int:
    """Number of rows of a head that fill whole pages of memory."""
    return mmap.PAGESIZE // (SIZE * 4)


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (2, 1), (3, 4), (1, 70)])
def test_of_a_bound_cache_only_new_rows_are_written(
    session: tvm_hybrid.InferenceSession, batch: int, rows: int
) -> None:
    """The past is read-only memory during the run."""
    past = page_rows()
    room = past * (1 + -(-rows // past))
    rng = np.random.default_rng(rows)
    given = {
        "x": rng.standard_normal((batch, rows, WIDTH)).astype(np.float32),
        "positions": np.tile(np.arange(past, past + rows), (batch, 1)),
        "mask": np.ones((batch, past + rows), np.int64),
    }
    before = [rng.standard_normal((batch, GROUPS, past, SIZE)).astype(np.float32) for _ in "kv"]
    wanted = session.run(None, given | dict(zip(("keys", "values"), before, strict=True)))
    binding = session.io_binding()
    for name, value in given.items():
        binding.bind_input(name, value)
    out, *present = (each.name for each in session.get_outputs())
    binding.bind_output(out, np.empty_like(given["x"]))
    caches = []
    with ExitStack() as scope:
        for name, result, values in zip(("keys", "values"), present, before, strict=True):
            cache = on_pages(np.full((batch, GROUPS, room, SIZE), np.nan, np.float32))
            cache[:, :, :past] = values
            for head in cache.reshape(-1, room, SIZE):
                scope.enter_context(read_only(head[:past]))
            binding.bind_input(name, cache[:, :, :past])
            binding.bind_output(result, cache[:, :, : past + rows])
            caches.append(cache)
        binding.run()
    for found, expected in zip(binding.get_outputs(), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    for cache in caches:
        assert np.isnan(cache[:, :, past + rows :]).all()


def test_decoding_in_caches_with_room(session: tvm_hybrid.InferenceSession) -> None:
    """Starts with an empty cache, fills it to its end, and continues in a larger one."""
    rng, batch = np.random.default_rng(3), 2
    caches = [np.zeros((batch, GROUPS, 16, SIZE), np.float32) for _ in "kv"]
    usual = [np.zeros((batch, GROUPS, 0, SIZE), np.float32)] * 2
    out, *present = (each.name for each in session.get_outputs())
    past = 0
    for rows in (5, 1, 1, 3, 1, 9, 1, 30, 1):
        binding = session.io_binding()
        given = {
            "x": rng.standard_normal((batch, rows, WIDTH)).astype(np.float32),
            "positions": np.tile(np.arange(past, past + rows), (batch, 1)),
            "mask": np.ones((batch, past + rows), np.int64),
        }
        for name, value in given.items():
            binding.bind_input(name, value)
        binding.bind_output(out)
        larger = caches
        if past + rows > caches[0].shape[2]:
            larger = [np.zeros((batch, GROUPS, 2 * (past + rows), SIZE), np.float32) for _ in "kv"]
        for name, result, old, new in zip(("keys", "values"), present, caches, larger, strict=True):
            binding.bind_input(name, old[:, :, :past])
            binding.bind_output(result, new[:, :, : past + rows])
        binding.run()
        wanted = session.run(None, given | dict(zip(("keys", "values"), usual, strict=True)))
        for found, expected in zip(binding.get_outputs(), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)
        caches, usual, past = larger, wanted[1:], past + rows
    assert len(session.programs) == 1


def test_a_cache_that_lies_otherwise_over_its_past_is_refused(
    session: tvm_hybrid.InferenceSession,
) -> None:
    cache, rows = np.zeros((2, 1, GROUPS, 40, SIZE), np.float32), 1
    other = np.zeros((1, GROUPS, 40, SIZE), np.float32)
    feeds = {
        "x": np.zeros((1, rows, WIDTH), np.float32),
        "positions": np.full((1, rows), 8),
        "mask": np.ones((1, 8 + rows), np.int64),
        "keys": cache[0, :, :, :8],
        "values": other[:, :, :8],
    }
    _, keys, values = (each.name for each in session.get_outputs())
    for result, view in ((keys, cache[0, :, :, 1:10]), (values, cache[0, :, :, :9])):
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_input(name, value)
        binding.bind_output(result, view)
        with pytest.raises(FeedError, match=r"input 'keys' and output|output .* and input 'keys'"):
            binding.run()
