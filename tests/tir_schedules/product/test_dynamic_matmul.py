"""Products with dynamic rows: one kernel, with the bits of the static kernels."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from tests.onnx_reference.arithmetic import dynamic_quantize
from tests.tir_schedules.assembly_loops import assembly_of, innermost_loops
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.integer_regions import matmul_region, product
from tests.tir_schedules.integer_regions import values as integers
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    ISAS,
    expected,
    highest_native,
    machine_for,
    product_bound,
    random_inputs,
)
from tir_schedules.core.emission import ALONE
from tir_schedules.core.product_plan import MOST_SHARES
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.product.tile_config import plan_of

pytestmark = pytest.mark.turns

SIZES = [(1, 1), (1, 2), (1, 3), (2, 2), (1, 7), (3, 5), (1, 37), (2, 64)]


def linear(k: int, n: int, epilogue: tuple[EpilogueOp, ...] = (), *operands: Tensor) -> Region:
    return Region(
        op="matmul",
        inputs=(Tensor((BATCH, LENGTH, k), "float32"), Tensor((k, n), "float32", True)),
        operands=operands,
        output=Tensor((BATCH, LENGTH, n), "float32"),
        epilogue=epilogue,
    )


def biased(k: int, n: int) -> Region:
    return linear(
        k, n, (EpilogueOp("add", (0, 1)), EpilogueOp("relu", (2,))), Tensor((n,), "float32")
    )


def bytes_times_bytes(k: int, n: int, a: str, zero_point: int) -> Region:
    return Region(
        op="matmul",
        inputs=(Tensor((BATCH, LENGTH, k), a), Tensor((k, n), "int8", True)),
        output=Tensor((BATCH, LENGTH, n), "int32"),
        attrs={"a_zero_point": zero_point},
    )


def check(
    region: Region, kernel: DynamicKernel, sizes: tuple[int, int], at_end: bool = True
) -> None:
    values = dict(zip(("batch", "length"), sizes, strict=True))
    known = at_sizes(region, values)
    arrays = random_inputs(known)
    result = kernel.run(values, arrays, at_end)
    wanted = expected(known, arrays)
    bound = np.zeros(()) if region.output.dtype == "int32" else product_bound(known, arrays)
    assert (np.abs(result - wanted) <= bound + 1e-30).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", [(64, 48), (70, 130), (33, 5)])
def test_any_number_of_rows(isa: str, sizes: tuple[int, int]) -> None:
    region = biased(*sizes)
    kernel = DynamicKernel(region, isa)
    for each in SIZES:
        check(region, kernel, each)
        check(region, kernel, each, at_end=False)


def test_no_rows() -> None:
    kernel = DynamicKernel(biased(16, 32), highest_native(ISAS))
    values = {"batch": 0, "length": 5}
    assert kernel.run(values, random_inputs(at_sizes(kernel.region, values))).shape == (0, 5, 32)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_on_threads(threads: int) -> None:
    region = biased(64, 300)
    machine = machine_for(highest_native(ISAS), threads).with_numbers(fork_us=0)
    config = template_for("matmul").default_config(region, machine)
    assert config.threads > 1
    kernel = DynamicKernel(region, highest_native(ISAS), threads, config)
    for each in SIZES:
        check(region, kernel, each)


@pytest.mark.parametrize("a", ["float32", "uint8"])
def test_threads_claim_pieces_of_rows_that_are_not_staged(a: str) -> None:
    region = biased(70, 300) if a == "float32" else bytes_times_bytes(70, 300, a, 3)
    machine = machine_for("avx2", 2)
    config = template_for("matmul").default_config(region, machine.with_numbers(fork_us=0))
    assert config.threads == 2
    built = template_for("matmul").build(region, config, machine.isa)
    assert ("tvm_hybrid_arrive" in built.script()) == (a == "float32")


@pytest.mark.parametrize(("threads", "whole"), [(2, 1), (2, 20), (3, 64)])
def test_threads_share_the_columns_of_few_rows(threads: int, whole: int) -> None:
    region, isa = biased(100, 300), highest_native(ISAS)
    template = template_for("matmul")
    config = template.default_config(region, machine_for(isa))
    config = msgspec.structs.replace(config, k_block=40, threads_m=threads, whole_rows=whole)
    assert f"up to {whole} rows: threads share" in template.at_run_time(region, config)
    kernel = DynamicKernel(region, isa, threads, config)
    for each in SIZES:
        check(region, kernel, each)


@pytest.mark.parametrize("a", ["float32", "uint8"])
def test_one_thread_multiplies_few_rows(a: str) -> None:
    """The launch asks for one thread or for all, whatever the estimates say."""
    region = biased(70, 300) if a == "float32" else bytes_times_bytes(70, 300, a, 3)
    template, isa = template_for("matmul"), highest_native(ISAS)
    machine = machine_for(isa, 2).with_numbers(fork_us=0)
    config = template.default_config(region, machine)
    config = msgspec.structs.replace(config, alone_rows=20)
    assert "up to 20 rows: one thread" in template.at_run_time(region, config)
    assert template.build(region, config, machine.isa).script().count(ALONE) == 1
    kernel = DynamicKernel(region, isa, 2, config)
    for each in SIZES:
        check(region, kernel, each)


def test_images_are_shared_though_the_rows_of_sentences_are_not() -> None:
    region = biased(16, 32)
    config = template_for("matmul").default_config(region, machine_for("avx2", 2))
    assert config.threads == 2
    assert config.alone_rows > 128
    few = template_for("matmul").default_config(biased(512, 512), machine_for("avx2", 2))
    assert few.threads == 2
    assert few.alone_rows < 8


def test_cuts_of_rows_and_of_k() -> None:
    region = biased(100, 48)
    isa = highest_native(ISAS)
    config = template_for("matmul").default_config(region, machine_for(isa))
    config = msgspec.structs.replace(config, m_block=16, k_block=40)
    kernel = DynamicKernel(region, isa, 1, config)
    for each in SIZES:
        check(region, kernel, each)


@pytest.mark.parametrize(("isa", "fetched"), [("scalar", False), ("avx2", True), ("avx512", True)])
def test_tiles_fetch_the_next_panel_where_a_step_of_it_is_whole_lines(
    isa: str, fetched: bool
) -> None:
    region, machine = biased(96, 208), machine_for(isa)
    template = template_for("matmul")
    built = template.build(region, template.default_config(region, machine), machine.isa)
    assert ("tvm_hybrid_prefetch" in str(built.body)) == fetched


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_no_division_is_among_the_products(isa: str) -> None:
    """LLVM moved a division by the number of tiles there, which cost a fifth of the time."""
    region, machine = linear(384, 1536), machine_for(isa)
    config = template_for("matmul").default_config(region, machine)
    built = template_for("matmul").build(region, config, machine.isa)
    loops = [
        loop
        for loop in innermost_loops(assembly_of(built, machine.isa))
        if sum("vfmadd" in line for line in loop) > 2
    ]
    # They include tiles of six and of twelve rows.
    assert max(sum("vfmadd" in line for line in loop) for loop in loops) >= 12
    assert not [line for loop in loops for line in loop if re.search(r"\bi?div[lq]\b", line)]


@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize(("a", "zero_point"), [("uint8", 0), ("uint8", 3), ("int8", -2)])
def test_integers_are_exact(isa: str, a: str, zero_point: int) -> None:
    region = bytes_times_bytes(70, 48, a, zero_point)
    kernel = DynamicKernel(region, isa)
    for each in SIZES:
        check(region, kernel, each)


def test_few_tiles_of_bytes_fetch_the_next_panel_of_a_large_weight() -> None:
    region, machine = bytes_times_bytes(512, 520, "uint8", 3), machine_for("avx2")
    config = template_for("matmul").default_config(region, machine)
    assert plan_of(region.sampled(), config).most_shares == MOST_SHARES
    built = template_for("matmul").build(region, config, machine.isa)
    loops = innermost_loops(assembly_of(built, machine.isa))
    products = [loop for loop in loops if any("vpmaddwd" in line for line in loop)]
    fetching = [any("prefetch" in line for line in loop) for loop in products]
    assert any(fetching) and not all(fetching)


@pytest.mark.isa("avx2")
def test_bytes_are_exact_with_and_without_fetching() -> None:
    kernel = DynamicKernel(region := bytes_times_bytes(512, 520, "uint8", 3), "avx2")
    most = MOST_SHARES * kernel.config.rows
    for length in (1, 3, 8, most, most + 1, most + 9):
        check(region, kernel, (1, length))


SCALED = (  # DynamicQuantizeLinear's scale times the scale of each column
    EpilogueOp("cast", (0,)),
    EpilogueOp("multiply", (3, 1)),
    EpilogueOp("multiply", (2, 4)),
)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize(("k", "w_zero"), [(70, 0), (64, "input")])
def test_zero_points_of_a_range_are_exact(isa: str, k: int, w_zero: int | str) -> None:
    """The zero point comes from another kernel, its scale is in the epilogue."""
    item = EpilogueOp("item", (2,), value=0)
    region = matmul_region(
        (BATCH, LENGTH),
        k,
        48,
        a_zero="range",
        w_zero=w_zero,
        operands=(Tensor((48,), "float32"), Tensor((2,), "float32")),
        epilogue=(
            EpilogueOp("cast", (0,)),
            item,
            EpilogueOp("multiply", (4, 1)),
            EpilogueOp("multiply", (3, 5)),
        ),
        output=Tensor((BATCH, LENGTH, 48), "float32"),
    )
    kernel = DynamicKernel(region, isa)
    for sizes in SIZES:
        known = at_sizes(region, dict(zip(("batch", "length"), sizes, strict=True)))
        arrays = integers(known)
        *inputs, columns, numbers = arrays
        result = kernel.run(dict(zip(("batch", "length"), sizes, strict=True)), arrays)
        total = product(known, inputs).astype(np.float32)
        np.testing.assert_array_equal(result, total * (numbers[0] * columns))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize(("k", "threads"), [(70, 1), (5, 1), (64, 2), (37, 3)])
def test_the_kernel_finds_the_range_of_any_number_of_rows(isa: str, k: int, threads: int) -> None:
    region = matmul_region(
        (BATCH, LENGTH),
        k,
        300,
        a_zero="dynamic",
        quantized="dynamic",
        operands=(Tensor((300,), "float32"),),
        epilogue=(SCALED[0], EpilogueOp("range", (), value=0), *SCALED[1:]),
        output=Tensor((BATCH, LENGTH, 300), "float32"),
    )
    machine = machine_for(isa, threads).with_numbers(fork_us=0)
    config = template_for("matmul").default_config(region, machine)
    config = msgspec.structs.replace(config, m_block=32, threads_n=1, threads_m=threads)
    kernel = DynamicKernel(region, isa, threads, config)
    for sizes in [*SIZES, (0, 3)]:
        values = dict(zip(("batch", "length"), sizes, strict=True))
        known = at_sizes(region, values)
        arrays = integers(known)
        result = kernel.run(values, arrays)
        if not result.size:
            continue
        _, scale, _ = dynamic_quantize(arrays[0])
        total = product(known, arrays[:2]).astype(np.float32)
        np.testing.assert_array_equal(result, total * (scale * arrays[2]))


@pytest.mark.parametrize("isa", BF16_ISAS)
def test_bfloat16_has_the_bits_of_known_sizes(isa: str) -> None:
    region = Region(
        op="matmul",
        inputs=(Tensor((BATCH, LENGTH, 48), "float32"), Tensor((48, 64), "bfloat16", True)),
        output=Tensor((BATCH, LENGTH, 64), "float32"),
    )
    kernel = DynamicKernel(region, isa)
    for sizes in SIZES:
        values = dict(zip(("batch", "length"), sizes, strict=True))
        known = at_sizes(region, values)
        arrays = random_inputs(known)
        magnitudes = [np.abs(x.astype(np.float64)) for x in arrays]
        # Products are exact in f32; A is rounded to 8 bits, then sums of K of them to 24.
        bound = (2.0**-8 + 48 * 2.0**-23) * (magnitudes[0] @ magnitudes[1])
        exact = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
        assert (np.abs(kernel.run(values, arrays) - exact) <= bound + 1e-30).all()


def test_what_is_refused() -> None:
    template, isa = template_for("matmul"), machine_for("avx2").isa
    dynamic_k = Region(
        op="matmul",
        inputs=(Tensor((2, LENGTH), "float32"), Tensor((LENGTH, 8), "float32", True)),
        output=Tensor((2, 8), "float32"),
    )
    assert template.rejection(dynamic_k, isa) == "a weight of dynamic shape"


def test_accumulators_of_tiles_are_not_on_the_heap_of_few_rows() -> None:
    """A row of four panels of 6x64 would use the heap, and TVM would share it with a tile's row."""
    region, machine = biased(64, 512), machine_for("avx512")
    template = template_for("matmul")
    config = msgspec.structs.replace(
        template.default_config(region, machine), kernel="avx512_f32_6x64", rows=6, vectors=4
    )
    loops = innermost_loops(assembly_of(template.build(region, config, machine.isa), machine.isa))
    multiplying = [loop for loop in loops if sum("vfmadd" in line for line in loop) >= 6]
    assert multiplying
    stores = [
        line for loop in multiplying for line in loop if re.search(r"vmov.*%zmm\d+, .*\(", line)
    ]
    assert not stores


@pytest.mark.parametrize("columns", [128, 160, 208, 256, 512])
def test_a_dynamic_number_of_rows_takes_high_tiles(columns: int) -> None:
    """Low tiles, as 6x64 would have for some numbers of rows, do not hide the latency."""
    config = template_for("matmul").default_config(linear(512, columns), machine_for("avx512"))
    assert config.rows >= 8
