"""The machine a kernel is built for: its threads, and the numbers of its CPU for estimates."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path

from tvm.target import Target

from microkernels.amx.scoreboard import Core
from microkernels.base.errors import TargetError
from microkernels.base.host_cpu import host_cpu
from microkernels.isa import Isa, isa_named, target_isa

from .description import FOLDER, Description, describe
from .host import describe_file, describe_host

# Exponent of the norm that combines the waits of a tile: two equal waits take 1.1 times one of
# them. Fitted to tiles of all sizes on Zen 5 (AVX2, 128 rows) and to the public measurements of
# eight CPUs that `tools/machine_fit.py` reads; 5 to 10 fit nearly as well, the maximum does not.
SHARPNESS = 7
LOOP = 2  # instructions of a step besides products and loads: the counter and the branch

# Stands for the description that a machine's name selects.
_NAMED = Description("", "", {}, {})


class _Stated:
    """An attribute of `Machine` that reads a number of its description once."""

    def __init__(self, number: str = "", by_width: bool = False) -> None:
        # `number`: the key in the description, by default the attribute's name. With `by_width`
        # there are two numbers, for vectors of 256 and of 512 bits.
        self.number, self.by_width = number, by_width

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.number = name, self.number or name

    def __get__(self, machine: Machine | None, owner: type) -> float:
        if machine is None:
            raise AttributeError(self.number)
        width = 512 if machine.isa.vector_bits == 512 else 256
        key = f"{self.number}_{width}" if self.by_width else self.number
        found = machine.__dict__[self.name] = machine.description.at(key)  # hides this descriptor
        return found


@dataclass(frozen=True)
class Machine:
    """What decisions about kernels depend on.

    Attributes
    ----------
    name : str
        The CPU's LLVM name, such as "znver4".
    isa : Isa
        The instruction set that kernels may use.
    threads : int
        Threads that one parallel region may use; 1 means that kernels are built serial.
    description : Description
        The numbers of its CPU; by default the description that its name selects.
    """

    name: str
    isa: Isa
    threads: int = 1
    description: Description = field(default=_NAMED, repr=False)

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise TargetError(f"a machine needs at least one thread, not {self.threads}")
        if self.description is _NAMED:
            object.__setattr__(self, "description", describe(self.name))

    @staticmethod
    def from_target(target: Target, threads: int = 1) -> Machine:
        """The machine that a target describes.

        If the target's `model` is an absolute path, that file is the description; a shipped file is
        used unchanged. Otherwise this host's CPU has the description in force here (see
        `describe_host`), and another CPU has its shipped one.

        Raises
        ------
        TargetError
            If that file cannot be read, or is no description.
        """
        name, model = str(target.attrs.get("mcpu", "x86-64")), str(target.attrs.get("model", ""))
        named = Path(model) if model.startswith("/") else None
        if name == host_cpu() and (named is None or named.parent != FOLDER):
            found = describe_host(name, named)
        else:
            found = describe(name) if named is None else describe_file(named)
        return Machine(name, without_slow_dots(target_isa(target), found), threads, found)

    def with_numbers(self, **values: float) -> Machine:
        """A copy with other values of some numbers of its description."""
        changed = self.description.with_numbers(values, "guess", "the caller of with_numbers")
        return replace(self, description=changed)

    @property
    def l1_bytes(self) -> int:
        """Size of a core's data cache."""
        return int(self.description.at("l1_bytes"))

    @property
    def l2_bytes(self) -> int:
        """A core's share of its second-level cache."""
        return int(self.description.at("l2_bytes") / self.description.at("l2_cores"))

    @property
    def l3_bytes(self) -> int:
        """Size of the last-level cache that a core shares with its neighbours."""
        return int(self.description.at("l3_bytes"))

    cycles_per_us = _Stated("clock", by_width=True)
    """Cycles a microsecond of code with the vectors of the instruction set, all cores busy."""
    fma_rate = _Stated(by_width=True)
    """Vector FMAs that start in a cycle."""
    vector_rate = _Stated(by_width=True)
    """Operations on vectors, of any kind, that start in a cycle."""
    divide_cycles = _Stated("divide", by_width=True)
    """Cycles between two divisions of vectors, or square roots."""
    bf16_rate = _Stated("bf16_rate_512")
    """Products of pairs of bfloat16, 512 bits of them, that start in a cycle."""
    fma_latency = _Stated()
    """Cycles until the result of an FMA is available."""
    vector_latency = _Stated()
    """Cycles until the result of another operation on vectors is available."""
    branch_miss = _Stated()
    """Cycles lost if a branch, such as that at a loop's end, is mispredicted."""
    foreseen_rounds = _Stated()
    """Most rounds of a loop whose end the branch predictor foresees."""
    reorder_entries = _Stated()
    """Instructions that may be in flight."""

    @property
    def far_access_bits(self) -> int:
        """Width of the loads and stores that are fastest beyond L2; vectors may be narrower."""
        return int(self.description.at("far_access_bits"))

    string_copy_cost = _Stated()
    """Time to copy rows beyond L2 by string instructions, over the time by vectors."""
    library_cycles = _Stated()
    """Cycles of a function of the math library for one number."""
    issue_rate = _Stated("entries_a_cycle")
    """Instructions that start in a cycle."""
    load_rate = _Stated(by_width=True)
    """Vectors loaded from L1 in a cycle."""
    store_rate = _Stated(by_width=True)
    """Vectors stored to L1 in a cycle."""
    broadcast_rate = _Stated()
    """Elements loaded to all lanes of vectors in a cycle."""

    @property
    def l2_rate(self) -> float:
        """Bytes a microsecond that a core gets from L2."""
        return self.description.at("l2_rate") * self.cycles_per_us

    def l3_rate(self, threads: int = 1) -> float:
        """Bytes a microsecond that each of `threads` threads reads from L3."""
        return self._share("l3_rate", threads)

    def memory_rate(self, threads: int = 1) -> float:
        """Bytes a microsecond that each of `threads` threads reads from memory."""
        return self._share("memory_rate", threads)

    overlap = _Stated()
    """How much of the shorter of computing and moving data hides behind the longer."""
    reached = _Stated()
    """Fraction of the ports' peak rate that a core reaches in kernels."""
    first_pass = _Stated()
    """Fraction of the bandwidth for a loop that fetches data which it then reads again."""
    shared_line_us = _Stated()
    """Microseconds for a cache line that two threads write in turn."""

    def l3_exposed(self, threads: int = 1) -> float:
        """Fraction of the time to read a weight from L3 that longer computing does not hide.

        `threads` threads read the weight.
        """
        return self.description.at("l3_exposed", threads)

    def result_exposed(self, threads: int = 1) -> float:
        """Fraction of the time to pass a result beyond L2 to the next kernel that is not hidden.

        `threads` threads share each of the kernels.
        """
        return self.description.at("result_exposed", threads)

    foreign_rate = _Stated()
    """Bytes a microsecond that a thread reads of data that another core has just written."""
    other_core_rate = _Stated()
    """Bytes a microsecond that a thread reads of long runs that another core has written."""

    def fork_us(self, threads: int) -> float:
        """Microseconds to fork and to join `threads` threads; 0 for one."""
        return self.description.at("fork_us", threads) if threads > 1 else 0.0

    call_us = _Stated()
    """Microseconds for one more kernel that the virtual machine calls."""

    @functools.cached_property
    def tile_core(self) -> Core:
        """The numbers of a core for the scoreboard of tile instructions."""
        at, clock = self.description.at, self.description.at("clock_tiles")
        return Core(
            clock=clock,
            tdp=at("tile_product"),
            tdp_latency=at("tile_product_latency"),
            load=at("tile_load"),
            load_latency=at("tile_load_latency"),
            zero_latency=at("tile_zero_latency"),
            store=at("tile_store"),
            store_latency=at("tile_store_latency"),
            configure=at("tile_configure"),
            release=at("tile_release"),
            block=at("tile_block"),
            rates=(at("l2_rate"), at("l3_rate") / clock, at("memory_rate") / clock),
            entries=int(at("reorder_entries")),
            entries_a_cycle=int(at("entries_a_cycle")),
            vector_latency=at("vector_latency"),
        )

    def step_cycles(self, rows: int, vectors: int, rate: float) -> float:
        """Cycles of a step of K of a register tile of vectors.

        Products wait for their ports, for the products before them, for loads, for all instructions
        to be issued, and for B, which comes from L2, mostly hidden. A wait that is nearly as long
        as the longest takes time too, as nothing makes up for a delay. So accumulators for an FMA's
        latency are not enough (Zen 5, AVX2: 8 are 15% slower than 12, 9 are 10%, 10 are 5%). A
        narrow tile is slower, because it has more loads and instructions for a product (Cascade
        Lake, 128x512x256: tiles of 8x48 in panels of 3 and 2 vectors take 241 us, 14x32 in eight of
        2 246 us, 6x64 in four of 4 233 us).

        Parameters
        ----------
        rows, vectors : int
            Size of the tile.
        rate : float
            Products of vectors that start in a cycle.
        """
        tile, b_bytes = rows * vectors, 4 * self.isa.f32_lanes * vectors
        waits = (
            tile / rate,
            self.fma_latency,
            rows / self.broadcast_rate + vectors / self.load_rate,
            (tile + rows + vectors + LOOP) / self.issue_rate,
            b_bytes / self.description.at("l2_rate"),
        )
        return float(sum(wait**SHARPNESS for wait in waits) ** (1 / SHARPNESS)) + vectors / 64

    def _share(self, number: str, threads: int) -> float:
        """One thread's share of a rate of `threads` threads; at most the rate of one alone."""
        together = self.description.at(number, threads)
        return min(self.description.at(number, 1), together / threads)


def without_slow_dots(isa: Isa, found: Description) -> Isa:
    """Replaces avx512_bf16 by the level below if the CPU multiplies f32 faster than bfloat16.

    On Golden Cove and its successors vdpbf16ps starts every other cycle, and two f32 FMAs start in
    one: these CPUs multiply bfloat16 on tiles, which a virtual machine may hide.
    """
    rate = found.numbers["bf16_rate_512"]
    known = rate.kind != "guess"
    if isa.name == "avx512_bf16" and known and 2 * rate.at(1) < found.at("fma_rate_512"):
        return isa_named("avx512_vnni")
    return isa
