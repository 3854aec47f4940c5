"""Databases that TVM's own MetaScheduleApplyDatabase applies: result, kernel, limits."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.relax import transform

from microkernels.base.errors import OutputError, RecordError
from microkernels.base.tvm_compat.metaschedule_database import (
    RECORDS,
    WORKLOADS,
    MetaScheduleFolder,
)
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.targets.resolve import host_target
from tvm_hybrid.tvm_routes.metaschedule import Exchange, export_records, register_intrinsics
from tvm_hybrid.tvm_routes.metaschedule.workload import legalized, normalized, workload_of

from ...tuning.forked import Child
from .regions import (
    arguments,
    as_tensor,
    assert_right,
    batch_matmul,
    conv2d,
    host_machine,
    matmul,
    operators,
    record_of,
    transposed_batch_matmul,
)

BFLOAT16 = ("bfloat16", "bfloat16")
INTEGERS = ("uint8", "int8")
REGIONS = {
    "whole tiles": matmul(32, 64, 96),
    "padded rows and columns": matmul(37, 48, 100),
    "deep": matmul(16, 6000, 32),
    "integers": matmul(32, 64, 96, INTEGERS),
    "padded integers": matmul(35, 77, 100, INTEGERS),
    "bfloat16": matmul(32, 64, 100, BFLOAT16),
    "rounded to bfloat16": matmul(32, 64, 96, ("float32", "bfloat16")),
    "batches": batch_matmul(3, 32, 48, 64),
    "transposed batches": transposed_batch_matmul(3, 32, 48, 64),
    "one step": matmul(32, 64, 96).replace(epilogue=(EpilogueOp("relu", (0,)),), operands=()),
    "convolution": conv2d(14, 32, 64),
    "strided convolution": conv2d(15, 16, 32, 2),
}


def exported(folder: Path, *records: Record) -> Exchange:
    """Exports the records as a database in a folder."""
    store = RecordStore(folder / "records.jsonl", must_exist=False)
    for record in records:
        store.append(record)
    return export_records(store, folder / "database")


def prepared(region: Region, packed: bool) -> tuple[IRModule, list[tvm.runtime.Tensor]]:
    """The region's operators after TVM's pipelines, and the remaining arguments."""
    tensors = (*region.inputs, *region.operands)
    values = [
        as_tensor(value, tensor.dtype)
        for value, tensor in zip(arguments(region), tensors, strict=True)
    ]
    mod = operators(region)
    if not packed:
        return legalized(mod), values
    known = values[1:] if region.inputs[1].constant else []
    constants = dict(zip(("w", "b"), known, strict=False))
    mod = transform.CanonicalizeBindings()(transform.BindParams("main", constants)(mod))
    return transform.AttachAttrLayoutFreeBuffers()(legalized(mod)), values[
        : len(values) - len(known)
    ]


def applied(mod: IRModule, folder: Path, packed: bool) -> IRModule:
    """The module after TVM's own pass and, for packed weights, the passes that belong to it."""
    register_intrinsics(folder)
    with host_target():
        mod = transform.MetaScheduleApplyDatabase(str(folder))(mod)
        if packed:
            passes = [transform.SplitLayoutRewritePreproc(), transform.LiftTransformParams()]
            mod = ir.transform.Sequential([*passes, transform.FoldConstant()])(mod)
    return mod


@pytest.mark.sampled
@pytest.mark.parametrize("packed", [False, True], ids=["as it is", "packed"])
@pytest.mark.parametrize("name", REGIONS)
def test_the_stock_pass_puts_our_kernel_in(name: str, packed: bool, tmp_path: Path) -> None:
    region = REGIONS[name]
    exported(tmp_path, record_of(region))
    mod, values = prepared(region, packed)
    if region.inputs[1].dtype == "bfloat16" and not packed:
        assert len(MetaScheduleFolder(tmp_path / "database").entries) == 1  # only the packed form
        return
    mod = applied(mod, tmp_path / "database", packed)
    assert '"body"' in mod.script()  # the microkernel's block
    assert '_update"' not in mod.script()  # what it replaced
    machine = relax.VirtualMachine(tvm.compile(mod, target=host_target()), tvm.cpu())
    assert_right(region, machine["main"](*values).numpy(), arguments(region))


@pytest.mark.parametrize("packed", [False, True], ids=["as it is", "packed"])
@pytest.mark.parametrize("name", REGIONS)
def test_programs_are_those_of_tvms_pipeline(name: str, packed: bool) -> None:
    region = REGIONS[name]
    programs = [
        normalized(function)
        for _, function in prepared(region, packed)[0].functions_items()
        if isinstance(function, tirx.PrimFunc)
    ]
    ours = workload_of(region, packed)
    equal = [program for program in programs if tvm_ffi.structural_equal(program, ours)]
    assert len(equal) == 1


