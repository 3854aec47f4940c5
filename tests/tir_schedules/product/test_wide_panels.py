"""With many rows, 8-bit integers without VNNI, and bfloat16, are widened once in advance."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from microkernels.base.errors import ConfigError
from tests.tir_schedules.assembly_loops import assembly_of, innermost_loops
from tests.tir_schedules.dynamic_regions import LENGTH, DynamicKernel
from tests.tir_schedules.integer_regions import TYPES, check, matmul_region
from tests.tir_schedules.run_region import dtype_named, machine_for, random_inputs, run
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.region import Region, Tensor
from tir_schedules.product.matmul import MATMUL
from tir_schedules.product.staged_panels import FEWEST_INTEGER_ROWS, FEWEST_ROWS, wide_product_of
from tir_schedules.product.tile_config import plan_of

pytestmark = pytest.mark.turns

F = "float32"
# Instructions that widen, or cut A into digits, and the instruction that multiplies.
INTEGERS = ("vpmovsxbw", "vpmovzxbw", "vpsrlw"), "vpmaddwd"
FLOATS = ("vpslld", "vpand", "vandps"), "vfmadd"
ALL = pytest.mark.parametrize(
    ("region", "isa"), [(r, i) for r in ("integers", "floats") for i in ("avx2", "avx512")]
)


def floats(m: int) -> Region:
    """m rows times a bfloat16 weight."""
    weight = Tensor((256, 96), "bfloat16", True)
    return Region(
        op="matmul", inputs=(Tensor((m, 256), "float32"), weight), output=Tensor((m, 96), "float32")
    )


def widening_loops(region: Region, isa: str = "avx2") -> list[bool]:
    """For every innermost loop with products, whether it also widens."""
    widening, product = FLOATS if region.inputs[1].dtype == "bfloat16" else INTEGERS
    machine = machine_for(isa)
    config = MATMUL.default_config(region, machine)
    text = assembly_of(MATMUL.build(region, config, machine.isa), machine.isa)
    loops = ["\n".join(loop) for loop in innermost_loops(text)]
    products = [loop for loop in loops if loop.count(product) >= 4]
    return [any(word in loop for word in widening) for loop in products]


def integers(m: int) -> Region:
    """m rows of 8-bit integers times an 8-bit weight."""
    return matmul_region((m,), 256, 96, "uint8", "int8")


REGIONS = {"integers": integers, "floats": floats}
FEWEST = {"integers": FEWEST_INTEGER_ROWS, "floats": FEWEST_ROWS}


@ALL
def test_many_rows_are_multiplied_by_widened_panels(region: str, isa: str) -> None:
    assert not any(widening_loops(REGIONS[region](64), isa))
    assert not any(widening_loops(REGIONS[region](FEWEST[region]), isa))


@ALL
def test_few_rows_widen_next_to_the_products(region: str, isa: str) -> None:
    """Integers are cut into digits; integers that fit are multiplied directly."""
    found = set(widening_loops(REGIONS[region](FEWEST[region] - 1), isa))
    assert found == ({True} if region == "floats" else {True, False})


def test_a_dynamic_number_of_bfloat16_rows_has_code_for_few_and_for_many() -> None:
    assert set(widening_loops(floats(LENGTH))) == {True, False}
    machine = machine_for("avx2")
    config = MATMUL.default_config(floats(LENGTH), machine)
    text = MATMUL.at_run_time(floats(LENGTH), config)
    assert "1 to 2 rows: " in text and "3 to 15: tiles of 1, 3 and 4 rows" in text
    assert "more: widened operands, tiles of 3, 4, 5 and 6 rows" in text


def test_widened_bfloat16_is_multiplied_by_the_tile_of_floats() -> None:
    """The weight is packed for the bfloat16 kernel, which has no tile of 6 x 16."""
    config = MATMUL.default_config(floats(64), machine_for("avx2"))
    plan = plan_of(floats(64), config)
    wide = wide_product_of(plan)
    assert wide is not None and wide.kernel.name == "avx2_f32_6x16"
    assert (plan.kernel.name, plan.rows, plan.vectors) == ("avx2_bf16_4x16", 6, 2)
    few = msgspec.structs.replace(config, rows=6)
    with pytest.raises(ConfigError, match="rows=6"):
        MATMUL.check(floats(FEWEST_ROWS - 1), few, machine_for("avx2").isa)
    MATMUL.check(floats(FEWEST_ROWS), few, machine_for("avx2").isa)


@pytest.mark.parametrize(("a", "w", "out"), [("uint8", "int8", "int32"), (F, "bfloat16", F)])
def test_few_tiles_do_not_cut_k(a: str, w: str, out: str) -> None:
    """Sums of few tiles would stay in registers across the blocks of K and be spilled."""
    machine = machine_for("avx2")

    def plan(m: int, k: int) -> ProductPlan:
        weight = Tensor((k, 64), w, True)
        inputs = Tensor((m, k), a), weight
        region = Region(op="matmul", inputs=inputs, output=Tensor((m, 64), out))
        return plan_of(region, MATMUL.default_config(region, machine))

    few, many = plan(FEWEST_ROWS, 32768), plan(400, 32768)
    assert len(few.pieces) == 1 and len(many.pieces) > 1
    assert plan(400, 256).m_block > 100


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bfloat16_has_the_bits_of_products_next_to_which_it_is_widened(
    dtype: str, isa: str
) -> None:
    """Few rows widen next to the products; nine rows at a time give the bits of all rows."""
    rng = np.random.default_rng(0)
    for k, n in ((13, 33), (64, 16), (301, 70)):
        m = FEWEST_ROWS + 21
        a, w = (rng.standard_normal(shape).astype("float32") for shape in ((m, k), (k, n)))
        a[3, 5], a[4, 6] = np.inf, np.nan
        arrays = [a.astype(dtype_named(dtype)), w.astype(dtype_named("bfloat16"))]

        def product(first: int, rows: int, arrays: list[np.ndarray] = arrays) -> np.ndarray:
            inputs = [arrays[0][first : first + rows], arrays[1]]
            tensors = [Tensor(each.shape, str(each.dtype), i > 0) for i, each in enumerate(inputs)]
            output = Tensor((rows, arrays[1].shape[1]), "float32")
            return run(Region(op="matmul", inputs=tuple(tensors), output=output), inputs, isa)

        parts = [product(first, min(9, m - first)) for first in range(0, m, 9)]
        np.testing.assert_array_equal(product(0, m), np.concatenate(parts))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("cuts", [{}, {"m_block": 20, "k_block": 13}, {"threads_m": 2}])
def test_any_number_of_bfloat16_rows_has_the_same_bits(cuts: dict[str, int], isa: str) -> None:
    """Blocks of rows and chunks of threads end in few rows, which widen next to the products."""

    def region(m: int) -> Region:
        inputs = Tensor((m, 75), F), Tensor((75, 70), "bfloat16", True)
        return Region(op="matmul", inputs=inputs, output=Tensor((m, 70), F))

    config = msgspec.structs.replace(
        MATMUL.default_config(region(LENGTH), machine_for(isa)), whole_rows=18, **cuts
    )
    kernel = DynamicKernel(region(LENGTH), isa, cuts.get("threads_m", 1), config)
    a, w = random_inputs(region(261))

    def rows(first: int, end: int) -> np.ndarray:
        return kernel.run({"length": end - first}, [a[first:end], w])

    few = np.concatenate([rows(i, i + 9) for i in range(0, 261, 9)])
    np.testing.assert_array_equal(few[:9], run(region(9), [a[:9], w], isa))
    for m in (1, FEWEST_ROWS - 1, FEWEST_ROWS, 19, 37, 261):
        np.testing.assert_array_equal(rows(0, m), few[:m])


@pytest.mark.parametrize("isa", ["scalar", "avx2_vnni", "avx512_vnni"])
def test_other_instruction_sets_do_not(isa: str) -> None:
    region = integers(64)
    config = MATMUL.default_config(region, machine_for(isa))
    plan = plan_of(region, config)
    assert plan.kernel.isa_name == isa and wide_product_of(plan) is None


@pytest.mark.parametrize("isa", ["scalar", "avx512_bf16"])
def test_other_instruction_sets_do_not_for_bfloat16(isa: str) -> None:
    config = MATMUL.default_config(floats(64), machine_for(isa))
    plan = plan_of(floats(64), config)
    assert plan.kernel.isa_name == isa and wide_product_of(plan) is None


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize(("a", "w"), TYPES)
def test_results_are_exact(a: str, w: str, isa: str) -> None:
    for k, n in ((13, 33), (64, 16), (300, 70)):
        for zeros in ((0, 0), (3, 5), ("input", "input")):
            check(matmul_region((FEWEST_ROWS + 21,), k, n, a, w, *zeros), isa)
    assert widening_loops(matmul_region((LENGTH,), 256, 96, a, w), isa).count(False)
