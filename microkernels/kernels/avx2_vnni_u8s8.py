"""AVX-VNNI int8 tiles: 256-bit vpdpbusd, for CPUs without AVX-512."""

from microkernels.isa import isa_named

from .int8_family import dot_by_vnni, register_int8_tiles

register_int8_tiles(
    isa_named("avx2_vnni"),
    4,
    [(4, 24), (6, 16), (1, 64), (2, 48), (3, 32)],
    dot_by_vnni("llvm.x86.avx512.vpdpbusd.256"),
)
