"""Pow of every pair of types; powers of integers are exact."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import tvm_hybrid

from .models import declared, make_model

pytestmark = pytest.mark.turns

EXPONENTS = [3, 2, 5, 4, 7, 1, 0]
BASES = {
    "int32": [-3, -2, -1, 0, 1, 2, 7],
    "int64": [-3, -2, -1, 0, 1, 2, 7],
    "float16": [-3, -2, -1, 0, 1, 2.5, 7],
    "float32": [-3, -2, -1, 0, 1, 2.5, 7],
    "float64": [-3, -2, -1, 0, 1, 2.5, 7],
}
KINDS = [
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]


def run(bases: NDArray, exponents: dict[str, NDArray], constant: bool = False) -> list[NDArray]:
    """Powers of the bases, one result for each array of exponents."""
    nodes = [helper.make_node("Pow", ["x", name], [f"y_{name}"]) for name in exponents]
    inputs = {"x": bases, **({} if constant else exponents)}
    model = make_model(
        nodes,
        [declared(name, array) for name, array in inputs.items()],
        [declared(f"y_{name}", bases) for name in exponents],
        exponents if constant else {},
    )
    return tvm_hybrid.InferenceSession(model, num_threads=1, records=[]).run(None, inputs)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", BASES)
def test_exponents_of_every_type(dtype: str) -> None:
    bases = np.array(BASES[dtype], dtype)
    results = run(bases, {kind: np.array(EXPONENTS, kind) for kind in KINDS})
    wanted = bases.astype(np.float64) ** np.array(EXPONENTS)
    # One rounding to the type, and the last bits of powf.
    bound = 0 if "int" in dtype else 2 * np.finfo(dtype).eps
    for kind, got in zip(KINDS, results, strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=bound, err_msg=kind)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_powers_of_integers(dtype: str) -> None:
    """Up to the type's maximum, beyond which the low bits are kept; also negative exponents."""
    most = 8 * np.dtype(dtype).itemsize - 2
    bases = np.array([2, -2, 3, -3, 5, 1, -1, 0, -1, 2, 1, -1, -1, 3], dtype)
    exponents = np.array(
        [most, most + 1, 19, 19, 13, 999, 999, 999, 1000, 100, -3, -3, -2, -1], dtype
    )
    (got,) = run(bases, {"e": exponents})
    wanted = [int(b) ** int(e) if e >= 0 else int(float(b) ** float(e))
              for b, e in zip(bases, exponents, strict=True)]  # fmt: skip
    modulus = 2 ** (most + 2)
    assert [int(value) % modulus for value in got] == [value % modulus for value in wanted]


def test_constant_exponents() -> None:
    """Large exponents keep their parity."""
    bases = np.array([-1.0, 1.0, -1.0], np.float32)
    exponents = {
        "odd": np.array(2**24 + 1, np.int64),
        "three": np.array(3, np.int64),
        "two": np.array([2], np.int32),
        "half": np.array([4.0, 0.5, 3.0], np.float16),
    }
    results = run(bases, exponents, constant=True)
    wanted = [[-1, 1, -1], [-1, 1, -1], [1, 1, 1], [1, 1, -1]]
    assert [result.tolist() for result in results] == wanted


def test_bfloat16() -> None:
    """A bfloat16 exponent does not change the type of a float32 base."""
    node = helper.make_node("Pow", ["x", "e"], ["y"])
    model = make_model(
        [node],
        [("x", TensorProto.FLOAT, [2]), ("e", TensorProto.BFLOAT16, [2])],
        [("y", TensorProto.FLOAT, [2])],
    )
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    feeds = {"x": np.array([1.001, 3], np.float32), "e": np.array([1, 3], kind)}
    (got,) = tvm_hybrid.InferenceSession(model, num_threads=1, records=[]).run(None, feeds)
    np.testing.assert_allclose(got, [1.001, 27], rtol=2**-22)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_edges_of_floats(dtype: str) -> None:
    """IEEE 754's pow, with a constant exponent and with one that is an input."""
    limits = ml_dtypes.finfo(dtype)
    least, normal = float(limits.smallest_subnormal), float(limits.tiny)
    numbers = [-np.inf, -2.5, -1, -0.0, 0.0, 1, 4, np.inf, np.nan, normal, least, -least]
    bases = np.array([*numbers, float(limits.max), 0.3], dtype)
    powers = [-np.inf, -3, -2, -1, -0.5, -0.0, 0, 0.5, 1, 2, 3, 4, 1 / 3, np.inf, np.nan, 33, -33]
    exponents = {f"e{number}": np.array([each], dtype) for number, each in enumerate(powers)}
    # float64 holds narrower types' results; the C library's functions are within 2 ulp.
    bound = 3 * float(limits.eps)
    for constant in (True, False):
        results = run(bases, exponents, constant)
        for exponent, got in zip(exponents.values(), results, strict=True):
            with np.errstate(all="ignore"):
                # NumPy computes a root for a scalar exponent, or one that broadcasts as a scalar.
                wide = np.full(bases.shape, exponent[0].astype(np.float64))
                wanted = np.power(bases.astype(np.float64), wide).astype(dtype)
            found, exact = got.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(found, exact, rtol=bound, atol=2 * least)
            numbers_alone = ~np.isnan(exact)
            np.testing.assert_array_equal(
                np.signbit(found[numbers_alone]), np.signbit(exact[numbers_alone]), f"{exponent}"
            )
