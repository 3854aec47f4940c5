"""Rules for TVM's dlight: which programs they take, with which kernel, and what these compute."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx
from tvm.s_tir import dlight

import tvm_hybrid
from tests.tvm_hybrid.tuning.metaschedule.regions import (
    arguments,
    as_tensor,
    assert_right,
    batch_matmul,
    conv2d,
    matmul,
    operators,
)
from tir_schedules.core.region import Region
from tvm_hybrid.targets import host_target
from tvm_hybrid.tuning.metaschedule.workload import legalized

INTEGERS = ("uint8", "int8")
BY_TEMPLATE = {
    "fused product": matmul(32, 64, 96),
    "uneven product": matmul(37, 50, 101),
    "one row": matmul(1, 64, 48),
    "integers": matmul(32, 64, 96, INTEGERS),
    "batches": batch_matmul(3, 32, 48, 64),
}
BY_INTRINSIC = {"convolution": conv2d(14, 32, 64)}


def scheduled(mod: IRModule, *rules: dlight.ScheduleRule) -> IRModule:
    """A module after dlight with these rules."""
    with host_target():
        return dlight.ApplyDefaultSchedule(*rules)(mod)


def programs(mod: IRModule) -> list[tirx.PrimFunc]:
    """Those that a rule has taken."""
    functions = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return [f for f in functions if "tirx.is_scheduled" in f.attrs]


def check(region: Region, mod: IRModule) -> None:
    """The module computes the region."""
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
    script = program.script()
    assert ('T.sblock("batch_matmul")' in script) == (name in BY_TEMPLATE)
    assert ('T.sblock("body")' in script) == (name in BY_INTRINSIC)
    check(region, mod)


def test_the_instruction_is_in_the_code() -> None:
    mod = legalized(operators(matmul(32, 64, 96, INTEGERS)))
    with tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake"}) as target:
        mod = dlight.ApplyDefaultSchedule(tvm_hybrid.dlight.Matmul())(mod)
    (program,) = programs(mod)
    alone = IRModule({"main": program.with_attr("global_symbol", "main")})
    assert "vpdpbusd" in tvm.compile(alone, target=target).mod.inspect_source("asm")
