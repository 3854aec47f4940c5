"""The TensorIntrin interface, through sch.tensorize on a program from LegalizeOps."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, tirx

from microkernels.base.errors import IsaError
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.microkernel import Microkernel
from microkernels.registry import all_microkernels, microkernel_named
from microkernels.tensorize.tensor_intrin import register_tensor_intrin
from tests.microkernels.isa_targets import MCPU, runnable
from tests.microkernels.operands import assert_product, random_operand
from tests.stand_ins import running
from tir_schedules.core.blocking import Panels

# tensorize cannot match tiles of extent 1; AMX has its own intrinsics.
KERNELS = [
    kernel
    for kernel in all_microkernels()
    if kernel.mr > 1 and not isinstance(kernel, AmxMicrokernel)
]


def legalized_matmul(kernel: Microkernel, m: int, n: int, k: int) -> tirx.PrimFunc:
    """A matmul without a template, as TVM lowers it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((m, k), kernel.a_dtype))
    w = relax.Var("w", relax.TensorType((k, n), kernel.b_dtype))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.matmul(x, w, out_dtype=kernel.acc_dtype))
        builder.emit_func_output(output)
    mod = relax.transform.LegalizeOps()(builder.get())
    return next(f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))


def tensorized(kernel: Microkernel, m: int, n: int, k: int) -> s_tir.Schedule:
    """The matmul with its weight in groups of kr, tiled, with the tile tensorized."""
    function = legalized_matmul(kernel, m, n, k).with_attr("global_symbol", "matmul")
    schedule = s_tir.Schedule(function)
    block = schedule.get_sblock("matmul")
    if kernel.kr > 1:
        kr = kernel.kr
        schedule.transform_layout(block, ("read", 1), lambda k, n: (k // kr, n, k % kr))
    i, j, step = schedule.get_loops(block)
    outer_i, inner_i = schedule.split(i, [None, kernel.mr])
    outer_j, inner_j = schedule.split(j, [None, kernel.nr])
    outer_k, inner_k = schedule.split(step, [None, k // 2])
    schedule.reorder(outer_j, outer_i, outer_k, inner_i, inner_j, inner_k)
    init = schedule.decompose_reduction(block, outer_k)
    schedule.vectorize(schedule.get_loops(init)[-1])
    schedule.tensorize(inner_i, register_tensor_intrin(kernel, kernel.mr, kernel.nr, k // 2))
    return schedule


@pytest.mark.sampled
@pytest.mark.parametrize("kernel", runnable(KERNELS))
def test_tensorize_replaces_the_loops_and_keeps_the_result(kernel: Microkernel) -> None:
    m, n, k = 2 * kernel.mr, 2 * kernel.nr, 48
    schedule = tensorized(kernel, m, n, k)
    script = schedule.mod.script()
    assert "body" in script and '"update"' not in script
    function = running.compiled(schedule.mod, kernel.isa_name)["matmul"]
    rng = np.random.default_rng(0)
    a = random_operand(rng, (1, m, k), kernel.a_dtype)
    b = random_operand(rng, (1, k, n), kernel.b_dtype)
    grouped = Panels(kernel, k, n, (n // kernel.lanes,)).pack(b[0])
    if kernel.kr > 1:
        grouped = grouped.reshape(k // kernel.kr, n, kernel.kr)
    else:
        grouped = grouped.reshape(k, n)
    result = tvm.runtime.empty((m, n), kernel.acc_dtype)
    function(_tensor(a[0], kernel.a_dtype), _tensor(grouped, kernel.b_dtype), result)
    assert_product(kernel, result.numpy(), a, b)


def _tensor(values: np.ndarray, dtype: str) -> tvm.runtime.Tensor:
    """An array as a TVM tensor; bfloat16 is given as the uint16 that stores it."""
    return tvm.runtime.empty(values.shape, dtype).copyfrom(values)


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("avx512_f32_8x48", "vfmadd"),
        ("avx512_vnni_u8s8s32_8x48", "vpdpbusd"),
        ("avx512_u8s8s32_6x48", "vpmaddwd"),
        ("avx512_bf16_bf16_8x48", "vdpbf16ps"),
    ],
)
def test_the_instruction_on_zmm_registers_after_tensorize(name: str, instruction: str) -> None:
    kernel = microkernel_named(name)
    schedule = tensorized(kernel, 2 * kernel.mr, 2 * kernel.nr, 64)
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[kernel.isa_name]})
    assembly = tvm.compile(schedule.mod, target=target).mod.inspect_source("asm")
    products = re.findall(rf"{instruction}.*%zmm", assembly)
    assert len(products) >= kernel.mr * kernel.vectors


@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        ("avx512_f32_8x48", [(9, 48, 8), (8, 40, 8), (8, 64, 8), (0, 48, 8), (8, 0, 8)]),
        ("avx512_vnni_u8s8s32_8x48", [(8, 48, 6), (9, 48, 8)]),
        ("avx512_bf16_bf16_8x48", [(8, 48, 7)]),
    ],
)
def test_tiles_it_does_not_have_are_refused(name: str, tiles: list[tuple[int, int, int]]) -> None:
    for rows, columns, k in tiles:
        with pytest.raises(IsaError, match=rf"{name} has no {rows}x{columns}x{k} tile"):
            register_tensor_intrin(microkernel_named(name), rows, columns, k)


def test_tile_registers_are_refused() -> None:
    with pytest.raises(IsaError, match=r"amx_bf16_32x32 keeps .* take a vector kernel"):
        register_tensor_intrin(microkernel_named("amx_bf16_32x32"), 32, 32, 32)
