"""Broadcasting of operands whose sizes depend on data.

TVM types an operation on [n, 4] and [m, 4] only if it can prove that n = m. Where it cannot, the
common size becomes a symbol of its own, which the program checks when it runs, and the operands are
broadcast to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx

from ..expressions import Expr
from .kernels import INDEX, index
from .sizes import dims_of, is_open

# What broadcasts all of its inputs.
BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)


def align(builder: relax.BlockBuilder, inputs: Sequence[Any]) -> list[Any]:
    """The operands, broadcast where TVM could not tell that their sizes fit."""
    if not any(is_open(value) for value in inputs):
        return list(inputs)
    shapes = [dims_of(value) for value in inputs]
    rank = max(map(len, shapes))
    padded = [[index(1)] * (rank - len(shape)) + shape for shape in shapes]
    common = [_common(builder, sizes) for sizes in zip(*padded, strict=True)]
    return [
        _broadcast(builder, value, shape, common[rank - len(shape) :])
        for value, shape in zip(inputs, shapes, strict=True)
    ]


def _common(builder: relax.BlockBuilder, sizes: Sequence[Expr]) -> Expr:
    """The size to which all of these are broadcast."""
    found = index(1)
    for size in sizes:
        if _is(size, found) or _is(size, index(1)):
            continue
        found = size if _is(found, index(1)) else _checked(builder, found, size)
    return found


def _checked(builder: relax.BlockBuilder, one: Expr, other: Expr) -> Expr:
    """The common one of two sizes; the program checks that there is one."""
    choices = [
        tirx.Select(tirx.EQ(one, index(1)), other, one),
        tirx.Select(tirx.EQ(other, index(1)), one, other),
    ]
    known = [each for each in (one, other) if isinstance(each, tirx.IntImm)]
    size: Expr = known[0] if known else tirx.Var("n", INDEX)
    shape = builder.emit(relax.ShapeExpr(choices))
    builder.match_cast(shape, relax.ShapeType([size, size]))
    return size


def _broadcast(
    builder: relax.BlockBuilder, value: Expr, shape: Sequence[Expr], common: Sequence[Expr]
) -> Expr:
    if all(
        _is(size, index(1)) or _is(size, wanted) for size, wanted in zip(shape, common, strict=True)
    ):
        return value

    def compute(value: te.Tensor) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            # A size that fits is 1 or the common one.
            held = [te.min(i, size - 1) for i, size in zip(place, value.shape, strict=True)]
            return value(*held)

        return te.compute(common, element, name="broadcast")

    return builder.emit_te(compute, value, primfunc_name_hint="broadcast")


def _is(one: Expr, other: Expr) -> bool:
    return bool(tvm_ffi.structural_equal(one, other))
