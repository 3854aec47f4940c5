"""Template "batch_matmul": two activations, read as they are stored; the kernel packs B.

    C[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])

The operands may be stored in any order of dimensions, so that neither a transposed B nor the head
layout of attention costs a copy. The attributes `a_axes` and `b_axes` are the permutations from the
stored tensors to the logical ones; `out_axes` stores the result permuted. Batch dimensions
broadcast. One parallel region runs over batches and, if they are too few, over blocks of rows.

f32 operands are multiplied as they are or, with the attribute "rounded" = "bfloat16" or "float16",
rounded to it while they are packed (float16 only on tiles); 8-bit integers as in matmul.py, with
one zero point for all of B.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from tvm import DataType, tirx

from microkernels.amx.tile_shapes import ROWS
from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named, tile_kernels_for
from tir_schedules.core import product_plan, template
from tir_schedules.core.config import best_first, check_numbers
from tir_schedules.core.loop_nest import Loop, LoopNest
from tir_schedules.core.product_plan import Product, is_integer, product_types
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_dynamic
from tir_schedules.cost import cost, parallel

from . import tile_config, zero_points
from .batch_problem import BatchMatmulConfig, BatchProblem, plan_of
from .batch_program import build
from .tile_config import region_kernels, worth_trying

# Types of the operands in memory, by what the kernel multiplies.
OPERAND_DTYPES = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
    "int8": ("uint8", "int8"),
}


def multiplied(region: Region) -> tuple[str, str]:
    """Element types of the kernel's operands."""
    b_dtype = str(region.attrs.get("rounded", region.inputs[1].dtype))
    return tile_config.KERNEL_TYPES.get(b_dtype, ("", ""))


def candidates(region: Region, machine: Machine) -> list[BatchMatmulConfig]:
    """The best configuration of every kernel that is worth trying."""
    if not region.is_dynamic:
        kernels = worth_trying(region_kernels(region, machine.isa), BatchProblem(region).m)
        return [_config(region, machine, kernel) for kernel in kernels]
    problem, found = BatchProblem(region.sampled()), []
    for kernel in _vector_kernels(region, machine.isa):
        tile = tile_config.default_tile(kernel, problem.m, problem.n, problem.k, machine)
        us = cost.flops_us(2 / cost.elements_a_product(kernel), machine)
        config = BatchMatmulConfig(
            **{**tile, "rows": kernel.mr},
            parallel=machine.threads > 1,
            threads=machine.threads,
            alone_flops=2 * parallel.alone_below(machine, us),
        )
        found.append(config)
    return found


def _by_panels(region: Region, config: BatchMatmulConfig, machine: Machine) -> BatchMatmulConfig:
    """Returns a configuration that packs B panel by panel if that is faster; else `config`."""
    problem, kernel = BatchProblem(region.sampled()), microkernel_named(config.kernel)
    by_columns = problem.b_axes[-1] == len(problem.b_axes) - 1
    known = BatchProblem(region)
    if kernel.by_tiles or is_integer(region) or not by_columns or is_dynamic((known.m, known.k)):
        return config
    packed = 4 * kernel.steps(problem.k) * problem.n
    held = 4 * kernel.steps(problem.k) * problem.m
    # If packed B exceeds a quarter of L2 and half of L2 holds A, panels spare writing B to L3 and
    # reading it again. Zen 4, 1x1 convolutions of f32 with channels first: 128x64 by 64x12544 takes
    # 1.89 instead of 2.23 ms; 512x128 by 128x784 takes 0.89 instead of 0.93 ms.
    if packed <= machine.l2_bytes // 4 or held > machine.l2_bytes // 2:
        return config
    shares: dict[str, Any] = {"column_shares": 1}  # dynamic sizes: one chunk for each thread
    if not region.is_dynamic:
        threads = parallel.threads_worth(machine, cost.flops_us(flops(region), machine))
        shares = {
            "row_shares": 1,
            "packs_first": False,
            "parallel": threads > 1,
            "threads": 0 if threads == machine.threads else threads,
            "column_shares": threads // math.gcd(threads, problem.batches),
        }
    most, rows = min(config.vectors, math.ceil(problem.n / kernel.lanes)), min(kernel.mr, problem.m)
    # Narrow panels are best, as fewer lines are on their way at once. In panels of three vectors,
    # 128x64 by 64x12544 takes 2.16 instead of 1.89 ms.
    enough = math.ceil(2 * machine.fma_rate * machine.fma_latency / rows)
    return msgspec.structs.replace(
        config,
        rows=rows,
        vectors=min(most, enough),
        m_block=problem.m,
        k_block=kernel.steps(problem.k),
        **shares,
    )


