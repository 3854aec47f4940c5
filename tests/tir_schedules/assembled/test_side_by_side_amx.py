"""Kernels with AMX tiles side by side with others, on two threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import tirx

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tests.amx_emulator import emulator
from tests.stand_ins import running
from tests.tir_schedules.chain_regions import bf16_mlp
from tests.tir_schedules.run_region import machine_for, packed, random_inputs, tensor_of
from tir_schedules.assembled.side_by_side import combine, serial_us
from tir_schedules.assembled.task_parts import Share, assign
from tir_schedules.core.config import Config
from tir_schedules.core.emission import walk
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for

from .test_side_by_side import BF16, DENSE, INT8, SOFTMAX, bits

pytestmark = pytest.mark.isa("amx")

MACHINE = machine_for("amx")
# A region and its kernel: both layouts, several types, vectors, no product.
MEMBERS = [
    (INT8, "amx_u8s8s32_32x32"),
    (DENSE, None),
    (BF16, "amx_bf16_16x64"),
    (SOFTMAX, None),
    (INT8, "avx512_vnni_u8s8s32_6x64"),
    (INT8, "amx_u8s8s32_32x32"),
]


def config_of(region: Region, kernel: str | None) -> Config:
    """The default configuration with another kernel; None: the default one."""
    found = template_for(region.op).default_config(region, MACHINE)
    if kernel is None:
        return found
    chosen = microkernel_named(kernel)
    m, n = region.output.shape
    tile = {
        "kernel": kernel,
        "rows": min(chosen.mr, m),
        "vectors": min(chosen.vectors, math.ceil(n / chosen.lanes)),
    }
    return type(found).from_dict({**found.to_dict(), **tile})


def built(region: Region, config: Config) -> tirx.PrimFunc:
    return template_for(region.op).build(region, config, MACHINE.isa)


def test_each_computes_and_configures_what_it_did_alone() -> None:
    configs = [config_of(*member) for member in MEMBERS]
    kernels = [built(region, config) for (region, _), config in zip(MEMBERS, configs, strict=True)]
    module = {f"k{i}": kernel for i, kernel in enumerate(kernels)}
    module["together"] = combine(kernels, assign([1.0] * len(kernels), 2))
    named = {name: f.with_attr("global_symbol", name) for name, f in module.items()}
    library = running.compiled(tvm.IRModule(named), "amx")
    read, single, together = [], [], []
    emulator.reset()
    for i, ((region, _), config) in enumerate(zip(MEMBERS, configs, strict=True)):
        arrays = packed(region, config, MACHINE.isa, random_inputs(region, seed=i))
        tensors = [tensor_of(np.ascontiguousarray(array)) for array in arrays]
        outputs = [tvm.runtime.empty(region.output.shape, region.output.dtype) for _ in range(2)]
        library[f"k{i}"](*tensors, outputs[0])
        read += tensors
        single.append(outputs[0])
        together.append(outputs[1])
    alone = emulator.counts()
    emulator.reset()
    for _ in range(3):
        library["together"](*read, *together)
    for one, other in zip(single, together, strict=True):
        np.testing.assert_array_equal(bits(other), bits(one))
    executed = emulator.counts()
    if executed is not None and alone is not None:  # hardware has no counters
        assert executed == {name: 3 * count for name, count in alone.items()}
        # Each member configures and releases tiles: its thread may run another member next.
        assert executed["ldtilecfg"] == executed["tilerelease"] == 3 * 3


def checks(function: tirx.PrimFunc) -> list[int]:
    """Where a function checks permission; the last number is the place of its parallel loop."""
    found, loop = [], -1
    for at, statement in enumerate(walk(function.body)):
        if isinstance(statement, tirx.AttrStmt) and statement.value == PERMISSION_LLVM_IR:
            found.append(at)
        if isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL:
            loop = at
    return [*found, loop]


def test_permission_is_checked_once_by_the_calling_thread() -> None:
    tiles = built(INT8, config_of(INT8, "amx_u8s8s32_32x32"))
    chain_region = bf16_mlp(33)
    template = template_for("mlp_chain")
    chain = built(chain_region, template.default_config(chain_region, MACHINE))
    vectors = built(DENSE, config_of(DENSE, None))
    assert len(checks(tiles)) == len(checks(chain)) == 2 and len(checks(vectors)) == 1
    at, loop = checks(combine([vectors, tiles, chain], (Share((0, 1)), Share((2,)))))
    assert 0 < at < loop
    assert checks(combine([vectors, vectors], (Share((0,)), Share((1,)))))[0] > 0
    assert len(checks(combine([vectors, vectors], (Share((0,)), Share((1,)))))) == 1


def test_tiles_shorten_the_estimate() -> None:
    shape = (64, 256)
    region = Region(
        op="matmul",
        inputs=(Tensor(shape, "uint8"), Tensor((256, 256), "int8", constant=True)),
        output=Tensor(shape, "int32"),
    )
    vectors = serial_us(region, Machine("icelake-server", machine_for("avx512_vnni").isa))
    assert serial_us(region, MACHINE) < vectors / 4
    # One row stays on vectors and takes as long as reading its weight.
    row = region.replace(
        inputs=(Tensor((1, 256), "uint8"), region.inputs[1]), output=Tensor((1, 256), "int32")
    )
    assert serial_us(row, MACHINE) > 256 * 256 / 99e3
