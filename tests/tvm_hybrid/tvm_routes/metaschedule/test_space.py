"""Our microkernels in MetaSchedule's spaces: `space_generator`, `MultiLevelTilingWithIntrin`."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.schedule_rule import MultiLevelTilingWithIntrin

from microkernels.base.errors import ConfigError
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from tir_schedules.core.region import Region
from tvm_hybrid.targets.resolve import host_target
from tvm_hybrid.tvm_routes.metaschedule import space_generator, tensor_intrinsic
from tvm_hybrid.tvm_routes.metaschedule.workload import fused_program, normalized, workload_of

from .regions import arguments, as_tensor, assert_right, batch_matmul, conv2d, matmul

INTEGERS = ("uint8", "int8")
REGIONS = {
    "product": matmul(32, 64, 96),
    "integers": matmul(32, 64, 96, INTEGERS),
    "batches": batch_matmul(3, 32, 48, 64),
    "padded": matmul(37, 48, 100),
    "convolution": conv2d(14, 32, 64),
}


@pytest.fixture(autouse=True)
def without_stock_intrinsics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every TuneContext imports TVM's own intrinsics for 13 s; these tests do not need them."""
    name = "tvm.s_tir.tensor_intrin"
    monkeypatch.setitem(sys.modules, name, sys.modules.get(name, types.ModuleType(name)))


def context_of(program: IRModule, space: Any) -> ms.TuneContext:
    """The TuneContext that `tune_tir` makes for a program."""
    return ms.TuneContext(
        program,
        target=host_target(),
        space_generator=space,
        search_strategy="replay-trace",
        num_threads=1,
        rand_state=1,
    )


def candidates(context: ms.TuneContext, spaces: Iterable[Schedule], count: int) -> list[Schedule]:
    """Some programs of the spaces with random decisions, after all postprocessors."""
    context.pre_tuning(count, count, list(spaces))
    return [candidate.sch for candidate in context.generate_measure_candidates()]


def check(region: Region, schedule: Schedule) -> None:
    """Runs a program and checks its result."""
    values = arguments(region)
    tensors = [
        as_tensor(value, tensor.dtype)
        for value, tensor in zip(values, (*region.inputs, *region.operands), strict=True)
    ]
    result = tvm.runtime.empty(region.output.shape, region.output.dtype)
    tvm.compile(schedule.mod, target=host_target())["main"](*tensors, result)
    assert_right(region, result.numpy(), values)


@pytest.mark.parametrize("name", REGIONS)
def test_our_space_has_our_microkernels(name: str) -> None:
    region = REGIONS[name]
    context = context_of(workload_of(region), space_generator(host_target(), spaces=2))
    spaces = context.generate_design_space()
    assert 1 <= len(spaces) <= 2
    for space in spaces:
        assert "tvm_hybrid." in str(space.trace)
        assert '"body"' in space.mod.script() and '_update"' not in space.mod.script()
    found = candidates(context, spaces, 2)
    assert found
    for each in found:
        assert '"body"' in each.mod.script()
        check(region, each)


def test_sizes_of_blocks_are_decisions() -> None:
    context = context_of(workload_of(matmul(256, 64, 64)), space_generator(spaces=1))
    (space,) = context.generate_design_space()
    decisions = [
        list(map(int, decision))
        for instruction, decision in space.trace.decisions.items()
        if instruction.kind.name == "SamplePerfectTile"
    ]
    assert len(decisions) == 1
    drawn = {str(each.trace) for each in candidates(context, [space], 8)}
    assert len(drawn) > 1


def test_no_two_spaces_have_the_same_tile() -> None:
    context = context_of(workload_of(matmul(128, 64, 64)), space_generator(spaces=8))
    tiles = [
        str(instruction.attrs[0]).rsplit(".", 1)[-1]
        for space in context.generate_design_space()
        for instruction in space.trace.insts
        if instruction.kind.name == "Tensorize"
    ]
    assert len(tiles) == len(set(tiles)) > 1


