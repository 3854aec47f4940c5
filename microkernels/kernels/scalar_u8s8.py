"""Scalar int8 tiles: the reference of the family; they run on any x86-64 CPU."""

from microkernels.isa import isa_named
from microkernels.vector.expressions import Expr, cast

from .int8_family import register_int8_tiles


def _multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    return accumulator + cast("int32", a) * cast("int32", b)


register_int8_tiles(isa_named("scalar"), 1, [(4, 4)], _multiply_add)
