"""The configuration of a recurrent kernel, and how its weight is cut into panels.

A panel holds the columns that some neighbouring hidden values read: all gates of a product. A last
panel that would be partial overlaps the one before it; both compute equal results. So a tile is
full, and no vector reaches beyond the hidden values. If these are fewer than a register has lanes,
vectors are as short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa, isa_named
from microkernels.kernels.byte_pairs import byte_tile, has_pairs, packed_words_tile
from microkernels.machines.machine import Machine
from microkernels.microkernel import HEAP_ELEMENTS, Microkernel
from microkernels.registry import kernels_for, microkernel_named
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, Index, cast, constant, ramp, scalar, splat
from microkernels.vector.ieee import round_to_integer
from tir_schedules.core.config import Config, best_first, check_numbers
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_dynamic
from tir_schedules.cost.parallel import halves, threads_worth
from tir_schedules.rows.quantization_range import LARGEST, emit_extremes, emit_parameters

from .problem import RecurrentProblem

ACCUMULATORS = {"scalar": 4, "avx2": 12, "avx512": 24}
"""Accumulators of a tile in registers, by the level of vectors."""
PAIR_ACCUMULATORS = {**ACCUMULATORS, "avx2": 8}  # a product needs a register before it is added
BYTE_INSTRUCTIONS, WORD_INSTRUCTIONS = 3, 2  # for a product of pairs, with the addition
CELL_CYCLES = 132.0  # of a vector of an LSTM's hidden values, for each row, measured on Zen 4
MOST_ROWS = 12
ENOUGH = 16
"""Accumulators of a tile with which no product waits for another, with room to spare."""


class RecurrentConfig(Config, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    kernel : str
        The microkernel that multiplies.
    rows : int
        Most rows of a tile: sequences that are multiplied at once.
    units : int
        Vectors of hidden values of a panel.
    threads : int
        Threads that share directions and sequences.
    """

    kernel: str
    rows: int
    units: int
    threads: int = 1


@dataclass
class Panels:
    """The panels of one product of a step.

    Attributes
    ----------
    gates : tuple of int
        The gates of the product.
    lanes : int
        Hidden values of a vector.
    units : int
        Vectors of hidden values of a panel.
    hidden : int
        All hidden values.
    start : int
        Elements of the packed weight before the first panel of a direction.
    kr : int
        Elements of K that one product takes.
    """

    gates: tuple[int, ...]
    lanes: int
    units: int
    hidden: int
    start: int
    kr: int = 1

    def __post_init__(self) -> None:
        # Hidden values of a panel, and how many panels there are.
        self.width = self.units * self.lanes
        self.count = math.ceil(self.hidden / self.width)
        # Vectors of a step of K: all gates of each unit. The last step may be padded with zeros.
        self.vectors = self.units * len(self.gates)
        self.steps = math.ceil(self.hidden / self.kr)
        # Elements of all panels of a direction.
        self.size = self.count * self.steps * self.kr * self.vectors * self.lanes


def panels_of(problem: RecurrentProblem, config: RecurrentConfig) -> list[Panels]:
    """The panels of each product of a step."""
    kernel = kernel_of(problem, config)
    found: list[Panels] = []
    for gates in problem.products:
        start = found[-1].start + found[-1].size if found else 0
        found.append(Panels(gates, kernel.lanes, config.units, problem.hidden, start, kernel.kr))
    return found


