"""Which threads take which rows of products whose second operand is packed while they run.

    packed by every task     packing is repeated for every share of the rows
    packed first             all threads pack, then fork again; others read what they have packed

Both read an operand that other cores have just written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from microkernels.machines.machine import Machine

from .parallel import (
    MEASURED_THREADS,
    even_enough,
    fewest_unless_uneven,
    halves,
    threads_worth,
)

# Cycles in which a vector of an operand is packed: 4 (Zen 4), 4 to 12 (Granite Rapids), measured.
PACK_CYCLES = 4.0
MOST_TASKS = 4  # shares of one product for each thread; more are no more even


@dataclass(frozen=True, kw_only=True)
class PackedWork:
    """Products that share second operands.

    Attributes
    ----------
    operands : int
        Second operands.
    members : int
        Products that share each.
    rows : int
        Of each product.
    unit : int
        Rows of a tile, which takes its time however few of them are used.
    row_us : float
        Microseconds of a row.
    stored, packed : int
        Bytes of one operand as it is read and as it is packed.
    """

    operands: int
    members: int
    rows: int
    unit: int
    row_us: float
    stored: int
    packed: int


@dataclass(frozen=True)
class PackedShares:
    """How the work is cut.

    Attributes
    ----------
    threads : int
        That take part.
    row_shares : int
        Shares of the rows of each product.
    packs_first : bool
        Whether all operands are packed before the first product.
    """

    threads: int = 1
    row_shares: int = 1
    packs_first: bool = False

    def fields(self, machine: Machine) -> dict[str, Any]:
        """As fields of a configuration that is not serial."""
        return {
            "row_shares": self.row_shares,
            "packs_first": self.packs_first,
            "parallel": True,
            "threads": 0 if self.threads == machine.threads else self.threads,
        }


def share_packed_work(work: PackedWork, machine: Machine, alone_us: float) -> PackedShares:
    """The shares that end soonest.

    Parameters
    ----------
    work : PackedWork
        What is to be done.
    machine : Machine
        Its threads are the most that are tried.
    alone_us : float
        Microseconds of one thread, without packing; too few are not shared.
    """
    if threads_worth(machine, alone_us) == 1:
        return PackedShares()
    found = [
        PackedShares(threads, row_shares, packs_first)
        for threads in halves(machine.threads)
        for packs_first in ((False, True) if threads > MEASURED_THREADS else (False,))
        for row_shares in _shares_of_each_height(work, MOST_TASKS * threads)
    ]
    rows = work.operands * work.members * work.rows

    def is_even(shares: PackedShares) -> bool:
        return even_enough(machine, rows * work.row_us, _largest_share(work, shares) / rows)

    return fewest_unless_uneven(found, lambda shares: estimated_us(work, shares, machine), is_even)


def _shares_of_each_height(work: PackedWork, most: int) -> Iterator[int]:
    """The fewest shares, up to `most`, for every number of tiles that the highest may have."""
    tiles = math.ceil(work.rows / work.unit)
    parts = 1
    while parts <= most:
        yield parts
        height = math.ceil(tiles / parts) - 1
        if height == 0:
            return
        parts = math.ceil(tiles / height)


def estimated_us(work: PackedWork, shares: PackedShares, machine: Machine) -> float:
    """Microseconds until the last thread has ended."""
    threads, parts = shares.threads, shares.row_shares
    vectors = work.packed / (4 * machine.isa.f32_lanes)
    packing = vectors * PACK_CYCLES / machine.cycles_per_us
    # What a thread has not written itself.
    foreign = (1 - 1 / threads) / machine.foreign_rate
    fork, of_one = machine.fork_us(threads), work.members * parts
    products = _largest_share(work, shares) * work.row_us
    if not shares.packs_first:
        tasks = math.ceil(work.operands * parts / threads)
        return (
            fork + products + tasks * packing + _operands_read(tasks, parts) * work.stored * foreign
        )
    tasks = math.ceil(work.operands * of_one / threads)
    packing = work.operands / threads * (packing + work.stored * foreign)
    read = _operands_read(tasks, of_one) * work.packed * foreign
    return 2 * fork + packing + products + read


def _largest_share(work: PackedWork, shares: PackedShares) -> int:
    """Rows of the busiest thread, whole tiles."""
    tiles = math.ceil(work.rows / work.unit)
    height = min(work.rows, math.ceil(tiles / shares.row_shares) * work.unit)
    # A task that packs for itself takes the rows of all products with an operand.
    apart, together = work.operands, work.members
    if shares.packs_first:
        apart, together = apart * together, 1
    return math.ceil(apart * shares.row_shares / shares.threads) * height * together


def _operands_read(tasks: int, of_one: int) -> int:
    """How many operands consecutive tasks read at most, of which so many share one."""
    return min(tasks, math.ceil(tasks / of_one) + (of_one % tasks != 0 and tasks % of_one != 0))
