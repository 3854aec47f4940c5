"""Template "matmul": activations times a constant weight, with an epilogue in registers.

    C[m, n] = epilogue(sum over k of A[m, k] * W[k, n])

All leading dimensions of A are folded into m. With the attributes "window" (taps) and "stride",
rows are overlapping windows of A [N, L, C] and W is [taps, C, n]: see matmul_window.py. The weight
is packed at compile time, panel by panel: [N/nr][K/kr][nr][kr], the columns of the last panel
padded with zeros to whole vectors. One parallel region over a grid of threads; inside a thread:
blocks of rows, panels of columns, blocks of K, register tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel, kernels_for, microkernel_named
from microkernels.packing import pack_weight, packed_size
from microkernels.vectors import Expr, cast, parameter, ramp, splat

from .blocking import balanced, choose_thread_grid, shares, thread_grids
from .epilogue import Epilogue, operand_parameters, rows_and_columns, store_vector, unflatten
from .machine import Machine
from .matmul_window import window_of
from .region import Region
from .template import Packing, Template, register_template
from .tile_config import (
    PARALLEL_FLOPS,
    RESULT_DTYPES,
    TileConfig,
    check_tile,
    default_tile,
    neighbouring_tiles,
    tile_cycles,
)
from .tile_loops import TileLoops, for_share, store_columns

ACTIVATION_DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")


class MatmulConfig(TileConfig, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    threads_m, threads_n : int
        Threads along rows and along columns.
    """

    threads_m: int = 1
    threads_n: int = 1


def dimensions(region: Region) -> tuple[int, int, int]:
    """(M, N, K) of a matmul region."""
    *steps, n = region.inputs[1].shape
    window = window_of(region)
    m = rows_and_columns(region.inputs[0])[0] if window is None else window.batch * window.count
    return m, n, math.prod(steps)


