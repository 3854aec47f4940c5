"""Thread parts: which threads run which of several independent kernels, chosen by estimates.

    shares_of([30, 10, 2, 2], threads=8)  ->  5 threads run kernel 0, 2 kernel 1, 1 kernels 2 and 3

Kernels that share threads run in turn, each on all threads of the share. Nothing waits in between,
as no kernel reads what another wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Some threads, and the kernels that they run.

    Attributes
    ----------
    kernels : tuple of int
        Their numbers, in the order in which they run.
    threads : int
        Each kernel is shared by so many.
    """

    kernels: tuple[int, ...]
    threads: int = 1


def assign(times: Sequence[float], threads: int) -> tuple[Share, ...]:
    """One thread for each share: longest first, to the thread that is free first.

    Graham, Bounds on Multiprocessing Timing Anomalies, 1969.

    >>> [share.kernels for share in assign([1.0, 3.0, 2.0], 2)]
    [(1,), (2, 0)]
    """
    shares: list[list[int]] = [[] for _ in range(min(threads, len(times)))]
    busy = [0.0] * len(shares)
    for number in sorted(range(len(times)), key=lambda number: (-times[number], number)):
        free = busy.index(min(busy))
        shares[free].append(number)
        busy[free] += times[number]
    return tuple(Share(tuple(share)) for share in shares)


def shares_of(
    times: Sequence[float], most: Sequence[int], threads: int, fork_us: Callable[[int], float]
) -> tuple[Share, ...]:
    """The shares that end soonest, the fork of their threads counted.

    Parameters
    ----------
    times : sequence of float
        Microseconds that each kernel takes one thread.
    most : sequence of int
        Threads that can share each kernel.
    threads : int
        How many there are.
    fork_us : callable
        Threads -> microseconds to fork and to join them.
    """
    ways = []
    for count in range(1, min(threads, len(times)) + 1):
        ways += _grown(assign(times, count), times, most, threads)
    return min(ways, key=lambda way: longest(way, times, most) + fork_us(threads_of(way)))


def threads_of(shares: Sequence[Share]) -> int:
    """All threads of some shares."""
    return sum(share.threads for share in shares)


def threads_for(shares: Sequence[Share], kernel: int) -> int:
    """How many threads run a kernel."""
    return next(share.threads for share in shares if kernel in share.kernels)


def longest(shares: Sequence[Share], times: Sequence[float], most: Sequence[int]) -> float:
    """Microseconds until the last share ends, where threads share each kernel equally."""
    return max(_us(share, share.threads, times, most) for share in shares)


def _us(share: Share, threads: int, times: Sequence[float], most: Sequence[int]) -> float:
    return sum(times[number] / min(threads, most[number]) for number in share.kernels)


def _grown(
    shares: Sequence[Share], times: Sequence[float], most: Sequence[int], threads: int
) -> list[tuple[Share, ...]]:
    """The shares, and after each further thread, which goes to the share that ends last."""
    ways = [tuple(shares)]
    while threads_of(ways[-1]) < threads:
        latest = list(ways[-1])
        at = max(range(len(latest)), key=lambda i: _us(latest[i], latest[i].threads, times, most))
        kernels, more = latest[at].kernels, latest[at].threads + 1
        if more > max(most[number] for number in kernels):
            break
        latest[at] = Share(kernels, more)
        ways.append(tuple(latest))
    return ways