def test_other_programs_get_tvms_rules() -> None:
    x = relax.Var("x", relax.TensorType((32, 64), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.sum(x, axis=[1]))
        builder.emit_func_output(output)
    program = normalized(fused_program(builder.get()))
    ours = context_of(program, space_generator()).generate_design_space()
    theirs = context_of(
        program, ms.space_generator.PostOrderApply(sch_rules="llvm", postprocs=[], mutator_probs={})
    ).generate_design_space()
    assert [str(each.trace) for each in ours] == [str(each.trace) for each in theirs]
    assert not any("tvm_hybrid" in str(each.trace) for each in ours)


def test_tvms_rule_takes_the_name_of_our_intrinsic() -> None:
    region = matmul(32, 64, 96)
    name = tensor_intrinsic(32, 96, 64)
    space = ms.space_generator.PostOrderApply(
        sch_rules=[MultiLevelTilingWithIntrin(name, structure="SSRSRS")],
        postprocs=space_generator().postprocs,
        mutator_probs={},
    )
    context = context_of(workload_of(region), space)
    spaces = context.generate_design_space()
    assert any(name in str(each.trace) for each in spaces)
    found = candidates(context, spaces, 2)
    assert found
    for each in found:
        assert '"body"' in each.mod.script()
        check(region, each)


def grouped_product(m: int, n: int, k: int, kernel: Microkernel) -> IRModule:
    """C[i, j] += A[i, g, s] * B[g, j, s], as TVM's users write it."""
    kr, dtype = kernel.kr, kernel.acc_dtype
    a = te.placeholder((m, k // kr, kr), kernel.a_dtype, "A")
    b = te.placeholder((k // kr, n, kr), kernel.b_dtype, "B")
    g, s = te.reduce_axis((0, k // kr), "g"), te.reduce_axis((0, kr), "s")

    def sums(i: Any, j: Any) -> Any:
        return te.sum(a[i, g, s].astype(dtype) * b[g, j, s].astype(dtype), axis=[g, s])

    return IRModule({"main": te.create_prim_func([a, b, te.compute((m, n), sums, "C")])})


@pytest.mark.parametrize("dtypes", [INTEGERS, ("bfloat16", "bfloat16")], ids=["u8s8", "bf16"])
def test_tvms_rule_takes_products_in_groups(dtypes: tuple[str, str]) -> None:
    m, n, k = 32, 96, 64
    name = tensor_intrinsic(m, n, k, *dtypes, groups=True)
    kernel = microkernel_named(name.split(".")[1])
    assert (kernel.a_dtype, kernel.b_dtype) == dtypes and name.endswith(".groups")
    space = ms.space_generator.PostOrderApply(
        sch_rules=[MultiLevelTilingWithIntrin(name, structure="SSRSRS")],
        postprocs=space_generator().postprocs,
        mutator_probs={},
    )
    context = context_of(grouped_product(m, n, k, kernel), space)
    spaces = context.generate_design_space()
    assert any(name in str(each.trace) for each in spaces)
    found = candidates(context, spaces, 2)
    assert found
    rng, groups = np.random.default_rng(1), (k // kernel.kr, kernel.kr)
    if dtypes == INTEGERS:
        a, b = rng.integers(0, 256, (m, k)), rng.integers(-128, 128, (k, n))
    else:  # small integers, so that every sum is exact
        a, b = rng.integers(-9, 10, (m, k)), rng.integers(-9, 10, (k, n))
    packed = b.reshape(*groups, n).transpose(0, 2, 1)
    for each in found:
        assert '"body"' in each.mod.script()
        tensors = [
            as_tensor(value.astype(getattr(ml_dtypes, dtype, dtype)), dtype)
            for value, dtype in zip((a.reshape(m, *groups), packed), dtypes, strict=True)
        ]
        result = tvm.runtime.empty((m, n), kernel.acc_dtype)
        tvm.compile(each.mod, target=host_target())["main"](*tensors, result)
        np.testing.assert_array_equal(result.numpy(), a @ b)


@pytest.mark.parametrize(
    ("sizes", "dtypes", "reason"),
    [((7, 13, 16), ("float32", "float32"), "13"), ((8, 64, 64), ("int16", "int16"), "int16")],
)
def test_products_without_a_tile_are_refused(
    sizes: tuple[int, int, int], dtypes: tuple[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        tensor_intrinsic(*sizes, *dtypes)
