"""Reads dynamic sizes off a kernel's arguments.

    A: float32[batch, sequence, 384]  ->  batch and sequence are variables of the buffer's shape,
                                          extent(batch * sequence) their product

Every distinct symbolic size of a parameter is a separate variable; a size such as n + 1 also gives
n. The kernel's loops get int32 values that TVM cannot look through: its analyzer takes minutes over
chains of // and %.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.base.errors import CompileError
from microkernels.vector.expressions import Expr, Index, cast, materialise

from .region import Region, Tensor
from .size import SymbolicSize, quotient


@dataclass
class _Scope:
    """Variables of the symbolic sizes in one function's parameters, and the values of the sizes."""

    variables: dict[SymbolicSize, tirx.Var] = field(default_factory=dict)
    values: dict[SymbolicSize, Expr] = field(default_factory=dict)


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.open: list[_Scope] = []


_scopes = _Scopes()


@contextmanager
def extent_scope() -> Iterator[None]:
    """The scope of one function under construction."""
    _scopes.open.append(_Scope())
    try:
        yield
    finally:
        _scopes.open.pop()


def buffer_shape(shape: Sequence[int]) -> tuple[Index, ...]:
    """The shape of a parameter, with a variable for each symbolic size that is new."""
    found: list[Index] = []
    for size in shape:
        if isinstance(size, SymbolicSize):
            variables = _scopes.open[-1].variables
            found.append(variables.setdefault(size, tirx.Var(f"n{len(variables)}", "int64")))
        else:
            found.append(size)
    return tuple(found)


def read_extents() -> None:
    """Emits the values of all symbolic sizes as int32; to be called after the last parameter."""
    scope = _scopes.open[-1]
    for size, variable in scope.variables.items():
        scope.values[size] = materialise(cast("int32", variable))


def extent(size: int) -> Index:
    """A size inside the function: a number as it is, a symbolic one as an int32 expression.

    Raises
    ------
    CompileError
        If a symbol does not follow from the parameters.
    """
    if not isinstance(size, SymbolicSize):
        return size
    return _value(size, _scopes.open[-1].values if _scopes.open else {})


def as_expr(size: Index) -> Expr:
    """A size as an int32 expression."""
    return tirx.const(size, "int32") if isinstance(size, int) else size


def allocated(size: int) -> Index:
    """A size as the extent of a buffer that the kernel allocates.

    TVM moves such a buffer to the beginning of the function, where only arguments are known.
    """
    if not isinstance(size, SymbolicSize):
        return size
    variables = _scopes.open[-1].variables.items()
    return _value(size, {known: cast("int32", variable) for known, variable in variables})


def _value(size: SymbolicSize, values: Mapping[SymbolicSize, Expr]) -> Expr:
    """Computes a size from its own known value, from that of a factor, or from its symbols."""
    if size in values:
        return values[size]
    alone = all(SymbolicSize.of(name) in values for name in size.symbols)
    for known, value in values.items():
        # A product of symbols may be known although the symbols are not.
        rest = quotient(size, known) if len(known.terms) > 1 or not alone else None
        if rest is not None:
            return value * (_value(rest, values) if isinstance(rest, SymbolicSize) else rest)
    total: Index = 0
    for product, count in size.terms.items():
        term: Index = count
        for name in product:
            single = _symbol(name, values)
            term = single if isinstance(term, int) and term == 1 else single * term
        total = term if isinstance(total, int) and total == 0 else total + term
    assert not isinstance(total, int)
    return total


def _symbol(name: str, values: Mapping[SymbolicSize, Expr]) -> Expr:
    """Computes one symbol from known values; CompileError if none of them gives it."""
    single = SymbolicSize.of(name)
    if single in values:
        return values[single]
    # A known sum less its other terms, over the symbol's factor.
    for known, value in values.items():
        others = {product: count for product, count in known.terms.items() if product != (name,)}
        are_known = {SymbolicSize.of(each) in values for product in others for each in product}
        count = known.terms.get((name,), 0)
        if count > 0 and are_known <= {True}:
            rest = sum((SymbolicSize({product: n}) for product, n in others.items()), start=0)
            part = value - _value(rest, values) if isinstance(rest, SymbolicSize) else value - rest
            return part if count == 1 else part // count
    # A known product over its other factors; 0 if one is 0, as nothing has elements then.
    for known, value in values.items():
        (product, count), *more = known.terms.items()
        factors = [each for each in product if each != name]
        if more or len(factors) != len(product) - 1:
            continue
        if all(SymbolicSize.of(each) in values for each in factors):
            for each in factors:
                other = tirx.Max(values[SymbolicSize.of(each)], tirx.const(1, "int32"))
                value = tirx.floordiv(value, other)
            return value if count == 1 else value // count
    raise CompileError(f"no argument gives the size {name}")


