"""Fourier transforms against NumPy's in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import tvm_hybrid
from tvm_hybrid.errors import ModelError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import Declaration, f32, make_model, onnxruntime_run, random, run_imported

CODES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "float64": 11}
# axis, dft_length, inverse, onesided
FORMS = [
    (1, None, 0, 0),
    (-2, None, 1, 0),
    (0, None, 0, 0),
    (1, 4, 0, 0),
    (2, 9, 0, 0),
    (2, 9, 1, 0),
    (-3, 8, 0, 1),
    (1, 5, 0, 1),
    (1, None, 1, 1),
    (2, 9, 1, 1),
    (1, 4, 1, 1),
]


def exact(x: NDArray, axis: int, length: int | None, inverse: int, onesided: int) -> NDArray:
    """The transform in float64; the last axis holds real and imaginary parts."""
    x = x.astype(np.float64)
    signal = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    axis %= x.ndim
    if inverse and onesided:
        return np.fft.irfft(signal, length, axis)[..., None]
    found = (np.fft.ifft if inverse else np.fft.fft)(signal, length, axis)
    if onesided:
        found = found.take(range(found.shape[axis] // 2 + 1), axis)
    return np.stack([found.real, found.imag], -1)


def bound(x: NDArray, axis: int, wanted: NDArray, unit: float) -> float:
    """Error bound: one rounding for each factor, product and addition.

    2 n terms, their factors up to 1 (up to 2 in the inverse of half a spectrum), are at most
    2 n max |x|. Each meets at most 2 n + 2 roundings.
    """
    terms = 2 * max(x.shape[axis], wanted.shape[axis])
    return unit * (terms + 2) * terms * float(np.abs(x.astype(np.float64)).max())


def check(got: NDArray, wanted: NDArray, error: float, dtype: str) -> None:
    """Compares within an error of the sum and one rounding of the result."""
    assert got.dtype == dtype and got.shape == wanted.shape
    last = np.finfo(dtype).eps / 2 * np.abs(wanted) if dtype == "float16" else 0
    assert np.all(np.abs(got.astype(np.float64) - wanted) <= error + last)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("opset", [17, 20])
def test_dft(dtype: str, opset: int) -> None:
    """All forms in one model."""
    feeds = {"r": random(2, 6, 7, 1).astype(dtype), "c": random(2, 6, 7, 2, seed=1).astype(dtype)}
    nodes, constants, wanted = [], {}, []
    outputs: list[Declaration] = []
    for number, (axis, length, inverse, onesided) in enumerate(FORMS):
        sources = "rc" if not onesided else "c" if inverse else "r"
        for name in sources:
            y, more = f"y{number}{name}", {"inverse": inverse, "onesided": onesided}
            inputs = [name, f"n{number}" if length else ""]
            if length:
                constants[inputs[1]] = np.array(length, np.int64)
            if opset < 20:
                more["axis"] = axis
            else:
                inputs.append(f"a{number}")
                constants[inputs[2]] = np.array(axis, np.int64)
            nodes.append(helper.make_node("DFT", inputs, [y], **more))
            value = exact(feeds[name], axis, length, inverse, onesided)
            outputs.append((y, CODES[dtype], value.shape))
            wanted.append((feeds[name], axis, value))
    given = [(name, CODES[dtype], x.shape) for name, x in feeds.items()]
    model = make_model(nodes, given, outputs, constants, opset)
    results = run_imported(import_onnx(model), feeds)
    unit = np.finfo("float64" if dtype == "float64" else "float32").eps / 2
    for got, (x, axis, value) in zip(results, wanted, strict=True):
        check(got, value, bound(x, axis, value, float(unit)), dtype)


def stft_model(given: dict[str, Any], constants: dict[str, Any], parts: int, shape: tuple[int, ...],
               **more: int) -> onnx.ModelProto:  # fmt: skip
    names = [name if name in {*given, *constants} else "" for name in ("x", "s", "w", "n")]
    node = helper.make_node("STFT", names, ["y"], **more)
    inputs = [f32(name, *array.shape) for name, array in given.items()]
    return make_model([node], inputs, [f32("y", *shape)], constants)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("window", ["none", "constant", "given"])
def test_stft(parts: int, window: str) -> None:
    """Constant, fed and absent windows; two signals of real or complex numbers."""
    x, weights = random(2, 50, parts), np.hanning(16).astype(np.float32)
    onesided = int(parts == 1)
    given, constants = {"x": x}, {"s": np.array(7)}
    if window == "none":
        constants["n"], weights = np.array(16), np.ones(16, np.float32)
    elif window == "constant":
        constants["w"] = weights
    else:
        given["w"] = weights
    frames = np.stack([x[:, first : first + 16] for first in range(0, 35, 7)], 1)
    value = exact(frames * weights[:, None].astype(np.float64), 2, None, 0, onesided)
    model = stft_model(given, constants, parts, value.shape, onesided=onesided)
    (got,) = run_imported(import_onnx(model), given)
    check(got, value, bound(frames, 2, value, 2.0**-24), "float32")


def test_the_product_is_ours() -> None:
    """The product is computed by our kernel, and ONNX Runtime agrees with its value."""
    x, weights = random(1, 400, 1), np.hanning(64).astype(np.float32)
    model = stft_model({"x": x}, {"s": np.array(16), "w": weights}, 1, (1, 22, 33, 2))
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    assert len(session.explain().taken) == 1
    (got,), (wanted,) = session.run(None, {"x": x}), onnxruntime_run(model, {"x": x})
    # Both are within the bound of the exact value.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2 * bound(x[:, :64], 1, got, 2.0**-24))


@pytest.mark.parametrize(
    ("axis", "length", "error", "message"),
    [
        (3, 6, ModelError, "axis attribute value 3"),
        (1, 0, ModelError, "transform of 0"),
        (1, (1 << 20) - 3, UnsupportedOperatorError, "tables would have"),  # a prime
        (1, 1 << 26, UnsupportedOperatorError, "tables would have"),
    ],
)
def test_what_is_refused(axis: int, length: int, error: type[Exception], message: str) -> None:
    node = helper.make_node("DFT", ["x", "n", "a"], ["y"])
    constants = {"n": np.array(length), "a": np.array(axis)}
    model = make_model([node], [f32("x", 2, 9000, 7, 1)], [("y", 1, None)], constants, 20)
    with pytest.raises(error, match=message):
        import_onnx(model)
