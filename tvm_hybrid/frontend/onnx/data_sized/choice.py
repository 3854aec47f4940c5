"""Select: the result of the branch of an If that is taken, where the branches differ in sizes.

condition, then [4, 8], other [n, 8]    ->    m = condition ? 4 : n, result [m, 8]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from microkernels.vector.expressions import reinterpret

from ....runtime.tensors import numpy_dtype
from ...expressions import Attrs, Expr, Inputs, emit, emit_te, match_cast, normalize, reshaped
from ..graph.freeze_shapes import length_of, new_size
from ..graph.graph import OWN_DOMAIN
from ..operators import operator
from .requests import check_equal, unite
from .sizes import (
    INDEX,
    copied,
    dims_of,
    emit_kernel,
    index,
    is_open,
    pick,
    product,
    put,
    same_size,
    size_in,
)


@operator("Select", domain=OWN_DOMAIN)
def _select(inputs: Inputs, attrs: Attrs) -> Any:
    condition, then, other = inputs
    condition = reshaped(condition, ())
    sizes = [
        one if same_size(one, two) else _chosen(condition, one, two)
        for one, two in zip(dims_of(then), dims_of(other), strict=True)
    ]

    def compute(
        condition: te.Tensor, then: te.Tensor, other: te.Tensor, sizes: list[Expr]
    ) -> te.Tensor:
        # An element of the other branch may be outside of it, so it must not be read.
        return te.compute(
            sizes,
            lambda *place: tirx.if_then_else(condition(), then(*place), other(*place)),
            name="taken",
        )

    return emit_te(compute, condition, then, other, sizes, primfunc_name_hint="select_branch")


def _chosen(condition: Expr, one: Expr, two: Expr) -> tirx.Var:
    """One of two sizes."""

    def compute(condition: te.Tensor, sizes: list[Expr]) -> te.Tensor:
        one, two = (tirx.Cast(INDEX, size) for size in sizes)
        return te.compute((1,), lambda _: tirx.if_then_else(condition(), one, two), name="chosen")

    count = emit_te(compute, condition, [one, two], primfunc_name_hint="select_size")
    return size_in(count)


# NonZero and Compress: which elements are there is known when the model runs.
#
#     flags = [0, 1, 1, 0]    ->    places = [1, 2, ?, ?], count = [2]    ->    [1, 2]
#
# A kernel writes all places, at most as many as there are elements, and counts them. What is behind
# it is cut to the count.


@operator("NonZero")
def _nonzero(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    dims = dims_of(x)
    places, count = _places(copied(x, [product(dims)]), product(dims))

    def coordinates(places: te.Tensor, dims: list[Expr]) -> te.Tensor:
        def element(axis: Expr, number: Expr) -> Expr:
            found = index(0)
            for each, size in enumerate(dims):
                step = product(dims[each + 1 :])
                place = tirx.floormod(tirx.floordiv(places[number], _some(step)), _some(size))
                found = place if each == 0 else tirx.Select(axis == each, place, found)
            return found

        return te.compute((len(dims), count), element, name="coordinates")

    return emit_te(coordinates, places, dims, primfunc_name_hint="coordinates")


@operator("Compress")
def _compress(inputs: Inputs, attrs: Attrs) -> Any:
    """A condition that is shorter than the axis ends where it ends."""
    data, condition = inputs
    axis = attrs.get("axis")
    if axis is None:
        data, axis = copied(data, [product(dims_of(data))]), 0
    dims = dims_of(data)
    axis %= len(dims)
    extent = te.min(dims_of(condition)[0], dims[axis])
    places, count = _places(condition, extent)
    return pick(data, places, count, axis)


def _some(size: Expr) -> Expr:
    """A size to divide by, where there may be no elements."""
    return te.max(size, index(1))


def _places(flags: Expr, extent: Expr) -> tuple[Expr, Expr]:
    """Where the first `extent` elements of a vector are not zero, and how many are not."""

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (flags,), (places, count) = ins, outs
        put(count, index(0))
        with I.serial(extent) as i, I.If(_is_true(flags[i])), I.Then():
            put(places, i, count[0])
            put(count, count[0] + 1)

    results = [([extent], INDEX), ([1], INDEX)]
    places, count = emit_kernel("places", [flags], results, body)
    return places, size_in(count)


def _is_true(value: Expr) -> Expr:
    dtype = str(value.ty.dtype)
    if dtype == "bool":
        return value
    if "float" in dtype:  # all bits but the sign; TVM's comparison has no NaN differ from 0
        bits = f"uint{numpy_dtype(dtype).itemsize * 8}"
        value, dtype = reinterpret(bits, value) << tirx.const(1, bits), bits
    return value != tirx.const(0, dtype)


# Broadcasting of operands whose sizes depend on data.
#
# TVM types an operation on [n, 4] and [m, 4] only if it can prove that n = m. Where it cannot, the
# common size becomes a symbol of its own, which the program checks when it runs, and the operands
# are broadcast to it.


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


def check_product(left: Expr, right: Expr) -> None:
    """Has the program check that the factors of a product have as many terms."""
    before, behind = dims_of(left), dims_of(right)
    check_equal(before[-1], behind[0] if len(behind) == 1 else behind[-2])


def joined(values: Sequence[Any], axis: int) -> list[Any]:
    """The parts of a concatenation; the program checks that they agree in all axes but one."""
    shapes = [dims_of(value) for value in values]
    axis %= len(shapes[0])
    wanted = list(shapes[0])
    for place, sizes in enumerate(zip(*shapes, strict=False)):
        if place != axis:
            known = [size for size in sizes if isinstance(size, tirx.IntImm)]
            wanted[place] = known[0] if known else sizes[0]
            for size in sizes:
                check_equal(wanted[place], size)
    return [
        _known_to_be(value, [*wanted[:axis], shape[axis], *wanted[axis + 1 :]])
        for value, shape in zip(values, shapes, strict=True)
    ]


def _known_to_be(value: Expr, sizes: Sequence[Expr]) -> Expr:
    """A value with other sizes for its own, which the program has found to be equal."""
    shape = dims_of(value)
    pairs = zip(sizes, shape, strict=True)
    others = [size for size, own in pairs if not same_size(size, own)]
    # TVM would put a symbol in the place of itself, for ever.
    if not others or any(isinstance(size, tirx.Var) for size in others):
        return value
    return match_cast(value, relax.TensorType(list(sizes), value.ty.dtype))


def align(inputs: Sequence[Any]) -> list[Any]:
    """The operands, broadcast where TVM could not tell that their sizes fit."""
    if not any(is_open(value) for value in inputs):
        return list(inputs)
    shapes = [dims_of(value) for value in inputs]
    rank = max(map(len, shapes))
    padded = [[index(1)] * (rank - len(shape)) + shape for shape in shapes]
    common = [common_size(sizes) for sizes in zip(*padded, strict=True)]
    return [
        value if _fits(shape, common) else broadcast(value, common[rank - len(shape) :])
        for value, shape in zip(inputs, shapes, strict=True)
    ]


def _fits(shape: Sequence[Expr], common: Sequence[Expr]) -> bool:
    """Whether TVM can tell that each size is 1 or the common one of its dimension."""
    pairs = zip(shape, common[len(common) - len(shape) :], strict=True)
    return all(same_size(size, index(1)) or same_size(size, wanted) for size, wanted in pairs)


def common_size(sizes: Sequence[Expr]) -> Expr:
    """The size to which all of these are broadcast."""
    found = index(1)
    for size in sizes:
        if same_size(size, found) or same_size(size, index(1)):
            continue
        found = size if same_size(found, index(1)) else _checked(found, size)
    return found


def _checked(one: Expr, other: Expr) -> Expr:
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
    shape = emit(relax.ShapeExpr(choices))
    if length > MOST_CHOSEN:
        # By way of a tensor: TVM puts a choice in the place of the size wherever that stands, and a
        # choice among choices, of each layer behind the last, is twice as long as its own.
        length = 1
        shape = emit(relax.op.tensor_to_shape(emit(relax.op.shape_to_tensor(shape))))
    size: Expr = known[0] if known else new_size(length)
    match_cast(shape, relax.ShapeType([size, size]))
    return size


def _has_number(*sizes: Expr) -> bool:
    return any(isinstance(size, tirx.IntImm) for size in sizes)


def broadcast(value: Expr, common: Sequence[Expr]) -> Expr:
    """A value in these sizes, which its own ones fit, and which may be more."""
    shape = dims_of(value)
    missing = len(common) - len(shape)
    if not missing and all(map(same_size, shape, common)):
        return value

    # Where it is not known that sizes fit, `legalize_shapes` looks for sizes of 1.
    return normalize(relax.op.broadcast_to(value, relax.ShapeExpr(list(common))))
