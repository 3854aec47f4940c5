"""Short names of CPUs; importing this costs nothing."""

from __future__ import annotations

# Short name -> LLVM's name; both are tags.
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
