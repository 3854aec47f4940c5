"""Broadcasting of operands whose sizes depend on data.

TVM types an operation on [n, 4] and [m, 4] only if it can prove that n = m. Where it cannot, the
common size becomes a symbol of its own, which the program checks when it runs, and the operands are
broadcast to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from ..expressions import Expr
from ..freeze_shapes import length_of, new_size
from .kernels import index
from .requests import check_equal, unite
from .sizes import dims_of, is_open, same_size

# What broadcasts all of its inputs.
BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)


MOST_CHOSEN = 24
"""Sizes in a choice that is written out, so that layouts and fusion pass through it. What TVM takes
for it grows fast: a choice of 26 sizes took 11 s, and minutes a few layers later."""


# What sums over an axis that both factors have.
PRODUCTS = frozenset({"Gemm", "MatMul", "MatMulInteger"})


def check_product(builder: relax.BlockBuilder, left: Expr, right: Expr) -> None:
    """Has the program check that the factors of a product have as many terms."""
    before, behind = dims_of(left), dims_of(right)
    check_equal(builder, before[-1], behind[0] if len(behind) == 1 else behind[-2])


def joined(builder: relax.BlockBuilder, values: Sequence[Any], axis: int) -> list[Any]:
    """The parts of a concatenation; the program checks that they agree in all axes but one."""
    shapes = [dims_of(value) for value in values]
    axis %= len(shapes[0])
    wanted = list(shapes[0])
    for place, sizes in enumerate(zip(*shapes, strict=False)):
        if place != axis:
            known = [size for size in sizes if isinstance(size, tirx.IntImm)]
            wanted[place] = known[0] if known else sizes[0]
            for size in sizes:
                check_equal(builder, wanted[place], size)
    return [
        _known_to_be(builder, value, [*wanted[:axis], shape[axis], *wanted[axis + 1 :]])
        for value, shape in zip(values, shapes, strict=True)
    ]


def _known_to_be(builder: relax.BlockBuilder, value: Expr, sizes: Sequence[Expr]) -> Expr:
    """A value with other sizes for its own, which the program has found to be equal."""
    shape = dims_of(value)
    pairs = zip(sizes, shape, strict=True)
    others = [size for size, own in pairs if not same_size(size, own)]
    # TVM would put a symbol in the place of itself, for ever.
    if not others or any(isinstance(size, tirx.Var) for size in others):
        return value
    return builder.match_cast(value, relax.TensorType(list(sizes), value.ty.dtype))


def align(builder: relax.BlockBuilder, inputs: Sequence[Any]) -> list[Any]:
    """The operands, broadcast where TVM could not tell that their sizes fit."""
    if not any(is_open(value) for value in inputs):
        return list(inputs)
    shapes = [dims_of(value) for value in inputs]
    rank = max(map(len, shapes))
    padded = [[index(1)] * (rank - len(shape)) + shape for shape in shapes]
    common = [common_size(builder, sizes) for sizes in zip(*padded, strict=True)]
    return [
        value if _fits(shape, common) else broadcast(builder, value, common[rank - len(shape) :])
        for value, shape in zip(inputs, shapes, strict=True)
    ]


def _fits(shape: Sequence[Expr], common: Sequence[Expr]) -> bool:
    """Whether TVM can tell that each size is 1 or the common one of its dimension."""
    pairs = zip(shape, common[len(common) - len(shape) :], strict=True)
    return all(same_size(size, index(1)) or same_size(size, wanted) for size, wanted in pairs)


def common_size(builder: relax.BlockBuilder, sizes: Sequence[Expr]) -> Expr:
    """The size to which all of these are broadcast."""
    found = index(1)
    for size in sizes:
        if same_size(size, found) or same_size(size, index(1)):
            continue
        found = size if same_size(found, index(1)) else _checked(builder, found, size)
    return found


def _checked(builder: relax.BlockBuilder, one: Expr, other: Expr) -> Expr:
    """The common one of two sizes; the program checks that there is one."""
    if isinstance(one, tirx.Var) != isinstance(other, tirx.Var) and not _has_number(one, other):
        # A mask of `total` keys meets `past + sequence` of them.
        unite(one, other)
    choices = [
        tirx.Select(tirx.EQ(one, index(1)), other, one),
        tirx.Select(tirx.EQ(other, index(1)), one, other),
    ]
    known = [each for each in (one, other) if isinstance(each, tirx.IntImm)]
    length = 2 * length_of(one, other)
    shape = builder.emit(relax.ShapeExpr(choices))
    if length > MOST_CHOSEN:
        # By way of a tensor: TVM puts a choice in the place of the size wherever that stands, and a
        # choice among choices, of each layer behind the last, is twice as long as its own.
        length = 1
        shape = builder.emit(
            relax.op.tensor_to_shape(builder.emit(relax.op.shape_to_tensor(shape)))
        )
    size: Expr = known[0] if known else new_size(length)
    builder.match_cast(shape, relax.ShapeType([size, size]))
    return size


def _has_number(*sizes: Expr) -> bool:
    return any(isinstance(size, tirx.IntImm) for size in sizes)


def broadcast(builder: relax.BlockBuilder, value: Expr, common: Sequence[Expr]) -> Expr:
    """A value in these sizes, which its own ones fit, and which may be more."""
    shape = dims_of(value)
    missing = len(common) - len(shape)
    if not missing and all(map(same_size, shape, common)):
        return value

    # Where it is not known that sizes fit, `legalize_shapes` looks for sizes of 1.
    return builder.normalize(relax.op.broadcast_to(value, relax.ShapeExpr(list(common))))
