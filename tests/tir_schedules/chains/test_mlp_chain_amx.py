"""Chains on AMX tiles: both modes, tails, parts on vectors, and executed tile instructions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from tvm import s_tir, tirx

from microkernels.amx.instructions import InstructionCounts
from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.isa import isa_named
from microkernels.registry import microkernel_named
from tests.amx_emulator import emulator
from tests.examples import examples
from tests.tir_schedules.chain_regions import (
    INPUT,
    ChainBuilder,
    bf16_mlp,
    configs,
    f32_layer,
    int8_layer,
    mixed,
    mlp,
    small_integers,
    values,
)
from tests.tir_schedules.integer_regions import matmul_region as integer_matmul
from tests.tir_schedules.run_region import machine_for, run
from tir_schedules.chains.mlp_chain import MLP_CHAIN
from tir_schedules.chains.mlp_chain_config import MlpChainConfig, blocks_of, by_rows
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import walk
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.cost.amx_cost import TilePart
from tvm_hybrid.tuning.verification.chain_bounds import chain_arguments, expected_of_chain

pytestmark = pytest.mark.isa("amx")

WAYS = ("one block", "three blocks", "two threads", "columns")
SIGNS = {"uint8": "u", "int8": "s"}
INT8 = ("amx_s8s8s32_32x32", "amx_u8u8s32_32x32", "amx_u8s8s32_32x32")


def on_kernels(region: Region, config: MlpChainConfig, *kernels: str) -> MlpChainConfig:
    """The configuration with other kernels for the matmuls, in their largest tiles."""
    products = [part for part in region.parts if part.op == "matmul"]
    matmuls = []
    for part, found, name in zip(products, config.matmuls, kernels, strict=True):
        kernel = microkernel_named(name)
        m = part.inputs[0].size // part.inputs[0].shape[-1]
        vectors = math.ceil(part.output.shape[-1] / kernel.lanes)
        tile = {"rows": min(kernel.mr, m), "vectors": min(kernel.vectors, vectors)}
        matmuls.append({**found.to_dict(), "kernel": name, **tile})
    return MlpChainConfig.from_dict({**config.to_dict(), "matmuls": matmuls})


def by_whole_tiles(region: Region, blocks: int, *kernels: str, threads: int = 1) -> MlpChainConfig:
    """Mode "rows" with blocks that are multiples of 32 rows."""
    config = by_rows(region, machine_for("amx", threads), threads, blocks)
    config = MlpChainConfig.from_dict({**config.to_dict(), "row_blocks": blocks, "row_unit": 32})
    return on_kernels(region, config, *kernels)


def integers(
    rows: int,
    sizes: Sequence[int] = (13, 50, 33, 20),
    types: Sequence[tuple[str, str]] = (("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")),
    zeros: Sequence[int] = (5, 100, 3),
) -> Region:
    """Integer products with integer results, the last one f32; few results saturate.

    Weights of uint8 have zero point 128, which needs the sums of rows.
    """
    outputs = [*(a for a, _ in types[1:]), "float32"]
    layers = []
    for (k, n), (a, w), zero, output in zip(
        itertools.pairwise(sizes), types, zeros, outputs, strict=True
    ):
        layer = int8_layer((rows,), k, n, a, w, zero, output, scale=7e-4 / math.sqrt(k))
        if w == "uint8":
            layer = layer.replace(attrs={**layer.attrs, "b_zero_point": 128})
        layers.append(layer)
    return mlp(layers)


def check(region: Region, arrays: list[np.ndarray], config: MlpChainConfig) -> None:
    """The chain gives the results of its parts, to the bit."""
    exact = MLP_CHAIN.reference(region, arrays)
    assert len(np.unique(exact)) > min(100, exact.size // 4)
    np.testing.assert_array_equal(run(region, arrays, "amx", config, threads=2), exact)


@pytest.mark.parametrize("way", WAYS)
def test_integers_of_every_sign(way: str) -> None:
    """Zero points, K of 13, 50 and 33, two whole blocks of rows and a tail of 6."""
    region = integers(70)
    check(region, values(region), on_kernels(region, configs(region, "amx")[way], *INT8))


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16(way: str) -> None:
    region = bf16_mlp(35)
    config = on_kernels(region, configs(region, "amx")[way], *["amx_bf16_32x32"] * 3)
    check(region, small_integers(region), config)


@pytest.mark.parametrize(
    "kernels",
    [
        (INT8[0], "avx512_vnni_u8s8s32_6x64", INT8[2]),
        ("avx512_vnni_u8s8s32_6x64", "amx_u8u8s32_16x64", INT8[2]),
    ],
)
def test_parts_on_vectors_and_in_other_layouts(kernels: tuple[str, ...]) -> None:
    """In blocks of 64, 32 and 4 rows."""
    region = integers(100)
    check(region, values(region), by_whole_tiles(region, 3, *kernels))


@given(
    rows=st.integers(1, 70),
    sizes=st.lists(st.integers(1, 130), min_size=4, max_size=4),
    types=st.lists(st.tuples(*[st.sampled_from(tuple(SIGNS))] * 2), min_size=3, max_size=3),
    zeros=st.lists(st.sampled_from((0, 3)), min_size=3, max_size=3),
    blocks=st.lists(st.sampled_from(("32x32", "16x64", "vectors")), min_size=3, max_size=3),
    way=st.sampled_from(WAYS),
)
@examples(8, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_any_chain_of_integers(
    rows: int,
    sizes: list[int],
    types: list[tuple[str, str]],
    zeros: list[int],
    blocks: list[str],
    way: str,
) -> None:
    region = integers(rows, sizes, types, zeros)
    kernels = [
        f"amx_{SIGNS[a]}8{SIGNS[w]}8s32_{block}"
        if block != "vectors"
        else "avx512_vnni_u8s8s32_8x48"
        for (a, w), block in zip(types, blocks, strict=True)
    ]
    arrays = values(region)
    config = on_kernels(region, configs(region, "amx")[way], *kernels)
    exact = MLP_CHAIN.reference(region, arrays)
    np.testing.assert_array_equal(run(region, arrays, "amx", config, threads=2), exact)


def test_few_rows() -> None:
    region = bf16_mlp(7)
    config = by_rows(region, machine_for("amx"), 1, 1)
    check(region, small_integers(region), on_kernels(region, config, *["amx_bf16_16x64"] * 3))


def test_norms_and_f32_products_between() -> None:
    """layer_norm to uint8, tiles, a f32 product on vectors, rms_norm to bfloat16."""
    region = mixed((35,), 24)
    arrays = chain_arguments(region, 0)
    expected = expected_of_chain(region, arrays, 0)
    f32 = by_rows(region, machine_for("amx"), 1, 2).matmuls[1].kernel
    config = by_whole_tiles(region, 2, "amx_u8s8s32_32x32", f32)
    assert expected.difference(run(region, arrays, "amx", config)) is None


def test_quantising_on_the_way_in() -> None:
    """Ranges from inputs, constant numbers, and zero points that need sums of padded rows."""
    m, k, n = 37, 70, 72
    scaled = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("constant", value=0.01),
        EpilogueOp("multiply", (1, 2)),
    )
    first = integer_matmul(
        (m,), k, n, a_zero="range", quantized="range",
        output=Tensor((m, n), "float32"), epilogue=scaled,
    )  # fmt: skip
    to_bytes = (
        EpilogueOp("constant", value=0.1), EpilogueOp("constant", value=100.0),
        EpilogueOp("quantize", (3, 4, 5), dtype="uint8"),
    )  # fmt: skip
    second = integer_matmul(
        (m,), n, n, "int8", a_zero=-3, quantized=0.04,
        output=Tensor((m, n), "uint8"), epilogue=(*scaled, *to_bytes),
    )  # fmt: skip
    third = integer_matmul(
        (m,), n, n, "uint8", "uint8", a_zero=100, w_zero="input",
        operands=(Tensor((m, n), "uint8"),), output=Tensor((m, n), "float32"),
        epilogue=(EpilogueOp("cast", (0,)), EpilogueOp("cast", (1,)), EpilogueOp("add", (2, 3))),
    )  # fmt: skip
    chain = ChainBuilder([first.inputs[0]])
    source = chain.add(second, chain.add(first, INPUT))
    chain.add(third, source, None, None, source)
    region = chain.region()
    arrays = values(region)
    ranges = [i for i, tensor in enumerate(region.inputs) if tensor.shape == (2,)]
    arrays[ranges[0]] = np.array([0.031, 128], np.float32)
    kernels = ("amx_u8s8s32_32x32", "amx_s8s8s32_32x32", "amx_u8u8s32_32x32")
    check(region, arrays, by_whole_tiles(region, 2, *kernels))
    check(region, arrays, on_kernels(region, configs(region, "amx")["columns"], *kernels))


def test_plain_accumulators_are_stored_by_tiles() -> None:
    """A result without an epilogue is the plain sum, between parts and at the end."""
    plain = Region(
        op="matmul",
        inputs=(Tensor((33, 64), "bfloat16"), Tensor((64, 64), "bfloat16", True)),
        output=Tensor((33, 64), "float32"),
    )
    region = mlp([plain, plain.replace(inputs=(plain.output, plain.inputs[1]))])
    check(region, small_integers(region), by_whole_tiles(region, 1, *["amx_bf16_32x32"] * 2))


def layers(rows: int, sizes: tuple[int, ...] = (128, 64, 64, 32)) -> Region:
    """Products of bytes without zero points: accumulators start with zero."""
    pairs = [*itertools.pairwise(sizes)]
    outputs = ["uint8"] * (len(pairs) - 1) + ["float32"]
    return mlp(
        [int8_layer((rows,), *pair, output=out) for pair, out in zip(pairs, outputs, strict=True)]
    )


def modelled(region: Region, config: MlpChainConfig) -> InstructionCounts:
    """Tile instructions of the products in every block by the model, without configurations."""
    total = InstructionCounts()
    for group in blocks_of(region.output.shape[0], config):
        for part, found in zip(region.parts, config.matmuls, strict=True):
            k, n = part.inputs[1].shape
            plan = ProductPlan.of(found, group.size, n, k)
            total += TilePart(plan=plan).counts() * group.count
    return dataclasses.replace(total, ldtilecfg=0, tilerelease=0)


@pytest.mark.parametrize(
    ("rows", "blocks", "threads", "configured", "released"),
    [
        (64, 1, 1, 1, 1),  # once for three products
        (70, 1, 1, 4, 1),  # 32, 6; 6, 32; 32, 6: each product begins with the current configuration
        (96, 3, 2, 3, 3),  # once for each task
        (70, 3, 2, 3, 3),  # a task has the tail
    ],
)
def test_executed_instructions(
    rows: int, blocks: int, threads: int, configured: int, released: int
) -> None:
    region = layers(rows)
    config = by_whole_tiles(region, blocks, *["amx_u8s8s32_32x32"] * 3, threads=threads)
    arrays = values(region)
    emulator.reset()
    check(region, arrays, config)
    executed = emulator.counts()
    if executed is not None:  # hardware has no counters
        found = {name: count for name, count in executed.items() if count}
        wanted = dataclasses.replace(
            modelled(region, config), ldtilecfg=configured, tilerelease=released
        )
        assert found == wanted.named("tdpbusd")


def statements(region: Region, config: MlpChainConfig) -> list[tirx.Stmt]:
    return list(walk(MLP_CHAIN.build(region, config, isa_named("amx")).body))


def checks(body: list[tirx.Stmt]) -> list[int]:
    """Where the process is asked for permission."""
    texts = [s.value.value if isinstance(s, tirx.AttrStmt) else "" for s in body]
    return [at for at, text in enumerate(texts) if text == PERMISSION_LLVM_IR]


def test_permission_is_checked_once_before_the_loop() -> None:
    region = layers(64)
    body = statements(region, by_whole_tiles(region, 2, *["amx_u8s8s32_32x32"] * 3, threads=2))
    loops = [
        at
        for at, s in enumerate(body)
        if isinstance(s, tirx.For) and s.kind == tirx.ForKind.PARALLEL
    ]
    assert len(loops) == 1 and len(checks(body)) == 1 and checks(body)[0] < loops[0]
    vectors = by_whole_tiles(region, 2, *["avx512_vnni_u8s8s32_6x64"] * 3, threads=2)
    assert not checks(statements(region, vectors))


def test_results_between_are_read_in_place() -> None:
    """Only the chain's input is staged, although K is 100, 50 and 33."""
    narrow = "bfloat16"
    region = mlp(
        [f32_layer((40,), k, n, dtypes=(narrow,) * 3) for k, n in ((100, 50), (50, 33), (33, 20))]
    )
    body = statements(region, by_whole_tiles(region, 1, *["amx_bf16_32x32"] * 3))
    names = [str(s.name_hint) for s in body if isinstance(s, s_tir.SBlock)]
    whole_and_tail = 2
    assert names.count("stage") == whole_and_tail and names.count("pad") == 2


