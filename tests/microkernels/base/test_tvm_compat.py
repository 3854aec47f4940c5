"""Parts of TVM that `microkernels.base.tvm_compat` needs; tests fail if another TVM lacks them."""

from __future__ import annotations

import io
import os
import socket
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax, te, tirx
from tvm.s_tir import Schedule, dlight
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
from tvm.target import codegen

from microkernels.base.tvm_compat import context_functions, metaschedule_database, runtime, vm_file
from microkernels.base.tvm_compat import relax as relax_compat
from tests.tvm_hybrid.small_models import MLP_BIAS, MLP_WEIGHT, mlp
from tvm_hybrid.errors import CompileError
from tvm_hybrid.library.export import write_code
from tvm_hybrid.runtime.thread_pool.native import installed
from tvm_hybrid.targets.resolve import host_target


def test_tvm_says_whether_it_has_a_compiler() -> None:
    assert tvm.base._RUNTIME_ONLY is False
    assert not runtime.only_runtime()


def test_a_check_comes_before_llvm() -> None:
    """Every build for a CPU calls `target.build.llvm`; the test puts back what was there."""
    name, seen = "target.build.llvm", []
    before = tvm.get_global_func(name)
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))

    def refuse(mod: ir.IRModule, target: tvm.target.Target) -> None:
        seen.append((len(mod.functions), str(target.kind)))
        if len(seen) > 1:
            raise CompileError("refused")

    try:
        runtime.check_builds(refuse)
        tvm.compile(nothing.with_attr("global_symbol", "nothing"), host_target())
        with pytest.raises(CompileError, match="refused"):
            tvm.tirx.build(nothing.with_attr("global_symbol", "nothing"), host_target())
    finally:
        tvm.register_global_func(name, before, override=True)
    assert seen == [(1, "llvm"), (1, "llvm")]


def test_a_pool_has_the_threads_asked_for_and_is_not_bound() -> None:
    def configured() -> tuple[int, int, set[int]]:
        cpus = 3 * sorted(os.sched_getaffinity(0))
        first = runtime.configure_threads(tvm_ffi.get_global_func, 3, cpus)
        second = runtime.configure_threads(tvm_ffi.get_global_func, 2)
        return first, second, os.sched_getaffinity(0)

    allowed = os.sched_getaffinity(0)
    with ThreadPoolExecutor(1) as pool:  # the setting belongs to a thread
        assert pool.submit(configured).result() == (3, 2, allowed)


def test_workers_are_bound_to_one_cpu_each() -> None:
    def configured() -> list[set[int]]:
        before = set(os.listdir("/proc/self/task"))
        runtime.configure_threads(tvm_ffi.get_global_func, 3, cpus, bound=True)
        made = set(os.listdir("/proc/self/task")) - before
        return [os.sched_getaffinity(int(task)) for task in made]

    first, last = (each(os.sched_getaffinity(0)) for each in (min, max))
    cpus = [first, last, first]
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(configured).result()
    assert sorted(map(min, found)) == sorted(map(max, found)) == sorted(cpus[1:])


def test_the_pool_knows_what_it_calls_and_replaces() -> None:
    found = context_functions.functions_of_tvm()
    assert all(getattr(found, name) for name, *_ in found._fields_)
    pool = installed()  # its code is loaded, and TVM has taken the addresses
    assert pool is not None
    assert pool.launch and pool.barrier


def test_the_runtime_tells_its_cpu() -> None:
    assert runtime.system_cpu(tvm_ffi.get_global_func) == codegen.llvm_get_system_cpu()


def test_a_view_has_another_shape_and_type_and_the_same_memory() -> None:
    tensor = tvm.runtime.tensor(np.arange(6, dtype=np.float32))
    shape, dtype = tvm_ffi.Shape((2, 3)), tvm.DataType("uint32")
    view = runtime.create_view()(tensor, shape, dtype, 0)
    np.testing.assert_array_equal(
        np.from_dlpack(view), np.arange(6, dtype=np.float32).view(np.uint32).reshape(2, 3)
    )
    assert np.from_dlpack(view).ctypes.data == np.from_dlpack(tensor).ctypes.data


def test_the_older_form_of_a_program_is_read_and_its_constants_are_found(tmp_path: Path) -> None:
    path = tmp_path / "code"
    head, constants = write_code(mlp().program().module, path)
    raw = path.read_bytes()
    loader = tvm_ffi.get_global_func(vm_file.LOADER_PREFIX + vm_file.KIND)
    assert runtime.holds_program(loader(head + raw[constants:]))
    found = {raw[start : start + size] for start, size in vm_file.tensor_places(path, constants)}
    assert MLP_BIAS.tobytes() in found
    assert MLP_WEIGHT.nbytes in map(len, found)


def test_a_program_in_an_unknown_form_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"begins with 0x3837363534333231 .*TVM 0\.27"):
        vm_file.without_scopes(io.BytesIO(b"12345678 and the rest"))


def test_the_runtime_finds_a_librarys_data_by_its_symbol(tmp_path: Path) -> None:
    path = mlp().export(tmp_path / "model.of_another_name")
    assert vm_file.DATA_SYMBOL.encode() in path.read_bytes()
    assert runtime.holds_program(runtime.open_library(str(path)))


