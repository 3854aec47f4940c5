"""Scalar bf16 tiles: the reference of the family; they run on any x86-64 CPU."""

from microkernels.isa import isa_named

from .bf16_family import one_product, register_bf16_tiles

register_bf16_tiles(isa_named("scalar"), 1, [(4, 4)], one_product)
