"""What is known of one axis of an image that is resized, and the tables that a program makes of it.

A scale and a region may be numbers or, where the program computes or reads them, elements of
vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE

from ..expressions import Expr
from .kernels import index
from .sizes import same_size


@dataclass(frozen=True)
class Element:
    """A number that the program reads: one of a vector of float32."""

    vector: Expr
    position: int


Number = float | Element


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes
    ----------
    before, after : Expr
        Its extents.
    scale : Number, optional
        What is given; if nothing is, the quotient of the extents.
    region : tuple of Number
        Start and end of "tf_crop_and_resize", 0 to 1.
    """

    before: Expr
    after: Expr
    scale: Number | None = 1.0
    region: tuple[Number, Number] = (0.0, 1.0)

    @property
    def is_same(self) -> bool:
        """Whether every element stays as it is, and all do."""
        return same_size(self.before, self.after) and self.region == (0.0, 1.0)

    @property
    def is_whole(self) -> bool:
        """Whether it is stretched by a known whole factor."""
        return isinstance(self.scale, float) and self.scale.is_integer()

    @property
    def known(self) -> tuple[int, int, float, tuple[float, float]] | None:
        """Extents, scale and region, if all of them are numbers."""
        start, end = self.region
        if isinstance(start, Element) or isinstance(end, Element):
            return None
        if isinstance(self.scale, Element):
            return None
        if not isinstance(self.before, tirx.IntImm) or not isinstance(self.after, tirx.IntImm):
            return None
        before, after = int(self.before), int(self.after)
        ratio = float(np.float32(after) / np.float32(max(before, 1)))
        return before, after, ratio if self.scale is None else self.scale, (start, end)


@dataclass(frozen=True)
class Numbers:
    """The numbers of an axis in a kernel; scale and region are float32."""

    extent: Expr
    outputs: Expr
    scale: Expr
    start: Expr
    end: Expr


def emit_table(
    builder: relax.BlockBuilder,
    axis: Axis,
    name: str,
    compute: Callable[[Numbers, list[Expr]], te.Tensor],
    others: list[Expr] | None = None,
) -> Expr:
    """A table that the program computes.

    Parameters
    ----------
    compute
        Gets the axis's numbers, and the others.
    others
        More sizes.
    """
    numbers = [axis.scale, *axis.region]
    vectors = [each.vector for each in numbers if isinstance(each, Element)]

    def kernel(extents: list[Expr], vectors: list[te.Tensor], others: list[Expr]) -> te.Tensor:
        extent, outputs = extents
        waiting = iter(vectors)

        def read(number: Number) -> Expr:
            if isinstance(number, Element):
                return next(waiting)(index(number.position))
            return f32(number)

        scale = _quotient(extent, outputs) if axis.scale is None else read(axis.scale)
        start, end = map(read, axis.region)
        return compute(Numbers(extent, outputs, scale, start, end), others)

    # By itself: in one kernel with what reads it, it would be computed for every element.
    return builder.emit_te(
        kernel,
        [axis.before, axis.after],
        vectors,
        others or [],
        primfunc_name_hint=f"resize_{name}",
        primfunc_attrs={OP_PATTERN: OPAQUE},
    )


def f32(value: float) -> Expr:
    """A constant."""
    return tirx.const(value, "float32")


def apart(product: Expr) -> Expr:
    """A product that is rounded before it is added to: LLVM would make both one instruction."""
    return te.max(product, tirx.min_value(str(product.ty.dtype)))


def _quotient(extent: Expr, outputs: Expr) -> Expr:
    return outputs.astype("float32") / te.max(extent, index(1)).astype("float32")
