"""Options on the routes of TVM's users: their effects, and what is refused when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax
from tvm.target import Target

import tvm_hybrid
from relay_passes.ir.decisions import Decision
from tests.relay_passes.graphs import constant, module
from tests.tvm_hybrid.small_models import mlp_module
from tvm_hybrid.errors import CompileError, OutputError, RecordError, TargetError, TvmHybridError
from tvm_hybrid.explain.explanation import Explanation
from tvm_hybrid.targets import cpu_features
from tvm_hybrid.targets.resolve import host_target

pytestmark = pytest.mark.turns

HASWELL = Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 3})


def partition(mod: IRModule, target: Target | None = None, **options: Any) -> IRModule:
    return tvm_hybrid.partition_for_tvm_hybrid(mod, target=target, **options)


def lower(mod: IRModule, target: Target | None = None, **options: Any) -> IRModule:
    pipeline = relax.get_pipeline("tvm_hybrid", **options)
    if target is None:
        return pipeline(mod)
    with target:
        return pipeline(mod)


routes = pytest.mark.parametrize("route", [partition, lower])


def manifest(mod: IRModule) -> dict[str, Any]:
    return json.loads(mod.attrs["tvm_hybrid.manifest"])


@routes
@pytest.mark.parametrize(
    ("option", "value", "error", "words"),
    [
        ("precision", "f8", CompileError, "unknown precision 'f8'"),
        ("fusion", "all", CompileError, "unknown fusion level 'all'"),
        ("fast_math", "fast", CompileError, "unknown fast_math level 'fast'"),
        ("strict", "yes", CompileError, "strict is True, False or 'dynamic', not 'yes'"),
        ("strict", 1, CompileError, "strict is True, False or 'dynamic', not 1"),
        ("decisions", (), CompileError, "decisions is a list .* not a tuple"),
        ("num_threads", 0, TargetError, "num_threads must be a whole number from 1 up"),
        ("num_threads", 2.0, TargetError, "num_threads must be a whole number from 1 up"),
        ("records", "no such file", RecordError, "no such file"),
        ("machine", "no such file", TargetError, "no such file"),
        ("dump_ir", "/dev/null/folder", OutputError, "/dev/null"),
    ],
)
def test_wrong_values_are_refused(
    route: Any, option: str, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        route(mlp_module(), **{option: value})
    assert isinstance(caught.value, TvmHybridError)


def test_the_pipeline_refuses_them_before_it_runs() -> None:
    for options in ({"precision": "f8"}, {"num_threads": -1}, {"records": "no such file"}):
        with pytest.raises(TvmHybridError):
            relax.get_pipeline("tvm_hybrid", **options)
    with pytest.raises(CompileError, match="no option 'precison'; did you mean 'precision'"):
        relax.get_pipeline("tvm_hybrid", precison="bf16")
    with pytest.raises(CompileError, match="no option 'zzz'; there are machine, precision"):
        relax.get_pipeline("tvm_hybrid", zzz=1)


@routes
def test_decisions_come_behind_what_is_in_the_list(route: Any) -> None:
    decisions: list[Decision] = []
    for count in (1, 2):
        route(mlp_module(), HASWELL, decisions=decisions)
        assert [each.op for each in decisions] == ["matmul + add + relu"] * count
    assert all(each.kernel.startswith("avx2_f32") for each in decisions)
    assert "2 of 2 nodes taken" in Explanation(decisions).summary()


@routes
def test_strict_tells_what_is_left(route: Any) -> None:
    def doubles(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.matmul(x, w)

    mod = module(doubles, ((4, 8), "float64"), ((8, 8), "float64"))
    decisions: list[Decision] = []
    with pytest.raises(CompileError, match="strict: no template takes matmul"):
        route(mod, HASWELL, strict=True, decisions=decisions)
    assert [(each.op, each.taken) for each in decisions] == [("matmul", False)]
    # Fallbacks of another module do not count for this one.
    route(mlp_module(), HASWELL, strict=True, decisions=decisions)
    # static despite the name "dynamic"
    route(mod, HASWELL, strict="dynamic")


@routes
def test_dynamic_sizes_can_be_strict(route: Any) -> None:
    n = tvm.tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, 8), "float64"))
    w = relax.Var("w", relax.TensorType((8, 8), "float64"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(y)
    with pytest.raises(CompileError, match="strict: no template takes matmul"):
        route(builder.get(), HASWELL, strict="dynamic")


@routes
def test_the_cores_of_a_target_are_its_threads(route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    assert manifest(route(mlp_module(), HASWELL))["threads"] == 3
    assert manifest(route(mlp_module(), HASWELL, num_threads=5))["threads"] == 5
    assert (
        manifest(route(mlp_module(), Target({"kind": "llvm", "mcpu": "haswell"})))["threads"] == 2
    )
    # This machine's target requires nothing.
    assert manifest(route(mlp_module(), host_target()))["threads"] == 2
    assert manifest(route(mlp_module()))["threads"] == 2


def test_compile_takes_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    threads = {"num_threads": None, "target": HASWELL}
    assert tvm_hybrid.compile(mlp_module(), **threads).manifest.threads == 3
    assert tvm_hybrid.compile(mlp_module(), target=host_target()).manifest.threads == 2
    assert tvm_hybrid.compile(mlp_module(), target=HASWELL, threads=1).manifest.threads == 1


@routes
def test_records_are_applied(route: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    options = {"num_threads": 1, "precision": "f32"}
    tvm_hybrid.tune(mlp_module(), records=path, trials_per_region=1, **options)
    decisions: list[Decision] = []
    found = route(mlp_module(), records=path, decisions=decisions, **options)
    (taken,) = (each for each in decisions if each.taken)
    assert taken.source == f"record {path}:1"
    assert [use["how"] for use in manifest(found)["records"]] == ["exact"]
    route(mlp_module(), records=[], decisions=decisions, **options)
    assert decisions[-1].source == "default"


@routes
def test_the_passes_are_written_to_a_folder(route: Any, tmp_path: Path) -> None:
    route(mlp_module(), HASWELL, dump_ir=tmp_path / "ir")
    names = [path.name for path in sorted((tmp_path / "ir").iterdir())]
    assert any(name.endswith("tvm_hybrid.partition.py") for name in names) and len(names) > 30


@routes
def test_parameters_may_be_anything(route: Any) -> None:
    """Inputs need not fulfil anything that a module of TVM's users may lack."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TupleType([relax.TensorType((4, 16), "float32")]))
    with builder.function("first", [x]):
        with builder.dataflow():
            y = builder.emit(relax.TupleGetItem(x, 0))
            y = builder.emit_output(relax.op.matmul(y, constant(16, 16)))
        builder.emit_func_output(y)
    assert manifest(route(builder.get(), HASWELL))["coverage"] == {"taken": 1, "nodes": 1}


