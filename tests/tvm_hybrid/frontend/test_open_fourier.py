"""Fourier transforms of open sizes: one program for all, against NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.report.onnx_runtime import literal_session

from .models import random
from .test_fourier import bound, check, exact

# dft_length, inverse, onesided, parts of the signal's numbers
FORMS = [(None, 0, 0, 1), (9, 1, 0, 2), (4, 0, 1, 1), (None, 1, 1, 2)]


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opset", [17, 20])
def test_dft_beside_open_axes(form: tuple[int | None, int, int, int], opset: int) -> None:
    """Of the first, a middle and the last axis but that of the parts."""
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


def test_what_a_table_is_made_for_must_be_known() -> None:
    build = OnnxBuilder()
    build.output(build.node("DFT", build.input("x", [2, "n", 1])), None)
    with pytest.raises(UnsupportedOperatorError, match=r"DFT0.*size of axis 1 of its signal must"):
        import_onnx(build.model(), keep_open=True)
    build = OnnxBuilder()
    signal = build.input("x", [2, "n", 1])
    build.output(build.node("STFT", signal, build.constant(4, np.int64)), None)
    with pytest.raises(UnsupportedOperatorError, match=r"STFT0.*length of its frames must"):
        import_onnx(build.model(), keep_open=True)