def reject(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region, or None."""
    a, w = region.inputs
    if a.dtype not in ACTIVATION_DTYPES:
        return f"activations of type {a.dtype}"
    if w.dtype != "float32" or region.output.dtype not in RESULT_DTYPES:
        return f"weight of type {w.dtype}, output of type {region.output.dtype}"
    if min(dimensions(region)) <= 0:
        return "a dimension is 0"
    return None


def default_config(region: Region, machine: Machine) -> MatmulConfig:
    """The configuration with the fewest estimated cycles; no tuning is needed."""
    candidates = [_config(region, machine, k) for k in _kernels(machine.isa)]
    return min(candidates, key=lambda config: estimated_cycles(region, config))


def space(region: Region, machine: Machine) -> Iterator[MatmulConfig]:
    """Every kernel with neighbouring tiles and blocks, on every grid of threads."""
    m, _, k = dimensions(region)
    default = default_config(region, machine)
    grids = {(1, 1), *thread_grids(machine.threads)}
    found = {
        MatmulConfig(**tile, threads_m=threads_m, threads_n=threads_n)
        for kernel in _kernels(machine.isa)
        for tile in neighbouring_tiles(_tile(region, machine, kernel), m, k)
        for threads_m, threads_n in grids
    }
    yield default
    yield from sorted(found - {default}, key=lambda config: estimated_cycles(region, config))


def estimated_cycles(region: Region, config: MatmulConfig) -> float:
    """Cycles of the busiest thread."""
    m, n, k = dimensions(region)
    n_vectors = math.ceil(n / microkernel_named(config.kernel).lanes)
    return tile_cycles(
        config, math.ceil(m / config.threads_m), math.ceil(n_vectors / config.threads_n), k
    )


def _kernels(isa: Isa) -> tuple[Microkernel, ...]:
    return kernels_for(isa, "float32", "float32")


def _tile(region: Region, machine: Machine, kernel: Microkernel) -> dict[str, Any]:
    m, n, k = dimensions(region)
    tile = default_tile(kernel, m, n, k, machine)
    window = window_of(region)
    if window is not None:  # overlapping rows take less of L2
        block = machine.l2_bytes // 2 // (4 * window.pitch)
        tile["m_block"] = max(tile["m_block"], min(m, block))
    return tile


def _config(region: Region, machine: Machine, kernel: Microkernel) -> MatmulConfig:
    """The best configuration of one kernel."""
    m, n, k = dimensions(region)
    tile = _tile(region, machine, kernel)
    grid = (1, 1)
    if machine.threads > 1 and flops(region) >= PARALLEL_FLOPS:
        m_tiles = math.ceil(m / tile["rows"])
        n_tiles = math.ceil(math.ceil(n / kernel.lanes) / tile["vectors"])
        grid = choose_thread_grid(m_tiles, n_tiles, m, n, k, machine.threads)
    return MatmulConfig(**tile, threads_m=grid[0], threads_n=grid[1])


def check(region: Region, config: MatmulConfig, isa: Isa) -> Microkernel:
    """The microkernel of a legal configuration; ConfigError for an illegal one."""
    return check_tile(region, config, isa, threads_m=config.threads_m, threads_n=config.threads_n)


def build(region: Region, config: MatmulConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel; its weight parameter is flat, as `pack` makes it."""
    kernel = check(region, config, isa)
    m, n, k = dimensions(region)
    lanes = kernel.lanes
    window = window_of(region)
    n_vectors = math.ceil(n / lanes)
    row_shares = shares(m, min(config.threads_m, m))
    column_shares = shares(n_vectors, min(config.threads_n, n_vectors))
    threads_m = sum(group.count for group in row_shares)
    tasks = threads_m * sum(group.count for group in column_shares)
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("matmul")
        I.func_attr({"tirx.noalias": True})
        a = parameter("A", region.inputs[0].shape, region.inputs[0].dtype)
        w = parameter("W", (packed_size(k, n, kernel),), "float32")
        operands = operand_parameters(region)
        c = parameter("C", region.output.shape, region.output.dtype)
        epilogue = Epilogue(region, operands)

        def load_a(row: Expr, step: Expr) -> Expr:
            if window is None:
                indices = [*unflatten(row, region.inputs[0].shape[:-1]), step]
            else:
                indices = window.element(row, step)
            return splat(cast("float32", a[tuple(indices)]), lanes)

        def load_b(panel: Expr, width: int, step: Expr, j: int) -> Expr:
            return w[ramp(panel * (lanes * k) + (step * width + j) * lanes, lanes)]

        def store(row: Expr, vector: Expr, value: Expr, last: bool) -> None:
            leading = unflatten(row, region.output.shape[:-1])
            store_columns(
                n,
                lanes,
                vector,
                last,
                lambda columns: store_vector(c, epilogue(value, row, columns), leading, columns),
            )

        loops = TileLoops(
            kernel,
            k,
            config.rows,
            config.vectors,
            config.m_block,
            config.k_block,
            load_a,
            load_b,
            store,
            epilogue.cost,
        )
        with I.parallel(tasks) if tasks > 1 else I.serial(1) as task, I.sblock("task"):
            I.reads()
            I.writes()
            for_share(
                row_shares,
                I.floormod(task, threads_m),
                lambda row, rows: for_share(
                    column_shares,
                    I.floordiv(task, threads_m),
                    lambda vector, vectors: loops.emit(row, rows, vector, vectors),
                ),
            )
    return builder.get()


def pack(
    region: Region, config: MatmulConfig, isa: Isa, index: int, array: np.ndarray
) -> np.ndarray:
    """The weight as `build` reads it."""
    matrix = array.reshape(-1, array.shape[-1])
    return pack_weight(matrix, _panel_widths(region, config, isa), check(region, config, isa))


def unpack(
    region: Region, config: MatmulConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The weight [K, N] or [taps, C, N] as a Relax expression of its packed form."""
    kernel = check(region, config, isa)
    _, n, k = dimensions(region)
    panels, position = [], 0
    for width in _panel_widths(region, config, isa):
        columns = width * kernel.lanes
        panel = relax.op.strided_slice(expr, [0], [position], [position + k * columns])
        panels.append(relax.op.reshape(panel, (k, columns)))
        position += k * columns
    matrix = relax.op.strided_slice(relax.op.concat(panels, axis=1), [1], [0], [n])
    shape = region.inputs[1].shape
    return matrix if len(shape) == 2 else relax.op.reshape(matrix, shape)


def packed_shape(region: Region, config: MatmulConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the packed weight."""
    _, n, k = dimensions(region)
    return (packed_size(k, n, check(region, config, isa)),)


def _panel_widths(region: Region, config: MatmulConfig, isa: Isa) -> list[int]:
    """Width of every panel, in vectors; panels do not cross the threads' shares."""
    n_vectors = math.ceil(dimensions(region)[1] / check(region, config, isa).lanes)
    widths = []
    for share in shares(n_vectors, min(config.threads_n, n_vectors)):
        panels = [g.size for g in balanced(share.size, config.vectors) for _ in range(g.count)]
        widths += panels * share.count
    return widths


def kernel_name(region: Region, config: MatmulConfig, isa: Isa) -> str:
    """The microkernel's name."""
    return config.kernel


def flops(region: Region) -> int:
    """Multiplications and additions of the product."""
    return 2 * math.prod(dimensions(region))


def reference(region: Region, inputs: list[np.ndarray]) -> np.ndarray:
    """The product in float64; the weight as it is before packing."""
    a, w = (array.astype(np.float64) for array in inputs)
    window = window_of(region)
    return np.matmul(a, w) if window is None else window.product(a, w)


MATMUL = register_template(
    Template(
        name="matmul",
        config_type=MatmulConfig,
        default_config=default_config,
        space=space,
        build=build,
        kernel_name=kernel_name,
        flops=flops,
        reference=reference,
        reject=reject,
        packing=Packing(pack, unpack, packed_shape),
    )
)