def test_a_database_of_metaschedule_is_read_as_tvm_wrote_it(tmp_path: Path) -> None:
    x = te.placeholder((4,), "float32", "x")
    function = te.create_prim_func([x, te.compute((4,), lambda i: x[i] * 2.0, "y")])
    schedule = Schedule(function)
    schedule.annotate(schedule.get_sblock("y"), metaschedule_database.ANNOTATION, "a note")
    database = JSONDatabase(work_dir=str(tmp_path))
    workload = database.commit_workload(schedule.mod)
    arguments = ArgInfo.from_prim_func(function)
    target = tvm.target.Target("llvm")
    database.commit_tuning_record(TuningRecord(schedule.trace, workload, [0.5], target, arguments))
    folder = metaschedule_database.MetaScheduleFolder(tmp_path)
    (entry,) = folder.entries
    assert not folder.problems and entry.seconds == (0.5,) and entry.note == "a note"
    ir.assert_structural_equal(folder.program(entry), schedule.mod)


def test_a_program_that_is_scheduled_is_left_alone() -> None:
    x = te.placeholder((4,), "float32", "x")
    function = te.create_prim_func([x, te.compute((4,), lambda i: x[i] * 2.0, "y")])
    mod = tvm.IRModule({"f": function.with_attr(metaschedule_database.IS_SCHEDULED, True)})

    class Rule(dlight.ScheduleRule):
        def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> None:
            raise AssertionError("asked")

    with tvm.target.Target("llvm"):
        ir.assert_structural_equal(dlight.ApplyDefaultSchedule(Rule())(mod), mod)
        bare = tvm.IRModule({"f": function})
        with pytest.raises(AssertionError, match="asked"):
            dlight.ApplyDefaultSchedule(Rule())(bare)


def test_rules_of_metaschedule_leave_annotated_blocks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "tvm.s_tir.tensor_intrin"  # the import takes 13 s and is not needed here
    monkeypatch.setitem(sys.modules, name, sys.modules.get(name, types.ModuleType(name)))
    x, w = te.placeholder((4, 8), "float32", "x"), te.placeholder((8, 6), "float32", "w")
    k = te.reduce_axis((0, 8), "k")
    y = te.compute((4, 6), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), "y")
    function = te.create_prim_func([x, w, y])

    def spaces(annotated: bool) -> list[Schedule]:
        schedule = Schedule(function.with_attr("global_symbol", "main"))
        if annotated:
            schedule.annotate(schedule.get_sblock("y"), *metaschedule_database.LEFT_ALONE)
        rule = ms.schedule_rule.MultiLevelTiling(structure="SSRSRS")
        generator = ms.space_generator.PostOrderApply(
            sch_rules=[rule], postprocs=[], mutator_probs={}
        )
        context = ms.TuneContext(
            schedule.mod, target=host_target(), space_generator=generator, num_threads=1
        )
        return context.generate_design_space()

    def loops(schedule: Schedule) -> int:
        return len(schedule.get_loops(schedule.get_sblock("y")))

    assert loops(spaces(False)[0]) > loops(spaces(True)[0]) == 3


def test_operators_that_become_programs_say_so() -> None:
    made = {
        name: metaschedule_database.makes_a_program(ir.Op.get(name))
        for name in ("relax.matmul", "relax.reshape", "relax.call_tir", "relax.shape_of")
    }
    assert list(made.values()) == [True, True, False, False]


def test_after_an_error_a_builder_can_be_closed(capfd: pytest.CaptureFixture[str]) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([3], "float32"))
    with pytest.raises(KeyError), builder.function("main", [x]), builder.dataflow():
        raise KeyError("Nonesuch")
    relax_compat.end_block(builder)
    del builder
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("answer", [None, 0x1234])
def test_a_tracker_is_greeted_and_asked(answer: int | None) -> None:
    from tvm.rpc import base

    ours, theirs = socket.socketpair()
    with ours, theirs:
        magic = base.RPC_TRACKER_MAGIC
        theirs.sendall((magic if answer is None else answer).to_bytes(4, "little"))
        assert runtime.greet(ours) == answer
        assert int.from_bytes(base.recvall(theirs, 4), "little") == magic
        base.sendjson(theirs, [base.TrackerCode.SUCCESS, ["host", 9090, "password"]])
        assert runtime.request_server(ours, "key") == ("host", 9090, "password")
        assert base.recvjson(theirs) == [base.TrackerCode.REQUEST, "key", "", 1]
        servers = [{"key": "server:key"}, {"key": "server:other"}]
        base.sendjson(theirs, [base.TrackerCode.SUCCESS, {"server_info": servers}])
        assert runtime.count_servers(ours, "key") == 1
        base.sendjson(theirs, [base.TrackerCode.FAIL, None])
        with pytest.raises(ValueError, match="it answers -1"):
            runtime.count_servers(ours, "key")


def test_sizes_that_do_not_fit_are_told_from_other_errors() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=1))
    with builder.function("main", [x]):
        matched = builder.match_cast(x, relax.TensorType((2,), "float32"))
        builder.emit_func_output(matched)
    main = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())["main"]
    with pytest.raises(RuntimeError) as caught:
        main(tvm.runtime.tensor(np.zeros(3, np.float32)))
    assert runtime.is_size_error(caught.value)
    with pytest.raises(ValueError) as other:
        main(tvm.runtime.tensor(np.zeros((3, 3), np.float32)))
    assert not runtime.is_size_error(other.value)
