"""Sizes that are data: from tensors to dimensions of shapes, and tensors cut to them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

from tvm import relax, te, tirx

from ..expressions import Expr, static_shape_of
from .kernels import INDEX


def dims_of(value: Expr) -> list[Expr]:
    """The sizes of a tensor, numbers and symbols; ValueError if one has none of its own."""
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise ValueError("the shape of an input is not known")
    return list(shape.values)


def is_open(value: Any) -> bool:
    """Whether a value is a tensor some of whose sizes depend on data."""
    found = getattr(value, "ty", None)
    return isinstance(found, relax.TensorType) and static_shape_of(found) is None


def product(sizes: Iterable[Expr]) -> Expr:
    """The number of elements."""
    return functools.reduce(operator.mul, sizes, tirx.const(1, INDEX))


def size_in(builder: relax.BlockBuilder, count: Expr) -> tirx.Var:
    """The only element of an int64 vector, as a size; the shapes behind it are in its terms."""
    shape = builder.emit(relax.op.tensor_to_shape(count))
    size = tirx.Var("n", INDEX)
    builder.match_cast(shape, relax.ShapeType([size]))
    return size


def pick(builder: relax.BlockBuilder, data: Expr, places: Expr, count: Expr, axis: int) -> Expr:
    """The slices of `data` at the first `count` places along an axis."""
    shape = [*dims_of(data)[:axis], count, *dims_of(data)[axis + 1 :]]

    def compute(data: te.Tensor, places: te.Tensor) -> te.Tensor:
        return te.compute(
            shape, lambda *i: data(*i[:axis], places[i[axis]], *i[axis + 1 :]), name="picked"
        )

    return builder.emit_te(compute, data, places, primfunc_name_hint="pick")


def cut(builder: relax.BlockBuilder, data: Expr, count: Expr, axis: int = 0) -> Expr:
    """The first `count` slices along an axis."""
    shape = [*dims_of(data)[:axis], count, *dims_of(data)[axis + 1 :]]

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(shape, lambda *i: data(*i), name="cut")

    return builder.emit_te(compute, data, primfunc_name_hint="cut")
