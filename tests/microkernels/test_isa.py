"""The ladder of instruction sets: which one a CPU gets, with and without a cap."""

from __future__ import annotations

import errno
import itertools

import pytest
from tvm.target import Target

from microkernels import isa as isa_module
from microkernels.amx.permission import AMX_FEATURES, Permission
from microkernels.base.errors import IsaError, TargetError
from microkernels.isa import (
    CAP_VARIABLE,
    LADDER,
    allowed_on_host,
    emulated_on_host,
    host_features,
    host_isa,
    isa_named,
    require_on_host,
    target_isa,
)
from microkernels.registry import kernels_for

# Features in LLVM's model of each CPU.
EXPECTED = {
    "x86-64": "scalar",
    "haswell": "avx2",
    "znver3": "avx2",
    "alderlake": "avx2_vnni",
    "sierraforest": "avx2_vnni",
    "skylake-avx512": "avx512",
    "cascadelake": "avx512_vnni",
    "icelake-server": "avx512_vnni",
    "cooperlake": "avx512_bf16",
    "znver4": "avx512_bf16",
    "sapphirerapids": "amx",
    "graniterapids": "amx_fp16",
    "diamondrapids": "amx_fp16",
    "novalake": "avx512_bf16",
}
NAMES = [isa.name for isa in LADDER]


@pytest.fixture(autouse=True)
def _no_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CAP_VARIABLE, raising=False)


def isa_of(cpu: str) -> str:
    return target_isa(Target({"kind": "llvm", "mcpu": cpu})).name


@pytest.fixture
def host_has(monkeypatch: pytest.MonkeyPatch):
    """Makes this process take its CPU for one with these features."""

    def pretend(*features: str) -> None:
        monkeypatch.setattr(isa_module, "host_features", lambda: frozenset(features))

    return pretend


@pytest.fixture
def permission_is(monkeypatch: pytest.MonkeyPatch):
    """Makes this process take Linux's answer for this one, on a CPU with the features of an ISA."""

    def pretend(state: str, isa: str, code: int = 0) -> None:
        features = frozenset(isa_named(isa).features)
        monkeypatch.setattr(isa_module, "cpu_features", lambda: features)
        monkeypatch.setattr(isa_module, "tile_permission", lambda: Permission(state, code))

    return pretend


@pytest.mark.parametrize("feature", ["avx10.1", "avx10.1-512", "avx10.2"])
def test_avx10_is_the_avx512_that_it_includes(feature: str) -> None:
    target = Target({"kind": "llvm", "mcpu": "x86-64-v3", "mattr": [f"+{feature}"]})
    assert target_isa(target).name == "avx512_bf16"


@pytest.mark.parametrize(("cpu", "name"), EXPECTED.items())
def test_a_cpu_gets_the_highest_isa_that_it_has(cpu: str, name: str) -> None:
    assert isa_of(cpu) == name


@pytest.mark.parametrize(
    ("cpu", "cap", "name"),
    [
        ("sapphirerapids", "avx512", "avx512"),
        ("sapphirerapids", "avx2_vnni", "avx2_vnni"),
        # AVX-512 VNNI, but not the 256-bit AVX-VNNI.
        ("znver4", "avx2_vnni", "avx2"),
        ("cascadelake", "avx2_vnni", "avx2"),
        ("alderlake", "amx", "avx2"),
        ("alderlake", "avx2_vnni", "avx2_vnni"),
        ("alderlake", "avx2", "avx2"),
        ("haswell", "avx512_bf16", "avx2"),
        ("sapphirerapids", "scalar", "scalar"),
        ("graniterapids", "amx", "amx"),
    ],
)
def test_a_cap_leaves_what_both_have(
    cpu: str, cap: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAP_VARIABLE, cap)
    assert isa_of(cpu) == name


@pytest.mark.parametrize(("upper", "lower"), list(itertools.product(LADDER, LADDER)))
def test_a_isa_includes_those_whose_features_it_has(upper, lower) -> None:
    assert upper.includes(lower) == set(lower.features).issubset(upper.features)
    # The order follows inclusion: an instruction set stands above those that it includes.
    assert not upper.includes(lower) or lower.level <= upper.level


