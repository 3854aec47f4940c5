"""Register tiles: one instruction set each, the innermost loops of every kernel.

Importing the package registers every microkernel; adding one is a new file and its import here.
"""

from . import avx2_f32, avx512_f32, scalar_f32

__all__ = ["avx2_f32", "avx512_f32", "scalar_f32"]
