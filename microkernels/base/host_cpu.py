"""The CPU that this process runs on: the features that Linux lists, and the LLVM name that fits.

LLVM recognises a CPU by its model number, but a hypervisor may show another one: a Granite Rapids
with AMX may call itself a Rocket Lake. So a name that covers more of the vectors and tiles that
Linux lists takes precedence over LLVM's answer.
"""

from __future__ import annotations

import functools
import platform

from tvm.target import Target, codegen

_CPUINFO = "/proc/cpuinfo"
# For each vendor, the oldest first: among names that fit equally, it claims the fewest features.
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
    """The flags that Linux lists for this CPU; empty if it lists none."""
    return frozenset(_cpuinfo("flags").split())


def processor() -> str:
    """The name of this CPU model, as Linux writes it; the architecture if Linux has none."""
    return _cpuinfo("model name") or platform.machine()


@functools.cache
def host_cpu() -> str:
    """LLVM's name of this CPU: its own answer, or a name that better fits what Linux lists."""
    own = str(codegen.llvm_get_system_cpu())
    vectors = {flag for flag in _spelled(host_flags()) if flag.startswith(_VECTORS)}
    # `max` takes the first of equal names: LLVM's own answer comes first.
    return max(
        (own, *_CPUS.get(_cpuinfo("vendor_id"), ())),
        key=lambda name: len(vectors.intersection(_listed(name))),
    )


def cpu_features() -> frozenset[str]:
    """LLVM's names of the features of this CPU, without those that a hypervisor hides."""
    listed = _listed(host_cpu())
    return listed.intersection(_spelled(host_flags())) if host_flags() else listed


def _listed(cpu: str) -> frozenset[str]:
    """The features of a CPU in LLVM's table."""
    target = Target({"kind": "llvm", "mcpu": cpu})
    return frozenset(map(str, codegen.llvm_get_cpu_features(target)))


def _spelled(flags: frozenset[str]) -> set[str]:
    """Flags of Linux in LLVM's ways to write them: amx-tile, avx512vnni."""
    dashed = {flag.replace("_", "-") for flag in flags}
    return dashed | {flag.replace("-", "") for flag in dashed}


def _cpuinfo(key: str) -> str:
    """The value of a key of the first CPU that Linux lists; "" if there is none."""
    try:
        with open(_CPUINFO, encoding="utf-8") as lines:
            line = next((line for line in lines if line.startswith(key)), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()
