"""AVX-512 BF16 tiles: the same shapes as f32; one instruction does two products per lane."""

from microkernels.isa import isa_named

from .bf16_family import DOT_LLVM_IR, dot_by_dpbf16, register_bf16_tiles

register_bf16_tiles(
    isa_named("avx512_bf16"),
    2,
    [(6, 64), (8, 48), (12, 32), (14, 32), (1, 256), (2, 128), (3, 128), (4, 96), (5, 80)],
    dot_by_dpbf16,
    DOT_LLVM_IR,
)
