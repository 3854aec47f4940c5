"""Template "elementwise": an epilogue applied to a tensor, for operators between other regions.

    y = epilogue(x)        such as quantize(dequantize(a) + dequantize(b)), or a quantisation alone

x is float32, bfloat16, or an integer that is held as int32 lanes. Dimensions are merged first
(`collapsed` in `core/extents.py`), mostly to one long row. The loops go over full vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import RANGES
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr, Index, bind, materialise
from tir_schedules.core import blocking, emission, extents, template
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_dynamic
from tir_schedules.cost.parallel import LEAST_MOVED, alone_below, threads_worth
from tir_schedules.epilogue import epilogue as ep
from tir_schedules.epilogue.epilogue import Columns, Epilogue
from tir_schedules.epilogue.packed_bytes import LANES as PACKED_LANES
from tir_schedules.epilogue.packed_bytes import wide_bytes


class Loops:
    """The loops over a matrix of `n` columns: full vectors of each row, then its tail.

    The last vector of a row may overlap the one before it and compute results again, so that a mask
    is needed only if a row is shorter than a vector.

    A dynamic row is several vectors at a time, then single ones, then a vector that overlaps the
    one before it or, in a row shorter than a vector, is masked. Dynamic work is divided among
    threads at run time: the rows or, if there is only one row, its vectors.
    """

    def __init__(
        self, n: int, lanes: int, unroll: int, x_dtype: str, x: Expr, y: Expr, epilogue: Epilogue
    ) -> None:
        self.n, self.lanes, self.unroll = n, lanes, unroll
        self.x_dtype, self.x, self.y, self.epilogue = x_dtype, x, y, epilogue
        self.packed = wide_bytes(epilogue.region, lanes, epilogue)

    def share(self, rows: int, threads: int) -> None:
        """Shares the rows among threads, or the vectors of every row if rows are few and long."""
        vectors = self.n // self.lanes
        long = rows < 4 * threads and vectors >= 4 * threads > 4
        count = vectors if long else rows
        parts = blocking.shares(count, min(threads, count))
        tasks = sum(group.count for group in parts)

        def part(start: Expr, size: int) -> None:
            if long:
                self.for_rows(0, rows, lambda row: self.vectors(row, start, size))
            else:
                self.for_rows(start, size, self.row)

        with emission.task_loop(tasks) as task:
            emission.for_share(parts, task, part)
        if long and self.n % self.lanes:
            with emission.opaque_block("rest"):
                self.for_rows(0, rows, self.rest)

    def share_dynamic(self, rows: int, threads: int, alone: int) -> None:
        """`share` for dynamic sizes; for up to `alone` numbers, one thread runs all."""
        count, n = extents.as_expr(extents.extent(rows)), extents.as_expr(extents.extent(self.n))
        single = not is_dynamic((rows,)) and rows == 1
        first_row = extents.as_expr(0)
        total = materialise(I.floordiv(n, self.lanes)) if single else count
        with emission.dynamic_tasks(threads, count * n <= alone) as (task, tasks):
            first, share = emission.share_of(total, task, tasks)
            if single:
                self.vectors(first_row, first, share)
            else:
                self.for_rows(first, share, self.row)
        if single:
            with emission.opaque_block("rest"):
                self.rest(first_row)

    def for_rows(self, start: Index, count: Index, body: Callable[[Expr], None]) -> None:
        with I.serial(count) as i:
            body(start + i)

    def row(self, row: Expr) -> None:
        """A whole row."""
        n = extents.extent(self.n)
        self.vectors(row, 0, n // self.lanes)
        if not isinstance(n, int) or n % self.lanes:
            self.rest(row)

    def vectors(self, row: Expr, start: Index, count: Index) -> None:
        """`count` full vectors of a row, from vector `start`."""
        lanes, unroll = self.lanes, self.unroll
        if isinstance(count, int):
            unroll = min(unroll, max(count, 1))
        steps = emission.named(count // unroll)
        left, end = count - steps * unroll, start + steps * unroll

        def several(step: Expr) -> None:
            self.side_by_side(row, (start + step * unroll) * lanes, unroll)

        emission.repeat(steps, "vectors", several)
        if unroll > 1:

            def single(slot: Expr) -> None:
                self.side_by_side(row, (end + slot) * lanes, 1)

            emission.repeat(left, "vector", single)

    def side_by_side(self, row: Expr, start: Expr, count: int) -> None:
        """Vectors that are next to each other."""
        vectors = [Columns(start + i * self.lanes, self.lanes, self.lanes) for i in range(count)]
        if self.packed is None:
            for columns in vectors:
                self.one(row, columns)
            return
        wide = [self.epilogue(self._read(row, c), row, c, self.packed) for c in vectors]
        self.packed.store(self.y, wide, (row,), start)

    def rest(self, row: Expr) -> None:
        """The last columns: a vector that overlaps the one before it, or a masked one."""
        n, lanes = extents.extent(self.n), self.lanes
        if isinstance(n, int):
            cut = n <= lanes
            self.one(row, Columns(0, lanes, n) if cut else Columns(n - lanes, lanes, lanes))
            return
        if lanes == 1:
            return
        left = materialise(I.floormod(n, lanes))
        with I.If(left > 0), I.Then(), I.If(n > lanes):
            with I.Then(), emission.opaque_block("overlapping"):
                self.one(row, Columns(n - lanes, lanes, lanes))
            with I.Else(), emission.opaque_block("cut"):
                self.one(row, Columns(0, lanes, left))

    def one(self, row: Expr, columns: Columns) -> None:
        """One vector."""
        result = self.epilogue(self._read(row, columns), row, columns)
        ep.store_vector(self.y, result, (row,), columns)

    def _read(self, row: Expr, columns: Columns) -> Expr:
        return bind(ep.as_lanes(ep.load_vector(self.x, self.x_dtype, (row,), columns)))


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
    alone : int
        If sizes are dynamic, up to this number of elements one thread does all.
    """

    unroll: int
    threads: int = 1
    alone: int = 0


