"""Long Fourier transforms as two products, against NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.frontend.onnx.ops.fourier import Factors, Form, factors_of

from .models import random
from .test_fourier import bound, check, exact

pytestmark = pytest.mark.turns

LENGTHS = [1, 2, 60, 97, 997, 1022, 1024, 4096, 6000]


def factors(n: int, parts: int = 1, count: int | str = 4) -> Factors | None:
    return factors_of(Form(n, parts, inverse=False, onesided=False), n, count)


def tight_bound(x: NDArray, n: int, inverse: int) -> float:
    """Error bound of two products.

    Each of the opening product, the twiddle factors and the closing product rounds its factors
    once, and 2 * first, 2 and 2 * second sums or products; the weights of half a spectrum and the
    cast of a constant are two more. The terms' absolute values add up to 4 n max |x|: a
    multiplication of a complex number makes |re| + |im| at most sqrt(2) times as large. The
    inverse is divided by n.
    """
    found = factors(n)
    assert found is not None
    roundings = 2 * (found.first + found.second) + 8
    return 2.0**-24 * roundings * 4 * (1 if inverse else n) * float(np.abs(x).max())


def session_of(
    n: int | None, shape: list[int | str], axis: int, inverse: int = 0, onesided: int = 0
) -> InferenceSession:
    build = OnnxBuilder(20)
    x = build.input("x", shape)
    size = "" if n is None else build.constant(n, np.int64)
    axes = build.constant(axis, np.int64)
    build.output(build.node("DFT", x, size, axes, inverse=inverse, onesided=onesided), None)
    return InferenceSession(build.model(), num_threads=1, records=[])


def kernels(session: InferenceSession) -> list[str]:
    """Register tiles of the products; other kernels have none."""
    return [taken.kernel for taken in session.explain().taken if taken.kernel]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("parts", [1, 2])
def test_lengths(n: int, parts: int) -> None:
    """Also counts the products: one, or the split's three (the first table has two forms)."""
    x = random(3, n, parts)
    session = session_of(None, [3, n, parts], 1)
    (got,) = session.run(None, {"x": x})
    wanted = exact(x, 1, None, 0, 0)
    split = n >= 1000
    check(got, wanted, tight_bound(x, n, 0) if split else bound(x, 1, wanted, 2.0**-24), "float32")
    assert len(kernels(session)) == (3 if split else 1), kernels(session)


# axis, dft_length, inverse, onesided, parts
FORMS = [
    (1, None, 0, 1, 1),
    (1, None, 1, 0, 2),
    (1, None, 1, 1, 2),
    (1, 1536, 1, 1, 2),
    (1, 1000, 0, 0, 2),
    (1, 1000, 0, 1, 1),
    (1, 2047, 0, 1, 1),
    (1, 1536, 0, 0, 1),
    (0, None, 0, 1, 1),
]


@pytest.mark.parametrize("form", FORMS)
def test_forms_beside_a_dynamic_axis(form: tuple[int, int | None, int, int, int]) -> None:
    """Cut and padded signals with a dynamic axis of 0, 1 and 5 elements, in one program."""
    axis, length, inverse, onesided, parts = form
    size = 1024
    shape: list[int | str] = ["n", size, parts] if axis else [size, "n", parts]
    session = session_of(length, shape, axis, inverse, onesided)
    for count in (0, 1, 5):
        x = random(*(count if each == "n" else int(each) for each in shape))
        (got,) = session.run(None, {"x": x})
        made = length or (2 * (size - 1) if inverse and onesided else size)
        if count:
            wanted = exact(x, axis, length, inverse, onesided)
            check(got, wanted, tight_bound(x, made, inverse), "float32")
        else:
            assert got.size == 0
    assert len(session.programs) == 1
    assert len(kernels(session)) == 3


@pytest.mark.parametrize("window", [False, True])
def test_stft_of_long_frames(window: bool) -> None:
    """The window is multiplied before the first product."""
    x, weights = random(2, 5000), np.hanning(1024).astype(np.float32)
    build = OnnxBuilder()
    step, length = build.constant(500, np.int64), build.constant(1024, np.int64)
    given = build.constant(weights) if window else ""
    build.output(build.node("STFT", build.input("x", [2, 5000]), step, given, length), None)
    session = InferenceSession(build.model(), num_threads=1, records=[])
    (got,) = session.run(None, {"x": x})
    frames = np.stack([x[:, first : first + 1024] for first in range(0, 3977, 500)], 1)[..., None]
    exact_frames = frames * (weights[:, None].astype(np.float64) if window else 1)
    check(got, exact(exact_frames, 2, None, 0, 1), tight_bound(frames, 1024, 0), "float32")
    assert len(kernels(session)) == 3


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_number_spoils_its_own_signal_alone(poison: float) -> None:
    x = random(2, 1024, 1)
    x[1, 7] = poison
    (got,) = session_of(None, [2, 1024, 1], 1).run(None, {"x": x})
    check(got[:1], exact(x[:1], 1, None, 0, 0), tight_bound(x[:1], 1024, 0), "float32")
    assert not np.isfinite(got[1]).any()


def test_the_split_has_small_tables() -> None:
    """Factors are near the root, if the length allows."""
    for n, wanted in (
        (1024, (32, 32)),
        (6000, (75, 80)),
        (1022, (14, 73)),
        (1 << 20, (1024, 1024)),
    ):
        found = factors(n)
        assert found is not None and (found.first, found.second) == wanted
        assert found.table_numbers < 2 * n * n / 16


def test_one_product_stays_where_it_is_faster() -> None:
    """Few elements and all primes keep one product; a dynamic signal count counts as several."""
    assert all(factors(n, parts, count) is None
               for n in (1, 2, 16, 60) for parts in (1, 2) for count in (1, 4))  # fmt: skip
    assert all(factors(n, count=count) is None for n in (97, 997, 4093) for count in (1, 64, "n"))
    assert factors(1024, count="n") == factors(1024, count=4)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types(dtype: str) -> None:
    """float16 is computed in float32 and rounded at the end; float64 stays float64."""
    x = random(2, 1024, 2).astype(dtype)
    build = OnnxBuilder()
    y = build.node("DFT", build.input("x", [2, 1024, 2], dtype), axis=1)
    build.output(y, None, dtype)
    session = InferenceSession(build.model(), num_threads=1, records=[])
    (got,) = session.run(None, {"x": x})
    unit = 2.0**-29 if dtype == "float64" else 1.0  # beside float32's
    check(got, exact(x, 1, None, 0, 0), unit * tight_bound(x, 1024, 0), dtype)
