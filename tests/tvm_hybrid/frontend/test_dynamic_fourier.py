"""Fourier transforms of dynamic sizes: one program, compared with NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError

from .models import random
from .test_fourier import bound, check, exact

pytestmark = pytest.mark.turns

# dft_length, inverse, onesided, parts of the signal's numbers
FORMS = [(None, 0, 0, 1), (9, 1, 0, 2), (4, 0, 1, 1), (None, 1, 1, 2)]


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opset", [17, 20])
def test_dft_beside_dynamic_axes(form: tuple[int | None, int, int, int], opset: int) -> None:
    """Transforms along the first, a middle and the last axis before that of the parts."""
    length, inverse, onesided, parts = form
    shapes: list[list[int | str]] = [[6, "n", "m"], ["n", 6, "m"], ["n", "m", 6]]
    build = OnnxBuilder(opset)
    size = "" if length is None else build.constant(length, np.int64)
    for axis, shape in enumerate(shapes):
        x = build.input(f"x{axis}", [*shape, parts])
        more = {"inverse": inverse, "onesided": onesided}
        if opset < 20:
            y = build.node("DFT", x, size, axis=axis, **more)
        else:
            y = build.node("DFT", x, size, build.constant(axis, np.int64), **more)
        build.output(y, None)
    session = InferenceSession(build.model(), num_threads=1)
    assert len(session.programs) == 1
    for sizes in ({"n": 1, "m": 1}, {"n": 3, "m": 5}, {"n": 0, "m": 2}):
        feeds = {
            f"x{axis}": random(*(sizes.get(str(n), n) for n in shape), parts, seed=axis)
            for axis, shape in enumerate(shapes)
        }
        for axis, (x, got) in enumerate(zip(feeds.values(), session.run(None, feeds), strict=True)):
            wanted = exact(x, axis, length, inverse, onesided)
            check(got, wanted, bound(x, axis, wanted, 2.0**-24) if x.size else 0, "float32")


@pytest.mark.sampled
@pytest.mark.parametrize("window", ["none", "constant", "given"])
@pytest.mark.parametrize("parts", [1, 2])
def test_stft_of_any_number_of_signals_of_any_length(window: str, parts: int) -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", "samples", parts])
    weights = np.ones(16, np.float32) if window == "none" else np.hanning(16).astype(np.float32)
    given = {
        "none": lambda: "",
        "constant": lambda: build.constant(weights),
        "given": lambda: build.input("w", [16]),
    }[window]()
    length, onesided = build.constant(16, np.int64), int(parts == 1)
    step = build.constant(7, np.int64)
    build.output(build.node("STFT", x, step, given, length, onesided=onesided), None)
    model = build.model()
    session, peer = InferenceSession(model, num_threads=1), literal_session(model)
    assert len(session.programs) == 1
    fed = {"w": weights} if window == "given" else {}
    for batch, samples in ((1, 16), (2, 22), (3, 50), (1, 23), (0, 30)):
        x_value = random(batch, samples, parts)
        (got,) = session.run(None, {"x": x_value, **fed})
        starts = range(0, samples - 15, 7)
        frames = np.stack([x_value[:, first : first + 16] for first in starts], 1)
        wanted = exact(frames * weights[:, None].astype(np.float64), 2, None, 0, onesided)
        error = bound(frames, 2, wanted, 2.0**-24) if batch else 0
        check(got, wanted, error, "float32")
        if batch:
            (theirs,) = peer.run(None, {"x": x_value, **fed})
            # Both are within the bound of the exact value.
            np.testing.assert_allclose(got, theirs, rtol=0, atol=2 * error)
    with pytest.raises(FeedError):
        session.run(None, {"x": random(1, 15, parts), **fed})


def test_any_number_of_signals_of_known_length() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 40, 1])
    build.output(build.node("STFT", x, build.constant(8, np.int64), "",
                            build.constant(8, np.int64)), None)  # fmt: skip
    session = InferenceSession(build.model(), num_threads=1)
    assert len(session.programs) == 1
    for batch in (1, 3):
        value = random(batch, 40, 1)
        wanted = exact(value.reshape(batch, 5, 8, 1), 2, None, 0, 1)
        check(session.run(None, {"x": value})[0], wanted, bound(value[:, :8], 1, wanted, 2.0**-24),
              "float32")  # fmt: skip


def test_a_known_length_behind_a_computed_shape() -> None:
    build = OnnxBuilder()
    flat = build.input("x", ["n", 40])
    rows = build.node("Concat", build.node("Shape", flat, end=1), build.constant([-1], np.int64),
                      axis=0)  # fmt: skip
    x = build.node("Unsqueeze", build.node("Reshape", flat, rows), build.constant([2], np.int64))
    eight = build.constant(8, np.int64)
    build.output(build.node("STFT", x, eight, "", eight), None)
    value = random(3, 40)
    (got,) = InferenceSession(build.model(), num_threads=1).run(None, {"x": value})
    frames = value.reshape(3, 5, 8, 1)
    wanted = exact(frames, 2, None, 0, 1)
    check(got, wanted, bound(frames, 2, wanted, 2.0**-24), "float32")


# dft_length (n: the signal's length, twice: double that), inverse, onesided, parts
DYNAMIC_FORMS = [
    ("n", 0, 0, 1),
    ("n", 0, 1, 1),
    ("n", 1, 0, 2),
    ("n", 1, 1, 2),
    (5, 0, 0, 2),
    (9, 0, 1, 1),
    (6, 1, 1, 2),
    ("twice", 0, 0, 1),
    ("twice", 1, 1, 2),
]


@pytest.mark.parametrize("opset", [17, 20])
def test_dft_along_a_dynamic_axis(opset: int) -> None:
    """Every form in one model, along the first and the last axis, with a length for each run."""
    build = OnnxBuilder(opset)
    values = []
    for number, (asked, inverse, onesided, parts) in enumerate(DYNAMIC_FORMS):
        axis = number % 2
        x = build.input(f"x{number}", [["n", 2, parts], [2, "n", parts]][axis])
        size = "" if isinstance(asked, str) else build.constant(asked, np.int64)
        if asked == "twice":
            taken = build.node("Gather", build.node("Shape", x), build.constant(axis, np.int64))
            size = build.node("Add", taken, taken)
        more = {"inverse": inverse, "onesided": onesided}
        if opset < 20:
            y = build.node("DFT", x, size, axis=axis, **more)
        else:
            y = build.node("DFT", x, size, build.constant(axis, np.int64), **more)
        build.output(y, None)
        values.append((x, axis, asked, inverse, onesided, parts))
    program = tvm_hybrid.compile(build.model(), keep_dynamic=True, num_threads=1)
    for n in (4, 7):
        feeds = {
            x: random(*([n, 2] if axis == 0 else [2, n]), parts, seed=axis)
            for x, axis, _, _, _, parts in values
        }
        results = [each.numpy() for each in program.run(feeds)]
        for got, (x, axis, asked, inverse, onesided, _) in zip(results, values, strict=True):
            length = asked if isinstance(asked, int) else 2 * n if asked == "twice" else None
            wanted = exact(feeds[x], axis, length, inverse, onesided)
            # An entry of a dynamic table is rounded once, like one of a static table.
            check(got, wanted, bound(feeds[x], axis, wanted, 2.0**-24), "float32")


def test_a_frame_that_is_the_whole_signal() -> None:
    build = OnnxBuilder()
    signal = build.input("x", [2, "n", 1])
    build.output(build.node("STFT", signal, build.constant(4, np.int64)), None)
    program = tvm_hybrid.compile(build.model(), keep_dynamic=True, num_threads=1)
    for n in (6, 9):
        value = random(2, n, 1)
        wanted = exact(value[:, None], 2, None, 0, 1)
        check(program.run({"x": value})[0].numpy(), wanted, bound(value, 1, wanted, 2.0**-24),
              "float32")  # fmt: skip


def test_a_dynamic_table_has_a_limit() -> None:
    """A signal of 8192 elements would need a table of 512 MB."""
    build = OnnxBuilder()
    build.output(build.node("DFT", build.input("x", [1, "n", 1])), None)
    program = tvm_hybrid.compile(build.model(), keep_dynamic=True, num_threads=1)
    with pytest.raises(FeedError):
        program.run({"x": random(1, 8193, 1)})


@pytest.mark.parametrize("parts", [0, 1])
def test_stft_of_real_signals_without_parts(parts: int) -> None:
    """PyTorch exports a signal as [N, samples], which ONNX Runtime takes, too."""
    build = OnnxBuilder()
    x = build.input("x", ["n", "samples"] + [1] * parts)
    y = build.node(
        "STFT", x, build.constant(4, np.int64), build.constant(np.hanning(9), np.float32)
    )
    build.output(y, None)
    model = build.model()
    session, peer = InferenceSession(model, num_threads=1), literal_session(model)
    for batch, samples in ((1, 9), (3, 21)):
        value = random(*(batch, samples, 1)[: 2 + parts])
        (got,), (theirs,) = (each.run(None, {"x": value}) for each in (session, peer))
        assert got.shape == theirs.shape
        # Both are within the bound of the exact value; the window is at most 1.
        error = 2 * bound(value.reshape(batch, samples, 1)[:, :9], 1, got[:, 0], 2.0**-24)
        np.testing.assert_allclose(got, theirs, rtol=0, atol=error)
