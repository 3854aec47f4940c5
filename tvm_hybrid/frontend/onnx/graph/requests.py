"""Sizes that a tensor requests, such as Reshape's shape, and checks at run time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from microkernels.base.errors import OUT_OF_RANGE

from ....runtime.tensors import text_of
from ... import expressions
from ...expressions import (
    Attrs,
    Expr,
    Inputs,
    cast,
    constant,
    dtype_of,
    emit,
    literal,
    match_cast,
    normalize,
)
from . import kernels
from . import sizes as of_sizes
from .elements import known_elements
from .freeze_shapes import current_sizes, length_of, new_size
from .graph import describe, is_standard
from .kernels import put
from .sizes import dims_of, index, is_number, product, same_size, simplified


def requested_sizes(tensor: Expr, largest: Expr | None = None) -> list[Expr]:
    """The elements of a vector or scalar, as sizes.

    Unless they are known, the program checks that each is at least 0 and at most `largest`.
    """
    known = known_elements(tensor)
    if known is not None:
        sizes = [index(each) for each in known.ravel()]
        for size in sizes:
            check(size >= 0)
            if largest is not None:
                check(size <= largest)
        return sizes

    def resolve(asked: Expr, sizes: Expr, *limits: Expr) -> None:
        with I.serial(sizes.shape[0] - 1) as place:
            put(sizes, te.max(asked[place], 0), place + 1)
            wrong = asked[place] < 0
            for limit in limits:
                wrong = tirx.any(wrong, asked[place] > limit)
            with I.If(wrong), I.Then():
                put(sizes, index(0))

    return _checked_sizes(tensor, resolve, [] if largest is None else [largest])


def reshaped_sizes(data: Sequence[Expr], tensor: Expr, zero_copies: bool) -> list[Expr]:
    """The shape that a vector requests for data, with -1 and (if `zero_copies`) 0 resolved."""
    known = known_elements(tensor)
    if known is not None:
        sizes = [index(each) for each in known.ravel()]
        for place, size in enumerate(sizes):
            if zero_copies and is_number(size, 0) and place < len(data):
                sizes[place] = data[place]
        for place, size in enumerate(sizes):
            if is_number(size, -1):
                sizes[place] = _quotient(data, [*sizes[:place], *sizes[place + 1 :]])
        for size in sizes:
            check(size >= 0)
        return sizes

    def resolve(asked: Expr, sizes: Expr, *data: Expr) -> None:
        rest, extent, total = kernels.cell(), asked.shape[0], product(data)
        put(rest, index(1))
        for place in range(int(extent)):
            size = asked[place]
            if zero_copies and place < len(data):
                size = tirx.Select(tirx.EQ(size, index(0)), data[place], size)
            put(sizes, size, place + 1)
            with I.If(asked[place] != -1), I.Then():
                put(rest, rest[0] * sizes[place + 1])
        inferred = tirx.Select(rest[0] > 0, tirx.floordiv(total, te.max(rest[0], 1)), index(0))
        for place in range(int(extent)):
            with I.If(tirx.EQ(asked[place], index(-1))), I.Then():
                put(sizes, inferred, place + 1)
                put(rest, rest[0] * inferred)
            with I.If(sizes[place + 1] < 0), I.Then():
                put(sizes, index(0))
        with I.If(rest[0] != total), I.Then():
            put(sizes, index(0))

    return _checked_sizes(tensor, resolve, data)


def _quotient(sizes: Sequence[Expr], divisors: Sequence[Expr]) -> Expr:
    """The quotient of two products of sizes; common factors, which may be 0, cancel."""
    rest = [factor for size in sizes for factor in _factors(size)]
    left = []
    for divisor in (factor for size in divisors for factor in _factors(size)):
        same = next((i for i, each in enumerate(rest) if same_size(each, divisor)), None)
        if same is None:
            left.append(divisor)
        else:
            rest.pop(same)
    return simplified(tirx.floordiv(product(rest), te.max(product(left), index(1))))


def _factors(size: Expr) -> list[Expr]:
    return [*_factors(size.a), *_factors(size.b)] if isinstance(size, tirx.Mul) else [size]


def _checked_sizes(
    tensor: Expr, resolve: Callable[..., None], limits: Sequence[Expr]
) -> list[Expr]:
    """Computes sizes by a kernel that puts a 1, or 0 if the request makes no sense, before them."""
    (count,) = expressions.known_dims(tensor) or (1,)
    asked = emit(relax.op.reshape(cast(tensor, of_sizes.INDEX), (count,)))

    def body(asked: Expr, sizes: Expr, *limits: Expr) -> None:
        put(sizes, index(1))
        resolve(asked, sizes, *limits)

    (found,) = kernels.emit_kernel("sizes", [asked], [([count + 1], of_sizes.INDEX)], body, limits)
    return kernels.sizes_in(found)


MISFIT = "its sizes do not fit"


def check_equal(one: Expr, other: Expr, otherwise: str = MISFIT) -> None:
    """Makes the program check that two sizes are equal, unless that is known; see `check`."""
    if not same_size(simplified(one), simplified(other)):
        current_sizes().unite(one, other)
        check(tirx.EQ(one, other), otherwise)


def check_sizes(found: Sequence[Expr], wanted: Sequence[Expr], otherwise: str = MISFIT) -> None:
    """Makes the program check that sizes are equal in pairs; ValueError if their counts differ."""
    if len(found) != len(wanted):
        raise ValueError(otherwise)
    for one, other in zip(found, wanted, strict=True):
        check_equal(one, other, otherwise)


def check(condition: Expr, otherwise: str = MISFIT) -> None:
    """Makes the program check a condition of sizes, unless it is known to hold.

    Raises ValueError(otherwise) if the condition is known not to hold.

    The condition becomes 1 or 0 before the match cast: in a match cast of two sizes, TVM would
    replace the one by the other.
    """
    is_known = isinstance(condition, tirx.IntImm)
    flag = condition if is_known else simplified(tirx.Select(condition, index(1), index(0)))
    if is_number(flag, 0):
        raise ValueError(otherwise)
    if not is_number(flag, 1):
        match_cast(emit(relax.ShapeExpr([flag])), relax.ShapeType([1]))


def differ(one: Expr | int, other: Expr | int) -> bool:
    """Whether two sizes are known to differ."""
    return isinstance(one, int) and isinstance(other, int) and one != other


def expect_shape(what: str, value: Expr, *wanted: Expr | int) -> None:
    """Raises a ValueError if a value is known not to have the wanted shape."""
    found = of_sizes.plain_dims(value)
    if len(found) != len(wanted) or any(map(differ, found, wanted)):
        raise ValueError(
            f"{what} has the shape {sizes_text(found)}; the other inputs and the attributes ask "
            f"for {sizes_text(wanted)}"
        )


def sizes_text(sizes: Sequence[Expr | int]) -> str:
    """Sizes as text for messages, such as (2, n, 64)."""
    return f"({', '.join(str(text_of(size)) for size in sizes)}{',' if len(sizes) == 1 else ''})"


def viewed(value: Expr, *sizes: Expr | int) -> Expr:
    """Reshapes a value; the program checks that the number of elements is equal.

    A constant stays a constant.
    """
    array, numbers = constant(value), [size for size in sizes if isinstance(size, int)]
    if array is not None and len(numbers) == len(sizes):
        return literal(array.reshape(numbers))
    wanted, dims = [index(0) + size for size in sizes], dims_of(value)
    if len(wanted) == len(dims) and all(map(same_size, wanted, dims)):
        return value
    check_equal(product(wanted), product(dims))
    return kernels.reshaped_to(value, wanted)


# Broadcasting of operands with dynamic sizes.
#
# TVM types an operation on [n, 4] and [m, 4] only if it can prove that n = m. If it cannot, the
# common size becomes a new symbol, which the program checks at run time, and the operands are
# broadcast to it.


MOST_CHOSEN = 24
"""At most this many sizes are written out in a choice, which layouts and fusion pass through. TVM's
time grows fast: a choice of 26 sizes took 11 s, and minutes a few layers later."""


def check_product(left: Expr, right: Expr) -> None:
    """Makes the program check that the operands of a matrix product have equal depth."""
    before, behind = dims_of(left), dims_of(right)
    check_equal(before[-1], behind[0] if len(behind) == 1 else behind[-2])


def align(inputs: Sequence[Any]) -> list[Any]:
    """Broadcasts the operands whose sizes TVM could not prove to fit."""
    if not any(of_sizes.is_dynamic(value) for value in inputs):
        return list(inputs)
    shapes = [dims_of(value) for value in inputs]
    common = common_shape(shapes)
    found = []
    for value, shape in zip(inputs, shapes, strict=True):
        wanted = common[len(common) - len(shape) :]
        fits = (is_number(a, 1) or same_size(a, b) for a, b in zip(shape, wanted, strict=True))
        found.append(value if all(fits) else broadcast(value, wanted))
    return found


def common_shape(shapes: Sequence[list[Expr]]) -> list[Expr]:
    """The shape to which tensors of these shapes are broadcast."""
    rank = max(map(len, shapes))
    padded = ([index(1)] * (rank - len(shape)) + shape for shape in shapes)
    return [functools.reduce(_common, sizes) for sizes in zip(*padded, strict=True)]


def _common(one: Expr, other: Expr) -> Expr:
    """The size to which two sizes are broadcast; the program checks that they fit."""
    if is_number(other, 1) or same_size(one, other):
        return one
    if is_number(one, 1):
        return other
    known = [each for each in (one, other) if isinstance(each, tirx.IntImm)]
    if isinstance(one, tirx.Var) != isinstance(other, tirx.Var) and not known:
        # A mask of `total` keys meets `past + sequence` of them.
        current_sizes().unite(one, other)
    # A pair of sizes gives one common size, in whichever operator it occurs.
    return expressions.once(frozenset((str(one), str(other))), lambda: _chosen(one, other, *known))


def _chosen(one: Expr, other: Expr, known: Expr | None = None) -> Expr:
    """The one of two sizes that is not 1; as a new size, unless one of them is a number."""
    choices = [
        tirx.Select(tirx.EQ(one, index(1)), other, one),
        tirx.Select(tirx.EQ(other, index(1)), one, other),
    ]
    length = 2 * length_of(one, other)
    shape = emit(relax.ShapeExpr(choices))
    if length > MOST_CHOSEN:
        # Through a tensor: TVM would write out the choice wherever the size occurs, and the
        # choices of each layer would contain the choices of the layer before twice.
        length = 1
        shape = emit(relax.op.tensor_to_shape(emit(relax.op.shape_to_tensor(shape))))
    size = new_size(length) if known is None else known
    match_cast(shape, relax.ShapeType([size, size]))
    return size


def broadcast(value: Expr, common: Sequence[Expr]) -> Expr:
    """Broadcasts a value to sizes that its own sizes fit."""
    shape = dims_of(value)
    if len(shape) == len(common) and all(map(same_size, shape, common)):
        return value
    # If it is not known that sizes fit, `legalize.shapes` checks for sizes of 1 at run time.
    return normalize(relax.op.broadcast_to(value, relax.ShapeExpr(list(common))))


_ALONG_AXIS = {"Gather", "GatherElements", "Scatter", "ScatterElements"}
_BY_COORDINATES = {"GatherND", "ScatterND"}


def with_checked_indices(node: onnx.NodeProto, inputs: Inputs, attrs: Attrs) -> Inputs:
    """Makes the program check the indices of Gather, Scatter and the like.

        lv = check_indices(indices, n)      # a kernel: an error, or the indices as they are
        R.take(data, lv, axis=0)            # data: [n, 4]

    Without the check an index out of range is clipped (relay_passes/canonicalize/indices.py).
    Constant indices of static sizes are checked at import.

    Returns the node's inputs, with checked indices if it has indices.

    Raises
    ------
    ValueError
        A constant index is out of range.
    """
    if not is_standard(node) or node.op_type not in _ALONG_AXIS | _BY_COORDINATES:
        return inputs
    data, indices, *others = inputs
    sizes = dims_of(data)
    if node.op_type in _ALONG_AXIS:
        sizes = [sizes[attrs.get("axis", 0) % len(sizes)]]
    else:
        first, count = attrs.get("batch_dims", 0), dims_of(indices)[-1]
        if not isinstance(count, tirx.IntImm):
            raise ValueError("the number of coordinates depends on data")
        sizes = sizes[first : first + int(count)]
    known = [int(size) if isinstance(size, tirx.IntImm) else None for size in sizes]
    texts = ["-n to n - 1 (n: its size)" if n is None else f"{-n} to {n - 1}" for n in known]
    what = "indices" if len(sizes) == 1 else "coordinates"
    allowed = f"{what} of {node.input[0]!r} are {'; '.join(texts)}"
    message, values = f"{OUT_OF_RANGE}: {describe(node)}: {allowed}", constant(indices)
    if values is not None and None not in known:
        extents = np.array(known)
        if np.any(values < -extents) or np.any(values >= extents):
            raise ValueError(message)
        return inputs
    return Inputs([data, _checked(indices, sizes, message), *others])


def _checked(indices: Expr, sizes: Sequence[Expr], message: str) -> Expr:
    """Copies the indices by a kernel that raises an error at the first one out of range."""
    shape, columns = dims_of(indices), len(sizes)
    rows = product(shape[:-1] if columns > 1 else shape)
    flat = emit(relax.op.reshape(indices, relax.ShapeExpr([rows, columns])))

    def body(indices: Expr, checked: Expr, *sizes: Expr) -> None:
        with I.serial(indices.shape[0]) as row:
            for column, size in enumerate(sizes):
                place = tirx.Cast("int64", indices[row, column])
                inside = tirx.all(place >= tirx.const(0, "int64") - size, place < size)
                with I.Assert(inside, message, "ValueError"):
                    pass
                put(checked, indices[row, column], row, column)

    made = [([rows, columns], dtype_of(indices))]
    (found,) = kernels.emit_kernel("check_indices", [flat], made, body, list(sizes))
    return emit(relax.op.reshape(found, relax.ShapeExpr(shape)))
