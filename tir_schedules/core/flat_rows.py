"""A region as a matrix: leading dimensions that all operands share alike become one.

    [batch, sequence, 384] + [384]            ->  rows of 384, batch * sequence of them
    [batch, sequence, 384] + [sequence, 384]  ->  [batch, sequence, 384], as it is

An operand of which an "item" step reads a single element stays as it is.
Memory does not change. The kernel's parameters keep their shapes; `flat_view` sees them otherwise.
"""

from __future__ import annotations

import math

import tvm.tirx.script.builder.ir as I
from tvm import DataType

from microkernels.vector.expressions import Expr

from .collapse import item_operands
from .extents import extent
from .region import Region, Tensor


def flat_rows(region: Region, kept: int = 1) -> Region:
    """The region with as few leading dimensions of its output and operands as possible.

    The last `kept` dimensions stay. Its inputs are left as they are.
    """
    output = region.output.shape
    listed = item_operands(region)
    padded = {
        number: (1,) * (len(output) - len(tensor.shape)) + tensor.shape
        for number, tensor in enumerate(region.operands)
        if number not in listed and tensor.shape
    }
    groups: list[list[int]] = []
    kinds: list[list[bool]] = []
    for axis, size in enumerate(output[:-kept]):
        if size == 1:
            continue
        kind = [shape[axis] == 1 for shape in padded.values()]
        if kinds and kinds[-1] == kind:
            groups[-1].append(axis)
        else:
            groups.append([axis])
            kinds.append(kind)

    def merged(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*(math.prod(shape[axis] for axis in group) for group in groups), *shape[-kept:])

    operands = [
        Tensor(merged(padded[number]), tensor.dtype, tensor.constant)
        if number in padded
        else tensor
        for number, tensor in enumerate(region.operands)
    ]
    return region.replace(
        output=Tensor(merged(output), region.output.dtype), operands=tuple(operands)
    )


def as_matrix(tensor: Tensor) -> Tensor:
    """A tensor with all leading dimensions as one."""
    rows = math.prod(tensor.shape[:-1])
    return Tensor((rows, tensor.shape[-1]), tensor.dtype, tensor.constant)


def as_vector(tensor: Tensor) -> Tensor:
    """A tensor with all dimensions as one."""
    return Tensor((math.prod(tensor.shape),), tensor.dtype, tensor.constant)


def open_view(region: Region) -> Region:
    """The region with A as a matrix, and its output with as few dimensions as possible."""
    a, *further = region.inputs
    return flat_rows(region).replace(inputs=(as_matrix(a), *further))


def row_itself(row: Expr) -> list[Expr]:
    """The leading indices of a row of what is seen as a matrix."""
    return [row]


def flat_view(buffer: Expr, tensor: Tensor, seen: Tensor) -> Expr:
    """A parameter under the shape of another tensor of as many elements."""
    if tensor.shape == seen.shape:
        return buffer
    shape = [extent(size) for size in seen.shape]
    align = max(1, DataType(tensor.dtype).itemsize)
    return I.decl_buffer(shape, tensor.dtype, data=buffer.data, align=align)
