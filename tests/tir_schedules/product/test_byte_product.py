"""Products of bytes without VNNI: exact for every A and weight, and how the method is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import parameter, ramp
from tests.tir_schedules.dynamic_regions import LENGTH, DynamicKernel
from tests.tir_schedules.integer_regions import matmul_region, product
from tests.tir_schedules.run_region import compiled, machine_for, packed, run
from tir_schedules.core.emission import kernel_function
from tir_schedules.core.region import Region
from tir_schedules.product.activations import HighBits
from tir_schedules.product.byte_outliers import SEARCHED_COLUMNS
from tir_schedules.product.matmul import MATMUL
from tvm_hybrid.runtime.feeds import tensor_of

pytestmark = pytest.mark.turns

every_isa = pytest.mark.parametrize("isa", ["avx2", "avx512"])
KINDS = ("small A", "small weight", "neither")


def operands(m: int, k: int, n: int, kind: str) -> list[np.ndarray]:
    """Extremes that fit because A is small, because the weight is small, or not at all."""
    rng = np.random.default_rng(m * k + n)
    most = 127 if kind == "small A" else 255
    low, high = (-64, 64) if kind == "small weight" else (-128, 127)
    a = rng.choice([0, 1, most - 1, most], (m, k)).astype(np.uint8)
    w = rng.choice([low, high], (k, n)).astype(np.int8)
    return [a, w]


def by_saturating_pairs(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The product by sums of two products that saturate in 16 bits."""
    pairs = a.reshape(len(a), -1, 2, 1).astype(np.int64) * w.reshape(-1, 2, w.shape[1])
    return np.clip(pairs.sum(axis=2), -32768, 32767).sum(axis=1)


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [50, SEARCHED_COLUMNS + 22])
@pytest.mark.parametrize("k", [64, 102])
def test_every_way_is_exact(isa: str, kind: str, n: int, k: int) -> None:
    for m in (1, 5, 37):
        region = matmul_region((m,), k, n)
        arrays = operands(m, k, n, kind)
        exact = product(region, arrays)
        np.testing.assert_array_equal(run(region, arrays, isa), exact)
        assert (by_saturating_pairs(*arrays) == exact).all() == (kind != "neither")


@every_isa
def test_blocks_of_rows_are_told_apart(isa: str) -> None:
    """Some blocks of rows fit, some do not; both factors have zero points."""
    region = matmul_region((96,), 128, 144, w="uint8", a_zero=7, w_zero=5)
    config = MATMUL.default_config(region, machine_for(isa))
    config = type(config).from_dict({**config.to_dict(), "m_block": 16})
    rng = np.random.default_rng(0)
    a = rng.integers(0, 128, (96, 128)).astype(np.uint8)
    a[20, 77] = a[95, 0] = 255
    w = rng.integers(0, 256, (128, 144)).astype(np.uint8)
    np.testing.assert_array_equal(run(region, [a, w], isa, config), product(region, [a, w]))


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_rows(isa: str, kind: str) -> None:
    for n in (50, 144):
        kernel = DynamicKernel(matmul_region((LENGTH,), 66, n, a_zero=3, w_zero=2), isa)
        for m in (1, 2, 6, 40):
            arrays = operands(m, 66, n, kind)
            region = matmul_region((m,), 66, n, a_zero=3, w_zero=2)
            found = kernel.run({"length": m}, arrays)
            np.testing.assert_array_equal(found, product(region, arrays))


def with_answer(region: Region, isa: str, arrays: list[np.ndarray], answer: bool) -> np.ndarray:
    """The product with this flag after the weight, right or wrong."""
    machine = machine_for(isa)
    config = MATMUL.default_config(region, machine)
    a, w = packed(region, config, machine.isa, arrays)
    assert w[-4:].view(np.int32)[0] in (0, 1)
    w[-4:].view(np.int32)[0] = answer
    result = tensor_of(np.zeros(region.output.shape, np.int32))
    kernel = compiled(MATMUL.build(region, config, machine.isa), isa)
    kernel(tensor_of(a), tensor_of(w), result)
    return result.numpy()


@every_isa
@pytest.mark.parametrize("m", [3, 32])
def test_the_answer_behind_the_weight_decides(isa: str, m: int) -> None:
    """A wrong flag is believed, which shows that a weight that fits is multiplied as bytes."""
    region, arrays = matmul_region((m,), 64, 48), operands(m, 64, 48, "neither")
    exact = product(region, arrays)
    saturated = by_saturating_pairs(*arrays)
    np.testing.assert_array_equal(with_answer(region, isa, arrays, True), saturated)
    np.testing.assert_array_equal(with_answer(region, isa, arrays, False), exact)


def test_one_byte_beyond_127_is_found_wherever_it_is() -> None:
    with kernel_function("search") as function:
        x, found = parameter("X", (3, 64), "uint8"), parameter("Y", (1,), "int32")
        search = HighBits(64)
        search.clear()
        with I.serial(3) as row:
            search.add(x[row, ramp(0, 64)])
        I.buffer_store(found, tvm.tirx.Cast("int32", search.none()), [0])
    kernel = compiled(function.get(), "avx2")

    def small(values: np.ndarray) -> int:
        result = tensor_of(np.zeros(1, np.int32))
        kernel(tensor_of(values), result)
        return int(result.numpy()[0])

    values = np.full((3, 64), 127, np.uint8)
    assert small(values) == 1
    for place in range(values.size):
        wrong = values.copy()
        wrong.flat[place] = 128
        assert small(wrong) == 0, place
