"""Users' Relax modules compile by every route, are right, and use our product kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import IRModule, relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_hybrid
from tvm_hybrid.errors import CompileError
from tvm_hybrid.executable.executable import Executable

pytestmark = pytest.mark.turns

Array = NDArray[Any]
RNG = np.random.default_rng(0)
W, V = (RNG.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
X = RNG.standard_normal((6, 16)).astype(np.float32)
# 16 products and sums of numbers up to a few units, twice.
ATOL = 2e-4


def bound(mod: IRModule, **weights: Array) -> IRModule:
    """The module with constant weights instead of main's parameters."""
    return relax.transform.BindParams("main", weights)(mod)


def by_compile(mod: IRModule, *inputs: Array) -> Array:
    """The result of main through `compile`."""
    return tvm_hybrid.compile(mod, num_threads=1).run(*inputs)[0].numpy()


def by_partition(mod: IRModule, *inputs: Array) -> Array:
    """The result of main through `partition_for_tvm_hybrid` and TVM."""
    partitioned = tvm_hybrid.partition_for_tvm_hybrid(mod)
    generated = relax.transform.RunCodegen()(partitioned)
    return run(tvm.compile(generated, tvm_hybrid.resolve_target(None)), *inputs)


def by_pipeline(mod: IRModule, *inputs: Array) -> Array:
    """The result of main through the registered pipeline."""
    target = tvm_hybrid.resolve_target(None)
    return run(tvm.compile(mod, target, relax_pipeline="tvm_hybrid"), *inputs)


def run(executable: Any, *inputs: Array) -> Array:
    """Runs main of a module that TVM compiled."""
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return main(*(tvm.runtime.tensor(each) for each in inputs)).numpy()


DOORS: list[Callable[..., Array]] = [by_compile, by_partition, by_pipeline]


def check(mod: IRModule, wanted: Array, *inputs: Array) -> None:
    """Compares the result of every route."""
    for door in DOORS:
        np.testing.assert_allclose(door(mod, *inputs), wanted, atol=ATOL, err_msg=door.__name__)


def products(mod: IRModule) -> list[str]:
    """Operators of the regions with matrix products."""
    executable: Executable = tvm_hybrid.compile(mod, num_threads=1)
    assert all(each.kernel for each in executable.explain().taken)
    return [each.op for each in executable.explain().taken if "matmul" in each.op]


