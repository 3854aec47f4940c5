"""Elementwise regions of dynamic sizes equal the static ones, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.rows.test_elementwise import awkward, constant, region_of
from tests.tir_schedules.run_region import ISAS, dtype_named, run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.rows.elementwise import ElementwiseConfig

QUANTIZE = [constant(0.037), constant(13), EpilogueOp("quantize", (0, 1, 2), dtype="uint8")]
BY_CHANNEL = [
    EpilogueOp("dequantize", (0, 1, 2)),
    EpilogueOp("multiply", (4, 3)),
    constant(0.5),
    constant(-3),
    EpilogueOp("quantize", (5, 6, 7), dtype="int8"),
]


def by_channel(shape: tuple[int, ...], channels: tuple[int, ...], full: Tensor) -> Region:
    """Dequantises per channel, multiplies by a whole tensor, quantises."""
    operands = (Tensor(channels, "float32"), Tensor(channels, "uint8"), full)
    return region_of(shape, "uint8", "int8", BY_CHANNEL, operands)


ROWS = (BATCH, 5, 67)
PLANES = (BATCH, 3, LENGTH)
REGIONS = {
    "one row": region_of((BATCH, LENGTH, 3), "float32", "uint8", QUANTIZE),
    "rows": by_channel(ROWS, (67,), Tensor(ROWS, "float32")),
    "short rows": by_channel((BATCH, 3), (3,), Tensor((), "float32")),
    "planes": by_channel(PLANES, (3, 1), Tensor(PLANES, "float32")),
    "known planes": by_channel((3, LENGTH), (3, 1), Tensor((1, LENGTH), "float32")),
    "bfloat16": region_of((LENGTH,), "bfloat16", "float32", []),
}
LENGTHS = (0, 1, 7, 8, 9, 16, 17, 63, 64, 65, 333)


def arrays_for(region: Region) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    made = []
    for tensor in (*region.inputs, *region.operands):
        kind = dtype_named(tensor.dtype)
        if kind.kind == "u":
            made.append(rng.integers(0, 256, tensor.shape).astype(kind))
        else:
            numbers = [awkward(0.037, 13, 100, seed) for seed in range(tensor.size // 100 + 1)]
            made.append(np.resize(np.concatenate(numbers), tensor.shape).astype(kind))
    if len(region.operands) == 3:  # the first one holds scales
        made[1] = rng.uniform(0.01, 0.1, region.operands[0].shape).astype(np.float32)
        made[3] = rng.standard_normal(region.operands[2].shape).astype(np.float32)
    return made


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_as_of_known_sizes(isa: str, name: str, threads: int) -> None:
    region = REGIONS[name]
    config = ElementwiseConfig(4, threads, 500)  # on either side of `alone`
    kernel = DynamicKernel(region, isa, threads, config)
    for number, length in enumerate(LENGTHS):
        values = {"batch": (1, 3, 8)[number % 3], "length": length}
        known = at_sizes(region, values)
        arrays = arrays_for(known)
        result = kernel.run(values, arrays, at_end=number % 2 == 0)
        if result.size:
            wanted = run(known, arrays, isa, config=ElementwiseConfig(1))
            assert (result == wanted).all(), values
