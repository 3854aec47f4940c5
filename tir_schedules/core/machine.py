"""The machine a kernel is built for: threads and cache sizes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from tvm.target import Target, codegen

from microkernels.errors import TargetError
from microkernels.isa import Isa, target_isa

_CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Machine:
    """What blocking decisions depend on.

    Attributes
    ----------
    name : str
        The CPU's LLVM name, such as "znver4".
    isa : Isa
        The instruction set that kernels may use.
    threads : int
        Threads that one parallel region may use; 1 means that kernels are built serial.
    l1_bytes, l2_bytes : int
        Data cache sizes of one core.
    l3_bytes : int
        Size of the last-level cache.
    """

    name: str
    isa: Isa
    threads: int = 1
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l3_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise TargetError(f"a machine needs at least one thread, not {self.threads}")

    @staticmethod
    def from_target(target: Target, threads: int = 1) -> Machine:
        """The machine that a target describes.

        Cache sizes are this host's when the target is this host's CPU, else those of the
        processor's data sheet.
        """
        name = str(target.attrs.get("mcpu", "x86-64"))
        if name == codegen.llvm_get_system_cpu():
            return Machine(name, target_isa(target), threads, **_host_caches())
        return Machine(name, target_isa(target), threads, **DATA_SHEETS.get(name, {}))


DATA_SHEETS: dict[str, dict[str, int]] = {
    "haswell": {"l2_bytes": 256 << 10, "l3_bytes": 8 << 20},
    # An efficient core's: code that suits it suits the performance cores too.
    "alderlake": {"l2_bytes": 512 << 10, "l3_bytes": 30 << 20},
    "skylake-avx512": {"l3_bytes": 22 << 20},
    "cascadelake": {"l3_bytes": 22 << 20},
    "cooperlake": {"l3_bytes": 33 << 20},
    "icelake-server": {"l1_bytes": 48 << 10, "l2_bytes": 1280 << 10, "l3_bytes": 36 << 20},
    "sapphirerapids": {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20, "l3_bytes": 60 << 20},
    "graniterapids": {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20, "l3_bytes": 120 << 20},
    "znver3": {"l2_bytes": 512 << 10},
    "znver4": {},
}


@functools.cache
def _host_caches() -> dict[str, int]:
    """Sizes from sysfs by field name; what the kernel does not tell is left out."""
    sizes: dict[str, int] = {}
    for index in sorted(_CACHE_FOLDER.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and text.endswith("K") and text[:-1].isdigit():
            sizes[f"l{level}_bytes"] = int(text[:-1]) << 10
    return {
        field: size
        for field, size in sizes.items()
        if field in ("l1_bytes", "l2_bytes", "l3_bytes")
    }