def test_a_fresh_process_applies_it(tmp_path: Path) -> None:
    region = REGIONS["whole tiles"]
    exported(tmp_path, record_of(region))
    values = arguments(region)
    np.savez(tmp_path / "values.npz", *values)
    mod, _ = prepared(region, False)
    (tmp_path / "mod.json").write_text(ir.save_json(mod))
    code = f"""
import numpy as np, tvm
from tvm import ir, relax
from tvm_hybrid.targets.resolve import host_target
from tvm_hybrid.tvm_routes.metaschedule import register_intrinsics
mod = ir.load_json(open({str(tmp_path / "mod.json")!r}).read())
assert register_intrinsics({str(tmp_path / "database")!r})
with host_target():
    mod = relax.transform.MetaScheduleApplyDatabase({str(tmp_path / "database")!r})(mod)
assert '"body"' in mod.script()
machine = relax.VirtualMachine(tvm.compile(mod, target=host_target()), tvm.cpu())
values = np.load({str(tmp_path / "values.npz")!r}).values()
result = machine["main"](*(tvm.runtime.tensor(value) for value in values))
np.save({str(tmp_path / "result.npy")!r}, result.numpy())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert_right(region, np.load(tmp_path / "result.npy"), values)


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        (matmul(1, 64, 64), "tiles of 1 rows"),
        (
            conv2d(14, 32, 64).replace(attrs={**conv2d(14, 32, 64).attrs, "groups": 2}),
            "TVM refuses its operators",
        ),
        (conv2d(12, 32, 36), "36 is not a multiple of"),
        (
            batch_matmul(3, 32, 48, 48).replace(
                attrs={"a_axes": (0, 1, 2), "b_axes": (0, 1, 2), "out_axes": (1, 0, 2)}
            ),
            "the anchor's attributes out_axes=1,0,2",
        ),
        (
            matmul(32, 64, 96).replace(epilogue=(EpilogueOp("hardswish", (0,)),), operands=()),
            "the step hardswish",
        ),
        (
            matmul(32, 64, 96, INTEGERS).replace(attrs={"a_zero_point": 3}),
            "the anchor's attributes a_zero_point=3",
        ),
        (
            matmul(32, 64, 96).replace(output=Tensor((32, 96), "float32")),
            "makes the result float32[32x96]",
        ),
    ],
)
def test_what_cannot_be_expressed_is_left_out_with_the_reason(
    region: Region, reason: str, tmp_path: Path
) -> None:
    good = record_of(REGIONS["whole tiles"])
    result = exported(tmp_path, record_of(region), good)
    assert result.taken == [good.workload]
    ((workload, why),) = result.left_out
    assert workload == region.key
    assert reason in why


def test_several_machines_have_to_be_chosen_from(tmp_path: Path) -> None:
    region = REGIONS["whole tiles"]
    serial, parallel = record_of(region), record_of(region, host_machine(2))
    with pytest.raises(RecordError, match=r"\(.*, 1 threads\).*, 2 threads.*choose by machine"):
        exported(tmp_path, serial, parallel)
    store = RecordStore(tmp_path / "records.jsonl")
    assert export_records(store, tmp_path / "two", threads=2).taken == [region.key]
    (entry, *_) = MetaScheduleFolder(tmp_path / "two").entries
    assert entry.target["num-cores"] == 2


def test_threads_share_the_blocks(tmp_path: Path) -> None:
    region = matmul(256, 256, 512)
    exported(tmp_path, record_of(region, host_machine(2)))
    mod, values = prepared(region, False)
    mod = applied(mod, tmp_path / "database", False)
    assert "T.parallel" in mod.script()
    machine = relax.VirtualMachine(tvm.compile(mod, target=host_target()), tvm.cpu())
    assert_right(region, machine["main"](*values).numpy(), arguments(region))


def test_a_second_export_adds_what_is_new(tmp_path: Path) -> None:
    first, second = record_of(REGIONS["whole tiles"]), record_of(REGIONS["batches"])
    assert exported(tmp_path, first).programs == 2  # both forms of the weight
    again = exported(tmp_path, second)
    assert (again.taken, again.known, again.programs) == ([second.workload], 1, 2)
    assert len(MetaScheduleFolder(tmp_path / "database").entries) == 4


def test_only_the_best_record_of_a_region_is_written(tmp_path: Path) -> None:
    region = REGIONS["whole tiles"]
    slow = record_of(region, times_us=[150.0])
    fields = {**slow.config, "m_block": slow.config["rows"]}
    fast = record_of(region, config=fields, times_us=[90.0])
    failed = record_of(matmul(16, 16, 16), status="runtime_error", times_us=[])
    result = exported(tmp_path, slow, fast, failed)
    assert result.taken == [region.key]
    assert result.left_out == [(failed.workload, "no successful record")]
    entries = MetaScheduleFolder(tmp_path / "database").entries
    assert {entry.seconds for entry in entries} == {(90e-6,)}


def test_a_spoilt_database_is_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "database").mkdir()
    (tmp_path / "database" / "database_workload.json").write_text('["12", "torn\n')
    (tmp_path / "database" / "database_tuning_record.json").write_text("")
    with pytest.raises(RecordError, match="Choose another folder"):
        exported(tmp_path, record_of(REGIONS["whole tiles"]))


def test_a_full_disk_leaves_no_half_a_line(tmp_path: Path) -> None:
    """TVM's database does not check whether the disk accepted its writes."""
    first, second = record_of(REGIONS["whole tiles"]), record_of(REGIONS["batches"])
    assert exported(tmp_path, first).programs == 2
    files = [tmp_path / "database" / name for name in (WORKLOADS, RECORDS)]
    whole = [file.read_bytes() for file in files]

    def work(acknowledge: Callable[[int], None]) -> None:
        # Room for one program, which is first tried elsewhere, but not behind two others.
        limit = max(map(len, whole)) + 100
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            exported(tmp_path, second)
        except OutputError as error:
            acknowledge(int("a database to" in str(error) and "No space left" in str(error)))

    child = Child(work)
    assert child.acknowledged() == [1] and child.wait() == 0
    assert [file.read_bytes() for file in files] == whole