def test_blocks_are_whole_tiles_where_that_is_less_work() -> None:
    """Four blocks with six times 32 rows in all, not 48 rows in each."""
    region, machine = layers(192, (256, 512, 512, 256)), machine_for("amx")
    config = by_rows(region, machine, 1, 4)
    assert {found.kernel for found in config.matmuls} == {"amx_u8s8s32_32x32"}
    assert blocks_of(192, config) == (Group(0, 2, 64), Group(128, 2, 32))
    assert {found.row_unit for found in MLP_CHAIN.space(region, machine)} == {1, 16, 32}
    vectors = by_rows(region, machine_for("avx512_vnni"), 1, 4)
    assert vectors.row_unit == 1 and blocks_of(192, vectors) == (Group(0, 4, 48),)


def test_cut_blocks() -> None:
    config = MlpChainConfig(mode="rows", row_blocks=3, row_unit=32)
    assert blocks_of(150, config) == (Group(0, 2, 64), Group(128, 1, 22))
    assert blocks_of(96, config) == (Group(0, 3, 32),)
    assert blocks_of(140, config) == (Group(0, 2, 64), Group(128, 1, 12))
    assert blocks_of(100, config) == (Group(0, 1, 64), Group(64, 1, 32), Group(96, 1, 4))
    assert blocks_of(20, config) == (Group(0, 1, 20),)
    for m, blocks, unit in itertools.product((1, 31, 33, 200), (1, 3, 8), (1, 16, 32)):
        cut = blocks_of(m, MlpChainConfig(mode="rows", row_blocks=blocks, row_unit=unit))
        rows = [
            group.start + group.size * i + row
            for group in cut
            for i in range(group.count)
            for row in range(group.size)
        ]
        assert rows == list(range(m))
