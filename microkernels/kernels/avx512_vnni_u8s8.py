"""AVX-512 VNNI int8 tiles: the same shapes as f32; one instruction does four products per lane."""

from microkernels.isa import isa_named

from .int8_family import dot_by_vnni, register_int8_tiles

register_int8_tiles(
    isa_named("avx512_vnni"),
    4,
    [(6, 64), (8, 48), (12, 32), (14, 32), (1, 256), (2, 128), (3, 128), (4, 96), (5, 80)],
    dot_by_vnni("llvm.x86.avx512.vpdpbusd.512"),
)