def tasks_of(problem: BatchProblem, config: BatchMatmulConfig) -> int:
    """The number of tasks of all batches."""
    if config.column_shares:
        lanes = microkernel_named(config.kernel).lanes
        return problem.batches * min(config.column_shares, math.ceil(problem.n / lanes))
    return problem.batches * min(config.row_shares, problem.m)


def _vector_kernels(region: Region, isa: Isa) -> list[Microkernel]:
    """The vector kernels, with which dynamic sizes are built."""
    return [kernel for kernel in region_kernels(region, isa) if not kernel.by_tiles]


def _config(region: Region, machine: Machine, kernel: Microkernel) -> BatchMatmulConfig:
    """The best configuration of one kernel."""
    problem = BatchProblem(region)
    tile = tile_config.default_tile(kernel, problem.m, problem.n, problem.k, machine)
    alone = BatchMatmulConfig(**tile)
    alone_us = cost.flops_us(flops(region) / cost.elements_a_product(kernel), machine)
    if parallel.threads_worth(machine, alone_us) == 1:
        return alone
    elements = problem.k * problem.n
    work = parallel.PackedWork(
        operands=problem.batches,
        members=1,
        rows=problem.m,
        unit=ROWS if kernel.by_tiles else 1,
        row_us=estimated_cycles(region, alone, machine) / problem.m / machine.cycles_per_us,
        stored=elements * int(DataType(region.inputs[1].dtype).itemsize),
        packed=elements * 4 // kernel.kr,
    )
    shares = parallel.share_packed_work(work, machine, alone_us)
    return BatchMatmulConfig(**tile, **shares.fields(machine))


def estimated_cycles(region: Region, config: BatchMatmulConfig, machine: Machine) -> float:
    """Cycles of the largest task, without packing."""
    return tile_config.tile_cycles(plan_of(BatchProblem(region), config).busiest, machine)


def busiest_cycles(region: Region, config: BatchMatmulConfig, machine: Machine) -> float:
    """Cycles of all tasks of the busiest thread, without packing."""
    problem = BatchProblem(region)
    tasks = tasks_of(problem, config)
    threads = (config.threads or machine.threads) if config.parallel else 1
    return math.ceil(tasks / threads) * estimated_cycles(region, config, machine)


def flops(region: Region) -> int:
    """Multiplications and additions of all products."""
    problem = BatchProblem(region)
    return 2 * problem.batches * problem.m * problem.n * problem.k


