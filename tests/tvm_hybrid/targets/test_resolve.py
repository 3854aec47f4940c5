"""Names of targets, the host, and the features that a CPU must have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm.target import Target, codegen

import tvm_hybrid
from microkernels.amx.permission import Permission
from microkernels.base.host_cpu import host_cpu
from microkernels.machines.machine import Machine
from tvm_hybrid.errors import IsaError, TargetError
from tvm_hybrid.targets import cpu_features
from tvm_hybrid.targets import resolve as targets
from tvm_hybrid.targets.architectures import ARCHITECTURES, register_tags
from tvm_hybrid.targets.cpu_features import (
    FEATURES,
    missing_on_host,
    require_host,
    required_features,
)
from tvm_hybrid.targets.resolve import host_target, resolve_target

from ..small_models import run_python


@pytest.mark.parametrize(("short", "cpu"), ARCHITECTURES.items())
def test_every_architecture_has_its_names(short: str, cpu: str) -> None:
    register_tags()
    for name in (short, cpu, f"tvm_hybrid/{short}", f"tvm_hybrid/{cpu}"):
        assert resolve_target(name).attrs["mcpu"] == cpu
    assert Target(f"tvm_hybrid/{short}").attrs["mcpu"] == cpu
    assert Target(f"tvm_hybrid/{cpu}").attrs["mcpu"] == cpu


def test_dictionaries_targets_and_tvm_names_are_taken() -> None:
    config = {"kind": "llvm", "mcpu": "znver3", "num-cores": 4}
    assert resolve_target(config).attrs["mcpu"] == "znver3"
    target = Target(config)
    assert resolve_target(target).same_as(target)
    assert resolve_target("llvm").kind.name == "llvm"
    assert resolve_target("alderlake").attrs["mcpu"] == "alderlake"


@pytest.mark.parametrize("cpu", ["diamondrapids", "novalake"])
def test_code_for_avx10_uses_nothing_that_no_guard_asks_for(cpu: str) -> None:
    beyond = ("avx10.1", "avx10.2", "avxvnniint8", "avxvnniint16")
    used = {str(name) for name in codegen.llvm_get_cpu_features(resolve_target(cpu))}
    assert "avx512bf16" in used and not used.intersection(beyond)
    everything = Target({"kind": "llvm", "mcpu": cpu})
    assert set(map(str, codegen.llvm_get_cpu_features(everything))).issuperset(beyond)


@pytest.mark.parametrize("cpu", ["sapphirerapids", "graniterapids", "diamondrapids"])
def test_cpus_with_amx_use_no_fp16_and_no_narrow_vnni(cpu: str) -> None:
    register_tags()
    (short,) = (short for short, name in ARCHITECTURES.items() if name == cpu)
    for name in (short, cpu, f"tvm_hybrid/{short}", f"tvm_hybrid/{cpu}"):
        for target in (resolve_target(name), Target(f"tvm_hybrid/{short}")):
            features = required_features(target)
            assert {"amx-tile", "avx512bf16", "avx512vnni"} <= set(features)
            assert not {"avx512fp16", "avxvnni"} & set(features)
    # Other targets keep everything that LLVM knows.
    assert "avxvnni" in required_features(resolve_target("alderlake"))


NO_TARGET = """
import sys
from tvm.target import Target, codegen, list_tags
from tvm_hybrid.errors import TargetError
from tvm_hybrid.targets.cpu_features import required_features
from tvm_hybrid.targets.resolve import resolve_target

refused = []
def tried(target):
    try:
        required_features(resolve_target(target))
    except TargetError:
        refused.append(target)

for kind in Target.list_kinds():
    tried(kind)
    tried({"kind": kind})
for tag in list_tags():
    tried(tag)
for triple in ("x86_64", "i386", "aarch64-linux-gnu", "riscv64", "armv7a"):
    try:
        names = codegen.llvm_get_cpu_archlist(Target({"kind": "llvm", "mtriple": triple}))
    except Exception:  # LLVM was built without it
        continue
    for name in names:
        tried(str(name))
        tried({"kind": "llvm", "mcpu": str(name)})
for name in ("native", "host", "x86", "arm", "cortex-a72", "apple-m1", "llvm -mcpu=pentium", "\\0"):
    tried(name)
assert len(refused) > 50, refused
assert "pentium" in refused and "i686" in refused and "cuda" in refused
assert not {"llvm", "haswell", "x86-64", "nocona", "znver5", "generic"} & {*map(str, refused)}
"""


def test_no_name_of_a_target_ends_the_process_or_prints() -> None:
    """Covers TVM's kinds and tags, and the CPUs of all targets that LLVM was built for."""
    done = run_python(NO_TARGET)
    assert done.returncode == 0, done.stderr
    assert not done.stdout + done.stderr


