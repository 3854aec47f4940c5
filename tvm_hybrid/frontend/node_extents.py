"""Sizes as rewrites write them: numbers where they are known, else values that hold them.

    extents_of(x: [batch, 12, n, 64])    ->    ("x/Gather::1", 12, "x/Gather::2", 64)

A value is int64[1]. What is computed from the sizes of inputs becomes an expression of them when
Relax is written (data_sized/elements.py), so that a shape of such values is a shape that TVM knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from microkernels.base.errors import UnsupportedOperatorError

from .graph import describe
from .node_builder import Extent, NodeBuilder


def extents_of(build: NodeBuilder, name: str) -> tuple[Extent, ...]:
    """The sizes of an input.

    Raises
    ------
    UnsupportedOperatorError
        Not even its rank is known.
    """
    dims = build.graph.dims(name)
    if dims is None:
        raise UnsupportedOperatorError(
            f"{describe(build.source)}: the rank of its input {name!r} is not known"
        )
    if all(dim is not None for dim in dims):
        return tuple(dim for dim in dims if dim is not None)
    shape = build.add("Shape", name)
    return tuple(
        build.add("Gather", shape, build.constant([axis], np.int64), axis=0) if dim is None else dim
        for axis, dim in enumerate(dims)
    )


def known(build: NodeBuilder, extent: Extent, what: str) -> int:
    """A size that code depends on.

    Raises
    ------
    UnsupportedOperatorError
        It is open.
    """
    if isinstance(extent, str):
        raise UnsupportedOperatorError(f"{describe(build.source)}: {what} must be known")
    return extent


def value_of(build: NodeBuilder, extent: Extent) -> str:
    """A size as a value int64[1]."""
    return extent if isinstance(extent, str) else build.constant([extent], np.int64)


def element_of(build: NodeBuilder, name: str) -> Extent:
    """The only element of an integer value: a number if that is constant."""
    array = build.graph.constants.get(name)
    if array is not None:
        return int(array.item())
    return build.reshape(build.add("Cast", name, to=TensorProto.INT64), [1])


def plus(build: NodeBuilder, one: Extent, other: Extent) -> Extent:
    """The sum of two sizes."""
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    if 0 in (one, other):
        return other if one == 0 else one
    return build.add("Add", value_of(build, one), value_of(build, other))


def times(build: NodeBuilder, one: Extent, other: Extent) -> Extent:
    """The product of two sizes."""
    if isinstance(one, int) and isinstance(other, int):
        return one * other
    return build.add("Mul", value_of(build, one), value_of(build, other))


def minus(build: NodeBuilder, one: Extent, other: Extent) -> Extent:
    """The difference of two sizes."""
    if isinstance(one, int) and isinstance(other, int):
        return one - other
    if other == 0:
        return one
    return build.add("Sub", value_of(build, one), value_of(build, other))


def larger(build: NodeBuilder, one: Extent, other: Extent) -> Extent:
    """The larger one of two sizes."""
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    if 0 in (one, other):
        return other if one == 0 else one
    return build.add("Max", value_of(build, one), value_of(build, other))


def differ(one: Extent, other: Extent) -> bool:
    """Whether two sizes are known to differ."""
    return isinstance(one, int) and isinstance(other, int) and one != other


def shape_text(shape: Sequence[Extent]) -> str:
    """Sizes for messages.

    >>> shape_text([2, "x/Gather::1"])
    '(2, ?)'
    """
    sizes = ["?" if isinstance(extent, str) else str(extent) for extent in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def counted(build: NodeBuilder, count: Extent, first: Extent = 0) -> str:
    """int64 numbers in a row, so many from the first one on."""
    if isinstance(count, int) and isinstance(first, int):
        return build.constant(np.arange(first, first + count), np.int64)
    one = build.constant(1, np.int64)
    limit = build.reshape(value_of(build, count), [])
    row = build.add("Range", build.constant(0, np.int64), limit, one)
    return row if first == 0 else build.add("Add", row, value_of(build, first))
