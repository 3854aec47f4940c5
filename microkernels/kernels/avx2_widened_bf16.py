"""bf16 tiles on AVX2: operands are widened to f32 when they are loaded."""

from microkernels.isa import isa_named

from .bf16_family import dot_by_widening, register_bf16_tiles

register_bf16_tiles(isa_named("avx2"), 2, [(4, 16), (2, 24), (1, 48)], dot_by_widening)
