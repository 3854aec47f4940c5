"""The TensorIntrin face, driven through sch.tensorize on a program from LegalizeOps."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, tirx

from microkernels.errors import IsaError
from microkernels.microkernel import Microkernel, all_microkernels, microkernel_named
from microkernels.tensor_intrin import register_tensor_intrin

MCPU = {"scalar": "x86-64", "avx2": "haswell", "avx512": "skylake-avx512"}


def legalized_matmul(m: int, n: int, k: int) -> tirx.PrimFunc:
    """A matmul that nobody wrote a template for, as TVM lowers it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((m, k), "float32"))
    w = relax.Var("w", relax.TensorType((k, n), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(output)
    mod = relax.transform.LegalizeOps()(builder.get())
    return next(f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))


def tensorized(kernel: Microkernel, m: int, n: int, k: int) -> s_tir.Schedule:
    schedule = s_tir.Schedule(legalized_matmul(m, n, k).with_attr("global_symbol", "matmul"))
    block = schedule.get_sblock("matmul")
    i, j, step = schedule.get_loops(block)
    outer_i, inner_i = schedule.split(i, [None, kernel.mr])
    outer_j, inner_j = schedule.split(j, [None, kernel.nr])
    outer_k, inner_k = schedule.split(step, [None, k])
    schedule.reorder(outer_j, outer_i, outer_k, inner_i, inner_j, inner_k)
    init = schedule.decompose_reduction(block, outer_k)
    schedule.vectorize(schedule.get_loops(init)[-1])
    schedule.tensorize(inner_i, register_tensor_intrin(kernel, kernel.mr, kernel.nr, k))
    return schedule


KERNELS = [
    # Tiles of extent 1 cannot be matched by tensorize.
    pytest.param(kernel, id=kernel.name, marks=pytest.mark.isa(kernel.isa_name))
    for kernel in all_microkernels()
    if kernel.mr > 1
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_tensorize_replaces_the_loops_and_keeps_the_result(kernel: Microkernel) -> None:
    m, n, k = 2 * kernel.mr, 2 * kernel.nr, 40
    schedule = tensorized(kernel, m, n, k)
    script = schedule.mod.script()
    assert "body" in script and "T.float32(0.0)" in script
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[kernel.isa_name]})
    function = tvm.compile(schedule.mod, target=target)["matmul"]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k)).astype(np.float32)
    w = rng.standard_normal((k, n)).astype(np.float32)
    result = tvm.runtime.tensor(np.zeros((m, n), np.float32))
    function(tvm.runtime.tensor(x), tvm.runtime.tensor(w), result)
    # K * eps * |A| |B| bounds a f32 sum of products in any order.
    bound = (k + 1) * np.finfo(np.float32).eps * (np.abs(x).astype(float) @ np.abs(w))
    assert (np.abs(result.numpy() - x.astype(float) @ w) <= bound).all()


def test_fma_on_zmm_registers_after_tensorize() -> None:
    schedule = tensorized(microkernel_named("avx512_f32_8x48"), 16, 96, 64)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})
    assembly = tvm.compile(schedule.mod, target=target).mod.inspect_source("asm")
    fused = [line for line in assembly.splitlines() if "vfmadd" in line and "%zmm" in line]
    assert len(fused) >= 24


def test_a_tile_that_does_not_exist_is_refused() -> None:
    kernel = microkernel_named("avx512_f32_8x48")
    for rows, columns in [(9, 48), (8, 40), (8, 64)]:
        with pytest.raises(IsaError, match="avx512_f32_8x48"):
            register_tensor_intrin(kernel, rows, columns, 8)
