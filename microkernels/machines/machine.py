"""The machine a kernel is built for: its threads, and what estimates may know of its CPU."""

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

# The description of the CPU that a machine is named after.
_NAMED = Description("", "", {}, {})


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
        What is known of the CPU; by default that of its name.
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

        By the description that it names, as its `model`, an absolute path; a shipped one is taken
        as it is. Otherwise, if it is this host's CPU, by the one in force here; see
        `describe_host`.

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
        """The same but for some numbers of its description."""
        changed = self.description.with_numbers(values, "guess", "the caller of with_numbers")
        return replace(self, description=changed)

    @property
    def l1_bytes(self) -> int:
        """Size of a core's data cache."""
        return int(self.description.at("l1_bytes"))

    @property
    def l2_bytes(self) -> int:
        """A core's part of its second-level cache."""
        return int(self.description.at("l2_bytes") / self.description.at("l2_cores"))

    @property
    def l3_bytes(self) -> int:
        """Size of the last-level cache that a core shares with its neighbours."""
        return int(self.description.at("l3_bytes"))

    @property
    def cycles_per_us(self) -> float:
        """Cycles a microsecond of code with the vectors of the instruction set, all cores busy."""
        return self._by_width("clock")

    @property
    def fma_rate(self) -> float:
        """Vector FMAs that start in a cycle."""
        return self._by_width("fma_rate")

    @property
    def vector_rate(self) -> float:
        """Operations on vectors, of any kind, that start in a cycle."""
        return self._by_width("vector_rate")

    @property
    def divide_cycles(self) -> float:
        """Cycles between two divisions of vectors, or square roots."""
        return self._by_width("divide")

    @property
    def bf16_rate(self) -> float:
        """Products of pairs of bfloat16, 512 bits of them, that start in a cycle."""
        return self.description.at("bf16_rate_512")

    @property
    def fma_latency(self) -> float:
        """Cycles until the result of an FMA is there."""
        return self.description.at("fma_latency")

    @property
    def vector_latency(self) -> float:
        """Cycles until the result of another operation on vectors is there."""
        return self.description.at("vector_latency")

    @property
    def branch_miss(self) -> float:
        """Cycles lost where a branch, such as that at a loop's end, is not foreseen."""
        return self.description.at("branch_miss")

    @property
    def foreseen_rounds(self) -> float:
        """Rounds of a loop of which the last one is foreseen."""
        return self.description.at("foreseen_rounds")

    @property
    def reorder_entries(self) -> float:
        """Instructions that may be under way."""
        return self.description.at("reorder_entries")

    @property
    def far_access_bits(self) -> int:
        """Width of the loads and stores that are the fastest beyond L2; vectors may have less."""
        return int(self.description.at("far_access_bits"))

    @property
    def string_copy_cost(self) -> float:
        """Time of string instructions over that of vectors, to copy rows to a result beyond L2."""
        return self.description.at("string_copy_cost")

    @property
    def library_cycles(self) -> float:
        """Cycles of a function of the mathematical library for one number."""
        return self.description.at("library_cycles")

    @property
    def issue_rate(self) -> float:
        """Instructions that start in a cycle."""
        return self.description.at("entries_a_cycle")

    @property
    def load_rate(self) -> float:
        """Vectors loaded from L1 in a cycle."""
        return self._by_width("load_rate")

    @property
    def store_rate(self) -> float:
        """Vectors stored to L1 in a cycle."""
        return self._by_width("store_rate")

    @property
    def broadcast_rate(self) -> float:
        """Elements loaded to all lanes of vectors in a cycle."""
        return self.description.at("broadcast_rate")

    @property
    def l2_rate(self) -> float:
        """Bytes a microsecond that a core gets from L2."""
        return self.description.at("l2_rate") * self.cycles_per_us

    def l3_rate(self, threads: int = 1) -> float:
        """Bytes a microsecond that each of so many threads reads from L3."""
        return self._share("l3_rate", threads)

    def memory_rate(self, threads: int = 1) -> float:
        """Bytes a microsecond that each of so many threads reads from memory."""
        return self._share("memory_rate", threads)

    @property
    def overlap(self) -> float:
        """How much of the shorter of computing and moving data hides behind the longer."""
        return self.description.at("overlap")

    @property
    def reached(self) -> float:
        """Part of what its ports could do that a core does in kernels."""
        return self.description.at("reached")

    @property
    def first_pass(self) -> float:
        """Part of the bandwidth that a loop gets which fetches what it then reads again."""
        return self.description.at("first_pass")

    @property
    def shared_line_us(self) -> float:
        """Microseconds that a line takes which two threads write in turn."""
        return self.description.at("shared_line_us")

    def l3_exposed(self, threads: int = 1) -> float:
        """Share of the time to read a weight from L3 that shows although computing takes longer.

        Where so many threads read it.
        """
        return self.description.at("l3_exposed", threads)

    def result_exposed(self, threads: int = 1) -> float:
        """Share of the traffic of a result beyond L2, to the kernel that reads it, that shows.

        Where so many threads share both kernels.
        """
        return self.description.at("result_exposed", threads)

    @property
    def foreign_rate(self) -> float:
        """Bytes a microsecond that a thread reads of what another core has just written."""
        return self.description.at("foreign_rate")

    @property
    def other_core_rate(self) -> float:
        """Bytes a microsecond that a thread reads of long runs that another core has written."""
        return self.description.at("other_core_rate")

    def fork_us(self, threads: int) -> float:
        """Microseconds to fork and to join so many threads; 0 for one."""
        return self.description.at("fork_us", threads) if threads > 1 else 0.0

    @property
    def call_us(self) -> float:
        """Microseconds that one more kernel takes which the virtual machine calls."""
        return self.description.at("call_us")

    @functools.cached_property
    def tile_core(self) -> Core:
        """A core as the scoreboard of tile instructions knows it."""
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

    def _by_width(self, number: str) -> float:
        width = 512 if self.isa.vector_bits == 512 else 256
        return self.description.at(f"{number}_{width}")

    def _share(self, number: str, threads: int) -> float:
        """One thread's part of what so many get together; no more than one gets alone."""
        together = self.description.at(number, threads)
        return min(self.description.at(number, 1), together / threads)


def without_slow_dots(isa: Isa, found: Description) -> Isa:
    """The level below where a CPU multiplies f32 faster than bfloat16.

    On Golden Cove and its successors vdpbf16ps starts every other cycle, f32 FMAs twice in one:
    they were made for bfloat16 on tiles, which a virtual machine may hide.
    """
    rate = found.numbers["bf16_rate_512"]
    known = rate.kind != "guess"
    if isa.name == "avx512_bf16" and known and 2 * rate.at(1) < found.at("fma_rate_512"):
        return isa_named("avx512_vnni")
    return isa
