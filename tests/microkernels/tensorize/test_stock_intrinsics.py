"""TVM's `dot_16x4_vnni`: the original, and ours for stock schedules and stock MetaSchedule."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.s_tir import TensorIntrin

from microkernels.tensorize import stock_intrinsics
from microkernels.tensorize.stock_intrinsics import NAME
from tests.stand_ins import running
from tests.tvm_hybrid.small_models import run_python

M, N, K = 16, 32, 64
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake", "num-cores": 1})


def workload() -> tirx.PrimFunc:
    """C[M, N] = A[M, K] times a weight packed as [N/16][K/4][16][4], as TVM's rules want it."""
    a = te.placeholder((M, K), "uint8", "A")
    b = te.placeholder((N // 16, K // 4, 16, 4), "int8", "B")
    k = te.reduce_axis((0, K), "k")

    def product(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        weight = b[j // 16, k // 4, j % 16, k % 4]
        return te.sum(a[i, k].astype("int32") * weight.astype("int32"), axis=k)

    return te.create_prim_func([a, b, te.compute((M, N), product, "C")])


def tensorized(name: str) -> tvm.IRModule:
    """A schedule from TVM's own documentation, with the intrinsic of this name."""
    schedule = s_tir.Schedule(workload().with_attr("global_symbol", "main"))
    block = schedule.get_sblock("C")
    i, j, k = schedule.get_loops(block)
    outer_j, inner_j = schedule.split(j, [None, 16])
    outer_k, inner_k = schedule.split(k, [None, 4])
    schedule.reorder(i, outer_j, outer_k, inner_j, inner_k)
    schedule.decompose_reduction(block, outer_k)
    schedule.tensorize(inner_j, name)
    return schedule.mod


def check(mod: tvm.IRModule) -> None:
    """The program uses the instruction and computes exact integers at both ends of the ranges."""
    assert "vpdpbusd" in tvm.compile(mod, target=TARGET).mod.inspect_source("asm")
    function = running.compiled(mod, "avx512_vnni")
    rng = np.random.default_rng(0)
    a = rng.choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), (M, K))
    b = rng.choice(np.array([-128, -127, -1, 0, 1, 127], np.int8), (K, N))
    packed = b.reshape(K // 4, 4, N // 16, 16).transpose(2, 0, 3, 1)
    c = tvm.runtime.empty((M, N), "int32")
    function["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(packed.copy()), c)
    np.testing.assert_array_equal(c.numpy(), a.astype(np.int32) @ b.astype(np.int32))


def test_the_mended_one_takes_the_place_of_another_and_is_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like TVM's module, whose import takes 13 s: the import registers a broken intrinsic."""
    register, imported = TensorIntrin.register, []

    def import_module(name: str) -> None:
        imported.append(name)
        desc, _ = stock_intrinsics.dot_16x4_vnni()
        TensorIntrin.register(stock_intrinsics.NAME, desc, desc, override=True)

    monkeypatch.setattr(stock_intrinsics, "NAME", f"tests.{NAME}")
    monkeypatch.setattr(
        stock_intrinsics, "importlib", types.SimpleNamespace(import_module=import_module)
    )
    stock_intrinsics.mend_dot_16x4_vnni()
    assert imported == ["tvm.s_tir.tensor_intrin"]
    assert TensorIntrin.register is register
    check(tensorized(f"tests.{NAME}"))


# Takes 15 s, nearly all of it for importing tvm.s_tir.tensor_intrin.
STOCK = """
import tvm
from tvm.s_tir import TensorIntrin, meta_schedule as ms
from microkernels.tensorize.stock_intrinsics import NAME, mend_dot_16x4_vnni
from tests.microkernels.tensorize.test_stock_intrinsics import TARGET, check, tensorized, workload

register = TensorIntrin.register
assert TensorIntrin.get(NAME, allow_missing=True) is None
from tvm.s_tir.tensor_intrin import x86
plain = lambda function: function.without_attr("global_symbol")
theirs = TensorIntrin.get(NAME)
tvm.ir.assert_structural_equal(plain(theirs.impl), plain(x86.dot_product_16x4_u8i8i32_vnni))
try:
    check(tensorized(NAME))
except tvm.error.InternalError as error:
    assert "vpdpbusd" in str(error), error
else:
    raise AssertionError("TVM's own works: stock_intrinsics is no longer needed")

mend_dot_16x4_vnni()
ours = TensorIntrin.get(NAME)
tvm.ir.assert_structural_equal(plain(ours.desc), plain(x86.dot_product_16x4_u8i8i32_desc))
assert TensorIntrin.register is register
mend_dot_16x4_vnni()
try:
    TensorIntrin.register(NAME, theirs.desc, theirs.impl)
except ValueError as error:
    assert "already been registered" in str(error)
else:
    raise AssertionError("names must be guarded as before")

mod = tvm.IRModule({"main": workload().with_attr("global_symbol", "main")})
context = ms.TuneContext(mod, target=TARGET, space_generator="post-order-apply",
                         search_strategy="replay-trace", num_threads=1, rand_state=1)
spaces = context.generate_design_space()
assert any(NAME in str(space.trace) for space in spaces)
context.pre_tuning(6, 6, spaces)
right = 0
for candidate in context.generate_measure_candidates():
    assert NAME in str(candidate.sch.trace)
    try:
        check(candidate.sch.mod)
        right += 1
    except tvm.error.InternalError as error:
        # MetaSchedule may vectorise a loop around an intrinsic, which TVM cannot lower.
        assert "Cannot broadcast lanes" in str(error)
print(right)
"""


@pytest.mark.slow
def test_tvms_own_fails_until_it_is_mended_and_metaschedule_finds_ours() -> None:
    done = run_python(STOCK)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 1
