"""bf16 tiles on AVX-512 without a fast vdpbf16ps: operands are widened when they are loaded.

The arithmetic is no faster than f32, but the weight takes half the bytes.
"""

from microkernels.isa import isa_named

from .bf16_family import dot_by_widening, register_bf16_tiles

register_bf16_tiles(
    isa_named("avx512"), 2, [(6, 48), (8, 32), (1, 128), (2, 96), (4, 64)], dot_by_widening
)