# Merges dimensions as far as a tensor and its operands still broadcast alike.
#
#     output (2, 128, 384), operands (2, 128, 384) and ()     ->  output (98304,)
#     output (2, 128, 384), operand (384,)                    ->  output (256, 384)
#     output (1, 64, 56, 56), operand (64, 1, 1)              ->  output (64, 3136), operand (64, 1)
#
# Neighbouring dimensions become one if every operand either has both or broadcasts over both.
# Memory does not change. An operand of which an "item" step reads a single element stays as it is.
# The attribute "row" gives a number of elements; dimensions are not merged across rows of that
# many.


def broadcasts(shape: Sequence[int], output: Sequence[int]) -> bool:
    """Whether a tensor broadcasts to the shape of an output."""
    if len(shape) > len(output):
        return False
    aligned = output[len(output) - len(shape) :]
    return all(extent in (1, full) for extent, full in zip(shape, aligned, strict=True))


def item_operands(region: Region) -> set[int]:
    """Numbers of the operands of which "item" steps read single elements."""
    return {step.args[0] - 1 for step in region.epilogue if step.op == "item"}


Merged = Callable[[Sequence[int]], tuple[int, ...]]


def _merging(region: Region, kept: int, row: object = None) -> tuple[Merged, list[Tensor]]:
    """Returns a function that merges dimensions before the last `kept`, but not across rows of
    `row` elements, and the operands with merged shapes."""
    output, listed = region.output.shape, item_operands(region)
    # Operands of which single elements are read stay as they are, as do scalars.
    padded = {
        number: (1,) * (len(output) - len(tensor.shape)) + tensor.shape
        for number, tensor in enumerate(region.operands)
        if number not in listed and tensor.shape
    }
    groups: list[list[int]] = []
    kinds: list[list[bool]] = []
    for axis, size in enumerate(output[: len(output) - kept]):
        if size == 1:
            continue
        kind = [shape[axis] == 1 for shape in padded.values()]
        if kinds and kinds[-1] == kind and (row is None or math.prod(output[axis:]) != row):
            groups[-1].append(axis)
        else:
            groups.append([axis])
            kinds.append(kind)

    def merged(shape: Sequence[int]) -> tuple[int, ...]:
        last = shape[len(shape) - kept :]
        return (*(math.prod(shape[axis] for axis in group) for group in groups), *last)

    operands = [
        Tensor(merged(padded[number]), tensor.dtype, tensor.constant)
        if number in padded
        else tensor
        for number, tensor in enumerate(region.operands)
    ]
    return merged, operands


def collapsed(region: Region) -> Region:
    """The region with as few dimensions as possible; its output has at least one.

    Parameters
    ----------
    region : Region
        Elementwise: its first input has the shape of the output, every operand broadcasts to it.
    """
    merged, operands = _merging(region, 0, region.attrs.get("row"))
    listed, x = item_operands(region), region.inputs[0]
    flat = merged(region.output.shape) or (1,)
    seen = (
        tensor
        if number in listed or tensor.size != 1
        else Tensor((), tensor.dtype, tensor.constant)
        for number, tensor in enumerate(operands)
    )
    return region.replace(
        inputs=(Tensor(flat, x.dtype, x.constant), *region.inputs[1:]),
        output=Tensor(flat, region.output.dtype),
        operands=tuple(seen),
    )


# A region as a matrix: leading dimensions that all operands share alike become one.
#
#     [batch, sequence, 384] + [384]            ->  rows of 384, batch * sequence of them
#     [batch, sequence, 384] + [sequence, 384]  ->  [batch, sequence, 384], as it is
#
# An operand of which an "item" step reads a single element stays as it is. Memory does not change.
# The kernel's parameters keep their shapes; `flat_view` declares other views of them.