def kernel_of(problem: RecurrentProblem, config: RecurrentConfig) -> Microkernel:
    """The microkernel, with tiles of a configuration's shape."""
    kernel = microkernel_named(config.kernel)
    if problem.quantized:
        # Kernels that multiply levels by weights of bytes or of words.
        if has_pairs(kernel):
            bytes_ = problem.weight_dtype == "int8"
            kernel = byte_tile(kernel) if bytes_ else packed_words_tile(kernel)
        elif kernel.kr == 1:
            kernel = replace(kernel, a_dtype="int16", b_dtype=problem.weight_dtype)
    elif problem.dtype == "float64":  # half as many lanes of a register
        types: Any = dict.fromkeys(("a_dtype", "b_dtype", "acc_dtype"), "float64")
        name = kernel.name.replace("f32", "f64")
        kernel = replace(kernel, name=name, lanes=max(1, kernel.lanes // 2), **types)
    lanes = min(kernel.lanes, problem.hidden)
    columns = config.units * max(map(len, problem.products)) * lanes
    family = kernel.name.rsplit("_", 1)[0]
    name = f"{family}_{config.rows}x{columns}"
    return replace(kernel, name=name, lanes=lanes, mr=config.rows, nr=columns)


def check(region: Region, config: RecurrentConfig, isa: Isa) -> RecurrentProblem:
    """Refuses a configuration that is not legal.

    Raises
    ------
    ConfigError
        If a field is out of range; the message names it.
    """
    problem = RecurrentProblem.of(region)
    lanes = kernel_of(problem, config).lanes
    most = {"rows": MOST_ROWS, "units": problem.hidden // lanes, "threads": 4096}
    check_numbers(region, config, most)
    kernel = microkernel_named(config.kernel)
    # VNNI's instructions multiply bytes, not weights of words.
    lacks_words = problem.weight_dtype == "int16" and kernel.kr > 1 and not has_pairs(kernel)
    floats = {"float32", problem.weight_dtype} & {"float32", "bfloat16"}
    types = {"int8"} if problem.quantized else floats
    if kernel.b_dtype not in types or kernel.by_tiles or lacks_words:
        raise ConfigError(f"kernel {config.kernel} in {region.key}")
    return problem


def default_config(region: Region, machine: Machine) -> RecurrentConfig:
    """The configuration with the fewest estimated cycles."""
    return min(_candidates(region, machine), key=lambda each: estimate(region, each, machine))


def space(region: Region, machine: Machine) -> Iterator[RecurrentConfig]:
    """The default, then all other tiles."""
    others = set(_candidates(region, machine))
    default = default_config(region, machine)
    return best_first(default, others, lambda each: estimate(region, each, machine))


def _candidates(region: Region, machine: Machine) -> Iterator[RecurrentConfig]:
    problem = RecurrentProblem.of(region.sampled())
    isa = machine.isa
    kernel = _kernel(problem, isa)
    gates = max(map(len, problem.products))
    lanes = min(kernel.lanes // (2 if problem.dtype == "float64" else 1) or 1, problem.hidden)
    registers = PAIR_ACCUMULATORS if has_pairs(kernel) else ACCUMULATORS
    most = registers[kernel.isa.vector_level]
    threads = _threads(problem, machine)
    batch = MOST_ROWS if region.is_dynamic else problem.batch
    size = DataType(problem.dtype).itemsize
    held = (4 * HEAP_ELEMENTS - 1) // (size * lanes)  # vectors of a row that have registers
    for units in range(1, 1 + max(1, min(min(most, held) // gates, problem.hidden // lanes))):
        highest = max(1, min(most // (units * gates), batch, MOST_ROWS))
        if is_dynamic((region.inputs[0].shape[1],)):
            # Batches are powers of two more often than multiples of 6.
            even = 1 << (highest.bit_length() - 1)
            highest = even if even >= 4 and even * units * gates >= ENOUGH else highest
        for rows in {highest, max(1, -(-highest // 2))}:
            yield RecurrentConfig(kernel=kernel.name, rows=rows, units=units, threads=threads)


def _kernel(problem: RecurrentProblem, isa: Isa) -> Microkernel:
    """Selects the microkernel that multiplies the weight."""
    if problem.weight_dtype == "bfloat16" and isa.multiplies_bf16:
        kernel = kernels_for(isa, "bfloat16", "bfloat16")[0]
        if problem.hidden >= kernel.lanes:
            return kernel
    if not problem.quantized:
        # Without instructions for bfloat16, bfloat16 weights are widened when they are packed.
        return kernels_for(isa, "float32", "float32")[0]
    if problem.weight_dtype == "int16":
        isa = isa_named(isa.vector_level)
    kernel = kernels_for(isa, "uint8", "int8")[0]
    if problem.hidden < kernel.lanes:
        # Byte instructions need whole registers of hidden values; fewer are multiplied as scalars.
        return kernels_for(isa_named("scalar"), "uint8", "int8")[0]
    return kernel


def estimate(region: Region, config: RecurrentConfig, machine: Machine) -> float:
    """Cycles of the busiest thread.

    A step of K of a tile takes the time of its products, of the latency of one of them, or of its
    loads. The first block of rows gets a panel from the cache that holds the whole weight, the
    others from L1 if the panel leaves room there; else operands of cells come from L2, too.
    """
    problem = RecurrentProblem.of(region.sampled())
    parts = parts_of(problem, config.threads, problem.batch)
    shares = math.ceil(problem.directions * parts / config.threads)
    batch = max(1, math.ceil(problem.batch / parts))
    blocks = math.ceil(batch / config.rows)
    rows = batch / blocks
    all_panels, kernel = panels_of(problem, config), kernel_of(problem, config)
    size = DataType(kernel.b_dtype).itemsize
    instructions = 1
    if has_pairs(kernel):
        instructions = WORD_INSTRUCTIONS if kernel.b_dtype == "int16" else BYTE_INSTRUCTIONS
    fits = size * sum(panels.size for panels in all_panels) <= machine.l2_bytes
    l2_rate = machine.l2_rate / machine.cycles_per_us
    rate = l2_rate if fits else machine.l3_rate(config.threads) / machine.cycles_per_us
    cycles = 0.0
    for panels in all_panels:
        tile = rows * panels.vectors
        loads = rows / machine.broadcast_rate + panels.vectors / machine.load_rate
        near = max(instructions * tile / machine.fma_rate, machine.fma_latency, loads)
        panel = size * panels.size / panels.count
        far = max(near, panel / panels.steps / rate)
        stays = panel <= machine.l1_bytes / 2
        far_blocks = 1 if stays else blocks
        steps = far_blocks * far + (blocks - far_blocks) * near
        # A panel that does not stay in L1 evicts what cells read: sums and a state.
        vector = kernel.lanes * DataType(kernel.acc_dtype).itemsize
        read = 0 if stays else vector * (len(panels.gates) + 1) / l2_rate
        once = 10 + 2 * tile + rows * panels.units * (CELL_CYCLES + read)
        cycles += panels.count * (panels.steps * steps + blocks * once)
    return shares * problem.steps * cycles


def _threads(problem: RecurrentProblem, machine: Machine) -> int:
    """The number of threads that pays; at most one for each direction and sequence."""
    work = problem.directions * problem.steps * problem.batch * problem.gates * problem.hidden**2
    us = work / (machine.isa.f32_lanes * machine.fma_rate) / machine.cycles_per_us
    worth = threads_worth(machine, us)
    most = problem.directions * max(1, problem.batch)
    return next((threads for threads in halves(worth) if threads <= most), 1)


def parts_of(problem: RecurrentProblem, threads: int, batch: int | None = None) -> int:
    """Number of shares of each direction's sequences; every thread gets equally many shares.

    Parameters
    ----------
    batch : int or None
        Number of sequences, if it is known.
    """
    sides = problem.directions
    parts = threads if threads % sides else threads // sides
    return parts if batch is None else min(parts, max(1, batch))


# Products of 8-bit integers in a recurrence: h as levels, and the value of their sums.
#
#     h[row] = scale[row] * (level - zero_point[row])    level 0 to 255, as DynamicQuantizeLinear
#     gate = part + scale[row] * weight_scale[column] * sum of (level - zero_point) * weight
#
# Each sequence has its own scale in every step. Levels are multiplied as bytes: sums start with
# -zero_point times the column's sum. Without VNNI, products that bytes cannot add are computed
# apart (`large_pairs`), and weights of words, which are 8-bit integers less a zero point, are
# multiplied by level - zero_point as words of 16 bits.


UNROLL = 4  # independent minima and maxima of a state

ReadSums = Callable[[Expr, Expr], Expr]
Place = tuple[Expr, Expr]
"""A direction, and the number of a sequence in it."""


def loaded(operand: Expr | Address) -> Expr:
    """Asserts that an operand is a vector; only tiles take addresses."""
    assert isinstance(operand, tirx.Expr)
    return operand


def starts_with_sums(kernel: Microkernel) -> bool:
    """Whether sums of products start with the sums of the weight's columns."""
    return kernel.a_dtype == "uint8"


@dataclass
class Levels:
    """The levels of all states of a kernel under construction.

    Attributes
    ----------
    problem : RecurrentProblem
        The layer.
    kernel : Microkernel
        The kernel that multiplies.
    batch : Expr or int
        Number of sequences that buffers have room for.
    read_sums : callable or None
        (direction, first column) -> int32 sums of a vector of the weight's columns, if sums of
        products start with them.
    scales : Buffer
        Scales of the weight's columns, [directions, gates * hidden].
    """

    problem: RecurrentProblem
    kernel: Microkernel
    batch: Index
    scales: Expr
    read_sums: ReadSums | None

    def __post_init__(self) -> None:
        problem, kernel, self.hidden = self.problem, self.kernel, self.problem.hidden
        sequences = problem.directions, self.batch
        width = kernel.steps(problem.hidden) * kernel.kr
        # For each sequence.
        self.levels = I.sblock_alloc_buffer((*sequences, width), kernel.a_dtype)
        self.factors = I.sblock_alloc_buffer(sequences, "float32")
        self.zero_points = I.sblock_alloc_buffer(sequences, "int32")

    def round(self, sequence: Place, read: Callable[[Expr], Expr]) -> None:
        """Stores the levels of a sequence's h; `read` gives columns of h."""
        lanes, hidden = self.kernel.lanes, self.hidden
        extremes = emit_extremes(
            lanes, hidden, UNROLL, lambda columns: read(ramp(columns.start, columns.lanes))
        )
        factor, zero_point = emit_parameters(*extremes, None)
        I.buffer_store(self.factors, factor, sequence)
        I.buffer_store(self.zero_points, cast("int32", zero_point), sequence)
        low, high = (
            splat(scalar(bound, "float32") - zero_point, lanes) for bound in (0.0, LARGEST)
        )
        with I.serial(-(-hidden // lanes)) as vector:
            columns = ramp(tirx.Min(vector * lanes, hidden - lanes), lanes)
            level = read(columns) / splat(factor, lanes)
            number = round_to_integer(tirx.Min(tirx.Max(level, low), high))
            if starts_with_sums(self.kernel):
                number = number + splat(self.zero_points[sequence], lanes)
            value = cast(self.kernel.a_dtype, number)
            I.buffer_store(self.levels, value, [*sequence, columns])

    def operand(self, sequence: Place, first: Index) -> Expr:
        """kr levels of a sequence, from `first` on, in the form that products take."""
        return loaded(self.kernel.a_operand(self.levels, [*sequence, first], 0))

    def start(self, sequence: Place, column: Expr) -> Expr:
        """The starting sums of a vector of columns."""
        lanes = self.kernel.lanes
        if not starts_with_sums(self.kernel):
            return constant(0, "int32", lanes)
        assert self.read_sums is not None
        return splat(-self.zero_points[sequence], lanes) * self.read_sums(sequence[0], column)

    def number(self, total: Expr, sequence: Place, column: Expr) -> Expr:
        """The f32 value of the sums of a vector of columns."""
        lanes = self.kernel.lanes
        factor = splat(self.factors[sequence], lanes)
        return cast("float32", total) * (factor * self.scales[sequence[0], ramp(column, lanes)])
