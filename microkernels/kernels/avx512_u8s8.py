"""AVX-512 int8 tiles without VNNI: products of two digits of A (see `byte_pairs`)."""

from microkernels.isa import isa_named

from .byte_pairs import KR, by_digits
from .int8_family import register_int8_tiles

register_int8_tiles(
    isa_named("avx512"),
    KR,
    [(6, 48), (8, 32), (1, 128), (2, 96), (3, 96), (4, 64), (5, 64)],
    by_digits("avx512"),
)
