"""AVX2 + FMA f32 tiles: 12 of the 16 registers accumulate, of a single row 15."""

from microkernels.isa import isa_named

from .f32_family import register_f32_tiles

register_f32_tiles(isa_named("avx2"), [(4, 24), (6, 16), (1, 120), (2, 48), (3, 32)])
