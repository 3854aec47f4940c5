"""Placement: where the elements of a tensor lie in a larger tensor that contains it.

    concat of [56, 56, 64] and [56, 56, 32] along the last axis, second part:
        extents (3136, 32), strides (96, 1), offset 64

The flat index of the part is split into digits, coarse to fine; `extents` are their ranges,
`strides` their distances in memory. A shape with equally many elements fits the same placement if
its axes divide the digits. The coarsest digit may be symbolic: a dynamic number of rows.

    concat of [n, 56, 64] and [n, 56, 32] along the last axis, second part:
        extents (n * 56, 32), strides (96, 1), offset 64
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.vector.expressions import Expr, Index, materialise, parameter
from microkernels.vector.memory import ARRIVAL_LLVM_IR, count_arrival

from .emission import opaque_block, task_loop
from .extents import buffer_shape
from .region import Tensor
from .size import SymbolicSize, is_dynamic, quotient


@dataclass(frozen=True)
class Placement:
    """Where a tensor lies.

    Attributes
    ----------
    extents, strides : tuple of int
        Digits of the flat index, coarse to fine, and the distance of their values in memory.
    offset : int
        Position of element 0.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def whole(size: int) -> Placement:
        """The placement of a tensor that is not part of another one."""
        return Placement((size,), (1,))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.extents)

    def strides_of(self, shape: Sequence[Any]) -> tuple[Any, ...] | None:
        """Distances along the axes of a tensor of this shape; None if they are not constant.

        If the coarsest digit is symbolic, extents and distances may be expressions, and the number
        of elements is not checked.
        """
        is_rows = is_dynamic(self.extents)
        known = all(map(_is_known, shape))
        if known == is_rows or (known and math.prod(shape) != self.size):
            return None
        digits = list(zip(self.extents, self.strides, strict=True))
        found: list[Any] = []
        for extent in reversed(shape):
            size, stride = digits.pop() if digits else (1, 1)
            while not _divides(extent, size) and digits and digits[-1][1] == size * stride:
                size = size * digits.pop()[0]  # the next digit continues this one
            if not _divides(extent, size):
                return None
            found.append(stride)
            if isinstance(size, SymbolicSize):
                digits.append((size, stride * extent))  # all coarser axes are within it
            elif size > extent:
                digits.append((size // extent, stride * extent))
        return tuple(found[::-1]) if len(digits) == is_rows else None

    def part(self, row: int, first: int, size: int) -> Placement | None:
        """Columns `first` to `first + size` of every row of `row` elements.

        Returns None if a row is not contiguous.
        """
        digits = list(zip(self.extents, self.strides, strict=True))
        piece, stride = digits.pop()
        while quotient(piece, row) is None and digits and digits[-1][1] == piece * stride:
            piece = piece * digits.pop()[0]
        rows = quotient(piece, row)
        if stride != 1 or rows is None or is_dynamic((row, size)):
            return None
        digits += [(rows, row), (size, 1)]
        kept = [digit for digit in digits if digit[0] != 1] or [(1, 1)]
        extents, strides = zip(*kept, strict=True)
        return Placement(extents, strides, self.offset + first)


def _is_known(extent: Any) -> bool:
    """Whether an extent is a number."""
    return isinstance(extent, int) and not isinstance(extent, SymbolicSize)


def _divides(extent: Any, size: int) -> bool:
    """Whether an axis is a part of a digit, or of the symbolic one, which has all coarser axes."""
    return isinstance(size, SymbolicSize) or (_is_known(extent) and size % extent == 0)


# Claims: threads take the pieces of work at run time, one after the other, not beforehand.
#
# Each thread takes the pieces of its own share, in order. Then it takes pieces of its neighbours'
# shares that nobody has begun, so that a thread that is slower for a while, or wakes late, holds
# nobody up. If all threads are equally fast, each works on the same memory at every call.
#
# The idea is work stealing (Blumofe and Leiserson, JACM 46(5), 1999), with one counter for a share
# in place of a deque, and neighbours in place of victims at random: cores next to each other often
# share a cache.


MOST_SHARES = 4
"""Shares from which one thread takes pieces, its own one included."""
_LINE = 16  # int32 of a cache line; each counter has its own


@dataclass(frozen=True)
class Claims:
    """The pieces of one share that are not taken yet.

    Attributes
    ----------
    counters : Buffer
        Number of pieces taken, for each share.
    share : Expr
        The number of this share.
    """

    counters: Expr
    share: Expr

    def each(self, pieces: Expr, body: Callable[[Expr], None]) -> None:
        """Runs `body(number)` for those of `pieces` pieces that this thread takes."""
        counter = self.counters[self.share * _LINE]
        with I.serial(pieces), opaque_block("claim"), I.If(counter < pieces), I.Then():
            number = materialise(count_arrival(counter))
            with I.If(number < pieces), I.Then(), opaque_block("claimed"):
                body(number)


@contextmanager
def claimed_shares(shares: int, alone: Expr | None = None) -> Iterator[tuple[Expr, Claims]]:
    """The loop over tasks and, in each, over the shares of its pieces: yields (task, claims).

    `alone` is that of `task_loop`.
    """
    with opaque_block("shares"):
        counters = I.sblock_alloc_buffer((shares * _LINE,), "int32", align=64)
        with I.serial(shares) as each:
            I.buffer_store(counters, tirx.const(0, "int32"), [each * _LINE])
        with (
            task_loop(shares, alone=alone) as task,
            llvm_functions(ARRIVAL_LLVM_IR),
            I.serial(min(shares, MOST_SHARES)) as next_one,
            opaque_block("share"),
        ):
            share = materialise(I.floormod(task + next_one, shares))
            yield task, Claims(counters, share)


def cache_parameter(name: str, tensor: Tensor) -> tuple[Expr, int]:
    """A parameter for keys or values in a tensor that may have room for more rows.

        cache: float32[batch, heads, rows, columns]     strides (any, S, columns, 1)

    A head's rows are contiguous, and heads, across all batches, are S elements apart: `rows *
    columns`, or more if the tensor is the first rows of each head of a larger one.

    Returns the parameter of the function under construction, and S: a symbol for several heads.
    """
    *leading, rows, columns = tensor.shape
    shape = buffer_shape(tensor.shape)
    # The stride of a dimension of one element means nothing.
    moving = [axis for axis, size in enumerate(leading) if size != 1]
    if not moving:
        return parameter(name, shape, tensor.dtype), rows * columns
    distance = SymbolicSize.of(f"distance of heads of {name}")
    strides: list[Index] = [
        tirx.Var(f"{name}_stride{axis}", "int64") for axis in range(len(leading))
    ]
    (strides[moving[-1]],) = buffer_shape([distance])
    return parameter(name, shape, tensor.dtype, [*strides, columns, 1]), distance
