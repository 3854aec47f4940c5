"""The contract that every registered microkernel must meet."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pytest
import tvm

from microkernels.base.errors import IsaError
from microkernels.isa import LADDER, Isa, isa_named
from microkernels.kernels.byte_pairs import has_pairs
from microkernels.microkernel import Microkernel
from microkernels.registry import (
    all_microkernels,
    kernels_for,
    microkernel_named,
    register_microkernel,
    tile_kernels_for,
)
from tests.guard import guarded
from tests.microkernels.isa_targets import named, runnable, target_of
from tests.microkernels.operands import assert_product, bfloat16_bits, extremes, random_operand
from tests.microkernels.tile_function import tile_function
from tests.stand_ins import running
from tir_schedules.core.blocking import Panels

ALL = list(all_microkernels())
BF16 = [kernel for kernel in ALL if kernel.a_dtype == "bfloat16"]
HALF = [kernel for kernel in ALL if kernel.a_dtype == "float16"]
INT8 = [kernel for kernel in ALL if kernel.acc_dtype == "int32"]
# Scalar code promises no registers; amx/test_code.py checks those of tiles.
VECTOR = [kernel for kernel in ALL if kernel.lanes > 1 and not kernel.by_tiles]


@functools.lru_cache(maxsize=4)
def compiled(
    kernel: Microkernel, rows: int, vectors: int, blocks: int, steps: int, start: str = "zero"
) -> tvm.runtime.Executable:
    function = tile_function(kernel, rows, vectors, blocks, steps, start)
    return running.compiled(function, kernel.isa_name)


def assembly_of(kernel: Microkernel, steps: int) -> str:
    function = tile_function(kernel, kernel.mr, kernel.vectors, 1, steps, "zero")
    return str(tvm.compile(function, target=target_of(kernel.isa_name)).mod.inspect_source("asm"))


def pack_weight(weight: np.ndarray, vectors: int, kernel: Microkernel) -> np.ndarray:
    """[K, N] packed as one panel."""
    return Panels(kernel, *weight.shape, (vectors,)).pack(weight)


def check(
    kernel: Microkernel,
    vectors: int,
    a: np.ndarray,
    b: np.ndarray,
    at_end: bool = True,
    start: str = "zero",
) -> None:
    """Runs one tile on a[blocks, rows, steps * kr] and b[blocks, K, columns]."""
    blocks, rows, padded = a.shape
    packed = np.stack([pack_weight(part, vectors, kernel) for part in b])
    before = np.arange(rows * vectors * kernel.lanes).reshape(rows, -1).astype(kernel.acc_dtype)
    c = guarded(before, at_end)
    module = compiled(kernel, rows, vectors, blocks, padded // kernel.kr, start)
    module["tile"](guarded(a, at_end), guarded(packed.reshape(-1), at_end), c)
    assert_product(kernel, c, a[:, :, : b.shape[1]], b, None if start == "zero" else before)


@pytest.mark.parametrize("kernel", named(ALL))
def test_name_says_what_it_is(kernel: Microkernel) -> None:
    assert kernel.name.startswith(kernel.isa_name)
    assert kernel.name.endswith(f"_{kernel.mr}x{kernel.nr}")
    assert kernel.nr % kernel.lanes == 0
    assert kernel in all_microkernels()
    assert microkernel_named(kernel.name) is kernel


@pytest.mark.parametrize("kernel", runnable(ALL))
def test_heights_and_widths_against_numpy_between_guard_pages(kernel: Microkernel) -> None:
    rng = np.random.default_rng(0)
    rows, vectors = kernel.mr, kernel.vectors
    smaller = {(height, vectors) for height in (1, rows // 2, rows - 1) if 0 < height < rows}
    smaller |= {(rows, width) for width in (1, vectors - 1) if 0 < width < vectors}
    if kernel.by_tiles:  # a second tile of a single row; a block of fewer tiles than the layout
        smaller |= {(17, 1)} if rows > 17 else {(5, 2)}
    sizes = [(height, width, 2, 7) for height, width in sorted(smaller)]
    sizes += [(rows, vectors, blocks, steps) for blocks, steps in [(1, 1), (2, 7), (3, 33)]]
    for height, width, blocks, at_least in sizes:
        # The weight ends one row short of the last group of kr; A may hold anything there.
        steps = kernel.steps(at_least * kernel.kr)
        k = steps * kernel.kr - (kernel.kr > 1)
        a = random_operand(rng, (blocks, height, steps * kernel.kr), kernel.a_dtype)
        b = random_operand(rng, (blocks, k, width * kernel.lanes), kernel.b_dtype)
        for at_end in (False, True):
            check(kernel, width, a, b, at_end)


@pytest.mark.parametrize("kernel", runnable(ALL))
def test_accumulators_start_with_what_is_there(kernel: Microkernel) -> None:
    """`init` starts every kernel from C; `resume` those whose accumulators stay in memory."""
    rng = np.random.default_rng(2)
    k = 2 * kernel.depth * kernel.kr
    a = random_operand(rng, (2, kernel.mr, k), kernel.a_dtype)
    b = random_operand(rng, (2, k, kernel.nr), kernel.b_dtype)
    for start in ("init", "resume")[: 1 + kernel.by_tiles]:
        check(kernel, kernel.vectors, a, b, start=start)


def test_the_loop_of_a_tile_is_not_unrolled_again() -> None:
    """Empty assembly in the loop keeps LLVM from unrolling it for long loop buffers."""
    kernel = microkernel_named("avx512_f32_8x48")
    function = tile_function(kernel, kernel.mr, kernel.vectors, 1, 64, "zero")
    built = tvm.compile(function, target=tvm.target.Target({"kind": "llvm", "mcpu": "znver5"}))
    products = built.mod.inspect_source("asm").count("vfmadd231ps")
    assert products == kernel.mr * kernel.vectors


@pytest.mark.parametrize("kernel", runnable(INT8))
def test_integers_never_saturate(kernel: Microkernel) -> None:
    """Two products of 255 and -128 overflow 16 bits, where vpmaddubsw would saturate."""
    k = 64 * kernel.kr
    for a, b in itertools.product(extremes(kernel.a_dtype), extremes(kernel.b_dtype)):
        left = np.full((1, kernel.mr, k), a, kernel.a_dtype)
        right = np.full((1, k, kernel.nr), b, kernel.b_dtype)
        check(kernel, kernel.vectors, left, right)


@pytest.mark.parametrize("kernel", runnable(BF16))
def test_small_bfloat16(kernel: Microkernel) -> None:
    """Subnormal operands and products, and sums of terms far apart, stay within the bound."""
    rng = np.random.default_rng(1)
    k = kernel.steps(8 * kernel.kr) * kernel.kr
    for a_exponent, b_exponent in [(-70, -70), (-63, -63), (-130, 20), (20, -130), (60, 60)]:
        a, b = (
            bfloat16_bits(np.ldexp(rng.standard_normal(shape), exponent))
            for shape, exponent in [
                ((1, kernel.mr, k), a_exponent),
                ((1, k, kernel.nr), b_exponent),
            ]
        )
        check(kernel, kernel.vectors, a, b)


@pytest.mark.parametrize("kernel", runnable(BF16))
def test_infinity_and_nan_reach_the_result(kernel: Microkernel) -> None:
    steps = kernel.steps(4 * kernel.kr)
    k = steps * kernel.kr
    b = np.full((k, kernel.nr), bfloat16_bits(np.array(2.0)), np.uint16)
    packed = guarded(pack_weight(b, kernel.vectors, kernel))
    module = compiled(kernel, kernel.mr, kernel.vectors, 1, steps)
    for value in (np.inf, -np.inf, np.nan):
        a = np.full((1, kernel.mr, k), bfloat16_bits(np.array(1.0)), np.uint16)
        a[0, 0, 1] = bfloat16_bits(np.array(value))
        c = guarded(np.zeros((kernel.mr, kernel.nr), np.float32))
        module["tile"](guarded(a), packed, c)
        np.testing.assert_array_equal(c[0], np.full(kernel.nr, value, np.float32))
        np.testing.assert_array_equal(c[1:], 2.0 * k)


@pytest.mark.parametrize("kernel", runnable(HALF))
def test_the_ends_of_float16(kernel: Microkernel) -> None:
    """Subnormal operands count, the largest operands do not overflow, infinities and NaN pass."""
    k = kernel.steps(kernel.kr) * kernel.kr
    ones = np.ones((1, kernel.mr, k), np.float16)
    for value in (2.0**-24, 1023 * 2.0**-24, 65504.0):
        check(kernel, kernel.vectors, ones, np.full((1, k, kernel.nr), value, np.float16))
    packed = guarded(pack_weight(np.ones((k, kernel.nr), np.float16), kernel.vectors, kernel))
    module = compiled(kernel, kernel.mr, kernel.vectors, 1, k // kernel.kr)
    for value in (np.inf, -np.inf, np.nan):
        a = ones.copy()
        a[0, 0, 1] = value
        c = guarded(np.zeros((kernel.mr, kernel.nr), np.float32))
        module["tile"](guarded(a), packed, c)
        np.testing.assert_array_equal(c[0], np.full(kernel.nr, value, np.float32))
        np.testing.assert_array_equal(c[1:], float(k))


def multiplication(kernel: Microkernel) -> tuple[str, int]:
    """The instruction that multiplies, and its count for one accumulator in a step."""
    if kernel.a_dtype == "float32":
        return "vfmadd", 1
    if kernel.acc_dtype == "int32":
        return ("vpmaddubsw", 2) if has_pairs(kernel) else ("vpdpbusd", 1)
    return ("vdpbf16ps", 1) if kernel.isa_name == "avx512_bf16" else ("vfmadd", 2)


@pytest.mark.parametrize("kernel", named(VECTOR))
def test_accumulators_stay_in_registers(kernel: Microkernel) -> None:
    """No vector register is spilled: the loop over K never stores a vector to the stack."""
    blocks = re.split(r"^\.LBB\w+:", assembly_of(kernel, 256), flags=re.MULTILINE)
    name, times = multiplication(kernel)
    least = times * kernel.mr * kernel.vectors
    loops = [block for block in blocks if block.count(name) >= least]
    assert loops
    register = "zmm" if kernel.isa.vector_bits == 512 else "ymm"
    for loop in loops:
        body = loop[: loop.rindex(name)]
        assert len(re.findall(rf"{name}.*%{register}", loop)) == loop.count(name)
        assert not re.findall(rf"vmov\w+\s+%{register}\d+, -?\w*\(", body)


@pytest.mark.parametrize(
    "kernel", named([kernel for kernel in INT8 if kernel.isa_name == "avx2_vnni"])
)
def test_avx_vnni_is_encoded_without_avx512(kernel: Microkernel) -> None:
    assembly = assembly_of(kernel, 16)
    products = re.findall(r".*vpdpbusd.*", assembly)
    assert products and all("{vex}" in line for line in products)
    assert "zmm" not in assembly


@pytest.mark.parametrize("kernel", named(ALL))
def test_tiles_it_does_not_have_are_refused(kernel: Microkernel) -> None:
    for rows, vectors in [(kernel.mr + 1, 1), (1, kernel.vectors + 1), (0, 1)]:
        with pytest.raises(IsaError, match=kernel.name):
            tile_function(kernel, rows, vectors, 1, 1)


def test_names_are_unique_and_unknown_ones_are_refused() -> None:
    kernel = all_microkernels()[0]
    with pytest.raises(ValueError, match="registered twice"):
        register_microkernel(kernel)
    with pytest.raises(IsaError, match="no microkernel 'avx9_f32_1x1'"):
        microkernel_named("avx9_f32_1x1")


@pytest.mark.parametrize("isa", LADDER, ids=lambda isa: isa.name)
def test_selection_takes_the_highest_isa_that_has_a_kernel(isa: Isa) -> None:
    vector = [kernel for kernel in ALL if not kernel.by_tiles]
    for a_dtype, b_dtype in {(kernel.a_dtype, kernel.b_dtype) for kernel in vector}:
        candidates = {
            kernel.isa
            for kernel in vector
            if (kernel.a_dtype, kernel.b_dtype) == (a_dtype, b_dtype) and isa.includes(kernel.isa)
        }
        if candidates:
            found = {kernel.isa for kernel in kernels_for(isa, a_dtype, b_dtype)}
            assert found == {max(candidates, key=LADDER.index)}
        else:  # int8 by uint8: only VNNI multiplies them
            assert (a_dtype, b_dtype) == ("int8", "uint8")
            with pytest.raises(IsaError, match="no microkernel multiplies int8 by uint8"):
                kernels_for(isa, a_dtype, b_dtype)
    with pytest.raises(IsaError, match="no microkernel multiplies"):
        kernels_for(isa, "float32", "complex64")


@pytest.mark.parametrize("isa", LADDER, ids=lambda isa: isa.name)
def test_tiles_are_selected_where_there_are_some(isa: Isa) -> None:
    tiles = [kernel for kernel in ALL if kernel.by_tiles]
    for dtypes in {(kernel.a_dtype, kernel.b_dtype) for kernel in ALL}:
        fitting = [kernel for kernel in tiles if (kernel.a_dtype, kernel.b_dtype) == dtypes]
        expected = [kernel for kernel in fitting if isa.includes(kernel.isa)]
        assert list(tile_kernels_for(isa, *dtypes)) == expected
    eight_bits = itertools.product(("uint8", "int8"), repeat=2)
    assert {(kernel.a_dtype, kernel.b_dtype) for kernel in tiles} == {
        *eight_bits,
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
    }


@pytest.mark.parametrize(
    ("isa", "dtypes", "expected"),
    [
        ("scalar", ("uint8", "int8"), "scalar"),
        ("avx2", ("uint8", "int8"), "avx2"),
        ("avx2_vnni", ("uint8", "int8"), "avx2_vnni"),
        ("avx512", ("uint8", "int8"), "avx512"),
        ("avx512_vnni", ("uint8", "int8"), "avx512_vnni"),
        ("avx512_bf16", ("uint8", "int8"), "avx512_vnni"),
        ("scalar", ("bfloat16", "bfloat16"), "scalar"),
        ("avx2_vnni", ("bfloat16", "bfloat16"), "avx2"),
        ("avx512_vnni", ("bfloat16", "bfloat16"), "avx512"),
        ("avx512_bf16", ("bfloat16", "bfloat16"), "avx512_bf16"),
        ("amx", ("uint8", "int8"), "avx512_vnni"),
        ("amx", ("bfloat16", "bfloat16"), "avx512_bf16"),
    ],
)
def test_the_isa_of_low_precision(isa: str, dtypes: tuple[str, str], expected: str) -> None:
    found = kernels_for(isa_named(isa), *dtypes)
    assert {kernel.isa_name for kernel in found} == {expected}


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16"])
def test_every_family_reaches_down_to_scalar(dtype: str) -> None:
    other = {"uint8": "int8"}.get(dtype, dtype)
    assert kernels_for(isa_named("scalar"), dtype, other)
