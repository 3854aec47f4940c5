"""The CPU that this process runs on: what Linux says it has, and LLVM's name that fits.

LLVM tells a CPU by its model number. A hypervisor may show another one: a Granite Rapids with AMX
that says it is a Rocket Lake. So a name whose vectors and tiles are more of those that Linux lists
goes before LLVM's.
"""

from __future__ import annotations

import functools
import platform

from tvm.target import Target, codegen

_CPUINFO = "/proc/cpuinfo"
# Of each vendor, the oldest first: of those that fit alike, it states the least.
_CPUS = {
    "GenuineIntel": (
        *("haswell", "alderlake", "skylake-avx512", "cascadelake", "cooperlake"),
        *("icelake-server", "sapphirerapids"),
    ),
    "AuthenticAMD": ("znver1", "znver2", "znver3", "znver4", "znver5"),
}
_VECTORS = ("avx", "amx", "fma", "f16c")  # beginnings of LLVM's names of features


@functools.cache
def host_flags() -> frozenset[str]:
    """The flags that Linux lists for this CPU; empty if it does not tell."""
    return frozenset(_cpuinfo("flags").split())


def processor() -> str:
    """The name of this CPU model, as Linux writes it; the architecture if Linux has none."""
    return _cpuinfo("model name") or platform.machine()


@functools.cache
def host_cpu() -> str:
    """LLVM's name of this CPU: LLVM's own answer, or one that fits better what Linux lists."""
    own = str(codegen.llvm_get_system_cpu())
    vectors = {flag for flag in _spelled(host_flags()) if flag.startswith(_VECTORS)}
    # `max` takes the first of several: LLVM's own answer is one.
    return max(
        (own, *_CPUS.get(_cpuinfo("vendor_id"), ())),
        key=lambda name: len(vectors.intersection(_listed(name))),
    )


def cpu_features() -> frozenset[str]:
    """LLVM's names of the features of this CPU; not those that a hypervisor hides."""
    listed = _listed(host_cpu())
    return listed.intersection(_spelled(host_flags())) if host_flags() else listed


def _listed(cpu: str) -> frozenset[str]:
    """What LLVM's table says of a CPU."""
    target = Target({"kind": "llvm", "mcpu": cpu})
    return frozenset(map(str, codegen.llvm_get_cpu_features(target)))


def _spelled(flags: frozenset[str]) -> set[str]:
    """Flags of Linux in LLVM's ways to write them: amx-tile, avx512vnni."""
    dashed = {flag.replace("_", "-") for flag in flags}
    return dashed | {flag.replace("-", "") for flag in dashed}


def _cpuinfo(key: str) -> str:
    """What Linux says of the first CPU; "" if nothing."""
    try:
        with open(_CPUINFO, encoding="utf-8") as lines:
            line = next((line for line in lines if line.startswith(key)), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()