def test_without_a_target_the_code_is_for_this_machine() -> None:
    executable = tvm.compile(mlp_module(), relax_pipeline="tvm_hybrid")
    wanted = tvm.compile(mlp_module(), host_target(), relax_pipeline="tvm_hybrid")
    x = tvm.runtime.tensor(np.ones((1, 16), np.float32))
    for each in (executable, wanted):
        relax.VirtualMachine(each, tvm.cpu())["main"](x)
    kernels = [each.mod.imports[1].inspect_source("asm") for each in (executable, wanted)]
    assert kernels[0] == kernels[1]


@pytest.fixture
def anew() -> Iterator[None]:
    """Forgets earlier warnings."""
    cpu_features._warn.cache_clear()
    yield
    cpu_features._warn.cache_clear()


@pytest.mark.parametrize(
    "target",
    [{"kind": "llvm"}, {"kind": "llvm", "mcpu": "x86-64"}, {"kind": "llvm", "mcpu": "generic"}],
)
@routes
def test_a_target_without_features_is_warned_of_once(
    route: Any, target: dict[str, str], anew: None, recwarn: pytest.WarningsRecorder
) -> None:
    for _ in range(2):
        route(mlp_module(), Target(target))
    (warning,) = recwarn
    assert warning.category is RuntimeWarning
    text = str(warning.message)
    assert "names no CPU" in text and "tvm_hybrid.resolve_target(None)" in text
    assert '{"kind": "llvm", "mcpu": "sapphirerapids"}' in text


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "mcpu": "haswell"},
        {"kind": "llvm", "mcpu": "nehalem"},  # a CPU without our vectors
        {"kind": "llvm", "mattr": ["+avx2", "+fma"]},
    ],
)
def test_others_are_not(
    target: dict[str, Any], anew: None, recwarn: pytest.WarningsRecorder
) -> None:
    tvm_hybrid.compile(mlp_module(), target=target, num_threads=1)
    partition(mlp_module(), Target(target))
    assert not list(recwarn)


def test_compile_warns_too(anew: None) -> None:
    with pytest.warns(RuntimeWarning, match="names no CPU"):
        tvm_hybrid.compile(mlp_module(), target="llvm", num_threads=1)
