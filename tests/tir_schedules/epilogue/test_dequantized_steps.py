"""Quantised values that are only dequantised again: which values these are, and their bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.integer_regions import every_isa, matmul_region
from tests.tir_schedules.run_region import run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.epilogue import epilogue_reference
from tir_schedules.epilogue.lookup_table import find_lookups
from tir_schedules.epilogue.quantize_steps import centred_steps
from tir_schedules.product.matmul import MATMUL

INNER = 7  # number of the value that is quantised inside


def residual(dtype: str, zero: int, scale: float = 0.5, n: int = 37) -> Region:
    """quantize(dequantize(quantize(acc * factor)) + dequantize(residual)), all of one type."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("multiply", (3, 1)),
        EpilogueOp("constant", value=scale),
        EpilogueOp("constant", value=float(zero)),
        EpilogueOp("quantize", (4, 5, 6), dtype=dtype),
        EpilogueOp("dequantize", (INNER, 5, 6)),
        EpilogueOp("constant", value=0.25),
        EpilogueOp("dequantize", (2, 9, 6)),
        EpilogueOp("add", (8, 10)),
        EpilogueOp("constant", value=0.75),
        EpilogueOp("quantize", (11, 12, 6), dtype=dtype),
    )
    operands = (Tensor((n,), "float32"), Tensor((7, n), dtype))
    return matmul_region(
        (7,), 21, n, operands=operands, output=Tensor((7, n), dtype), epilogue=steps
    )


def centred(region: Region) -> frozenset[int]:
    return centred_steps(region, find_lookups(region))


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 131), ("int8", -5)])
def test_the_same_bits(isa: str, dtype: str, zero: int) -> None:
    """Exact ties, zeros of both signs and saturation, for a power of two and another scale."""
    rng = np.random.default_rng(0)
    for scale, n in ((0.5, 37), (0.0371, 64)):
        region = residual(dtype, zero, scale, n)
        assert centred(region) == {INNER}
        a, w = (rng.integers(0, 9, t.shape).astype(t.dtype) for t in region.inputs)
        w = (w.astype(np.int16) - 4).astype(region.inputs[1].dtype)
        factor = np.where(np.arange(n) % 2, 0.25, rng.uniform(0.001, 4, n)).astype(np.float32)
        other = rng.integers(0, 100, (7, n)).astype(dtype)
        arrays = [a, w, factor, other]
        wanted = epilogue_reference(region, MATMUL.reference(region, [a, w]), arrays[2:])
        assert len(np.unique(wanted)) > 30
        np.testing.assert_array_equal(run(region, arrays, isa), wanted)


def test_which_values_stay() -> None:
    region = residual("uint8", 3)
    steps = list(region.epilogue)

    def having(number: int, step: EpilogueOp) -> Region:
        return region.replace(epilogue=(*steps[:number], step, *steps[number + 1 :]))

    # Dequantised by another scale; read as an integer; then a divisor, where signs of 0 matter.
    assert not centred(having(5, EpilogueOp("dequantize", (INNER, 6, 6))))
    assert not centred(having(8, EpilogueOp("add", (8, INNER))))
    assert not centred(having(8, EpilogueOp("divide", (10, 8))))
    # The result is f32.
    assert not centred(region.replace(epilogue=tuple(steps[:9])))
    assert not centred(region.replace(epilogue=()))


def test_what_is_looked_up_stays_an_integer() -> None:
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("constant", value=0.1),
        EpilogueOp("constant", value=128.0),
        EpilogueOp("quantize", (1, 2, 3), dtype="uint8"),
        EpilogueOp("dequantize", (4, 2, 3)),
        *(EpilogueOp("multiply", (5 + i, 5)) for i in range(9)),
        EpilogueOp("quantize", (14, 2, 3), dtype="uint8"),
    )
    region = matmul_region((7,), 21, 16, output=Tensor((7, 16), "uint8"), epilogue=steps)
    assert [lookup.source for lookup in find_lookups(region).values()] == [4]
    assert centred(region) == frozenset()
    assert centred_steps(region, {}) == {4}
