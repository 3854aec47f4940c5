"""AMX as TensorIntrins, through sch.tensorize: right results by the right instructions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from microkernels.amx.configure_tiles import configure_tiles
from microkernels.amx.instructions import InstructionCounts, TileBlock, TileInstruction
from microkernels.amx.tensor_intrin import register_amx_intrins
from microkernels.amx.tile_shapes import ROWS
from microkernels.errors import IsaError
from microkernels.kernels.amx_family import AmxMicrokernel
from microkernels.microkernel import Microkernel, microkernel_named
from microkernels.packing import pack_weight
from microkernels.tensorize.tensor_intrin import register_tensor_intrin
from tests.amx_emulator import emulator
from tests.guard import guarded
from tests.microkernels.amx_schedule import (
    AMX_KERNELS,
    as_tensor,
    blocked,
    in_groups,
    matmul_schedule,
    side_by_side_schedule,
)
from tests.microkernels.operands import assert_product, random_operand
from tests.microkernels.rungs import target_of
from tests.microkernels.tensorize.test_tensor_intrin import legalized_matmul

# Blocks of whole tiles, then tails: of rows, of columns, of both, down to a single row or column.
SIZES = {
    "2x2": [(32, 32), (16, 32), (32, 16), (16, 16), (23, 32), (32, 19), (17, 30), (1, 7), (9, 1)],
    "1x4": [(16, 64), (16, 48), (5, 64), (16, 63), (11, 50), (1, 64), (3, 1)],
}
FEW = {"2x2": [(32, 32), (21, 27)], "1x4": [(16, 64), (7, 37)]}
# Every size for one kernel of each layout and type of accumulators.
MANY = ("amx_u8s8s32_32x32", "amx_s8u8s32_16x64", "amx_bf16_32x32", "amx_bf16_16x64")
BLOCKS = [
    pytest.param(kernel, rows, columns, id=f"{kernel.name}-{rows}x{columns}")
    for kernel in AMX_KERNELS
    for rows, columns in (SIZES if kernel.name in MANY else FEW)[kernel.layout]
]


def compiled(schedule: s_tir.Schedule) -> Callable[..., Any]:
    return tvm.compile(configured(schedule), target=target_of("amx"))["main"]


def configured(schedule: s_tir.Schedule) -> tvm.IRModule:
    return tvm.IRModule({"main": configure_tiles(schedule.mod["main"])})


def amx_kernel(name: str) -> AmxMicrokernel:
    return next(kernel for kernel in AMX_KERNELS if kernel.name == name)


def assert_counts(counts: dict[str, int] | None, expected: dict[str, int]) -> None:
    """The emulator executed these instructions and no others; real hardware does not count."""
    if counts is not None:
        assert {name: count for name, count in counts.items() if count} == expected


def tile_block(kernel: AmxMicrokernel, rows: int, columns: int, steps: int) -> TileBlock:
    return TileBlock(kernel.layout, -(-rows // ROWS), -(-columns // ROWS), steps)


def random_operands(
    kernel: Microkernel, m: int, n: int, k: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (
        random_operand(rng, (m, k), kernel.a_dtype),
        random_operand(rng, (k, n), kernel.b_dtype),
    )


@pytest.mark.isa("amx")
@pytest.mark.parametrize(("kernel", "rows", "columns"), BLOCKS)
def test_blocks_of_every_size(kernel: AmxMicrokernel, rows: int, columns: int) -> None:
    m, n, k = 3 * rows, 2 * columns, 3 * 16 * kernel.kr
    main = compiled(matmul_schedule(kernel, m, n, k, rows, columns))
    a, b = random_operands(kernel, m, n, k)
    result = tvm.runtime.empty((m, n), kernel.acc_dtype)
    operands = as_tensor(a, kernel.a_dtype), as_tensor(in_groups(kernel, b), kernel.b_dtype)
    with emulator.running() as tiles:
        main(*operands, result)
        counts = tiles.counts()
    assert_product(kernel, result.numpy(), a[None], b[None])
    # Three tasks of two blocks.
    task = InstructionCounts(ldtilecfg=1, tilerelease=1)
    task += tile_block(kernel, rows, columns, 3).counts() * 2
    assert_counts(counts, (task * 3).named(kernel.product))


@pytest.mark.isa("amx")
def test_a_tail_of_columns_in_the_same_tasks_and_the_same_matrix() -> None:
    kernel = amx_kernel("amx_u8s8s32_32x32")
    m, k, n, whole = 128, 192, 77, 64
    main = compiled(side_by_side_schedule(kernel, m, k, [(whole, 32, 32), (n - whole, 32, 13)]))
    a, b = random_operands(kernel, m, n, k)
    weights = [guarded(in_groups(kernel, piece)) for piece in np.split(b, [whole], axis=1)]
    result = guarded(np.full((m, n), -1, np.int32))
    with emulator.running() as tiles:
        main(guarded(a), *weights, result[:, :whole], result[:, whole:])
        counts = tiles.counts()
    assert_product(kernel, result, a[None], b[None])
    task = InstructionCounts(ldtilecfg=2, tilerelease=1)
    task += TileBlock("2x2", 2, 2, 3).counts() * 2 + TileBlock("2x2", 2, 1, 3).counts()
    assert_counts(counts, (task * 4).named("tdpbusd"))


@pytest.mark.isa("amx")
def test_weights_as_the_templates_pack_them() -> None:
    kernel = amx_kernel("amx_bf16_32x32")
    m, n, k, nr = 64, 96, 128, kernel.nr
    function = legalized_matmul(kernel, m, n, k).with_attr("global_symbol", "main")
    schedule = s_tir.Schedule(function)
    schedule.transform_layout(
        "matmul", ("read", 1), lambda k, n: (n // nr, k // kernel.kr, n % nr, k % kernel.kr)
    )
    product = blocked(schedule, "matmul", kernel, 32, nr)
    schedule.parallel(product.loops[0])
    product.tensorize(schedule)
    main = compiled(schedule)
    a, b = random_operands(kernel, m, n, k)
    packed = pack_weight(b, [kernel.vectors] * (n // nr), kernel)
    packed = packed.reshape(n // nr, k // kernel.kr, nr, kernel.kr)
    result = tvm.runtime.empty((m, n), "float32")
    with emulator.running():
        main(as_tensor(a, "bfloat16"), as_tensor(packed, "bfloat16"), result)
    assert_product(kernel, result.numpy(), a[None], b[None])


@pytest.mark.isa("amx")
def test_what_follows_runs_on_the_stored_block() -> None:
    kernel = amx_kernel("amx_s8s8s32_16x64")
    m, n, k = 32, 128, 128
    schedule = s_tir.Schedule(rectified_matmul(kernel, m, n, k))
    product = blocked(schedule, "C", kernel, 16, 64)
    outer_i, outer_j, *_ = product.loops
    rectify = schedule.get_sblock("D")
    schedule.reverse_compute_at(rectify, outer_j)
    schedule.vectorize(schedule.get_loops(rectify)[-1])
    schedule.parallel(outer_i)
    product.tensorize(schedule)
    main = compiled(schedule)
    a, b = random_operands(kernel, m, n, k)
    result = tvm.runtime.empty((m, n), "int32")
    with emulator.running():
        main(as_tensor(a, "int8"), as_tensor(in_groups(kernel, b), "int8"), result)
    exact = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(result.numpy(), np.maximum(exact, 0))


def rectified_matmul(kernel: Microkernel, m: int, n: int, k: int) -> tirx.PrimFunc:
    """max(0, A @ B), the weight in groups of kr."""
    kr = kernel.kr
    a = te.placeholder((m, k), kernel.a_dtype, "A")
    b = te.placeholder((k // kr, n, kr), kernel.b_dtype, "B")
    step = te.reduce_axis((0, k), "k")

    def product(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        weight = b[step // kr, j, step % kr].astype("int32")
        return te.sum(a[i, step].astype("int32") * weight, step)

    c = te.compute((m, n), product, name="C")
    d = te.compute((m, n), lambda i, j: tirx.max(c[i, j], tirx.const(0, "int32")), name="D")
    return te.create_prim_func([a, b, d]).with_attr("global_symbol", "main")


@pytest.mark.parametrize("mcpu", ["sapphirerapids", "emeraldrapids", "graniterapids"])
@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("amx_u8s8s32_32x32", 32, 32),
        ("amx_bf16_32x32", 23, 17),
        ("amx_bf16_16x64", 16, 64),
        ("amx_u8u8s32_16x64", 7, 37),
    ],
)
def test_the_assembly_has_the_tiles_that_were_asked_for(
    name: str, rows: int, columns: int, mcpu: str
) -> None:
    """No tile is renamed, and none spilled: that would be a load or a store more."""
    kernel = amx_kernel(name)
    schedule = matmul_schedule(kernel, 2 * rows, 2 * columns, 32 * 16 * kernel.kr, rows, columns)
    module = tvm.compile(configured(schedule), target=target_of("amx", mcpu))
    assembly = module.mod.inspect_source("asm")
    found = re.findall(r"^\s+((?:tile|tdp|ldtile)\S*)\s*(.*)$", assembly, re.MULTILINE)
    first, *middle, last = [
        " ".join([mnemonic, *re.findall(r"%tmm(\d)", operands)]) for mnemonic, operands in found
    ]
    assert (first, last) == ("ldtilecfg", "tilerelease")
    grid = tile_block(kernel, rows, columns, 1)
    tiles = grid.row_tiles * grid.column_tiles
    stream = [written(instruction, kernel) for instruction in grid.stream()]
    start, step, end = stream[:tiles], stream[tiles:-tiles], stream[-tiles:]
    # LLVM may have unrolled any of the loops.
    pattern = f"(?:{lines(start)}(?:{lines(step)})+{lines(end)})+"
    assert re.fullmatch(pattern, lines(middle)), middle
    assert "TVMBackendAllocWorkspace" not in assembly


def written(instruction: TileInstruction, kernel: AmxMicrokernel) -> str:
    """The mnemonic and the tiles in the order in which AT&T assembly has them."""
    name, target, sources, _ = instruction
    if name == "tdp":
        _, a, b = sources
        return f"{kernel.product} {b} {a} {target}"
    return " ".join([name, *map(str, sources if target is None else [target])])


def lines(instructions: list[str]) -> str:
    return "".join(f"{instruction}\n" for instruction in instructions)


def test_blocks_that_do_not_exist_are_refused() -> None:
    kernel = amx_kernel("amx_u8s8s32_16x64")
    for rows, columns in [(17, 64), (16, 65), (0, 16), (16, 0), (-1, 16)]:
        message = rf"amx_u8s8s32_16x64 has no {rows}x{columns} block; at most 16 rows and 64"
        with pytest.raises(IsaError, match=message):
            register_amx_intrins(kernel, rows, columns)


def test_each_kind_of_kernel_has_its_own_entry() -> None:
    vnni = microkernel_named("avx512_vnni_u8s8s32_8x48")
    with pytest.raises(
        IsaError, match=r"no tile registers; `tensor_intrin.register_tensor_intrin`"
    ):
        register_amx_intrins(vnni, 8, 48)
    with pytest.raises(IsaError, match=r"amx_bf16_32x32 keeps .*amx_intrin.register_amx_intrins"):
        register_tensor_intrin(amx_kernel("amx_bf16_32x32"), 32, 32, 32)
