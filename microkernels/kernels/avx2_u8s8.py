"""AVX2 int8 tiles: products of two digits of A (see `byte_pairs`)."""

from microkernels.isa import isa_named

from .byte_pairs import KR, by_digits
from .int8_family import register_int8_tiles

register_int8_tiles(isa_named("avx2"), KR, [(4, 16), (2, 24), (1, 48)], by_digits("avx2"))
