"""Modules that TVM exports refuse a CPU that lacks a feature which their code needs."""

from __future__ import annotations

import errno
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax
from tvm.support import cc
from tvm.target import Target

import tvm_hybrid
from microkernels.amx.permission import EMULATED_LLVM_IR, EMULATOR, REFUSALS
from relay_passes.lower.native_code import EXTERNAL
from tests.amx_emulator import emulator
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tests.tvm_hybrid.small_models import mlp, mlp_module, run_python
from tvm_hybrid.targets import cpu_guard
from tvm_hybrid.targets.cpu_features import FEATURES, CpuFeature, missing_on_host
from tvm_hybrid.targets.cpu_guard import PREFIX, Guard
from tvm_hybrid.tvm_routes import tensorized

pytestmark = pytest.mark.turns

X = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)
FUTURE = "from-the-future"


def by_name(mod: IRModule) -> Any:
    return tvm.compile(mod, tvm_hybrid.resolve_target(None), relax_pipeline="tvm_hybrid")


def by_run_codegen(mod: IRModule) -> Any:
    parts = tvm_hybrid.partition_for_tvm_hybrid(mod)
    parts = tvm.ir.load_json(tvm.ir.save_json(parts))  # a module that can be saved
    return tvm.compile(relax.transform.RunCodegen()(parts), tvm_hybrid.resolve_target(None))


routes = pytest.mark.parametrize("route", [by_name, by_run_codegen])


