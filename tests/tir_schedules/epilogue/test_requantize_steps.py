"""Requantising in one or two products: code against numpy, packed and not, on every ISA."""

from __future__ import annotations

import fractions

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tir_schedules.integer_regions import every_isa, matmul_region
from tests.tir_schedules.run_region import run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.epilogue import Epilogue, epilogue_reference
from tir_schedules.epilogue.packed_bytes import LANES, wide_bytes
from tir_schedules.epilogue.quantize_steps import requantize_reference
from tir_schedules.product.matmul import MATMUL

F32 = np.float32
ZEROS = {"uint8": (0, 131, 255), "int8": (0, -128, 5)}


def requantized(shape: tuple[int, int, int], dtype: str, zero: int, factors: int) -> Region:
    """A product [m, k] x [k, n], requantised by factors of columns."""
    m, k, n = shape
    steps = (
        EpilogueOp("constant", value=float(zero)),
        EpilogueOp("requantize", (0, 1 + factors, *range(1, 1 + factors)), dtype=dtype),
    )
    return matmul_region(
        (m,),
        k,
        n,
        operands=(Tensor((n,), "float32"),) * factors,
        output=Tensor((m, n), dtype),
        epilogue=steps,
    )


def arguments(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Products of which many are exact ties, and many saturate."""
    rng = np.random.default_rng(seed)
    a, w = (rng.integers(0, 9, tensor.shape).astype(tensor.dtype) for tensor in region.inputs)
    w = (w.astype(np.int16) - 4).astype(region.inputs[1].dtype)
    n = region.output.shape[-1]
    factor = np.where(rng.random(n) < 0.5, F32(0.5), rng.uniform(0.1, 6, n)).astype(F32)
    if len(region.operands) == 1:
        return [a, w, factor]
    first = rng.uniform(1e-5, 1e-3, n).astype(F32)
    return [a, w, first, (factor / first).astype(F32)]


def expected(region: Region, arrays: list[np.ndarray]) -> np.ndarray:
    return epilogue_reference(region, MATMUL.reference(region, arrays[:2]), arrays[2:])


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("dtype", ZEROS)
@pytest.mark.parametrize("factors", [1, 2])
def test_code_agrees_with_numpy(isa: str, dtype: str, factors: int) -> None:
    # Whole vectors, panels of four and one; and a cut vector.
    sizes = [(9, 21, 80), (3, 13, 37)]
    for (m, k, n), zero in zip([*sizes, (2, 7, 16)], ZEROS[dtype], strict=True):
        region = requantized((m, k, n), dtype, zero, factors)
        for seed in range(2):
            arrays = arguments(region, seed)
            wanted = expected(region, arrays)
            assert len(np.unique(wanted)) > 8
            np.testing.assert_array_equal(run(region, arrays, isa, at_end=seed == 0), wanted)


def test_which_results_are_packed() -> None:
    for n, lanes, packs in [(80, LANES, True), (81, LANES, False), (80, 8, False)]:
        region = requantized((9, 3, n), "int8", -3, 2)
        found = wide_bytes(region, lanes, Epilogue(region, ()))
        assert (found is not None) == packs
        assert found is None or (found.zero_point, found.words) == (-3, True)


def exactly(value: int, zero: int, factors: list[float]) -> int:
    """One result in rational numbers, before saturation."""
    real = F32(value)
    for factor in factors[:-1]:
        real = F32(real * F32(factor))
    last = fractions.Fraction(float(F32(factors[-1])))
    return round(fractions.Fraction(float(real)) * last + zero)


@given(
    st.lists(st.integers(-(2**26), 2**26), min_size=1, max_size=9),
    st.lists(st.floats(2.0**-20, 2.0**-4), min_size=1, max_size=2),
    st.sampled_from([(dtype, zero) for dtype, zeros in ZEROS.items() for zero in zeros]),
)
def test_the_reference_rounds_once(
    values: list[int], factors: list[float], kind: tuple[str, int]
) -> None:
    dtype, zero = kind
    limits = np.iinfo(dtype)
    wanted = [min(max(exactly(v, zero, factors), limits.min), limits.max) for v in values]
    numbers = [np.asarray(factor, F32) for factor in factors]
    found = requantize_reference(dtype, np.array(values), np.array(zero), *numbers)
    assert found.tolist() == wanted


def test_the_key_tells_steps_apart() -> None:
    keys = {requantized((9, 3, 8), "int8", zero, n).key for zero in (0, 3) for n in (1, 2)}
    assert len(keys) == 4
