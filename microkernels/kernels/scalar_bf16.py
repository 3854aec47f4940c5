"""Scalar bf16 tiles: the meaning of the family, for any x86-64."""

from microkernels.isa import isa_named

from .bf16_family import one_product, register_bf16_tiles

register_bf16_tiles(isa_named("scalar"), 1, [(4, 4)], one_product)