@pytest.fixture
def needs_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code needs one feature that every x86-64 CPU has, and one that none has: a reserved bit."""
    feature = CpuFeature(FUTURE, "nonesuch", 1, 0, "edx", 10)
    monkeypatch.setitem(FEATURES, FUTURE, feature)
    monkeypatch.setattr(tensorized, "required_features", lambda *_: ("sse3", FUTURE))


def exported(route: Any, folder: Path) -> Path:
    path = folder / "m.so"
    route(mlp_module()).export_library(str(path))
    return path


def message(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0]


@routes
def test_the_runtime_alone_runs_a_library_that_fits(route: Any, tmp_path: Path) -> None:
    done = run_on_runtime_alone(exported(route, tmp_path), X, tmp_path)
    assert done.stdout.split("\n")[:2] == ["[]", "False"], done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), mlp().run(X)[0].numpy())


@routes
def test_the_runtime_alone_refuses_one_that_does_not(
    route: Any, needs_the_future: None, tmp_path: Path
) -> None:
    done = run_on_runtime_alone(exported(route, tmp_path), X, tmp_path)
    assert message(done) == (
        f"RuntimeError: this library was compiled by tvm_hybrid for {mlp().manifest.cpu} and needs "
        f"{FUTURE}, which this CPU lacks; run it on such a CPU, or compile the model for this one"
    )
    assert not (tmp_path / "y.npy").exists()


@routes
def test_every_entry_refuses_each_time(route: Any, needs_the_future: None) -> None:
    machine = relax.VirtualMachine(route(mlp_module()), tvm.cpu())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=FUTURE):
            machine["main"](tvm.runtime.tensor(X))
    if route is by_name:
        with pytest.raises(RuntimeError, match=FUTURE):
            machine["main_into"](tvm.runtime.tensor(X), tvm.runtime.tensor(X))


@pytest.mark.parametrize("code", [0, errno.ENOSPC, errno.EPERM])
def test_a_library_with_tiles_asks_linux(
    code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tensorized, "uses_tiles", lambda _: True)
    done = run_on_runtime_alone(exported(by_name, tmp_path), X, tmp_path, answer=code)
    if code == 0:
        assert message(done) == "[]"
    else:
        assert "RuntimeError: this code needs AMX tiles, and Linux denies them" in message(done)
        assert REFUSALS.get(code, str(REFUSALS[None])) in message(done)


def call(*features: CpuFeature) -> None:
    """Calls a guard that requires the given features."""
    with pytest.MonkeyPatch.context() as patch:
        for feature in features:
            patch.setitem(FEATURES, feature.name, feature)
        guard = Guard("some CPU", tuple(feature.name for feature in features), False)
        guard.code()[guard.name]()


@pytest.mark.isa("amx_fp16")
def test_fp16_tiles_are_asked_for_by_name_where_nothing_emulates_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call(FEATURES["amx-fp16"])  # on such a CPU, or emulated
    if emulator.available():
        missing = "needs amx-fp16, which this CPU lacks"
        other = EMULATED_LLVM_IR.replace(EMULATOR, "z" * len(EMULATOR))  # cannot be found
        monkeypatch.setattr(cpu_guard.permission, "EMULATED_LLVM_IR", other)
        guard = Guard("another CPU", ("amx-fp16",), False)
        with pytest.raises(RuntimeError, match=missing):
            guard.code()[guard.name]()


def test_what_every_cpu_has_is_found() -> None:
    call(FEATURES["sse3"])
    call(
        CpuFeature("fxsr", "fxsr", 1, 0, "edx", 24),
        CpuFeature("lm", "lm", 0x80000001, 0, "edx", 29),
    )
    call(CpuFeature("sse", "sse", 1, 0, "edx", 25, 0x2))  # Linux saves its registers


@pytest.mark.parametrize(
    "feature",
    [
        CpuFeature("reserved", "-", 1, 0, "edx", 10),
        CpuFeature("beyond", "-", 0x0FFFFFF0, 0, "eax", 0),
        CpuFeature("extended", "-", 0x8FFFFFF0, 0, "eax", 0),
        CpuFeature("unsaved", "pni", 1, 0, "ecx", 0, 1 << 30),
    ],
    ids=lambda feature: feature.name,
)
def test_what_no_cpu_has_is_missing(feature: CpuFeature) -> None:
    with pytest.raises(RuntimeError, match=f"some CPU and needs {feature.name}, which this CPU"):
        call(FEATURES["sse3"], feature)


def test_of_several_the_newest_is_named() -> None:
    missing = [CpuFeature(name, "-", 1, 0, "edx", 10) for name in ("older", "newer")]
    with pytest.raises(RuntimeError, match="needs newer, which"):
        call(*missing)


def test_what_linux_lists_is_found() -> None:
    usual = [name for name, feature in FEATURES.items() if not feature.is_amx]
    listed = [name for name in usual if not missing_on_host((name,))]
    call(*(FEATURES[name] for name in listed))
    assert "sse3" in listed


def test_its_code_is_for_any_cpu() -> None:
    """The guard uses no AVX register: it runs on CPUs without AVX."""
    guard = Guard("graniterapids", tuple(FEATURES), True)
    code = guard.code().inspect_source("asm")
    assert "cpuid" in code
    assert not [name for name in ("%ymm", "%zmm", "\tv", "{%k") if name in code]


def test_a_module_that_went_both_ways_has_both_guards() -> None:
    """Partitioned for one CPU; our pipeline compiles the remainder for another one."""
    parts = tvm_hybrid.partition_for_tvm_hybrid(mlp_module(), target="haswell")
    generated = relax.transform.RunCodegen()(parts)
    with Target({"kind": "llvm", "mcpu": "skylake-avx512"}):
        lowered = relax.get_pipeline("tvm_hybrid")(generated)
    kinds = [each.kind for each in lowered.attrs[EXTERNAL]]
    assert kinds == ["llvm"] * 3  # a region and two guards


def test_it_is_not_called_twice() -> None:
    generated = relax.transform.RunCodegen()(tvm_hybrid.partition_for_tvm_hybrid(mlp_module()))
    executable = by_name(generated)
    main, *_ = executable.as_text().split("\n\n")
    (name,) = re.findall(rf"{PREFIX}\w+", main)
    assert main.startswith("@main:")
    assert sum(each.implements_function(name) for each in executable.mod.imports) == 1


def test_it_can_be_left_out(needs_the_future: None) -> None:
    target = tvm_hybrid.resolve_target(None)
    parts = tvm_hybrid.partition_for_tvm_hybrid(mlp_module(), check_cpu=False)
    assert parts["main"].is_pure
    partitioned = tvm.compile(relax.transform.RunCodegen()(parts), target)
    pipeline = relax.get_pipeline("tvm_hybrid", check_cpu=False, native=False)
    # In this mode TVM finds no function of an imported module.
    compiled = relax.build(mlp_module(), target, relax_pipeline=pipeline, exec_mode="compiled")
    for executable in (partitioned, compiled):
        result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(X))
        np.testing.assert_array_equal(result.numpy(), mlp().run(X)[0].numpy())


@pytest.mark.filterwarnings("ignore:the target")
def test_plain_code_needs_no_guard() -> None:
    with Target({"kind": "llvm", "mcpu": "x86-64"}):
        lowered = relax.get_pipeline("tvm_hybrid", native=False)(mlp_module())
    assert EXTERNAL not in lowered.attrs


TWO_SYSTEM_LIBRARIES = """
import ctypes, os, sys, numpy as np, tvm
from tvm import relax
os.chdir(sys.argv[1])
ctypes.CDLL("./both.so")
for name, prefix in (("one", ""), ("two", "two_")):
    machine = relax.VirtualMachine(tvm.runtime.system_lib(prefix), tvm.cpu())
    np.save(name, machine["main"](tvm.runtime.tensor(np.load("x.npy"))).numpy())
"""


def test_two_system_libraries_are_linked_together(tmp_path: Path) -> None:
    """Each library has a guard with its own name; the first has names without a prefix."""
    archives = []
    for name, prefix in (("one", ""), ("two", "two_")):
        archives.append(str(tmp_path / f"{name}.a"))
        mod = mlp_module().with_attr("system_lib_prefix", prefix)
        by_name(mod).export_library(archives[-1], fcompile=cc.create_staticlib)
    library = tmp_path / "both.so"
    whole = ["-Wl,--whole-archive", *archives, "-Wl,--no-whole-archive"]
    cc.create_shared(str(library), whole)
    np.save(tmp_path / "x.npy", X)
    done = run_python(TWO_SYSTEM_LIBRARIES, tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("one", "two"):
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), mlp().run(X)[0].numpy())
    assert len(set(re.findall(rb"(?:two_)?" + PREFIX.encode(), library.read_bytes()))) == 2
