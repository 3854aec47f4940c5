"""Random arguments of requantized regions: many integers, none beyond 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.integer_regions import matmul_region
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.epilogue import epilogue_reference
from tir_schedules.product.matmul import MATMUL
from tvm_hybrid.tuning.verification.bounds import anchor_result, random_arguments


def of_columns(factors: int, k: int) -> Region:
    """A region requantized by operands, after a bias."""
    steps = (
        EpilogueOp("add", (0, 1), dtype="int32"),
        EpilogueOp("constant", value=77.0),
        EpilogueOp("requantize", (2 + factors, 3 + factors, *range(2, 2 + factors)), dtype="uint8"),
    )
    operands = (Tensor((48,), "int32"), *[Tensor((48,), "float32")] * factors)
    return matmul_region(
        (20,), k, 48, operands=operands, output=Tensor((20, 48), "uint8"), epilogue=steps
    )


def of_numbers(factor: float, k: int) -> Region:
    """A region requantized by a constant that suits smaller weights than random ones."""
    steps = (
        EpilogueOp("constant", value=-3.0),
        EpilogueOp("constant", value=factor),
        EpilogueOp("requantize", (0, 1, 2), dtype="int8"),
    )
    return matmul_region((20,), k, 48, output=Tensor((20, 48), "int8"), epilogue=steps)


@pytest.mark.parametrize(
    "region",
    [of_columns(1, 9), of_columns(2, 1152), of_numbers(0.001, 64), of_numbers(0.05, 1152)],
    ids=["one factor", "two factors", "small number", "large number"],
)
def test_many_integers_within_16_bits(region: Region) -> None:
    arrays = random_arguments(region, MATMUL, seed=3)
    sums = anchor_result(region, MATMUL, arrays[:2])
    wanted = epilogue_reference(region, sums, arrays[2:])
    assert len(np.unique(wanted)) >= 48
    total = sums.astype(np.float64) + (arrays[2] if len(region.operands) else 0)
    for array in arrays[3:]:
        total = total * array
    if not region.operands:
        total = total * float(region.epilogue[1].value or 0.0)
    assert np.abs(total).max() < 2**15 - 128
