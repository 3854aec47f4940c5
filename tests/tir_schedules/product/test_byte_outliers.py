"""Products of bytes with outliers listed apart: exact for every A, and when they are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.isa import isa_named
from microkernels.registry import kernels_for, microkernel_named
from tests.tir_schedules.assembly_loops import assembly_of
from tests.tir_schedules.dynamic_regions import LENGTH, DynamicKernel
from tests.tir_schedules.integer_regions import config_for, matmul_region, product
from tests.tir_schedules.run_region import Kernel, compiled, machine_for, packed, run
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.region import Region
from tir_schedules.product.byte_outliers import (
    APART,
    LARGEST,
    LEAST_K,
    LISTED_ROWS,
    cut_for_bytes,
    cuts_above,
    known_offset,
)
from tir_schedules.product.matmul import MATMUL
from tir_schedules.product.matmul_product import packed_weight, packing
from tir_schedules.product.tile_config import plan_of
from tir_schedules.product.zero_points import ZeroPoints
from tvm_hybrid.runtime.feeds import tensor_of

every_isa = pytest.mark.parametrize("isa", ["avx2", "avx512"])
KINDS = ("few", "some rows", "all 255", "all 0", "one", "at the ends", "random")


def values_of(kind: str, m: int, k: int, middle: int = 0) -> np.ndarray:
    """uint8 [m, k] with outliers of one kind; the other elements lie around `middle`."""
    rng = np.random.default_rng(m * k)
    low = max(0, middle - 64)
    x = rng.integers(low, min(low + 128, 256), (m, k))
    if kind == "few":
        x = np.where(rng.random((m, k)) < 0.02, rng.integers(0, 256, (m, k)), x)
    elif kind == "some rows":  # the other rows have none
        x[:: m // 3 + 1, ::11] = 255
        x[1 :: m // 3 + 1, 5::13] = 0
    elif kind == "one":
        x[m - 1, k - 1] = 255
    elif kind == "at the ends":
        x[:, 0], x[:, -1] = 255, 0
    elif kind == "random":
        x = rng.integers(0, 256, (m, k))
    elif kind.startswith("all"):
        x[:] = int(kind.split()[1])
    return x.astype(np.uint8)


def extreme_weight(k: int, n: int) -> np.ndarray:
    """int8 [k, n] of the largest magnitudes, whose sums in pairs first exceed 16 bits."""
    return np.random.default_rng(n).choice([-128, -127, 127], (k, n)).astype(np.int8)


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "n"), [(64, 64), (102, 150), (35, 200)])
def test_every_kind_is_exact(isa: str, kind: str, k: int, n: int) -> None:
    region, w = matmul_region((37,), k, n), extreme_weight(k, n)
    config = config_for(region, isa, m_block=16)
    assert APART.suits(plan_of(region, config))
    arrays = [values_of(kind, 37, k), w]
    np.testing.assert_array_equal(run(region, arrays, isa, config), product(region, arrays))


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("zero", [0, 1, 64, 130, 191, 192, 255])
@pytest.mark.parametrize("weight", ["extreme", "small"])
def test_seven_bits_begin_near_a_zero_point_of_run_time(isa: str, zero: int, weight: str) -> None:
    region = matmul_region((19,), 70, 100, w="uint8", a_zero="input", w_zero=3)
    w = extreme_weight(70, 100).view(np.uint8)
    if weight == "small":  # fits whatever A is
        w = (w % 32 + 128).astype(np.uint8)
    kernel = Kernel(region, isa)
    for kind in KINDS:
        arrays = [values_of(kind, 19, 70, zero), w, np.array(zero, np.uint8)]
        np.testing.assert_array_equal(kernel.run(arrays), product(region, arrays))


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("a", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [65, 130, 192, 255])
@pytest.mark.parametrize("w_zero", [0, 3])
def test_seven_bits_begin_near_a_known_zero_point(isa: str, a: str, zero: int, w_zero: int) -> None:
    """`zero` is the zero point of uint8; signed elements and their zero point are 128 less."""
    shift = 128 if a == "int8" else 0
    w = "uint8" if w_zero else "int8"
    region = matmul_region((19,), 70, 100, a, w, a_zero=zero - shift, w_zero=w_zero)
    kernel = Kernel(region, isa)
    for kind in KINDS:
        x = values_of(kind, 19, 70, zero) ^ np.uint8(shift)
        arrays = [x.view(a), extreme_weight(70, 100).view(w)]
        np.testing.assert_array_equal(kernel.run(arrays), product(region, arrays))


def test_what_lies_behind_a_row_is_no_outlier() -> None:
    """63 groups are no whole number of vectors: the copy pads rows with the zero point."""
    region = matmul_region((37,), 252, 150, a_zero=130)
    config = config_for(region, "avx2")
    assert APART.suits(plan_of(region, config))
    kernel = Kernel(region, "avx2")
    for kind in ("few", "one", "all 0"):
        arrays = [values_of(kind, 37, 252, 130), extreme_weight(252, 150)]
        np.testing.assert_array_equal(kernel.run(arrays), product(region, arrays))


def plan_by(isa: str, zero: int, k: int = 64) -> tuple[ProductPlan, ZeroPoints]:
    """The plan of a product and its zero points."""
    region = matmul_region((32,), k, 96, a_zero=zero)
    config = config_for(region, isa)
    return plan_of(region, config), ZeroPoints.of(region, microkernel_named(config.kernel))


@every_isa
def test_which_blocks_are_cut_above_zero(isa: str) -> None:
    assert not cuts_above(*plan_by(isa, 0))
    assert not cuts_above(*plan_by(isa, 64))
    assert cuts_above(*plan_by(isa, 65))
    assert not cuts_above(*plan_by(isa, 130, LEAST_K - 1))
    assert [known_offset(plan_by(isa, zero)[1]) for zero in (0, 65, 130, 255)] == [0, 1, 66, 128]


@every_isa
@pytest.mark.parametrize("zero", [0, 130])
def test_the_zero_point_says_which_bytes_are_cut(isa: str, zero: int) -> None:
    """Bytes of 150 are outliers of 0, not of 130, which needs the sums packed after the weight."""
    region = matmul_region((16,), 64, 64, a_zero=zero)
    config = config_for(region, isa)
    machine = machine_for(isa)
    kernel = microkernel_named(config.kernel)
    x, w = np.full((16, 64), 150, np.uint8), extreme_weight(64, 64)
    left, right = packed(region, config, machine.isa, [x, w])
    place = packed_weight(region, config, machine.isa).sums_at
    assert (right.size - 4 > place) == (zero > 0)
    if zero:
        right[place : place + 256].view(np.int32)[:] += 1
    result = tensor_of(np.zeros((16, 64), np.int32))
    compiled(MATMUL.build(region, config, machine.isa), isa)(
        tensor_of(left), tensor_of(right), result
    )
    offset = known_offset(ZeroPoints.of(region, kernel))
    assert offset == (66 if zero else 0)
    np.testing.assert_array_equal(result.numpy(), product(region, [x, w]) + offset)


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("zero", [0, 100, "input"])
def test_dynamic_rows(isa: str, zero: int | str) -> None:
    kernel = DynamicKernel(matmul_region((LENGTH,), 66, 96, a_zero=zero), isa)
    for m in (1, 2, 3, 7, 8, 50):
        region = matmul_region((m,), 66, 96, a_zero=zero)
        for kind in KINDS:
            arrays = [values_of(kind, m, 66, 100), extreme_weight(66, 96)]
            if zero == "input":
                arrays.append(np.array(100, np.uint8))
            found = kernel.run({"length": m}, arrays)
            np.testing.assert_array_equal(found, product(region, arrays))


def saturates(isa: str, a: np.ndarray) -> bool:
    """Whether bytes are multiplied directly if a wrong flag says that they fit."""
    m, k = a.shape
    region, w = matmul_region((m,), k, 64), np.full((k, 64), 127, np.int8)
    machine = machine_for(isa)
    config = MATMUL.default_config(region, machine)
    left, right = packed(region, config, machine.isa, [a, w])
    right[-4:].view(np.int32)[0] = 1
    result = tensor_of(np.zeros((m, 64), np.int32))
    compiled(MATMUL.build(region, config, machine.isa), isa)(
        tensor_of(left), tensor_of(right), result
    )
    return bool((result.numpy() != product(region, [a, w])).any())


@every_isa
def test_nothing_is_cut_where_the_weight_fits(isa: str) -> None:
    assert saturates(isa, np.full((16, 64), 255, np.uint8))
    assert not saturates(isa, np.full((16, 64), LARGEST, np.uint8))


@every_isa
def test_the_code_has_words_and_bytes_and_a_list(isa: str) -> None:
    region = matmul_region((32,), 64, 64)
    machine = machine_for(isa)
    function = MATMUL.build(region, MATMUL.default_config(region, machine), machine.isa)
    assembly = assembly_of(function, machine.isa)
    for instruction in ("vpmaddubsw", "vpmaddwd", "vpsubusb", "tzcnt"):
        assert instruction in assembly


@every_isa
def test_blocks_are_small_where_there_are_lists(isa: str) -> None:
    def plan(m: int, n: int) -> tuple[bool, int]:
        region: Region = matmul_region((m,), 64, n)
        found = plan_of(region, config_for(region, isa, m_block=3000))
        return APART.suits(found), cut_for_bytes(found).m_block

    assert plan(3000, 64) == (True, LISTED_ROWS)
    assert plan(3000, 32) == (False, 3000)
    assert plan(4, 64) == (False, 3000)


@pytest.mark.parametrize("isa", ["avx512_vnni", "avx2_vnni", "amx"])
def test_only_cpus_without_vnni_list_outliers(isa: str) -> None:
    region = matmul_region((64,), 64, 128, a_zero=130)
    for kernel in kernels_for(isa_named(isa), "uint8", "int8"):
        config = config_for(region, isa, kernel=kernel.name, rows=1, vectors=1)
        assert not APART.suits(plan_of(region, config))
        assert not packed_weight(region, config, isa_named(isa)).has_sums
        assert not MATMUL.by_values(region, config)
        bytes_packed = plan_of(region, config).panels.size + 4 * 128  # the zero point's term
        assert packing(region, config, isa_named(isa), 1).shape == (bytes_packed,)


@every_isa
def test_explain_says_it(isa: str) -> None:
    region = matmul_region((64,), 64, 128)
    text = MATMUL.by_values(region, config_for(region, isa))
    assert "few elements of x are beyond 127, whose products are added apart" in text
    above = matmul_region((64,), 64, 128, a_zero=130)
    text = MATMUL.by_values(above, config_for(above, isa))
    assert "few elements of x are (as uint8) not from 66 to 193" in text
    few = matmul_region((3,), 64, 128)
    assert "no element of x is beyond 127" in MATMUL.by_values(few, config_for(few, isa))
