"""Claims: shares of work in pieces, which threads take one after the other, not beforehand.

Each thread takes the pieces of its own share, in order. Then it takes those that its neighbours
have not begun, so that a thread that is slower for a while, or wakes late, holds nobody up. While
all are as fast, each thread works on the same memory at every call.

The idea is work stealing (Blumofe and Leiserson, JACM 46(5), 1999), with one counter for a share
in place of a deque, and neighbours in place of victims at random: cores next to each other often
share a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.vector.arrival import ARRIVAL_LLVM_IR, count_arrival
from microkernels.vector.expressions import Expr, materialise

from .emission import opaque_block, task_loop

MOST_SHARES = 4
"""Shares that one thread takes pieces of, its own among them."""
_LINE = 16  # int32 of a cache line; each counter has its own


@dataclass(frozen=True)
class Claims:
    """The pieces of one share that are not taken yet.

    Attributes
    ----------
    counters : Buffer
        How many pieces of each share were taken.
    share : Expr
        Which of them it is.
    """

    counters: Expr
    share: Expr

    def each(self, pieces: Expr, body: Callable[[Expr], None]) -> None:
        """Runs `body(number)` for those of `pieces` pieces that nobody else takes."""
        counter = self.counters[self.share * _LINE]
        with I.serial(pieces), opaque_block("claim"), I.If(counter < pieces), I.Then():
            number = materialise(count_arrival(counter))
            with I.If(number < pieces), I.Then(), opaque_block("claimed"):
                body(number)


@contextmanager
def claimed_shares(shares: int, alone: Expr | None = None) -> Iterator[tuple[Expr, Claims]]:
    """(task, claims): the loop over tasks, and in each over the shares that it takes pieces of.

    `alone` as of `task_loop`.
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
