"""AVX2 int8 tiles: operands are widened to 16 bits; one instruction does two products per lane."""

from microkernels.isa import isa_named

from .int8_family import dot_by_words, register_int8_tiles

register_int8_tiles(
    isa_named("avx2"),
    2,
    [(4, 16), (2, 32), (1, 48)],
    dot_by_words("llvm.x86.avx2.pmadd.wd"),
)
