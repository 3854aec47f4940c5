"""This CPU's name is LLVM's, unless Linux lists vectors or tiles that only another CPU has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from microkernels.base import host_cpu as module

AVX2 = "pni sse4_2 avx avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl avx512cd"
ICE = f"{AVX512} avx512_vnni avx512_bitalg avx512_vpopcntdq avx512ifma avx512vbmi avx512_vbmi2"
SAPPHIRE = f"{ICE} avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_int8 amx_bf16"

Machine = Callable[[str, str, str], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Makes LLVM report a CPU name, and Linux a vendor and flags."""

    def answer(own: str, vendor: str, flags: str) -> None:
        path = tmp_path / "cpuinfo"
        path.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n")
        monkeypatch.setattr(module, "_CPUINFO", str(path))
        monkeypatch.setattr(module.codegen, "llvm_get_system_cpu", lambda: own)
        for cached in (module.host_flags, module.host_cpu):
            monkeypatch.setattr(module, cached.__name__, inspect.unwrap(cached))

    return answer


@pytest.mark.parametrize(
    ("own", "vendor", "flags", "name"),
    [
        ("rocketlake", "GenuineIntel", ICE, "rocketlake"),
        ("rocketlake", "GenuineIntel", SAPPHIRE, "sapphirerapids"),
        ("rocketlake", "GenuineIntel", AVX2, "rocketlake"),
        ("x86-64", "GenuineIntel", AVX2, "haswell"),
        ("x86-64", "GenuineIntel", AVX512, "skylake-avx512"),
        ("x86-64", "GenuineIntel", f"{AVX2} avx_vnni", "alderlake"),
        ("znver3", "AuthenticAMD", f"{ICE} avx512_bf16", "znver4"),
        ("znver3", "AuthenticAMD", AVX2, "znver3"),
        ("graniterapids", "GenuineIntel", SAPPHIRE, "graniterapids"),
        ("x86-64", "Somebody", SAPPHIRE, "x86-64"),
    ],
)
def test_flags_that_a_name_lacks_choose_another(
    machine: Machine, own: str, vendor: str, flags: str, name: str
) -> None:
    machine(own, vendor, flags)
    assert module.host_cpu() == name


def test_features_are_those_that_linux_lists(machine: Machine) -> None:
    machine("rocketlake", "GenuineIntel", AVX2)
    features = module.cpu_features()
    assert {"avx2", "fma", "f16c"} <= features and "avx512f" not in features
    machine("rocketlake", "GenuineIntel", SAPPHIRE)
    assert {"amx-tile", "avx512bf16", "avxvnni"} <= module.cpu_features()


def test_without_an_answer_of_linux_llvm_is_believed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine("skylake-avx512", "GenuineIntel", AVX2)
    monkeypatch.setattr(module, "_CPUINFO", str(tmp_path / "none"))
    assert module.host_flags() == frozenset()
    assert module.host_cpu() == "skylake-avx512"
    assert "avx512f" in module.cpu_features()