def test_the_ladder_has_one_branch() -> None:
    chain = [isa for isa in LADDER if isa.name != "avx2_vnni"]
    assert all(high.includes(low) for low, high in itertools.pairwise(chain))
    assert not isa_named("amx").includes(isa_named("avx2_vnni"))
    assert isa_named("avx2_vnni").includes(isa_named("avx2"))


def test_the_host_is_capped_too(host_has, monkeypatch: pytest.MonkeyPatch) -> None:
    host_has(*isa_named("avx512_bf16").features)
    assert host_isa().name == "avx512_bf16"
    assert allowed_on_host(isa_named("avx512"))
    assert not allowed_on_host(isa_named("avx2_vnni"))
    monkeypatch.setenv(CAP_VARIABLE, "avx2_vnni")
    assert host_isa().name == "avx2"
    assert not allowed_on_host(isa_named("avx512"))
    host_has(*isa_named("avx512_bf16").features, "avxvnni")
    assert host_isa().name == "avx2_vnni"
    assert allowed_on_host(isa_named("avx2_vnni"))


@pytest.mark.parametrize(
    ("state", "isa", "allowed", "chosen"),
    [
        ("granted", "amx", True, "amx"),
        ("denied", "amx", False, "avx512_bf16"),
        ("absent", "avx512_bf16", False, "avx512_bf16"),
        # An emulator runs such code, but it is not a sensible default.
        ("emulated", "avx512_bf16", True, "avx512_bf16"),
        ("emulated", "avx512_vnni", False, "avx512_vnni"),
    ],
)
def test_amx_needs_permission(
    state: str, isa: str, allowed: bool, chosen: str, permission_is
) -> None:
    permission_is(state, isa)
    amx = isa_named("amx")
    assert allowed_on_host(amx) == allowed
    assert host_isa().name == chosen
    assert emulated_on_host(amx) == (state == "emulated")
    assert allowed_on_host(isa_named("amx_fp16")) == (state == "emulated" and allowed)
    assert not emulated_on_host(isa_named("avx512_bf16"))
    assert (set(AMX_FEATURES) <= host_features()) == (state in ("granted", "emulated"))
    if allowed:
        require_on_host(amx)


def test_denied_is_told_from_lacking(permission_is) -> None:
    permission_is("denied", "amx", errno.EPERM)
    with pytest.raises(
        IsaError, match=r"cannot run amx code: Linux denies.*\(EPERM\).*avx512_bf16"
    ):
        require_on_host(isa_named("amx"))
    permission_is("absent", "avx512_bf16")
    with pytest.raises(IsaError, match=r"this CPU cannot run amx code: it lacks amx-tile"):
        require_on_host(isa_named("amx"))


def test_a_isa_with_a_hole_is_not_taken(host_has) -> None:
    everything = isa_named("avx512_vnni").features
    host_has(*(name for name in everything if name != "avx512vl"))
    assert host_isa().name == "avx2"
    host_has(*(name for name in everything if name != "fma"))
    assert host_isa().name == "scalar"


def test_what_the_host_lacks_is_named(host_has) -> None:
    host_has(*isa_named("avx2").features)
    require_on_host(isa_named("avx2"))
    with pytest.raises(IsaError, match=r"avx2_vnni code: it lacks avxvnni; compile for avx2"):
        require_on_host(isa_named("avx2_vnni"))


def test_unknown_isas_and_other_targets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IsaError, match=r"unknown ISA 'sse9'.*avx2_vnni"):
        isa_named("sse9")
    monkeypatch.setenv(CAP_VARIABLE, "sse9")
    with pytest.raises(IsaError, match="unknown ISA 'sse9'"):
        isa_of("haswell")
    with pytest.raises(TargetError, match="cuda"):
        target_isa(Target("cuda"))


@pytest.mark.parametrize("name", NAMES)
def test_f32_kernels_are_those_of_the_highest_included_isa(name: str) -> None:
    expected = {"scalar": "scalar", "avx2": "avx2", "avx2_vnni": "avx2"}.get(name, "avx512")
    found = kernels_for(isa_named(name), "float32", "float32")
    assert {kernel.isa_name for kernel in found} == {expected}
