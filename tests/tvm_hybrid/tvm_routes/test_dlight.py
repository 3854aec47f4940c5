"""Rules for TVM's dlight: the programs they take, the kernels they choose, and the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx
from tvm.s_tir import dlight

import tvm_hybrid
from microkernels.registry import microkernel_named
from relay_passes.ir.functions import KERNEL
from tests.microkernels.isa_targets import target_of
from tests.stand_ins import running
from tests.tvm_hybrid.tvm_routes.metaschedule.regions import (
    arguments,
    as_tensor,
    assert_right,
    batch_matmul,
    conv2d,
    matmul,
    operators,
)
from tir_schedules.core.region import Region
from tvm_hybrid.targets.resolve import host_target
from tvm_hybrid.tvm_routes.metaschedule.workload import legalized

pytestmark = pytest.mark.turns

INTEGERS = ("uint8", "int8")
BY_TEMPLATE = {
    "fused product": matmul(32, 64, 96),
    "uneven product": matmul(37, 50, 101),
    "one row": matmul(1, 64, 48),
    "integers": matmul(32, 64, 96, INTEGERS),
    "bfloat16": matmul(32, 64, 96, ("bfloat16", "bfloat16")),
    "batches": batch_matmul(3, 32, 48, 64),
}
BY_INTRINSIC = {"convolution": conv2d(14, 32, 64)}


def scheduled(mod: IRModule, *rules: dlight.ScheduleRule) -> IRModule:
    """The module after dlight with our rules."""
    with host_target():
        return dlight.ApplyDefaultSchedule(*rules)(mod)


def programs(mod: IRModule) -> list[tirx.PrimFunc]:
    """Programs that a rule has taken."""
    functions = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return [f for f in functions if "tirx.is_scheduled" in f.attrs]


def check(region: Region, mod: IRModule) -> None:
    """Checks that the module computes the region."""
    values = arguments(region)
    tensors = [
        as_tensor(value, tensor.dtype)
        for value, tensor in zip(values, (*region.inputs, *region.operands), strict=True)
    ]
    machine = relax.VirtualMachine(tvm.compile(mod, target=host_target()), tvm.cpu())
    assert_right(region, machine["main"](*tensors).numpy(), values)


@pytest.mark.parametrize("name", [*BY_TEMPLATE, *BY_INTRINSIC])
def test_products_get_our_kernels(name: str) -> None:
    region = {**BY_TEMPLATE, **BY_INTRINSIC}[name]
    mod = scheduled(legalized(operators(region)), tvm_hybrid.dlight.Matmul())
    (program,) = programs(mod)
    kernel = microkernel_named(str(program.attrs[KERNEL]))
    assert kernel.a_dtype == region.inputs[0].dtype
    assert ("tvm_hybrid.region" in program.attrs) == (name in BY_TEMPLATE)
    assert ('"body"' in program.script()) == (name in BY_INTRINSIC)
    check(region, mod)


@pytest.mark.isa("amx")
def test_tiles_where_the_target_has_them() -> None:
    region = matmul(64, 128, 64, INTEGERS)
    mod = legalized(operators(region))
    with target_of("amx"):
        mod = dlight.ApplyDefaultSchedule(tvm_hybrid.dlight.Matmul())(mod)
    (program,) = programs(mod)
    assert str(program.attrs[KERNEL]).startswith("amx_")
    function = running.compiled(program.with_attr("global_symbol", "main"), "amx")["main"]
    values = arguments(region)
    result = tvm.runtime.empty(region.output.shape, "int32")
    function(*map(tvm.runtime.tensor, values), result)
    assert_right(region, result.numpy(), values)


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_threads_as_the_target_has_cores(threads: int) -> None:
    mod = legalized(operators(matmul(512, 512, 512)))
    with tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": threads}):
        mod = dlight.ApplyDefaultSchedule(tvm_hybrid.dlight.Matmul())(mod)
    (program,) = programs(mod)
    assert ("T.parallel" in program.script()) == (threads > 1)


def test_the_instruction_is_in_the_code() -> None:
    mod = legalized(operators(matmul(32, 64, 96, INTEGERS)))
    with tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake"}) as target:
        mod = dlight.ApplyDefaultSchedule(tvm_hybrid.dlight.Matmul())(mod)
    (program,) = programs(mod)
    alone = IRModule({"main": program.with_attr("global_symbol", "main")})
    assert "vpdpbusd" in tvm.compile(alone, target=target).mod.inspect_source("asm")


def module_of(make: Callable[..., relax.Expr], *shapes: tuple[Any, ...]) -> IRModule:
    """A legalised module with one or several operators."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{place}", relax.TensorType(shape, "float32"))
        for place, shape in enumerate(shapes)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(make(*inputs)))
        builder.emit_func_output(output)
    return legalized(builder.get())


