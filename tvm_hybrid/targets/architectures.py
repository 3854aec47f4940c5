"""Short names of CPUs, and tags such as `tvm_hybrid/spr`; this module imports nothing heavy."""

from __future__ import annotations

from typing import Any

# Short name -> LLVM's name; both names make a tag.
ARCHITECTURES: dict[str, str] = {
    "hsw": "haswell",
    "adl": "alderlake",
    "skx": "skylake-avx512",
    "clx": "cascadelake",
    "cpx": "cooperlake",
    "icx": "icelake-server",
    "spr": "sapphirerapids",
    "emr": "emeraldrapids",
    "gnr": "graniterapids",
    "dmr": "diamondrapids",
    "zen3": "znver3",
    "zen4": "znver4",
}


TAG_PREFIX = "tvm_hybrid/"

# None of our kernels computes in FP16 or needs the 256-bit encoding of VNNI, but LLVM would use
# both. Without them the code also runs on CPUs with the rest of AVX-512 and no AMX, under the AMX
# emulator of our tests. AVX10 counts as the AVX-512 that it includes: Linux does not list the other
# parts of AVX10, so no guard could check them.
_UNUSED = ["-avx512fp16", "-avxvnni"]
_WITHOUT: dict[str, list[str]] = {
    cpu: _UNUSED for cpu in ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d")
} | {
    cpu: [*_UNUSED, "-avx10.1", "-avxvnniint8", "-avxvnniint16"]
    for cpu in ("diamondrapids", "novalake")
}


def configuration(cpu: str) -> dict[str, Any]:
    """The configuration of TVM's target for a CPU, given by LLVM's name."""
    without = _WITHOUT.get(cpu)
    return {"kind": "llvm", "mcpu": cpu} | ({"mattr": without} if without else {})


def register_tags() -> None:
    """Registers the tag `tvm_hybrid/<arch>` for every architecture, under both names."""
    from tvm.target import register_tag

    for short, cpu in ARCHITECTURES.items():
        for name in (short, cpu):
            register_tag(TAG_PREFIX + name, configuration(cpu), override=True)
