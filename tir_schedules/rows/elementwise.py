"""Template "elementwise": an epilogue applied to a tensor, for operators between other regions.

    y = epilogue(x)        such as quantize(dequantize(a) + dequantize(b)), or a quantisation alone

x is float32, bfloat16, or an integer that is held as int32 lanes. Dimensions are collapsed first
(`collapse`), mostly to one long row. The loops go over full vectors. The last vector of a row may
overlap the one before it and compute the same results again, so that no mask is needed unless a row
is shorter than a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.integers import RANGES
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr, bind
from tir_schedules.core.blocking import shares
from tir_schedules.core.collapse import broadcasts, collapsed, item_operands
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.emission import (
    kernel_function,
    opaque_block,
    operand_parameters,
    task_loop,
    tensor_parameter,
)
from tir_schedules.core.group_loops import for_share
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, register_template
from tir_schedules.cost.parallel import LEAST_MOVED, threads_worth
from tir_schedules.epilogue.epilogue import (
    Columns,
    Epilogue,
    as_lanes,
    load_vector,
    rows_and_columns,
    store_vector,
)
from tir_schedules.epilogue.packed_bytes import LANES as PACKED_LANES
from tir_schedules.epilogue.packed_bytes import wide_bytes

from .normalize_view import reshaped

OPERATION_CYCLES = 0.925  # of one operator, for a vector
X_DTYPES = ("float32", "bfloat16", "uint8", "int8", "int32")


class ElementwiseConfig(Config, frozen=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    unroll : int
        Vectors in one iteration.
    threads : int
        Threads that share the work.
    """

    unroll: int
    threads: int = 1


