"""Scalar f32 tile: the reference of the family; it runs on any x86-64 CPU."""

from microkernels.isa import isa_named

from .f32_family import register_f32_tiles

register_f32_tiles(isa_named("scalar"), [(4, 4)])
