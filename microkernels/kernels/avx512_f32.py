"""AVX-512 f32 tiles: 32 registers of 16 lanes.

6x64 and 8x48 keep 24 accumulators, three or four vectors of B and one broadcast of A in
registers: 24 independent FMA chains hide the latency. 14x32 suits rows of pixels. Tiles of
one to five rows are wide: there the bandwidth of the weight is the limit.
"""

from microkernels.isa import isa_named

from .f32_family import register_f32_tiles

register_f32_tiles(
    isa_named("avx512"),
    [(6, 64), (8, 48), (14, 32), (1, 256), (2, 128), (3, 128), (4, 96), (5, 80)],
)
