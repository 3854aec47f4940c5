"""Rows of 8-bit results are packed: every number of vectors, both types, saturation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.integer_regions import matmul_region
from tests.tir_schedules.run_region import INTEGER_ISAS, machine_for, run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.epilogue import Epilogue, epilogue_reference
from tir_schedules.epilogue.packed_bytes import LANES, largest, wide_bytes
from tir_schedules.product.matmul import MATMUL, MatmulConfig

ISA = INTEGER_ISAS[-1]
SCALE = 0.037
pytestmark = pytest.mark.isa("avx512")


def quantized(m: int, n: int, dtype: str, zero: int, operand: bool) -> Region:
    """A product of K = 3, times 0.5, plus a full operand if there is one, quantised."""
    steps = [EpilogueOp("cast", (0,)), EpilogueOp("constant", value=0.5)]
    first = 1 + operand
    steps.append(EpilogueOp("multiply", (first, first + 1)))
    if operand:
        steps.append(EpilogueOp("add", (first + 2, 1)))
    value = first + len(steps) - 1
    steps += [EpilogueOp("constant", value=SCALE), EpilogueOp("constant", value=float(zero))]
    steps.append(EpilogueOp("quantize", (value, value + 1, value + 2), dtype=dtype))
    return matmul_region(
        (m,),
        3,
        n,
        operands=(Tensor((m, n), "float32"),) if operand else (),
        output=Tensor((m, n), dtype),
        epilogue=tuple(steps),
    )


def inputs(region: Region) -> list[np.ndarray]:
    """Small integers, so that most results are within the type; operands of every size."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 5, region.inputs[0].shape).astype(np.uint8)
    w = rng.integers(-2, 3, region.inputs[1].shape).astype(np.int8)
    w[:, ::7] *= 40
    arrays: list[np.ndarray] = [a, w]
    if region.operands:
        x = (rng.standard_normal(region.output.shape) * 3).astype(np.float32)
        x.flat[::5] = rng.choice([np.inf, -np.inf, 3e38, -3e38, 1e9, -1e9, 1e-40], x.flat[::5].size)
        arrays.append(x)
    return arrays


def expected(region: Region, arrays: list[np.ndarray]) -> np.ndarray:
    result = MATMUL.reference(region, arrays[:2])
    with np.errstate(over="ignore"):
        return epilogue_reference(region, result, arrays[2:])


def packs(region: Region, lanes: int = LANES) -> bool:
    return wide_bytes(region, lanes, Epilogue(region, ())) is not None


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 131), ("int8", 0), ("int8", -77)])
@pytest.mark.parametrize("operand", [False, True])
def test_saturated_as_the_operators_do(dtype: str, zero: int, operand: bool) -> None:
    # Panels of 3 and 2 vectors, of 1, and the 16 + 1 of the skinny kernel.
    for m, n in ((9, 80), (2, 16), (1, 272)):
        region = quantized(m, n, dtype, zero, operand)
        arrays = inputs(region)
        wanted = expected(region, arrays)
        limits = np.iinfo(dtype)
        if m > 2:
            assert {limits.min, limits.max} <= set(wanted.flat) and len(np.unique(wanted)) > 10
        np.testing.assert_array_equal(run(region, arrays, ISA), wanted)


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
def test_every_width_of_a_tile(vectors: int) -> None:
    region = quantized(7, 16 * 9, "uint8", 3, True)
    config = MATMUL.default_config(region, machine_for(ISA)).to_dict()
    kernel = config["kernel"].replace("8x48", "6x64")
    changed = MatmulConfig.from_dict({**config, "kernel": kernel, "rows": 5, "vectors": vectors})
    arrays = inputs(region)
    result = run(region, arrays, ISA, changed, at_end=vectors % 2 == 0)
    np.testing.assert_array_equal(result, expected(region, arrays))


def test_a_nan_becomes_a_number_of_the_type_and_harms_no_other() -> None:
    region = quantized(1, 32, "uint8", 3, True)
    arrays = inputs(region)
    wanted = expected(region, arrays)
    arrays[2][0, 5] = np.nan
    others = np.arange(32) != 5
    np.testing.assert_array_equal(run(region, arrays, ISA)[0, others], wanted[0, others])


def test_which_results_are_packed() -> None:
    region = quantized(4, 32, "uint8", 0, False)
    assert packs(region)
    assert not packs(region, lanes=8)
    assert not packs(quantized(4, 33, "uint8", 0, False))  # a cut vector
    assert packs(quantized(4, 32, "int8", -1, False))
    assert not packs(
        region.replace(epilogue=region.epilogue[:3], output=Tensor((4, 32), "float32"))
    )
    at_run_time = EpilogueOp("quantize", (3, 1, 5), dtype="uint8")
    known = (*region.epilogue[:-1], at_run_time)
    assert not packs(region.replace(epilogue=known, operands=(Tensor((), "float32"),)))


def test_bounds_of_values() -> None:
    region = quantized(4, 32, "uint8", 0, False)
    product = 3 * 255 * 255
    assert [largest(region, value) for value in range(4)] == [product, product, 0.5, product / 2]
    assert largest(quantized(4, 32, "uint8", 0, True), 5) == np.inf
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("relu", (1,)),
        EpilogueOp("add", (2, 1)),
        EpilogueOp("gelu", (3,)),
    )
    several = region.replace(epilogue=steps)
    assert [largest(several, value) for value in (2, 3, 4)] == [product, 2 * product, np.inf]
    eight = (
        EpilogueOp("constant", value=0.5),
        EpilogueOp("constant", value=-3.0),
        EpilogueOp("dequantize", (1, 2, 3)),
        EpilogueOp("quantize", (4, 2, 3), dtype="int8"),
        EpilogueOp("subtract", (4, 2)),
    )
    bytes_ = region.replace(operands=(Tensor((4, 32), "uint8"),), epilogue=eight)
    assert [largest(bytes_, value) for value in (1, 4, 5, 6)] == [255, 129, 255, 129.5]
    assert largest(bytes_.replace(op="elementwise", inputs=bytes_.operands), 0) == 255
    weight = Tensor((3, 3, 8, 32), "int8", True)
    for op in ("conv2d", "depthwise_conv2d"):
        conv = region.replace(op=op, inputs=(region.inputs[0], weight))
        assert largest(conv, 0) == 72 * 255 * 255
    real = region.replace(inputs=(Tensor((4, 3), "float32"), Tensor((3, 32), "float32", True)))
    assert largest(real, 0) == largest(region.replace(op="weight_only_matmul"), 0) == np.inf
