"""The code of every AMX kernel, for every CPU that has AMX: no tile is spilled, renamed, reloaded.

Tile registers are numbers in the source, which LLVM's register allocator neither sees nor checks.
"""

from __future__ import annotations

import functools
import re
from typing import cast

import pytest
import tvm
from tvm import tirx

from microkernels.amx.instructions import TileBlock
from microkernels.amx.tile_shapes import ROWS
from microkernels.isa import target_isa
from microkernels.kernels.amx_tiles import DEPTH, AmxMicrokernel
from microkernels.registry import all_microkernels, tile_kernels_for
from tests.microkernels.isa_targets import AMX_TARGETS, with_amx
from tests.microkernels.tile_code import (
    Function,
    Tiles,
    assert_configured,
    assert_whole_pieces,
    expected,
    functions_with_tiles,
)
from tests.microkernels.tile_function import tile_function

pytestmark = pytest.mark.turns

KERNELS = [cast(AmxMicrokernel, kernel) for kernel in all_microkernels() if kernel.by_tiles]
every_target = pytest.mark.parametrize("target", AMX_TARGETS)


def kernels_of(target: str) -> list[AmxMicrokernel]:
    """The kernels that code for a target may use: not all CPUs multiply fp16."""
    isa = target_isa(AMX_TARGETS[target])
    return [kernel for kernel in KERNELS if isa.includes(kernel.isa)]


every_kernel = pytest.mark.parametrize(
    ("kernel", "target"),
    [
        pytest.param(kernel, target, id=f"{kernel.name}-{target}")
        for target in AMX_TARGETS
        for kernel in kernels_of(target)
    ],
)
UNROLLED, LOOPED, RESUMED, SMALL = "unrolled", "looped", "resumed", "small"


def variants(kernel: AmxMicrokernel) -> dict[str, tirx.PrimFunc]:
    """Functions of one kernel: short and long reductions, and a block of fewer tiles."""
    rows, vectors = kernel.mr, kernel.vectors
    smaller = (rows - ROWS, vectors) if rows > ROWS else (rows - 3, vectors - 1)
    sizes = {
        UNROLLED: (rows, vectors, 1, 2 * DEPTH, "zero"),
        LOOPED: (rows, vectors, 3, 40 * DEPTH, "zero"),
        RESUMED: (rows, vectors, 1, DEPTH, "resume"),
        SMALL: (*smaller, 2, 7 * DEPTH, "init"),
    }
    names = {variant: f"{kernel.name}_{variant}" for variant in sizes}
    return {
        names[variant]: tile_function(kernel, *size, name=names[variant])
        for variant, size in sizes.items()
    }


@functools.cache
def functions(target: str) -> dict[str, Function]:
    """Every function with tiles of all kernels, compiled together, by its given name."""
    module = {name: f for kernel in kernels_of(target) for name, f in variants(kernel).items()}
    compiled = tvm.compile(tvm.IRModule(module), target=AMX_TARGETS[target])
    found = functions_with_tiles(compiled.mod.inspect_source("asm"))
    return {function.name.removesuffix("_compute_"): function for function in found}


@pytest.mark.sampled
@every_target
def test_the_target_gets_amx_and_every_kernel_is_there(target: str) -> None:
    halves = target.startswith(("graniterapids", "diamondrapids"))
    assert target_isa(AMX_TARGETS[target]).name == ("amx_fp16" if halves else "amx")
    assert any(kernel.product == "tdpfp16ps" for kernel in kernels_of(target)) == halves
    assert set(functions(target)) == {name for k in kernels_of(target) for name in variants(k)}


@pytest.mark.sampled
@every_kernel
def test_short_reductions_are_the_models_stream(kernel: AmxMicrokernel, target: str) -> None:
    """The code has only the model's instructions, in its order and with its registers."""
    row_tiles = kernel.mr // ROWS
    for variant, steps, resume in [(UNROLLED, 2, False), (RESUMED, 1, True)]:
        block = TileBlock(kernel.layout, row_tiles, kernel.vectors, steps, resume)
        lines = functions(target)[f"{kernel.name}_{variant}"].tile_lines
        assert [line.tiles() for line in lines] == [
            Tiles("ldtilecfg"),
            *expected(block.stream(), kernel.product),
            Tiles("tilerelease"),
        ]


@every_kernel
def test_loops_hold_whole_steps_and_tasks_end_released(kernel: AmxMicrokernel, target: str) -> None:
    sizes = {
        LOOPED: (kernel.mr, kernel.nr),
        SMALL: (ROWS, 32) if kernel.mr > ROWS else (ROWS - 3, 48),
    }
    for variant, size in sizes.items():
        function = functions(target)[f"{kernel.name}_{variant}"]
        assert_whole_pieces(function, [kernel])
        assert assert_configured(function, [kernel]) == {size}
        products = [line for line in function.tile_lines if line.mnemonic == kernel.product]
        # Unrolled or not, a loop multiplies into all accumulators of its block.
        assert {line.tiles().target for line in products} == set(
            range(-(-size[0] // ROWS) * size[1] // ROWS)
        )


@pytest.mark.parametrize(
    ("instruction", "broken"),
    [
        ("tdpbusd\t%tmm7, %tmm5, %tmm3", "tdpbusd\t%tmm7, %tmm5, %tmm2"),
        ("tilezero\t%tmm1", "tilezero\t%tmm4"),
        ("tilestored\t%tmm2", "tilestored\t%tmm3"),
        ("tilerelease", "nop"),
        ("ldtilecfg\ttvm_hybrid", "ldtilecfg\tother"),
        ("tileloadd\t(%rdi", "tileloadd\t(%rsp"),
        ("tileloadd\t(%rdi,%rax), %tmm4", "tileloadd\t(%rdi,%rax), %tmm5"),
    ],
)
def test_broken_code_is_found(instruction: str, broken: str) -> None:
    """The tests above can fail: a renamed or spilled tile, a missing release."""
    kernel = next(kernel for kernel in KERNELS if kernel.name == "amx_u8s8s32_32x32")
    function = tile_function(kernel, kernel.mr, kernel.vectors, 3, 40 * DEPTH)
    compiled = tvm.compile(function, target=AMX_TARGETS["sapphirerapids"])
    assembly = compiled.mod.inspect_source("asm")
    assembly = re.sub(
        r"tileloadd\t\(%r\w\w?,%r\w\w?\), %tmm4", "tileloadd\t(%rdi,%rax), %tmm4", assembly
    )

    def check(text: str) -> None:
        (found,) = functions_with_tiles(text)
        assert_whole_pieces(found, [kernel])
        assert_configured(found, [kernel])

    check(assembly)
    assert instruction in assembly
    with pytest.raises(AssertionError):
        check(assembly.replace(instruction, broken, 1))


@pytest.mark.parametrize(
    "cpu", ["znver4", "znver5", "bdver4", "btver2", "goldmont-plus", "tremont"]
)
def test_amx_does_not_count_where_tiles_are_renamed(cpu: str) -> None:
    found = target_isa(with_amx(cpu))
    assert found.name == "avx512_bf16"
    assert not tile_kernels_for(found, "uint8", "int8")
