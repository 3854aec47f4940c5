"""Speed of every microkernel on this machine, as a share of the machine's peak.

A microkernel is run on operands that stay in the first-level cache. The peak of a pair of types is
measured, too: the fastest of all its tiles with the weight in registers, so that only the
multiplications count (AMX still loads the weight, but always the same tiles). Tiles take turns, and
the median of their times counts, because CPU time has outliers in both directions.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import tvm
import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.errors import CompileError
from microkernels.base.logs import logger
from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.isa import LADDER, allowed_on_host, emulated_on_host
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import all_microkernels
from microkernels.tile import Address, Place
from microkernels.vector.expressions import Expr, parameter, ramp

from ..targets.resolve import cpu_name, host_target
from .timing import interleave, markdown_table, time_calls

# Operations of one measured call: a millisecond on vectors, and on tiles long enough that calling
# and configuring do not count.
OPERATIONS = 2e8
# The stored form of 1 in every operand type.
_ONE = {"float32": ("float32", 1), "bfloat16": ("uint16", 0x3F80)}


class KernelSpeed(msgspec.Struct, frozen=True):
    """The speed of one microkernel.

    Attributes
    ----------
    name : str
        The microkernel.
    isa : str
        Its instruction set.
    types : str
        Its operands and accumulators, such as "uint8 x int8 -> int32".
    tile : str
        Rows x columns.
    gops : float
        1e9 operations a second, where a multiply-add counts two.
    share : float
        `gops` over the peak of these types on this machine.
    """

    name: str
    isa: str
    types: str
    tile: str
    gops: float
    share: float


class KernelReport(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of this machine's microkernels, and its peaks (1e9 operations a second) by types."""

    cpu: str
    peaks: dict[str, float]
    kernels: list[KernelSpeed]
    left_out: list[str]


@dataclass(frozen=True)
class _Tile:
    """A compiled full tile of a microkernel; one call does `operations`."""

    call: Callable[[], object]
    operations: int

    def run_for(self, seconds: float) -> list[float]:
        """Returns this thread's CPU seconds of each call."""
        return time_calls(self.call, seconds, time.thread_time)


def runs_here(kernel: Microkernel) -> bool:
    """Whether this CPU can run a microkernel without emulation."""
    return allowed_on_host(kernel.isa) and not emulated_on_host(kernel.isa)


def types_of(kernel: Microkernel) -> str:
    """Formats a microkernel's operands and accumulators."""
    return f"{kernel.a_dtype} x {kernel.b_dtype} -> {kernel.acc_dtype}"


def measure_kernels(
    kernels: Sequence[Microkernel] | None = None, rounds: int = 5, seconds: float = 0.005
) -> KernelReport:
    """Measures microkernels on this machine, on the calling thread.

    Parameters
    ----------
    kernels : sequence of Microkernel or None
        Microkernels to measure; None for all. Those that this CPU lacks or only emulates, and those
        that `TVM_HYBRID_ISA` forbids, are left out and named in the report.
    rounds : int
        Turns of each.
    seconds : float
        Length of a turn.

    Raises
    ------
    CompileError
        If a microkernel's result is wrong.
    """
    wanted = all_microkernels() if kernels is None else kernels
    here = [kernel for kernel in wanted if runs_here(kernel)]
    tiles: dict[str, Any] = {}
    for kernel in here:
        logger.debug("compiling %s", kernel.name)
        tiles[kernel.name] = _tile(kernel, reload_weight=True)
        tiles[f"{kernel.name}, weight in registers"] = _tile(kernel, reload_weight=False)
    times, _ = interleave(tiles, rounds, seconds, pause=0)
    gops = {
        name: tiles[name].operations / statistics.median(runs) / 1e9 for name, runs in times.items()
    }
    peaks: dict[str, float] = {}
    for kernel in here:
        best = max(gops[kernel.name], gops[f"{kernel.name}, weight in registers"])
        peaks[types_of(kernel)] = max(best, peaks.get(types_of(kernel), 0.0))
    speeds = []
    for kernel in here:
        types, speed, tile = types_of(kernel), gops[kernel.name], f"{kernel.mr}x{kernel.nr}"
        share = speed / peaks[types]
        speeds.append(KernelSpeed(kernel.name, kernel.isa_name, types, tile, speed, share))
    left_out = [kernel.name for kernel in wanted if kernel not in here]
    cpu = cpu_name(host_target())
    return KernelReport(cpu=cpu, peaks=peaks, kernels=speeds, left_out=left_out)