@I.ir_module
class MatchCast:
    @R.function
    def main(x: R.Tensor((6, "m"), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(
        (6, 16), "float32"
    ):
        with R.dataflow():
            lv = R.match_cast(R.nn.relu(x), R.Tensor((6, 16), "float32"))
            gv = R.nn.relu(R.matmul(lv, w))
            R.output(gv)
        return gv


def test_a_match_cast() -> None:
    mod = relax.transform.BindSymbolicVars({"m": 16}, "main")(bound(MatchCast, w=W))
    assert products(mod) == ["matmul + relu"]
    check(mod, np.maximum(np.maximum(X, 0) @ W, 0), X)


@I.ir_module
class CallTir:
    @T.prim_func(private=True, s_tir=True)
    def shifted(a: T.Buffer((6, 16), "float32"), b: T.Buffer((6, 16), "float32")):
        for i, j in T.grid(6, 16):
            with T.sblock("shifted"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, (vj + 3) % 16] * T.float32(2)

    @R.function
    def main(
        x: R.Tensor((6, 16), "float32"),
        w: R.Tensor((16, 16), "float32"),
        v: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((6, 16), "float32"):
        cls = CallTir
        with R.dataflow():
            lv = R.nn.relu(R.matmul(x, w))
            lv1 = R.call_tir(cls.shifted, (lv,), out_ty=R.Tensor((6, 16), "float32"))
            gv = R.tanh(R.matmul(lv1, v))
            R.output(gv)
        return gv


def test_a_kernel_of_the_users_between_products() -> None:
    mod = bound(CallTir, w=W, v=V)
    assert products(mod) == ["matmul + relu", "matmul + tanh"]
    hidden = np.roll(np.maximum(X @ W, 0), -3, axis=1) * 2
    check(mod, np.tanh(hidden @ V), X)


@I.ir_module
class Branches:
    @R.function
    def main(
        x: R.Tensor((6, 16), "float32"),
        c: R.Tensor((), "bool"),
        w: R.Tensor((16, 16), "float32"),
        v: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((6, 16), "float32"):
        h = R.nn.relu(R.matmul(x, w))
        if c:
            y = R.nn.relu(R.matmul(h, v))
            z = R.add(y, h)
        else:
            y = R.multiply(h, R.const(2, "float32"))
            z = R.subtract(y, x)
        return R.matmul(z, v)


@pytest.mark.parametrize("taken", [True, False])
def test_branches(taken: bool) -> None:
    mod = bound(Branches, w=W, v=V)
    assert sorted(products(mod)) == ["matmul", "matmul + relu", "matmul + relu + add"]
    hidden = np.maximum(X @ W, 0)
    chosen = np.maximum(hidden @ V, 0) + hidden if taken else hidden * 2 - X
    check(mod, chosen @ V, X, np.array(taken))


@I.ir_module
class SubFunctions:
    @R.function(private=True)
    def layer(x: R.Tensor((6, 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(
        (6, 16), "float32"
    ):
        with R.dataflow():
            gv = R.nn.relu(R.matmul(x, w))
            R.output(gv)
        return gv

    @R.function
    def main(
        x: R.Tensor((6, 16), "float32"),
        w: R.Tensor((16, 16), "float32"),
        v: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((6, 16), "float32"):
        cls = SubFunctions
        with R.dataflow():
            lv = cls.layer(x, w)
            gv = cls.layer(lv, v)
            R.output(gv)
        return gv

    @R.function
    def other(x: R.Tensor((4, 16), "float32")) -> R.Tensor((4, 16), "float32"):
        with R.dataflow():
            gv = R.exp(x)
            R.output(gv)
        return gv


def test_sub_functions_take_weights_of_their_callers() -> None:
    mod = bound(SubFunctions, w=W, v=V)
    assert sorted(products(mod)) == ["mlp_chain (matmul + relu, matmul + relu)"]
    check(mod, np.maximum(np.maximum(X @ W, 0) @ V, 0), X)


def test_other_functions_stay() -> None:
    mod = bound(SubFunctions, w=W, v=V)
    target = tvm_hybrid.resolve_target(None)
    machine = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline="tvm_hybrid"), tvm.cpu())
    np.testing.assert_allclose(
        machine["other"](tvm.runtime.tensor(X[:4])).numpy(), np.exp(X[:4]), rtol=1e-6
    )


@I.ir_module
class Takes:
    @R.function
    def main(
        x: R.Tensor((6, 16), "float32"),
        i: R.Tensor((3,), "int64"),
        w: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((3, 16), "float32"):
        with R.dataflow():
            last = R.take(x, R.const(-1, "int64"), axis=0, mode="fast")
            some = R.take(x, i, axis=0, mode="fast")
            gv = R.matmul(R.add(some, last), w)
            R.output(gv)
        return gv


def test_negative_indices_count_from_the_end() -> None:
    indices = np.array([-6, 2, -1], np.int64)
    mod = bound(Takes, w=W)
    assert products(mod) == ["matmul"]
    check(mod, (X[indices] + X[-1]) @ W, X, indices)


@I.ir_module
class Unbound:
    @R.function
    def main(
        x: R.Tensor((6, 16), "float32"),
        w: R.Tensor((16, 16), "float32"),
        b: R.Tensor((16,), "float32"),
        v: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((6, 16), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            lv = R.nn.relu(R.add(R.matmul(x, R.permute_dims(w)), b))
            gv = R.matmul(lv, v)
            R.output(gv)
        return gv


def test_unbound_weights_are_packed_at_the_call() -> None:
    bias = RNG.standard_normal(16).astype(np.float32)
    explained = tvm_hybrid.compile(Unbound, num_threads=1).explain()
    assert [each.op for each in explained] == ["batch_matmul + add + relu", "batch_matmul"]
    check(Unbound, np.maximum(X @ W.T + bias, 0) @ V, X, W, bias, V)


def test_lifted_parameters() -> None:
    """After LiftTransformParams, main takes transformed parameters."""
    bias = RNG.standard_normal(16).astype(np.float32)
    mod = relax.transform.LiftTransformParams()(Unbound)
    target = tvm_hybrid.resolve_target(None)
    machine = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline="tvm_hybrid"), tvm.cpu())
    given = [tvm.runtime.tensor(each) for each in (W, bias, V)]
    found = machine["main"](tvm.runtime.tensor(X), *machine["main_transform_params"](given))
    wanted = np.maximum(X @ W.T + bias, 0) @ V
    np.testing.assert_allclose(found.numpy(), wanted, atol=ATOL)


def test_a_module_must_say_what_weights_are() -> None:
    with pytest.raises(CompileError, match="num_input"):
        tvm_hybrid.partition_for_tvm_hybrid(MatchCast, transform_params=True)


@I.ir_module
class Layers:
    @R.function
    def main(
        x: R.Tensor((6, 33), "float32"),
        w: R.Tensor((70, 33), "float32"),
        b: R.Tensor((70,), "float32"),
        v: R.Tensor((70, 21), "float32"),
    ) -> R.Tensor((6, 21), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            lv = R.nn.relu(R.add(R.matmul(x, R.permute_dims(w)), b))
            gv = R.matmul(lv, v)
            R.output(gv)
        return gv


def test_weights_are_packed_by_a_function_of_their_own() -> None:
    mod = tvm_hybrid.partition_for_tvm_hybrid(Layers, transform_params=True)
    main = mod["main"].script()
    assert "R.concat" not in main and "batch_matmul" not in main
    assert "fused_m" in main  # a product or a chain of products
    generated = relax.transform.RunCodegen()(mod)
    executable = tvm.compile(generated, tvm_hybrid.resolve_target(None))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    shapes = [(6, 33), (70, 33), (70,), (70, 21)]
    x, w, b, v = (RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    packed = machine["main_transform_params"]([tvm.runtime.tensor(each) for each in (w, b, v)])
    found = machine["main"](tvm.runtime.tensor(x), *packed).numpy()
    # 33 and 70 products of numbers up to a few units, summed.
    np.testing.assert_allclose(found, np.maximum(x @ w.T + b, 0) @ v, atol=2e-3)


@I.ir_module
class OwnMemory:
    """Constants that are no tensors: a type, and the name of a memory scope."""

    @T.prim_func(s_tir=True)
    def copied(x: T.Buffer((6, 16), "float32"), y: T.Buffer((6, 16), "float32")):
        for i, j in T.grid(6, 16):
            with T.sblock("copied"):
                row, column = T.axis.remap("SS", [i, j])
                y[row, column] = x[row, column]

    @R.function
    def main(x: R.Tensor((6, 16), "float32")):
        R.func_attr({"relax.force_pure": True})
        cls = OwnMemory
        storage = R.memory.alloc_storage(
            R.shape([384]), virtual_device_index=0, storage_scope="global", dtype="float32"
        )
        y = R.memory.alloc_tensor(storage, 0, R.shape([6, 16]), dtype="float32")
        _ = cls.copied(x, y)
        return y


def test_memory_that_the_module_manages() -> None:
    check(OwnMemory, X, X)
