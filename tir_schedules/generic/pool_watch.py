"""Detects a NaN in the columns of a pool, so that it may use x86's maximum, which loses some NaNs.

for k that counts:
    accumulator[m] = max(accumulator[m], x[i + k - 1, j + m - 1, c])    # a new NaN is kept
    watch += 1 + accumulator[0] * accumulator[1] + accumulator[2] * accumulator[3] + ...
if the watch is NaN: compute all again, with maxima that keep a NaN

One FMA for two elements takes less than any maximum that keeps a NaN. Infinities may cause a false
alarm, which costs only time. The 1 keeps products of small numbers from becoming subnormal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import tirx

from microkernels.vector.expressions import Expr, like, reinterpret

from .expressions import int64, ramp_at, shuffle
from .loops import sequence, vectorized

WATCHED = {"float32": "int32", "float64": "int64"}
"""Types that are watched, and integers of their width."""


class Watch:
    """One vector for each vector of channels.

    Parameters
    ----------
    dtype : str
        A key of `WATCHED`.
    widths : sequence of int
        Lanes of each vector of channels.
    """

    def __init__(self, dtype: str, widths: Sequence[int]) -> None:
        self.dtype, self.widths = dtype, widths
        self.buffers = [tirx.decl_buffer((int64(width),), dtype, "watch") for width in widths]

    def begin(self) -> list[tirx.Stmt]:
        """Allocates and clears."""
        found: list[tirx.Stmt] = [tirx.AllocBuffer(buffer) for buffer in self.buffers]
        for buffer, width in zip(self.buffers, self.widths, strict=True):
            found.append(self._store(buffer, width, lambda _lane: tirx.const(0.0, self.dtype)))
        return found

    def note(self, piece: int, columns: tirx.Buffer, count: int) -> tirx.Stmt:
        """Looks at `count` vectors that were just updated."""
        buffer, width = self.buffers[piece], self.widths[piece]

        def seen(lane: Expr) -> Expr:
            values = [tirx.BufferLoad(columns, [int64(n * width) + lane]) for n in range(count)]
            total = like(1.0, values[0])
            for number in range(0, count, 2):
                total = values[number] * values[min(number + 1, count - 1)] + total
            return tirx.BufferLoad(buffer, [lane]) + total

        return self._store(buffer, width, seen)

    def repeat_if_alarmed(self, again: tirx.Stmt) -> tirx.Stmt:
        """Runs a statement if there was a NaN."""
        statements: list[tirx.Stmt] = []

        def named(value: Expr) -> tirx.Var:
            variable = tirx.Var("watched", str(value.ty.dtype))
            statements.append(tirx.Bind(variable, value))
            return variable

        total: Expr = tirx.const(0.0, self.dtype)
        for buffer, width in zip(self.buffers, self.widths, strict=True):
            index = ramp_at(int64(0), width) if width > 1 else int64(0)
            value = named(tirx.BufferLoad(buffer, [index]))
            while width > 1:
                width //= 2
                halves = [shuffle([value], range(at, at + width)) for at in (0, width)]
                value = named(halves[0] + halves[1])
            total = named(total + value)
        # In integers: TVM takes x == x for true, and its x != y is false for a NaN.
        bits = reinterpret(WATCHED[self.dtype], total)
        infinity = int(np.array(np.inf, self.dtype).view(WATCHED[self.dtype]))
        magnitude = tirx.bitwise_and(bits, like(np.iinfo(WATCHED[self.dtype]).max, bits))
        statements.append(tirx.IfThenElse(magnitude > like(infinity, bits), again, None))
        return sequence(statements)

    def _store(self, buffer: tirx.Buffer, width: int, value: Callable[[Expr], Expr]) -> tirx.Stmt:
        return vectorized(width, lambda lane: tirx.BufferStore(buffer, value(lane), [lane]))
