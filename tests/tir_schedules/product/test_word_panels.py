"""Many rows of 8-bit integers on AVX2: both operands are widened once, not next to products."""

from __future__ import annotations

import pytest

from tests.tir_schedules.assembly_loops import assembly_of, innermost_loops
from tests.tir_schedules.integer_regions import TYPES, check, matmul_region
from tests.tir_schedules.open_regions import LENGTH
from tests.tir_schedules.run_region import machine_for
from tir_schedules.core.region import Region
from tir_schedules.product.matmul import MATMUL
from tir_schedules.product.matmul_config import plan_of
from tir_schedules.product.word_panels import FEWEST_ROWS, widens

NEXT_TO_PRODUCTS = ("vpmovsxbw", "vpmovzxbw")


def widening_loops(region: Region) -> list[bool]:
    """Of every innermost loop with products, whether it widens, too."""
    machine = machine_for("avx2")
    config = MATMUL.default_config(region, machine)
    text = assembly_of(MATMUL.build(region, config, machine.isa), machine.isa)
    loops = ["\n".join(loop) for loop in innermost_loops(text)]
    products = [loop for loop in loops if loop.count("vpmaddwd") >= 4]
    return [any(word in loop for word in NEXT_TO_PRODUCTS) for loop in products]


def test_many_rows_are_multiplied_by_panels_of_words() -> None:
    assert not any(widening_loops(matmul_region((64,), 256, 96, "uint8", "int8")))


def test_few_rows_widen_next_to_the_products() -> None:
    assert all(widening_loops(matmul_region((FEWEST_ROWS - 1,), 256, 96, "uint8", "int8")))


@pytest.mark.parametrize("isa", ["scalar", "avx2_vnni", "avx512", "avx512_vnni"])
def test_other_instruction_sets_do_not(isa: str) -> None:
    region = matmul_region((64,), 256, 96, "uint8", "int8")
    config = MATMUL.default_config(region, machine_for(isa))
    plan = plan_of(region, config)
    assert plan.kernel.isa_name == isa and not widens(plan, plan.kernel)


@pytest.mark.isa("avx2")
@pytest.mark.parametrize(("a", "w"), TYPES)
def test_results_are_exact(a: str, w: str) -> None:
    for k, n in ((13, 33), (64, 16), (300, 70)):
        for zeros in ((0, 0), (3, 5), ("input", "input")):
            check(matmul_region((FEWEST_ROWS + 21,), k, n, a, w, *zeros), "avx2")
    assert widening_loops(matmul_region((LENGTH,), 256, 96, a, w)).count(False)