def kernels(mod: IRModule) -> list[str]:
    """Kernels of the programs that a rule has taken."""
    return sorted(str(program.attrs[KERNEL]) for program in programs(mod))


def test_products_in_any_order_of_indices() -> None:
    shapes = (5, 33, 3), (3, 7, 33)
    mod = module_of(lambda a, b: relax.op.einsum([a, b], "ikn,njk->jin"), *shapes)
    made = scheduled(mod, tvm_hybrid.dlight.Matmul())
    (kernel,) = kernels(made)
    assert microkernel_named(kernel).b_dtype == "float32"
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, shape).astype("float32") for shape in shapes)
    machine = relax.VirtualMachine(tvm.compile(made, target=host_target()), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, (a, b))).numpy()
    np.testing.assert_array_equal(found, np.einsum("ikn,njk->jin", a, b))


def test_a_product_of_dynamic_sizes() -> None:
    rows = tirx.Var("rows", "int64")
    mod = module_of(lambda x, w: relax.op.nn.relu(relax.op.matmul(x, w)), (rows, 64), (64, 48))
    made = scheduled(mod, tvm_hybrid.dlight.Matmul(), tvm_hybrid.dlight.Generic())
    (product,) = (name for name in kernels(made) if not name.startswith("generic_"))
    assert microkernel_named(product).b_dtype == "float32"
    machine = relax.VirtualMachine(tvm.compile(made, target=host_target()), tvm.cpu())
    rng = np.random.default_rng(0)
    for count in (1, 5, 40):
        x, w = (rng.integers(-8, 9, shape).astype("float32") for shape in ((count, 64), (64, 48)))
        found = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
        np.testing.assert_array_equal(found, np.maximum(x @ w, 0))


OTHERS: dict[str, Callable[[], IRModule]] = {
    "softmax": lambda: module_of(relax.op.nn.softmax, (8, 40)),
    "sum": lambda: module_of(lambda x: relax.op.sum(x, axis=[1]), (8, 40)),
    "scheduled product": lambda: scheduled(
        legalized(operators(matmul(32, 64, 96))), tvm_hybrid.dlight.Matmul()
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_rule_does_not_know_it_leaves_to_the_next_one(name: str) -> None:
    rule = tvm_hybrid.dlight.Matmul()
    functions = [f for _, f in OTHERS[name]().functions_items() if isinstance(f, tirx.PrimFunc)]
    assert functions
    for function in functions:
        assert rule.apply(function, host_target(), False) is None


def test_other_targets_are_left_alone() -> None:
    mod = legalized(operators(matmul(32, 64, 96)))
    (program,) = (f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    target = tvm.target.Target("cuda")
    for rule in (tvm_hybrid.dlight.Matmul(), tvm_hybrid.dlight.Generic()):
        assert rule.apply(program, target, False) is None


def test_generic_loops_for_the_rest() -> None:
    def make(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.nn.softmax(relax.op.matmul(x, w))

    rules = (tvm_hybrid.dlight.Matmul(), tvm_hybrid.dlight.Generic())
    mod = scheduled(module_of(make, (8, 40), (40, 24)), *rules)
    found = kernels(mod)
    assert sum("_f32_" in name for name in found) == 1
    assert sum(name.startswith("generic_") for name in found) == len(found) - 1 > 0
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 40), (40, 24)))
    machine = relax.VirtualMachine(tvm.compile(mod, target=host_target()), tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
    scores = x.astype(np.float64) @ w
    wanted = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    # A score errs by at most K eps of the sum of its products' magnitudes; that is the relative
    # error of its exponential and of their sum. Exponential, sum and division add 32 eps.
    eps = np.finfo(np.float32).eps
    bound = 2 * 40 * eps * (np.abs(x) @ np.abs(w)).max() + 32 * eps
    assert (np.abs(result - wanted) <= bound * wanted).all()


def test_a_cpu_without_vectors_gets_scalar_kernels() -> None:
    mod = legalized(operators(matmul(8, 16, 24)))
    with tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"}):
        mod = dlight.ApplyDefaultSchedule(tvm_hybrid.dlight.Matmul())(mod)
    assert kernels(mod)[0].startswith("scalar_")
