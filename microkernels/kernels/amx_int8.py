"""AMX int8: TDPB[SU][SU]D. Either operand may be signed or unsigned; none is shifted by 128."""

from .amx_family import register_amx_blocks
from .int8_family import dot_by_vnni

_DTYPES = {"u": "uint8", "s": "int8"}

for a in _DTYPES:
    for b in _DTYPES:
        register_amx_blocks(
            f"{a}8{b}8s32",
            _DTYPES[a],
            _DTYPES[b],
            "int32",
            f"tdpb{a}{b}d",
            dot_by_vnni("llvm.x86.avx512.vpdpbusd.512"),
        )
