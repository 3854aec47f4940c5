"""AVX-512 int8 tiles without VNNI: operands are widened to 16 bits, two products per lane.

The widened operands take one register of A and one of B more than with VNNI.
"""

from microkernels.isa import isa_named

from .int8_family import dot_by_words, register_int8_tiles

register_int8_tiles(
    isa_named("avx512"),
    2,
    [(6, 48), (8, 32), (1, 128), (2, 96), (3, 96), (4, 64), (5, 64)],
    dot_by_words("llvm.x86.avx512.pmaddw.d.512"),
)
