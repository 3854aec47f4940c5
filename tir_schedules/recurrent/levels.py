"""Products of 8-bit integers in a recurrence: h as levels, and what sums of them stand for.

    h[row] = scale[row] * (level - zero_point[row])        level 0 to 255, as DynamicQuantizeLinear
    gate = part + scale[row] * weight_scale[column] * sum of (level - zero_point) * weight

Each sequence has a scale of its own in every step. Levels are multiplied as bytes: sums start with
-zero_point times the column's sum. Without VNNI, products that bytes cannot add stand apart
(`large_pairs`), and weights of words, which are 8-bit integers less a zero point, are multiplied by
level - zero_point as words of 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import byte_tile, has_pairs, packed_words_tile
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, cast, constant, ramp, scalar, splat
from microkernels.vector.ieee import round_to_integer
from tir_schedules.rows.quantization_range import LARGEST, emit_extremes, emit_parameters

from .problem import RecurrentProblem

UNROLL = 4  # independent minima and maxima of a state

ReadSums = Callable[[Expr, Expr], Expr]
Place = tuple[Expr, Expr]
"""A direction, and the number of a sequence in it."""


def level_tile(kernel: Microkernel, weight_dtype: str) -> Microkernel:
    """The form of a kernel of bytes that multiplies levels by weights of bytes or of words."""
    if has_pairs(kernel):
        return byte_tile(kernel) if weight_dtype == "int8" else packed_words_tile(kernel)
    if kernel.kr > 1:
        return kernel
    return replace(kernel, a_dtype="int16", b_dtype=weight_dtype)


def starts_with_sums(kernel: Microkernel) -> bool:
    """Whether sums of products start with the sums of the weight's columns."""
    return kernel.a_dtype == "uint8"


@dataclass(frozen=True)
class Levels:
    """The levels of all states.

    Attributes
    ----------
    hidden : int
        Hidden values of a state.
    read_sums : callable or None
        (direction, first column) -> sums of a vector of the weight's columns, int32, if sums of
        products start with these.
    scales : Buffer
        Of the weight's columns, [directions, gates * hidden].
    levels, factors, zero_points : Buffer
        Of each sequence, [directions, batch, steps of K * kr] and [directions, batch].
    """

    hidden: int
    kernel: Microkernel
    read_sums: ReadSums | None
    scales: Expr
    levels: Expr
    factors: Expr
    zero_points: Expr

    def round(self, sequence: Place, read: Callable[[Expr], Expr]) -> None:
        """The levels of a sequence's h; `read` gives columns of it."""
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

    def operand(self, sequence: Place, first: Expr | int) -> Expr:
        """kr levels of a sequence, from the first one on, as products take them."""
        found = self.kernel.a_operand(self.levels, [*sequence, first], 0)
        assert isinstance(found, tirx.Expr)
        return found

    def start(self, sequence: Place, column: Expr) -> Expr:
        """What the sums of a vector of columns start with."""
        lanes = self.kernel.lanes
        if not starts_with_sums(self.kernel):
            return constant(0, "int32", lanes)
        assert self.read_sums is not None
        return splat(-self.zero_points[sequence], lanes) * self.read_sums(sequence[0], column)

    def number(self, total: Expr, sequence: Place, column: Expr) -> Expr:
        """What the sums of a vector of columns stand for."""
        lanes = self.kernel.lanes
        factor = splat(self.factors[sequence], lanes)
        return cast("float32", total) * (factor * self.scales[sequence[0], ramp(column, lanes)])


def allocate_levels(
    problem: RecurrentProblem,
    kernel: Microkernel,
    batch: int | Expr,
    scales: Expr,
    read_sums: ReadSums | None,
) -> Levels:
    """The levels of a kernel under construction; parameters as of `Levels`."""
    sequences = problem.directions, batch
    width = kernel.steps(problem.hidden) * kernel.kr
    return Levels(
        problem.hidden,
        kernel,
        read_sums,
        scales,
        levels=I.sblock_alloc_buffer((*sequences, width), kernel.a_dtype),
        factors=I.sblock_alloc_buffer(sequences, "float32"),
        zero_points=I.sblock_alloc_buffer(sequences, "int32"),
    )