class BatchMatmul(template.Template[BatchMatmulConfig]):
    """Products of two activations."""

    name = "batch_matmul"
    config_type = BatchMatmulConfig
    flops = staticmethod(flops)
    estimate = staticmethod(estimated_cycles)

    def default_config(self, region: Region, machine: Machine) -> BatchMatmulConfig:
        """The configuration with the fewest estimated cycles."""
        cycles = functools.partial(busiest_cycles, region, machine=machine)
        best = tile_config.fewest_cycles(candidates(region, machine), cycles)
        return _by_panels(region, best, machine)

    def space(self, region: Region, machine: Machine) -> Iterator[BatchMatmulConfig]:
        """Every register tile with blocks of several sizes, rows divided among tasks or not."""
        if region.is_dynamic:
            yield from candidates(region, machine)
            return
        problem = BatchProblem(region)
        m, n, k = problem.m, problem.n, problem.k
        default, kernels = self.default_config(region, machine), region_kernels(region, machine.isa)
        bases = [tile_config.default_tile(kernel, m, n, k, machine) for kernel in kernels]
        n_vectors = math.ceil(n / kernels[0].lanes)
        found = {
            BatchMatmulConfig(**{**default.to_dict(), **tile, **shares})
            for tile in tile_config.tiles_and_blocks(kernels, m, n_vectors, k, bases)
            for shares in ({}, {"row_shares": 1, "packs_first": False})
        }
        cycles = functools.partial(busiest_cycles, region, machine=machine)
        yield from best_first(default, found, cycles)

    def check(self, region: Region, config: BatchMatmulConfig, isa: Isa) -> Microkernel:
        """The microkernel of a legal configuration; ConfigError for an illegal one."""
        check_numbers(region, config, {"threads": None, "column_shares": None}, least=0)
        kernel = tile_config.check_tile(region, config, isa, product_types(region), "row_shares")
        problem = BatchProblem(region)
        if config.column_shares:
            if region.is_dynamic and (
                is_dynamic((problem.m, problem.k)) or problem.b_axes[-1] != len(problem.b_axes) - 1
            ):
                raise ConfigError(
                    "column_shares needs static rows and K, and rows of B that are contiguous: "
                    f"{region.key}"
                )
            if kernel.by_tiles or is_integer(region):
                raise ConfigError(f"column_shares needs floats and a vector kernel: {region.key}")
            if config.packs_first or config.row_shares > 1:
                raise ConfigError("column_shares needs packs_first=False and row_shares=1")
        return kernel

    def build(self, region: Region, config: BatchMatmulConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel."""
        return build(region, config, self.check(region, config, isa))

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The product in float64 or, of integers, int32; before `out_axes`."""
        problem = BatchProblem(region)
        a, b = inputs[0].transpose(problem.a_axes), inputs[1].transpose(problem.b_axes)
        if is_integer(region):
            return zero_points.integer_reference(region, [a, b, *inputs[2:]])
        rounded = multiplied(region)[1]
        if rounded in ("bfloat16", "float16"):
            kind = np.dtype(getattr(ml_dtypes, rounded, rounded))
            a, b = (x.astype(np.float32).astype(kind) for x in (a, b))
        return np.matmul(a.astype(np.float64), b.astype(np.float64))

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        a, b = region.inputs[:2]
        allowed = OPERAND_DTYPES.get(multiplied(region)[1], ())
        if (
            not {a.dtype, b.dtype} <= {*allowed}
            or region.output.dtype not in tile_config.RESULT_DTYPES
        ):
            return f"operands of type {a.dtype} and {b.dtype}, output {region.output.dtype}"
        if "float16" in multiplied(region) and not tile_kernels_for(isa, *multiplied(region)):
            return "products of float16, which only AMX tiles multiply"
        if is_integer(region):
            reason = product_plan.reject_zero_points(region)
            if reason or "b" in product_plan.zero_point_inputs(region):
                return reason or "a zero point for each column of an activation"
        problem = BatchProblem(region)
        if 0 in (problem.m, problem.n, problem.k, problem.batches):
            return "a dimension is 0"
        if problem.out_axes[-1] != len(problem.out_axes) - 1:
            return "the result is stored with another dimension than its columns last"
        if problem.a_shape[-1] != problem.k:
            return f"K differs: {problem.a_shape[-1]} and {problem.k}"
        return None

    def reject_dynamic(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region with dynamic sizes, or None."""
        return None if _vector_kernels(region, isa) else "no vector kernel multiplies it"

    def at_run_time(self, region: Region, config: BatchMatmulConfig) -> str:
        """What is decided at run time, for `explain`."""
        text = f"tiles of 1 to {config.rows} rows, panels of up to {config.vectors} vectors"
        if not config.parallel or config.threads == 1:
            return text
        alone = f"up to {config.alone_flops} flops: one thread"
        return f"{text}; fewer batches than threads: rows are shared; {alone}"

    def nests(self, region: Region, config: BatchMatmulConfig) -> Iterator[LoopNest]:
        """The loops of all batches; packing is left out."""
        problem = BatchProblem(region)
        nest = parallel.product_nest(plan_of(problem, config))
        a, b, c = (size * problem.batches for size in nest.loops[0].touched)
        whole = Loop("batch", problem.batches, parallel.kind_of(config.parallel), (a, b, c))
        operations = nest.operations * problem.batches
        yield dataclasses.replace(nest, loops=(whole, *nest.loops), operations=operations)

    def products(
        self, region: Region, config: BatchMatmulConfig, machine: Machine
    ) -> Iterator[Product]:
        """The product of one task."""
        problem = BatchProblem(region)
        cycles = estimated_cycles(region, config, machine)
        # Other configurations may cut rows in another way: their whole times are compared.
        scale = cycles / busiest_cycles(region, config, machine)
        yield Product(
            part=region,
            plan=plan_of(problem, config).busiest,
            copies=tasks_of(problem, config),
            cycles=cycles,
            others=lambda: [
                (other.kernel, scale * busiest_cycles(region, other, machine))
                for other in candidates(region, machine)
            ],
        )


BATCH_MATMUL = template.register_template(BatchMatmul())