@pytest.mark.parametrize(
    ("target", "culprit"),
    [
        ("pentium", "'pentium' is not supported: it lacks 64bit"),
        ({"kind": "llvm", "mcpu": "znver4", "mattr": ["-64bit"]}, "lacks 64bit"),
        ({"kind": "llvm", "mcpu": "znver4", "mattr": ["-sse"]}, "lacks sse"),
        ({"kind": "llvm", "mcpu": "znver4", "mattr": ["+soft-float"]}, "has soft-float"),
        ({"kind": "llvm", "mcpu": "znver4", "mattr": ["+16bit-mode"]}, "has 16bit-mode"),
        ({"kind": "llvm", "jit": "bogus"}, "bogus"),
        ('{"kind": "cuda"}', "'cuda' is not supported"),
        ("{kind: llvm}", "not a target"),
        ("tvm_hybrid/nonesuch", "nonesuch"),
        ("saphirerapids", "did you mean sapphirerapids"),
        ("", "unknown target ''"),
        ("cuda", "cuda"),
        ("raspberry-pi/4b-aarch64", "aarch64"),
        ({"kind": "llvm", "mcpu": "bogus"}, "bogus"),
        ({"kind": "llvm", "no-such-attribute": 1}, "no-such-attribute"),
        ({"mcpu": "znver4"}, "kind"),
        ({}, "kind"),
        (7, "int"),
    ],
)
def test_what_is_no_target_is_refused(target: Any, culprit: str) -> None:
    with pytest.raises(TargetError) as caught:
        resolve_target(target)
    assert culprit in str(caught.value)


def test_none_is_this_machine() -> None:
    target = resolve_target(None)
    assert target.attrs["mcpu"] == host_cpu()
    assert int(target.attrs["num-cores"]) >= 1
    assert missing_on_host(required_features(target)) == []


def test_features_that_a_hypervisor_hides_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {feature.flag for feature in FEATURES.values()}
    visible = {flag for flag in everything if not flag.startswith("avx512")}
    monkeypatch.setattr(targets, "host_flags", lambda: frozenset(visible))
    host_target.cache_clear()
    try:
        used = required_features(host_target())
    finally:
        host_target.cache_clear()
    assert "sse3" in used
    assert not any(name.startswith("avx512") for name in used)


@pytest.mark.parametrize("state", ["granted", "denied"])
def test_tiles_that_linux_denies_are_not_used(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = frozenset(feature.flag for feature in FEATURES.values())
    monkeypatch.setattr(targets, "host_flags", lambda: everything)
    monkeypatch.setattr(targets, "host_cpu", lambda: "sapphirerapids")
    monkeypatch.setattr(targets, "tile_permission", lambda: Permission(state))
    host_target.cache_clear()
    try:
        used = required_features(host_target())
    finally:
        host_target.cache_clear()
    assert ("amx-int8" in used) == (state == "granted")
    assert "avx512bf16" in used


def test_required_features_follow_target_and_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_HYBRID_ISA", raising=False)
    haswell = required_features(resolve_target("haswell"))
    assert "avx2" in haswell and "avx512f" not in haswell
    sapphire = resolve_target("spr")
    assert "amx-tile" in required_features(sapphire)
    granite = resolve_target("gnr")
    assert "amx-fp16" in required_features(granite)
    assert "amx-fp16" not in required_features(granite, half=False)
    assert "amx-int8" in required_features(granite, half=False)
    monkeypatch.setenv("TVM_HYBRID_ISA", "avx512")
    assert "amx-tile" not in required_features(sapphire)
    assert "avx512f" in required_features(sapphire)


def test_a_missing_feature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "host_flags", lambda: frozenset({"avx2"}))
    require_host(("avx2",), "m.so", "haswell")
    with pytest.raises(IsaError, match=r"m\.so .*skylake-avx512.* needs avx512f"):
        require_host(("avx2", "avx512f"), "m.so", "skylake-avx512")
    assert missing_on_host(("avx2", "from-the-future")) == ["from-the-future"]


def test_every_feature_of_the_isa_ladder_is_known() -> None:
    from microkernels.isa import LADDER

    assert {name for isa in LADDER for name in isa.features} <= set(FEATURES)


def test_tags_may_be_registered_again() -> None:
    register_tags()
    register_tags()
    assert "tvm_hybrid/spr" in tvm.target.list_tags()


@pytest.mark.parametrize("target", [None, "zen4", {"kind": "llvm", "mcpu": "haswell"}])
def test_a_named_machine_describes_any_target(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = '{"title": "a test", "inherits": "znver4", "numbers": {"call_us": %s}}'
    number = '{"value": 7.5, "kind": "guess", "source": "a test"}'
    path = tmp_path / "mine"
    path.write_text(content % number)
    monkeypatch.chdir(tmp_path)
    described, plain = resolve_target(target, "mine"), resolve_target(target)
    assert Machine.from_target(described).call_us == 7.5
    assert {**described.attrs} == {**plain.attrs, "model": str(path)}
    assert required_features(described) == required_features(plain)
    # Another process parses the target from its text.
    assert Machine.from_target(Target(json.loads(str(described)))).call_us == 7.5


@pytest.mark.parametrize("machine", ["none.json", "/", 3])
def test_what_is_no_description_of_a_machine_is_refused(machine: Any, tmp_path: Path) -> None:
    for use in (tvm_hybrid.compile, tvm_hybrid.InferenceSession, tvm_hybrid.tune):
        with pytest.raises(TargetError, match="machine"):
            use(tmp_path / "no model", machine=machine)