def reject(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region, or None."""
    if len(region.inputs) != 1:
        return f"{len(region.inputs)} inputs"
    x = region.inputs[0]
    if x.dtype not in X_DTYPES:
        return f"a tensor of type {x.dtype}"
    if x.size == 0:
        return "a dimension is 0"
    if x.shape != region.output.shape:
        return f"output of shape {region.output.shape}, not {x.shape}"
    listed = item_operands(region)
    for number, operand in enumerate(region.operands):
        if number not in listed and not broadcasts(operand.shape, x.shape):
            return f"operand {operand} does not broadcast to {x}"
    return None


def default_config(region: Region, machine: Machine) -> ElementwiseConfig:
    """A configuration by closed formula; no tuning is needed."""
    rows, n = rows_and_columns(collapsed(region).output)
    lanes = machine.isa.f32_lanes
    cost = Epilogue(region, ()).cost
    packed = region.output.dtype in RANGES and lanes == PACKED_LANES  # four at a time
    unroll = 4 if cost <= 12 or (packed and cost <= 32) else 2 if cost <= 24 else 1
    cycles = rows * math.ceil(n / lanes) * (2 + cost) * OPERATION_CYCLES
    threads = threads_worth(machine, cycles / machine.cycles_per_us, LEAST_MOVED)
    return ElementwiseConfig(unroll=min(unroll, max(1, n // lanes)), threads=threads)


def space(region: Region, machine: Machine) -> Iterator[ElementwiseConfig]:
    """The default, then other numbers of vectors in one iteration."""
    default = default_config(region, machine)
    yield default
    for unroll in (1, 2, 4, 8):
        if unroll != default.unroll:
            yield ElementwiseConfig(unroll=unroll, threads=default.threads)


def check(region: Region, config: ElementwiseConfig, isa: Isa) -> None:
    """Refuses a configuration that is not legal.

    Raises
    ------
    ConfigError
        Saying which field is out of range.
    """
    check_numbers(region, config, {"unroll": 32, "threads": 4096})


def build(region: Region, config: ElementwiseConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel: x, operands, output."""
    check(region, config, isa)
    flat = collapsed(region)
    rows, n = rows_and_columns(flat.output)
    with kernel_function(region.op) as builder:
        source = region.inputs[0]
        x = tensor_parameter("X", source)
        given = operand_parameters(region)
        y = tensor_parameter("Y", region.output)
        operands = [
            reshaped(buffer, tensor, seen.shape)
            for buffer, tensor, seen in zip(given, region.operands, flat.operands, strict=True)
        ]
        loops = _Loops(
            n,
            isa.f32_lanes,
            config.unroll,
            source.dtype,
            reshaped(x, source, (rows, n)),
            reshaped(y, region.output, (rows, n)),
            Epilogue(flat, operands),
        )
        loops.share(rows, config.threads)
    return builder.get()


class _Loops:
    """The loops over a matrix of `n` columns."""

    def __init__(
        self,
        n: int,
        lanes: int,
        unroll: int,
        x_dtype: str,
        x: Expr,
        y: Expr,
        epilogue: Epilogue,
    ) -> None:
        self.n, self.lanes, self.unroll = n, lanes, unroll
        self.x_dtype, self.x, self.y, self.epilogue = x_dtype, x, y, epilogue
        self.packed = wide_bytes(epilogue.region, lanes, epilogue)

    def share(self, rows: int, threads: int) -> None:
        """Shares the rows among threads, or the vectors of every row if rows are few and long."""
        vectors = self.n // self.lanes
        long = rows < 4 * threads and vectors >= 4 * threads > 4
        extent = vectors if long else rows
        parts = shares(extent, min(threads, extent))
        tasks = sum(group.count for group in parts)

        def part(start: Expr, size: int) -> None:
            if long:
                self._for_rows(0, rows, lambda row: self._vectors(row, start, size))
            else:
                self._for_rows(start, size, self._row)

        with task_loop(tasks) as task:
            for_share(parts, task, part)
        if long and self.n % self.lanes:
            with opaque_block("rest"):
                self._for_rows(0, rows, self._rest)

    def _for_rows(self, start: Expr | int, count: int, body: Callable[[Expr], None]) -> None:
        with I.serial(count) as i:
            body(start + i)

    def _row(self, row: Expr) -> None:
        self._vectors(row, 0, self.n // self.lanes)
        if self.n % self.lanes:
            self._rest(row)

    def _vectors(self, row: Expr, start: Expr | int, count: int) -> None:
        """`count` full vectors of a row, from vector `start`."""
        lanes = self.lanes
        unroll = min(self.unroll, max(count, 1))
        steps, left = divmod(count, unroll)
        if steps:
            with I.serial(steps) as step:
                self._side_by_side(row, (start + step * unroll) * lanes, unroll)
        if left:
            with I.serial(left) as slot:
                self._side_by_side(row, (start + steps * unroll + slot) * lanes, 1)

    def _side_by_side(self, row: Expr, start: Expr, count: int) -> None:
        """Vectors that lie next to each other."""
        vectors = [Columns(start + i * self.lanes, self.lanes, self.lanes) for i in range(count)]
        if self.packed is None:
            for columns in vectors:
                self._one(row, columns)
            return
        wide = [self.epilogue(self._read(row, c), row, c, self.packed) for c in vectors]
        self.packed.store(self.y, wide, (row,), start)

    def _rest(self, row: Expr) -> None:
        """The last columns: a vector that overlaps the one before it, or a masked one."""
        if self.n > self.lanes:
            self._one(row, Columns(self.n - self.lanes, self.lanes, self.lanes))
        else:
            self._one(row, Columns(0, self.lanes, self.n))

    def _one(self, row: Expr, columns: Columns) -> None:
        result = self.epilogue(self._read(row, columns), row, columns)
        store_vector(self.y, result, (row,), columns)

    def _read(self, row: Expr, columns: Columns) -> Expr:
        return bind(as_lanes(load_vector(self.x, self.x_dtype, (row,), columns)))


def kernel_name(region: Region, config: ElementwiseConfig, isa: Isa) -> str:
    """Which loops, on which ISA, such as "avx512_elementwise"."""
    level = isa.vector_level
    return f"{level}_elementwise"


def flops(region: Region) -> int:
    """One operation for every number and step."""
    steps = [step for step in region.epilogue if step.op != "constant"]
    return region.output.size * len(steps)


def reference(region: Region, inputs: list[np.ndarray]) -> np.ndarray:
    """The anchor's result, which is its input; exact."""
    x = inputs[0]
    return x.astype(np.int64 if x.dtype.kind in "iu" else np.float32)


ELEMENTWISE = register_template(
    Template(
        name="elementwise",
        config_type=ElementwiseConfig,
        default_config=default_config,
        space=space,
        check=check,
        build=build,
        kernel_name=kernel_name,
        flops=flops,
        reference=reference,
        reject=reject,
    )
)
