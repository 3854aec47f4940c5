"""Target tags such as `tvm_hybrid/spr`, which TVM knows once they are registered."""

from __future__ import annotations

from typing import Any

from tvm.target import register_tag

from .architectures import ARCHITECTURES

TAG_PREFIX = "tvm_hybrid/"

# Nothing of ours computes in FP16 or needs the 256-bit encoding of VNNI, but LLVM uses both where
# it may. Without them the code also runs on CPUs that have the rest of AVX-512 and no AMX, under
# the emulator that our tests execute tiles with. AVX10 counts as the AVX-512 that it includes:
# Linux does not list what it has besides, so that no guard could ask for it.
_UNUSED = ["-avx512fp16", "-avxvnni"]
_WITHOUT: dict[str, list[str]] = {
    cpu: _UNUSED for cpu in ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d")
} | {
    cpu: [*_UNUSED, "-avx10.1", "-avxvnniint8", "-avxvnniint16"]
    for cpu in ("diamondrapids", "novalake")
}


def configuration(cpu: str) -> dict[str, Any]:
    """The configuration of TVM's target for a CPU, named as LLVM does."""
    without = _WITHOUT.get(cpu)
    return {"kind": "llvm", "mcpu": cpu} | ({"mattr": without} if without else {})


def register_tags() -> None:
    """Registers `tvm_hybrid/<arch>` for every architecture, by both names."""
    for short, cpu in ARCHITECTURES.items():
        for name in (short, cpu):
            register_tag(TAG_PREFIX + name, configuration(cpu), override=True)
