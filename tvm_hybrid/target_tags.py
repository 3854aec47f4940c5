"""Target tags: `tvm_hybrid/spr` and its like, which TVM knows once they are registered."""

from __future__ import annotations

from tvm.target import register_tag

TAG_PREFIX = "tvm_hybrid/"

# Short name -> LLVM's name; both are tags.
ARCHITECTURES: dict[str, str] = {
    "hsw": "haswell",
    "adl": "alderlake",
    "skx": "skylake-avx512",
    "clx": "cascadelake",
    "cpx": "cooperlake",
    "icx": "icelake-server",
    "spr": "sapphirerapids",
    "gnr": "graniterapids",
    "zen3": "znver3",
    "zen4": "znver4",
}


def register_tags() -> None:
    """Registers `tvm_hybrid/<arch>` for every architecture, by both names."""
    for short, cpu in ARCHITECTURES.items():
        for name in (short, cpu):
            register_tag(TAG_PREFIX + name, {"kind": "llvm", "mcpu": cpu}, override=True)
