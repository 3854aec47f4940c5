"""Pad with the tensor's own elements along dynamic axes: one program for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

pytestmark = pytest.mark.turns

MODES = ["reflect", "edge", "wrap"]
Amounts = Callable[[OnnxBuilder, str], str]


def padded(mode: str, amounts: Amounts, dtype: type = np.float32) -> OnnxBuilder:
    """A model with Pad of x: [n, 3, w]."""
    build = OnnxBuilder(19)
    x = build.input("x", ["n", 3, "w"], dtype)
    build.output(build.node("Pad", x, amounts(build, x), mode=mode), None, dtype)
    return build


def numbers(*values: int) -> Amounts:
    return lambda build, _: build.constant(values, np.int64)


def one_program(build: OnnxBuilder) -> InferenceSession:
    session = InferenceSession(build.model(), num_threads=1)
    assert len(session.programs) == 1
    return session


def values(n: int, w: int, dtype: type = np.float32) -> NDArray[Any]:
    return np.arange(n * 3 * w).reshape(n, 3, w).astype(dtype)


def padded_by_numpy(x: NDArray[Any], mode: Any, pads: tuple[int, ...]) -> NDArray[Any]:
    """Pads by NumPy, after cropping."""
    for axis, (before, after) in enumerate(zip(pads[:3], pads[3:], strict=True)):
        kept = np.arange(max(0, -before), x.shape[axis] - max(0, -after))
        margins = (max(before, 0), max(after, 0))
        x = x.take(np.pad(kept, margins, mode=mode), axis)
    return x


# Includes amounts above the size, and negative amounts on one side.
PADS = [(1, 1, 2, 0, 0, 1), (0, 0, -1, 0, 2, 4), (-1, 0, 9, 2, -1, 5)]


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("mode", MODES)
def test_amounts_are_numbers(mode: str, pads: tuple[int, ...]) -> None:
    build = padded(mode, numbers(*pads))
    session, peer = one_program(build), literal_session(build.model())
    known = {}
    for n, w in ((2, 2), (2, 8), (3, 3), (5, 17)):
        x = values(n, w)
        (found,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(found, padded_by_numpy(x, mode, pads))
        if mode != "reflect" or max(pads[2], pads[5]) < w + min(pads[2], 0):
            # ONNX Runtime mirrors only once.
            (theirs,) = peer.run(None, {"x": x})
            np.testing.assert_array_equal(found, theirs)
        known[n, w] = x, found
    x, found = known[3, 3]
    static = InferenceSession(build.model(), shapes={"x": x.shape}, num_threads=1)
    np.testing.assert_array_equal(static.run(None, {"x": x})[0], found)


@pytest.mark.parametrize("mode", MODES)
def test_one_element_and_none(mode: str) -> None:
    session = one_program(padded(mode, numbers(0, 0, 2, 0, 0, 1)))
    x = values(2, 1)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.repeat(4, 2))
    assert session.run(None, {"x": values(0, 5)})[0].shape == (0, 3, 8)
    with pytest.raises(FeedError):
        session.run(None, {"x": values(2, 0)})


@pytest.mark.parametrize("mode", MODES)
def test_no_more_is_cropped_than_there_is(mode: str) -> None:
    session = one_program(padded(mode, numbers(0, 0, -2, 0, 0, -1)))
    assert session.run(None, {"x": values(2, 3)})[0].shape == (2, 3, 0)
    with pytest.raises(FeedError):
        session.run(None, {"x": values(2, 2)})
    session = one_program(padded(mode, numbers(0, 0, -2, 0, 0, 1)))
    with pytest.raises(FeedError):  # the crop leaves no elements
        session.run(None, {"x": values(2, 2)})


def to_a_multiple_of_four(build: OnnxBuilder, x: str) -> str:
    """Pads the end of the last axis."""
    width, four = build.node("Shape", x, start=2), build.constant([4], np.int64)
    up = build.node("Div", build.node("Add", width, build.constant([3], np.int64)), four)
    lacking = build.node("Sub", build.node("Mul", up, four), width)
    return build.node("Concat", build.constant([0] * 5, np.int64), lacking, axis=0)


def other_batch(build: OnnxBuilder, x: str) -> str:
    """Pads or crops the batch to that of another tensor."""
    wanted = build.node("Shape", build.input("other", ["m"]))
    more = build.node("Sub", wanted, build.node("Shape", x, end=1))
    zeros = [build.constant([0] * count, np.int64) for count in (2, 3)]
    return build.node("Concat", more, zeros[0], zeros[1], axis=0)


@pytest.mark.parametrize("mode", MODES)
def test_amounts_follow_from_sizes(mode: str) -> None:
    build = padded(mode, to_a_multiple_of_four)
    session = one_program(build)
    for n, w in ((1, 8), (2, 5), (3, 3), (2, 1), (2, 0)):
        x = values(n, w)
        wanted = padded_by_numpy(x, mode, (0, 0, 0, 0, 0, -w % 4))
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)


@pytest.mark.parametrize("mode", MODES)
def test_amounts_of_either_sign(mode: str) -> None:
    build = padded(mode, other_batch)
    session = one_program(build)
    assert import_onnx(build.model(), keep_dynamic=True).outputs[0].shape == ("m", 3, "w")
    for n, m in ((2, 3), (4, 2), (3, 9), (1, 1), (0, 0), (3, 0)):
        x = values(n, 2)
        (found,) = session.run(None, {"x": x, "other": np.zeros(m, np.float32)})
        np.testing.assert_array_equal(found, padded_by_numpy(x, mode, (m - n, 0, 0, 0, 0, 0)))
    with pytest.raises(FeedError):
        session.run(None, {"x": values(0, 2), "other": np.zeros(3, np.float32)})


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.float16, np.uint8])
def test_types_stay(dtype: type) -> None:
    pads = (1, 1, 2, 0, 0, 1)
    x = values(3, 4, dtype)
    (found,) = one_program(padded("reflect", numbers(*pads), dtype)).run(None, {"x": x})
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, padded_by_numpy(x, "reflect", pads))


def test_some_axes_by_an_older_form() -> None:
    """Amounts that are an attribute, and axes that are an input."""
    build = OnnxBuilder(10)
    x = build.input("x", ["n", 3, "w"])
    build.output(build.node("Pad", x, pads=[0, 0, 2, 0, 0, 1], mode="edge"), None)
    newer = OnnxBuilder(18)
    x = newer.input("x", ["n", 3, "w"])
    amounts, axes = newer.constant([2, 1], np.int64), newer.constant([-1], np.int64)
    newer.output(newer.node("Pad", x, amounts, "", axes, mode="edge"), None)
    value = values(2, 4)
    wanted = padded_by_numpy(value, "edge", (0, 0, 2, 0, 0, 1))
    for each in (build, newer):
        np.testing.assert_array_equal(one_program(each).run(None, {"x": value})[0], wanted)


def test_an_axis_of_no_elements_is_not_padded_by_them() -> None:
    build = OnnxBuilder(19)
    x = build.input("x", ["n", 2])
    pads = build.constant([0, -1, 0, -1], np.int64)
    empty = build.node("Pad", x, pads)
    more = build.constant([0, 1, 0, 1], np.int64)
    build.output(build.node("Pad", empty, more, mode="edge"), None)
    with pytest.raises(UnsupportedOperatorError, match="an empty axis"):
        import_onnx(build.model(), keep_dynamic=True)


def test_unknown_modes_are_named() -> None:
    with pytest.raises(UnsupportedOperatorError, match="unknown mode 'mirror'"):
        import_onnx(padded("mirror", numbers(0, 0, 1, 0, 0, 1)).model(), keep_dynamic=True)


def test_a_signal_that_is_padded_to_a_multiple_is_cut_to_what_it_was() -> None:
    """Networks that halve their input do this: t + (4 - t % 4) % 4 is (t + 3) // 4 * 4."""
    build = OnnxBuilder(19)
    x, four, zero = build.input("x", ["n", 2, "t"]), build.constant([4]), build.constant([0])
    size = build.node("Gather", build.node("Shape", x), build.constant([2]))
    missing = build.node("Sub", four, build.node("Mod", size, four))
    margin = build.node("Concat", *[zero] * 5, build.node("Mod", missing, four), axis=0)
    filters = build.constant(np.ones((2, 2, 4), np.float32))
    sums = build.node("Conv", build.node("Pad", x, margin), filters, strides=[4])
    spread = build.node("ConvTranspose", sums, filters, strides=[4])
    build.output(build.node("Slice", spread, zero, size, build.constant([2])), None)
    model = build.model()
    session = one_program(build)
    assert "(t + 3) // 4 * 4" in str(import_onnx(model, keep_dynamic=True).mod)
    for n, t in ((1, 1), (2, 4), (1, 7), (3, 50)):
        given = np.arange(n * 2 * t, dtype=np.float32).reshape(n, 2, t)
        whole = np.pad(given, ((0, 0), (0, 0), (0, -t % 4))).reshape(n, 2, -1, 4)
        wanted = np.broadcast_to(2 * whole.sum((1, 3), keepdims=True), (n, 2, *whole.shape[2:]))
        # Sums of integers below 2 ** 24: exact.
        np.testing.assert_array_equal(
            session.run(None, {"x": given})[0], wanted.reshape(n, 2, -1)[..., :t]
        )
