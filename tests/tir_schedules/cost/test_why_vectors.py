"""Why products stay on vectors: a reason for every kind of region, none where none is due."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tests.tir_schedules.attention_regions import case
from tests.tir_schedules.chain_regions import int8_layer, mixed, mlp
from tests.tir_schedules.integer_regions import matmul_region
from tests.tir_schedules.winograd_regions import region_of
from tir_schedules.attention.attention import ATTENTION, SKINNY
from tir_schedules.chains.mlp_chain_config import by_columns, by_rows
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.cost.amx_cost import CONFIGURED, why_vectors
from tir_schedules.product.batch_matmul import BATCH_MATMUL
from tir_schedules.product.matmul import MATMUL
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.product.weight_only_matmul import WEIGHT_ONLY_MATMUL

AMX = Machine("sapphirerapids", isa_named("amx"))
VECTORS = replace(AMX, isa=isa_named("avx512_bf16"))
FLOAT32 = "AMX multiplies 8-bit integers and bfloat16, not float32"


def on_vectors(region: Region) -> Config:
    """A configuration without tiles."""
    config: Config = template_for(region.op).default_config(region, VECTORS)
    return config


def test_few_rows_and_by_how_much_vectors_are_faster() -> None:
    region = matmul_region((1,), 768, 768)
    config = on_vectors(region)
    assert isinstance(config, MatmulConfig)
    reason = why_vectors(region, config, AMX)
    assert "1 row fills 6% of AMX tiles" in reason and config.kernel in reason


def test_many_rows_could_be_on_tiles() -> None:
    """Also if a record chose vectors; with two threads, either chunk is large enough for tiles."""
    region = matmul_region((128,), 768, 768)
    for machine in (VECTORS, replace(VECTORS, threads=2)):
        config = MATMUL.default_config(region, machine)
        assert why_vectors(region, config, replace(machine, isa=AMX.isa)) == CONFIGURED


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_what_is_chosen_for_amx_has_a_reason_or_tiles(threads: int) -> None:
    """The templates and the reasons use one estimate."""
    machine = replace(AMX, threads=threads)
    by_tiles = set()
    for m in (1, 2, 4, 8, 16, 17, 32, 33, 64, 128, 512):
        for n, k in ((16, 64), (512, 256), (256, 4096)):
            for a, b in (("uint8", "int8"), ("int8", "int8"), ("float32", "bfloat16")):
                output = "float32" if b == "bfloat16" else "int32"
                for region in (
                    Region(
                        op="matmul",
                        inputs=(Tensor((m, k), a), Tensor((k, n), b, True)),
                        output=Tensor((m, n), output),
                    ),
                    Region(
                        op="batch_matmul",
                        inputs=(Tensor((3, m, k), a), Tensor((3, k, n), b)),
                        output=Tensor((3, m, n), output),
                    ),
                ):
                    config = template_for(region.op).default_config(region, machine)
                    reason = why_vectors(region, config, machine)
                    chosen = microkernel_named(config.kernel).by_tiles
                    assert bool(reason) != chosen and reason != CONFIGURED, (region.key, config)
                    by_tiles.add((region.op, m, chosen))
    for op in ("matmul", "batch_matmul"):
        assert (op, 1, False) in by_tiles and (op, 512, True) in by_tiles


def test_float32_is_not_multiplied() -> None:
    region = Region(
        op="batch_matmul",
        inputs=(Tensor((2, 64, 64), "float32"), Tensor((2, 64, 64), "float32")),
        output=Tensor((2, 64, 64), "float32"),
    )
    reason = why_vectors(region, BATCH_MATMUL.default_config(region, AMX), AMX)
    assert reason == FLOAT32
    rounded = region.replace(attrs={"rounded": "bfloat16"})
    assert why_vectors(rounded, on_vectors(rounded), AMX) == CONFIGURED


def test_winograd_is_of_float32() -> None:
    region = region_of((8, 8), 16, 16)
    assert why_vectors(region, on_vectors(region), AMX) == FLOAT32


def test_a_machine_without_tiles_needs_no_reason() -> None:
    region = matmul_region((1,), 768, 768)
    assert why_vectors(region, on_vectors(region), VECTORS) == ""


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_that_are_expanded(bits: int) -> None:
    region = Region(
        op="weight_only_matmul",
        inputs=(
            Tensor((32, 64), "float32"),
            Tensor((64, 48), "int8", True),
            Tensor((2, 48), "float32", True),
        ),
        output=Tensor((32, 48), "float32"),
        attrs={"bits": bits, "block": 32},
    )
    reason = why_vectors(region, WEIGHT_ONLY_MATMUL.default_config(region, AMX), AMX)
    assert reason.startswith(f"the weight of {bits} bits") and "float32" in reason


def test_attention_gives_a_reason_for_each_product() -> None:
    decode = case(m=1, n=256, kind="int8").region
    assert why_vectors(decode, ATTENTION.default_config(decode, AMX), AMX) == SKINNY
    wide = case(m=64, n=64).region
    reason = why_vectors(wide, ATTENTION.default_config(wide, AMX), AMX)
    assert reason == FLOAT32
    few = case(m=32, n=32, d=32, kind="int8").region
    reason = why_vectors(few, on_vectors(few), AMX)
    assert "32 rows and 32 bytes of K fill 50% of AMX tiles" in reason


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("kind", ["int8", "bf16", "rounded"])
def test_attention_on_amx_has_a_reason_or_tiles(kind: str, threads: int) -> None:
    """Tiles cut queries in another way, which both estimates take into account."""
    machine = replace(AMX, threads=threads)
    by_tiles = set()
    for m, n, d in itertools.product((5, 8, 17, 32, 100), (24, 64, 512, 3000), (16, 32, 64)):
        region = case(m=m, n=n, d=d, heads=3, kind=kind).region
        config = ATTENTION.default_config(region, machine)
        reason = why_vectors(region, config, machine)
        kernels = (config.scores_kernel, config.product_kernel)
        chosen = {microkernel_named(name).by_tiles for name in kernels}
        assert bool(reason) == (False in chosen) and CONFIGURED not in reason, (region.key, config)
        by_tiles |= chosen
    assert by_tiles == {False, True}


def test_a_chain_names_its_parts() -> None:
    """The integer product may be on tiles; the f32 one cannot."""
    region = mixed((64,), 64)
    reason = why_vectors(region, by_columns(region, VECTORS), AMX)
    first, second = reason.split("; ")
    assert first == f"part 1: {CONFIGURED}"
    assert second == f"part 2: {FLOAT32}"
    layers = mlp([int8_layer((4,), 128, 128), int8_layer((4,), 128, 64)])
    reason = why_vectors(layers, by_rows(layers, VECTORS, 1, 4), AMX)
    assert reason.count("1 row fills 6%") == 2 and "part 0: " in reason and "part 1: " in reason
