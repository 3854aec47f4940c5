"""Code of templates on AMX tiles, for every CPU that has AMX: no tile is spilled or renamed."""

from __future__ import annotations

import functools

import pytest
import tvm
from tvm.target import Target, codegen

from microkernels.isa import isa_named, target_isa
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.registry import microkernel_named
from tests.microkernels.isa_targets import AMX_TARGETS, with_amx
from tests.microkernels.tile_code import (
    Function,
    assert_configured,
    assert_whole_pieces,
    functions_with_tiles,
)
from tests.tir_schedules.attention.tiled.test_attention_amx import on_tiles as attention_on_tiles
from tests.tir_schedules.attention_regions import case, of_kind
from tests.tir_schedules.chains.test_mlp_chain_amx import INT8, by_whole_tiles, integers
from tests.tir_schedules.integer_regions import matmul_region
from tests.tir_schedules.on_tiles import on_tiles
from tests.tir_schedules.run_region import machine_for
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from .test_bf16_matmul import matmul_region as bf16_region
from .test_narrow_batch_matmul import region_of

B = "bfloat16"
# One CPU for each way in which LLVM tunes.
TARGETS = ("sapphirerapids", "graniterapids", "diamondrapids", "x86-64-v4 and AMX")


def on_blocks(region: Region, block: str, **fields: int) -> tuple[Region, Config, list[str]]:
    config = on_tiles(region, block, **fields)
    return region, config, [config.kernel]


@functools.cache
def programs() -> dict[str, tuple[Region, Config, list[str]]]:
    """Kernels of every template: region, configuration and their tile kernels."""
    found = {
        "pieces": on_blocks(matmul_region((70,), 512, 100), "32x32", k_block=32, m_block=32),
        "tails": on_blocks(matmul_region((70,), 100, 40, "int8", "uint8", 3, "input"), "32x32"),
        "wide": on_blocks(bf16_region((15,), 512, 100, B), "16x64", k_block=128),
        "threads": on_blocks(bf16_region((100,), 512, 200), "32x32", threads_m=2, threads_n=3),
        "batches": on_blocks(
            region_of((3, 50, 90), (3, 90, 70), "uint8", "int8", 0, 3),
            "32x32",
            row_shares=2,
            parallel=True,
        ),
    }
    for kind, block in [("bf16", "32x32"), ("int8", "16x64")]:
        attention = of_kind(case(batch=1, heads=2, m=70, n=77, d=64), kind)
        config = attention_on_tiles(attention, block)
        kernels = [config.scores_kernel, config.product_kernel]
        found[f"attention of {kind}"] = attention.region, config, kernels
    chain = integers(70)
    found["chain"] = chain, by_whole_tiles(chain, 2, *INT8, threads=2), list(INT8)
    return found


def code_of(region: Region, config: Config, target: Target) -> list[Function]:
    """The functions of a kernel that use tiles."""
    function = template_for(region.op).build(region, config, machine_for("amx").isa)
    compiled = tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    return functions_with_tiles(compiled.mod.inspect_source("asm"))


def amx(names: list[str]) -> list[AmxMicrokernel]:
    kernels = [microkernel_named(name) for name in names]
    return [kernel for kernel in kernels if isinstance(kernel, AmxMicrokernel)]


@pytest.mark.sampled
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", programs())
def test_tiles_are_as_the_layout_has_them(program: str, target: str) -> None:
    region, config, names = programs()[program]
    found, kernels = code_of(region, config, AMX_TARGETS[target]), amx(names)
    for function in found:
        assert_whole_pieces(function, kernels)
        assert_configured(function, kernels)
    products = {line.mnemonic for f in found for line in f.tile_lines if "tdp" in line.mnemonic}
    assert products == {kernel.product for kernel in kernels}


@pytest.mark.parametrize(
    ("m", "k", "passing"),
    [(96, 1024, {4, 5}), (32, 1024, {6, 7}), (96, 64, set()), (16, 64, {6, 7})],
    ids=["many rows", "one block of rows", "little of A", "few rows"],
)
def test_what_passes_does_not_displace_what_is_read_again(
    m: int, k: int, passing: set[int]
) -> None:
    region, config, _ = on_blocks(bf16_region((m,), k, 64, B), "32x32")
    lines = [
        line
        for f in code_of(region, config, AMX_TARGETS["sapphirerapids"])
        for line in f.tile_lines
    ]
    hinted = {line.tiles().target for line in lines if line.mnemonic == "tileloaddt1"}
    loaded = {line.tiles().target for line in lines if line.mnemonic == "tileloadd"}
    assert hinted == passing
    assert hinted | loaded >= {4, 6, 7} and not hinted & loaded


def cpus() -> list[str]:
    """The 64-bit CPUs that LLVM knows."""
    everything = codegen.llvm_get_cpu_archlist(Target({"kind": "llvm"}))
    features = {
        str(cpu): codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": str(cpu)}))
        for cpu in everything
    }
    return [cpu for cpu, found in features.items() if "64bit" in {str(name) for name in found}]


def is_whole(cpu: str) -> bool:
    """Whether LLVM, tuning for a CPU, leaves the tiles of a function as they are.

    The function has blocks of two tiles in width and of one: in the narrow ones, LLVM finds tile
    registers that seem free, unless a weight is prefetched between their instructions.
    """
    product = region_of((1, 17, 256), (1, 256, 48), "uint8", "int8", 0, 0)
    region, config, names = on_blocks(product, "32x32")
    (found,) = code_of(region, config, with_amx(cpu))
    try:
        assert_whole_pieces(found, amx(names))
    except AssertionError:
        return False
    return True


@pytest.mark.slow
def test_amx_counts_for_the_cpus_that_leave_tiles_alone() -> None:
    """For some CPUs, LLVM renames registers after allocation: `target_isa` knows all of them."""
    tiles = isa_named("amx")
    given_amx = {cpu for cpu in cpus() if target_isa(with_amx(cpu)).includes(tiles)}
    assert {"sapphirerapids", "graniterapids", "x86-64-v4"} < given_amx
    assert "znver4" in set(cpus()) - given_amx
    assert {cpu for cpu in cpus() if is_whole(cpu)} == given_amx