def _tile(kernel: Microkernel, reload_weight: bool) -> _Tile:
    """Compiles a full tile for this machine, with operands of ones, and checks its result."""
    (a_type, one_a), (b_type, one_b) = (
        _ONE.get(dtype, (dtype, 1)) for dtype in (kernel.a_dtype, kernel.b_dtype)
    )
    bytes_a_step = kernel.kr * (
        kernel.mr * np.dtype(a_type).itemsize + kernel.nr * np.dtype(b_type).itemsize
    )
    half_of_l1 = Machine.from_target(host_target()).l1_bytes // 2
    steps = kernel.steps(min(max(half_of_l1 // bytes_a_step, 8), 256) * kernel.kr)
    once = 2 * kernel.mr * kernel.nr * steps * kernel.kr
    repeats = max(int(OPERATIONS // once), 1)
    program = tile_program(kernel, a_type, b_type, repeats, steps, reload_weight)
    function = tvm.compile(program, target=host_target())["tile"]
    a = tvm.runtime.tensor(np.full((kernel.mr, steps * kernel.kr), one_a, a_type))
    b = tvm.runtime.tensor(np.full(steps * kernel.nr * kernel.kr, one_b, b_type))
    c = tvm.runtime.empty((kernel.mr, kernel.nr), kernel.acc_dtype)
    function(a, b, c)
    # Sums of ones below 2**24 are exact in every type.
    if not (c.numpy() == repeats * steps * kernel.kr).all():
        raise CompileError(f"{kernel.name} computes something wrong on {cpu_name(host_target())}")
    return _Tile(lambda: function(a, b, c), once * repeats)


def tile_program(
    kernel: Microkernel, a_type: str, b_type: str, repeats: int, steps: int, reload_weight: bool
) -> tirx.PrimFunc:
    """C = `repeats` * A * B in one tile; without `reload_weight`, B's first step at every step."""
    lanes, kr = kernel.lanes, kernel.kr
    pitch, group = steps * kr, lanes * kr
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("tile")
        I.func_attr({"global_symbol": "tile", **NO_ALIAS})
        a = parameter("A", (kernel.mr, pitch), a_type)
        b = parameter("B", (steps * kernel.nr * kr,), b_type)
        c = parameter("C", (kernel.mr, kernel.nr), kernel.acc_dtype)

        def load_a(i: int, ks: Sequence[Expr | int]) -> Expr | Address:
            return kernel.a_operand(a, [i, ks[1] * kr], pitch)

        def load_b(j: int, ks: Sequence[Expr | int]) -> Expr | Address:
            start = ks[1] * kernel.vectors + j if reload_weight else j
            return kernel.b_operand(b, start * group, kernel.vectors * group)

        kernel.admit()
        with I.serial(1), I.sblock("tile"):
            I.reads()
            I.writes()
            kernel.configure(kernel.mr)
            tile = kernel.emit(
                kernel.mr, kernel.vectors, (repeats, steps), load_a, load_b, into=Place(c)
            )
            if tile.place is None:
                for i in range(kernel.mr):
                    for j in range(kernel.vectors):
                        I.buffer_store(c, tile.value(i, j), [i, ramp(j * lanes, lanes)])
            kernel.release()
    return builder.get()


def kernel_page(report: KernelReport) -> str:
    """A row for every instruction set and pair of types: its tiles and shares of the peak."""
    lines = [
        f"Speed of every microkernel of {report.cpu} on one core, with operands in the first-level",
        "cache. A tile is the rows by columns of results that stay in registers. A percentage is a",
        "share of the peak: the fastest speed for the same types in the same run.",
    ]
    rows = []
    for types, peak in report.peaks.items():
        of_types = [kernel for kernel in report.kernels if kernel.types == types]
        present = {kernel.isa for kernel in of_types}
        for isa in (isa.name for isa in reversed(LADDER) if isa.name in present):
            tiles = ", ".join(
                f"{kernel.tile} {kernel.share:.0%}" for kernel in of_types if kernel.isa == isa
            )
            rows.append([types, f"{peak:.0f} GOP/s", f"`{isa}`", tiles])
    lines += markdown_table(["types", "peak", "instruction set", "tiles"], rows)
    if report.left_out:
        lines += ["", f"Not on this CPU: {', '.join(report.left_out)}."]
    return "\n".join(lines) + "\n"


# Limits of this machine: operations per second by type, bytes per second from memory.
#
# Together they are a roofline (Williams, Waterman, Patterson: CACM 52(4), 2009): a kernel with i
# operations per byte of its tensors is no faster than min(peak, i * bandwidth).


# Number of tiles of the highest instruction set that are measured for a peak, the largest ones.
TILES_FOR_PEAK = 3
LEAST_COPY, LARGEST_COPY = 64 << 20, 256 << 20
COPIES = 5


class Cache(msgspec.Struct, frozen=True):
    """A cache in the machine's description.

    Attributes
    ----------
    name : str
        "L2" or "L3", or "memory".
    nbytes : int
        Capacity for all threads together.
    bandwidth : float
        1e9 bytes a second that all threads read from it.
    """

    name: str
    nbytes: int
    bandwidth: float


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a number of threads.

    Attributes
    ----------
    threads : int
        Number of threads, each on a separate core.
    peaks : dict
        Type of the products' first operand -> 1e9 operations a second of all threads.
    bandwidth : float
        1e9 bytes a second, read and written, of copying memory.
    caches : tuple of Cache
        Caches, the smallest first.
    """

    threads: int
    peaks: dict[str, float]
    bandwidth: float
    caches: tuple[Cache, ...] = ()

    def holding(self, nbytes: int) -> Cache:
        """The smallest cache that holds this many bytes; memory if none does."""
        found = (cache for cache in self.caches if nbytes <= cache.nbytes)
        return next(found, Cache("memory", nbytes, self.bandwidth))

    def limit(self, dtype: str, intensity: float) -> float:
        """Most 1e9 operations a second at this many operations per byte.

        For a type that was not measured, only the bandwidth limits.
        """
        return min(self.peaks.get(dtype, math.inf), intensity * self.bandwidth)


def measure_roof(dtypes: Sequence[str], threads: int) -> Roof:
    """Measures this machine, in some seconds.

    Parameters
    ----------
    dtypes : sequence of str
        See `peak_gops`; types that no microkernel of this CPU takes are left out.
    threads : int
        Number of threads; the peak of one thread is multiplied, the bandwidth measured with all.
    """
    peaks = {dtype: peak_gops(dtype) * threads for dtype in dict.fromkeys(dtypes) if _here(dtype)}
    machine = Machine.from_target(host_target())
    # Copy arrays that are larger than all caches.
    beyond_caches = 4 * machine.l3_bytes
    size = min(max(beyond_caches, LEAST_COPY), LARGEST_COPY) // threads
    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(threads)]
    # A single thread is timed by its CPU time, which other processes do not disturb.
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = math.inf
    with ThreadPoolExecutor(threads) as pool:  # numpy copies without holding the interpreter
        copy_all = map if threads == 1 else pool.map
        for _ in range(COPIES):
            start = clock()
            list(copy_all(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            best = min(best, clock() - start)
    caches = (
        Cache("L2", threads * machine.l2_bytes, threads * machine.l2_rate / 1e3),
        Cache("L3", machine.l3_bytes, threads * machine.l3_rate(threads) / 1e3),
    )
    bandwidth = 2 * size * threads / best / 1e9
    return Roof(threads=threads, peaks=peaks, bandwidth=bandwidth, caches=caches)


def peak_gops(dtype: str) -> float:
    """Measures 1e9 operations a second of one thread, for products with a first operand of a type.

    A multiply-add counts two operations.

    Parameters
    ----------
    dtype : {"float32", "bfloat16", "uint8"}
    """
    here = _here(dtype)
    highest = max(here, key=lambda kernel: kernel.isa.level).isa
    fitting = (kernel for kernel in here if kernel.isa == highest)
    largest = sorted(fitting, key=lambda kernel: kernel.mr * kernel.nr)
    report = measure_kernels(largest[-TILES_FOR_PEAK:])
    return report.peaks[types_of(largest[-1])]


def _here(dtype: str) -> list[Microkernel]:
    """Microkernels for a type that this CPU runs."""
    return [one for one in all_microkernels() if one.a_dtype == dtype and runs_here(one)]