def flat_rows(region: Region, kept: int = 1) -> Region:
    """The region with as few leading dimensions of its output and operands as possible.

    The last `kept` dimensions stay. Its inputs are left as they are.
    """
    merged, operands = _merging(region, kept)
    output = Tensor(merged(region.output.shape), region.output.dtype)
    return region.replace(output=output, operands=tuple(operands))


def flat_operands(region: Region, operands: Sequence[Expr]) -> tuple[Region, list[Expr]]:
    """`flat_rows` of a region, and its operands' parameters in the shapes that it has."""
    seen = flat_rows(region)
    return seen, operand_views(operands, region, seen)


def as_matrix(tensor: Tensor) -> Tensor:
    """A tensor with all leading dimensions as one."""
    rows = math.prod(tensor.shape[:-1])
    return Tensor((rows, tensor.shape[-1]), tensor.dtype, tensor.constant)


def dynamic_view(region: Region) -> Region:
    """The region with A as a matrix, and its output with as few dimensions as possible."""
    a, *further = region.inputs
    return flat_rows(region).replace(inputs=(as_matrix(a), *further))


def matrix_view(
    region: Region, a: Expr, operands: Sequence[Expr], c: Expr
) -> tuple[Region, Expr, list[Expr], Expr]:
    """Reads sizes; returns `dynamic_view` of a region, and A, operands and result in its shapes."""
    read_extents()
    seen = dynamic_view(region)
    a = flat_view(a, region.inputs[0], seen.inputs[0])
    c = flat_view(c, region.output, as_matrix(region.output))
    return seen, a, operand_views(operands, region, seen), c


def row_itself(row: Expr) -> list[Expr]:
    """The leading indices of a row of a matrix: the row itself."""
    return [row]


def flat_view(buffer: Expr, tensor: Tensor, seen: Tensor) -> Expr:
    """A parameter in the shape of another tensor of equally many elements."""
    return reshaped(buffer, tensor, seen.shape)


def reshaped(buffer: Expr, tensor: Tensor, shape: Sequence[int]) -> Expr:
    """A parameter in another shape of equally many elements."""
    if tensor.shape == shape:
        return buffer
    align = max(1, DataType(tensor.dtype).itemsize)
    return I.decl_buffer([*map(extent, shape)], tensor.dtype, data=buffer.data, align=align)


def as_elements(buffer: Expr, tensor: Tensor) -> Expr:
    """A parameter as a vector of its elements."""
    return reshaped(buffer, tensor, (tensor.size,))


def operand_views(operands: Sequence[Expr], region: Region, seen: Region) -> list[Expr]:
    """The parameters of a region's operands, in their shapes in another view of the region."""
    return list(map(flat_view, operands, region.operands, seen.operands))


# Distances of rows for tile loads: none at which lines evict each other.
#
# L1 has 64 sets of lines. Rows that are 2048 bytes apart lie in two of them, and rows 4096 bytes
# apart in one: 16 rows of a tile are more than the 12 lines that a set holds.


_CROWDED = 2048
_LINE = 64  # bytes
# oneDNN copies A (brgemm matmul, `use_buffer_a`) if K is a power of two from 4096 bytes on and
# there are that many rows. A copy pays only for that many columns.
_FAR, _MANY_ROWS, _MANY_COLUMNS = 4096, 1024, 512


def uncrowded(elements: int, item: int) -> int:
    """A distance of rows in a buffer of ours: a line more if the rows would share few sets.

    >>> uncrowded(4096, 1), uncrowded(4032, 1), uncrowded(1024, 2)
    (4160, 4032, 1056)
    """
    return elements + _LINE // item * (elements * item % _CROWDED == 0)


def worth_copying(pitch: int, item: int, rows: int, columns: int) -> bool:
    """Whether rows of A are copied to another distance before tiles load them.

    Parameters
    ----------
    pitch, item : int
        Elements from one row to the next, and bytes of one.
    rows, columns : int
        Size of the product.
    """
    many = rows >= _MANY_ROWS and columns >= _MANY_COLUMNS
    return many and pitch * item % _FAR == 0