class Elementwise(template.Template[ElementwiseConfig]):
    """An epilogue applied to a tensor."""

    name = "elementwise"
    config_type = ElementwiseConfig
    any_sizes = True

    def default_config(self, region: Region, machine: Machine) -> ElementwiseConfig:
        """A configuration by closed formula; no tuning is needed."""
        dynamic_sizes = region.is_dynamic
        region = region.sampled()
        rows, n = ep.rows_and_columns(extents.collapsed(region).output)
        lanes = machine.isa.f32_lanes
        cost = Epilogue(region, ()).cost
        packed = region.output.dtype in RANGES and lanes == PACKED_LANES  # four at a time
        unroll = 4 if cost <= 12 or (packed and cost <= 32) else 2 if cost <= 24 else 1
        cycles = rows * math.ceil(n / lanes) * (2 + cost) * OPERATION_CYCLES
        us = cycles / machine.cycles_per_us
        if dynamic_sizes:  # the sizes that arrive decide whether threads are worth it
            alone = alone_below(machine, us / (rows * n), LEAST_MOVED)
            return ElementwiseConfig(min(unroll, max(1, n // lanes)), machine.threads, alone)
        threads = threads_worth(machine, us, LEAST_MOVED)
        return ElementwiseConfig(unroll=min(unroll, max(1, n // lanes)), threads=threads)

    def space(self, region: Region, machine: Machine) -> Iterator[ElementwiseConfig]:
        """The default, then other numbers of vectors in one iteration."""
        return self.default_config(region, machine).varied("unroll", (1, 2, 4, 8))

    def check(self, region: Region, config: ElementwiseConfig, isa: Isa) -> None:
        """Refuses a configuration that is not legal.

        Raises
        ------
        ConfigError
            If a field is out of range; the message names it.
        """
        check_numbers(region, config, {"unroll": 32, "threads": 4096})

    def build(self, region: Region, config: ElementwiseConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel: x, operands, output."""
        self.check(region, config, isa)
        flat = extents.collapsed(region)
        rows, n = ep.rows_and_columns(flat.output)
        with emission.kernel_function(region.op) as builder:
            source = region.inputs[0]
            x = emission.tensor_parameter("X", source)
            given = emission.operand_parameters(region)
            y = emission.tensor_parameter("Y", region.output)
            extents.read_extents()
            operands = extents.operand_views(given, region, flat)
            x = extents.reshaped(x, source, (rows, n))
            y = extents.reshaped(y, region.output, (rows, n))
            numbers = n, isa.f32_lanes, config.unroll, source.dtype
            loops = Loops(*numbers, x, y, Epilogue(flat, operands))
            if region.is_dynamic:
                loops.share_dynamic(rows, config.threads, config.alone)
            else:
                loops.share(rows, config.threads)
        return builder.get()

    def flops(self, region: Region) -> int:
        """One operation for every number and step."""
        steps = [step for step in region.epilogue if step.op != "constant"]
        return region.output.size * len(steps)

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The anchor's result, which is its input; exact."""
        x = inputs[0]
        return x.astype(np.int64 if x.dtype.kind in "iu" else np.float32)

    def reject(self, region: Region, isa: Isa) -> str | None:
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
        listed = extents.item_operands(region)
        for number, operand in enumerate(region.operands):
            if number not in listed and not extents.broadcasts(operand.shape, x.shape):
                return f"operand {operand} does not broadcast to {x}"
        return None

    def at_run_time(self, region: Region, config: ElementwiseConfig) -> str:
        """What is decided at run time, for `explain`."""
        alone = f"; up to {config.alone} numbers: one thread" if config.threads > 1 else ""
        return f"{config.unroll} vectors side by side, then single ones{alone}"


ELEMENTWISE = template.register_template(Elementwise())
