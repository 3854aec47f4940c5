"""The limits of this machine: operations per second by type, bytes per second from memory.

Both together are a roofline (Williams, Waterman, Patterson: CACM 52(4), 2009): a kernel that does
i operations for every byte of its tensors is no faster than min(peak, i * bandwidth).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import all_microkernels

from ..targets.resolve import host_target
from .kernel_speed import measure_kernels, runs_here, types_of

# Tiles of the highest instruction set that are measured to find a peak; the largest come near it.
TILES_FOR_PEAK = 3
LEAST_COPY, LARGEST_COPY = 64 << 20, 256 << 20
COPIES = 5


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of some threads.

    Attributes
    ----------
    threads : int
        How many; each on a core of its own.
    peaks : dict
        1e9 operations a second of all threads, by type of the products' first operand.
    bandwidth : float
        1e9 bytes a second, read and written, that copying memory reaches.
    """

    threads: int
    peaks: dict[str, float]
    bandwidth: float

    def limit(self, dtype: str, intensity: float) -> float:
        """1e9 operations a second that are possible with so many operations for each byte.

        Of a type that was not measured, what the bandwidth allows.
        """
        return min(self.peaks.get(dtype, math.inf), intensity * self.bandwidth)


def measure_roof(dtypes: Sequence[str], threads: int) -> Roof:
    """Measures this machine; takes some seconds.

    Parameters
    ----------
    dtypes : sequence of str
        As for `peak_gops`; one that no microkernel of this CPU takes is left out.
    threads : int
        How many work at a time; the peak of one is multiplied, the bandwidth measured with all.
    """
    peaks = {dtype: peak_gops(dtype) * threads for dtype in dict.fromkeys(dtypes) if _here(dtype)}
    return Roof(threads=threads, peaks=peaks, bandwidth=_copy_bandwidth(threads))


def peak_gops(dtype: str) -> float:
    """1e9 operations a second of one thread by products whose first operand is of a type.

    Measured as `kernel_speed` does; a multiplication and an addition are two.

    Parameters
    ----------
    dtype : {"float32", "bfloat16", "uint8"}
    """
    here = _here(dtype)
    highest = max(here, key=lambda kernel: kernel.isa.level).isa
    largest = sorted((kernel for kernel in here if kernel.isa == highest), key=_area)
    report = measure_kernels(largest[-TILES_FOR_PEAK:])
    return report.peaks[types_of(largest[-1])]


def _here(dtype: str) -> list[Microkernel]:
    """The microkernels that this CPU runs on operands of a type."""
    return [one for one in all_microkernels() if one.a_dtype == dtype and runs_here(one)]


def _area(kernel: Microkernel) -> int:
    return kernel.mr * kernel.nr


def _copy_bandwidth(threads: int) -> float:
    """1e9 bytes a second read and written while arrays larger than all caches are copied."""
    beyond_caches = 4 * Machine.from_target(host_target()).l3_bytes
    size = min(max(beyond_caches, LEAST_COPY), LARGEST_COPY) // threads
    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(threads)]
    # Alone, a thread is timed by its own CPU time, which other processes do not disturb.
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = math.inf
    with ThreadPoolExecutor(threads) as pool:  # numpy copies without holding the interpreter
        copy_all = map if threads == 1 else pool.map
        for _ in range(COPIES):
            start = clock()
            list(copy_all(_copy, pairs))
            best = min(best, clock() - start)
    return 2 * size * threads / best / 1e9


def _copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
    np.copyto(pair[1], pair[0])
