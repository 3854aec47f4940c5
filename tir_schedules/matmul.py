"""Template "matmul": activations times a constant weight, with an epilogue in registers.

    C[m, n] = epilogue(sum over k of A[m, k] * W[k, n])

All leading dimensions of A are folded into m. With the attributes "window" (taps) and "stride",
rows are overlapping windows of A [N, L, C] and W is [taps, C, n]: see matmul_window.py. The weight
is packed at compile time, panel by panel: [N/nr][K/kr][nr][kr], the columns of the last panel
padded with zeros to whole vectors. One parallel region over a grid of threads; inside a thread:
blocks of rows, panels of columns, blocks of K, register tiles.

The weight's type says what is multiplied: f32, bfloat16 (A is rounded to it if it is f32) or 8-bit
integers, of which the product is exact in int32, zero points included (zero_points.py). With the
attributes "a_quantize" (the 8-bit type), "a_scale" and "a_zero_point" a f32 A is quantised on the
way in, with "dynamic" ones after its range has been found (DynamicQuantizeLinear).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.bfloat16 import bits_of
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel, kernels_for, microkernel_named
from microkernels.packing import pack_weight, packed_size
from microkernels.vectors import Expr, parameter, ramp, reinterpret_group

from .activations import Activations
from .blocking import balanced, choose_thread_grid, shares, thread_grids
from .epilogue import (
    Columns,
    Epilogue,
    load_vector,
    operand_parameters,
    rows_and_columns,
    store_vector,
    unflatten,
)
from .machine import Machine
from .matmul_window import window_of
from .normalize_view import reshaped
from .quantization_range import emit_range
from .region import Region
from .template import Packing, Template, register_template
from .tile_config import (
    KERNEL_TYPES,
    PARALLEL_FLOPS,
    RESULT_DTYPES,
    TileConfig,
    check_tile,
    default_tile,
    neighbouring_tiles,
    tile_cycles,
)
from .tile_loops import TileLoops, for_share, store_columns
from .zero_points import (
    Start,
    ZeroPoints,
    integer_reference,
    is_dynamic,
    is_integer,
    named_inputs,
    quantize_parameters,
    reject_zero_points,
    shifted_columns,
    shifted_weight,
)

# Types of A that a weight of some type can be multiplied by; they are converted on the way in.
ACTIVATION_DTYPES = {
    "float32": (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int32",
        "int64",
        "bool",
    ),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("uint8", "int8", "float32"),
    "uint8": ("uint8", "int8", "float32"),
}


RANGE_UNROLL = 8  # independent minima and maxima


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
    a, w = region.inputs[:2]
    if a.dtype not in ACTIVATION_DTYPES.get(w.dtype, ()):
        return f"activations of type {a.dtype} and weight of type {w.dtype}"
    if region.output.dtype not in RESULT_DTYPES:
        return f"output of type {region.output.dtype}"
    if min(dimensions(region)) <= 0:
        return "a dimension is 0"
    if w.dtype != "float32" and window_of(region) is not None:
        return f"windows of type {w.dtype}"
    if is_integer(region):
        if ("a_quantize" in region.attrs) != (a.dtype == "float32"):
            return f"activations of type {a.dtype}, quantised by the kernel"
        return reject_zero_points(region)
    return None


def default_config(region: Region, machine: Machine) -> MatmulConfig:
    """The configuration with the fewest estimated cycles; no tuning is needed."""
    candidates = [_config(region, machine, k) for k in _kernels(region, machine.isa)]
    return min(candidates, key=lambda config: estimated_cycles(region, config))


def space(region: Region, machine: Machine) -> Iterator[MatmulConfig]:
    """Every kernel with neighbouring tiles and blocks, on every grid of threads."""
    m, _, k = dimensions(region)
    default = default_config(region, machine)
    grids = {(1, 1), *thread_grids(machine.threads)}
    found = {
        MatmulConfig(**tile, threads_m=threads_m, threads_n=threads_n)
        for kernel in _kernels(region, machine.isa)
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


def _kernels(region: Region, isa: Isa) -> tuple[Microkernel, ...]:
    return kernels_for(isa, *KERNEL_TYPES[region.inputs[1].dtype])


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
    if machine.threads > 1 and flops(region) >= PARALLEL_FLOPS * kernel.kr:
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
    steps = math.ceil(k / kernel.kr)
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
        w = parameter("W", packed_shape(region, config, isa, 1), kernel.b_dtype)
        further = [
            parameter(f"input{i}", _parameter_shape(region, config, isa, i), tensor.dtype)
            for i, tensor in enumerate(region.inputs[2:], 2)
        ]
        operands = operand_parameters(region)
        c = parameter("C", region.output.shape, region.output.dtype)
        epilogue = Epilogue(region, operands, kernel.narrow)

        def read_a(row: Expr, columns: Columns) -> Expr:
            if window is not None:
                return a[tuple(window.element(row, columns.start))]
            leading = unflatten(row, region.inputs[0].shape[:-1])
            return load_vector(a, region.inputs[0].dtype, leading, columns)

        def load_b(panel: Expr, width: int, step: Expr, j: int) -> Expr:
            group = lanes * kernel.kr
            vector = w[ramp((panel * steps + step * width + j) * group, group)]
            return bits_of(vector) if kernel.b_dtype == "bfloat16" else vector

        def column_term(vector: Expr) -> Expr:
            first = packed_size(k, n, kernel) + vector * (4 * lanes)
            return reinterpret_group("int32", w[ramp(first, 4 * lanes)], lanes)

        def store(row: Expr, vector: Expr, value: Expr, last: bool) -> None:
            leading = unflatten(row, region.output.shape[:-1])
            store_columns(
                n,
                lanes,
                vector,
                last,
                lambda columns: store_vector(c, epilogue(value, row, columns), leading, columns),
            )

        with I.parallel(tasks) if tasks > 1 else I.serial(1) as task, I.sblock("task"):
            I.reads()
            I.writes()
            integer = is_integer(region)
            inputs = named_inputs(region, further)
            if is_dynamic(region):
                inputs["range"] = epilogue.own_range = _emit_range(region, isa, a)
            activations = Activations(
                kernel,
                region.inputs[0].dtype,
                k,
                min(config.m_block, row_shares[0].size),
                read_a,
                quantize=quantize_parameters(region, inputs),
                sums=integer and ZeroPoints.of(region).needs_row_sums,
            )
            start = None
            if integer:
                start = Start(region, inputs, k, lanes, column_term, activations.row_sum)
            loops = TileLoops(
                kernel,
                steps,
                config.rows,
                config.vectors,
                config.m_block,
                config.k_block,
                activations.load,
                load_b,
                store,
                epilogue.cost,
                begin=activations.begin,
                start=start if start is not None and start.needed else None,
            )
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


def _emit_range(region: Region, isa: Isa, a: Expr) -> Expr:
    """Scale and zero point of all of A, found by every thread for itself."""
    found = I.sblock_alloc_buffer((2,), "float32")
    flat = reshaped(a, region.inputs[0], (region.inputs[0].size,))
    with I.sblock("range"):
        I.reads()
        I.writes()
        numbers = emit_range(
            isa.f32_lanes,
            region.inputs[0].size,
            RANGE_UNROLL,
            lambda columns: load_vector(flat, "float32", (), columns),
        )
        for index, value in enumerate(numbers):
            I.buffer_store(found, value, [index])
    return found


def pack(
    region: Region, config: MatmulConfig, isa: Isa, index: int, array: np.ndarray
) -> np.ndarray:
    """The weight as `build` reads it, a zero point for each column as int32."""
    kernel = check(region, config, isa)
    if index > 1:
        padding = packed_shape(region, config, isa, index)[0] - array.size
        return np.pad(shifted_columns(region, array), (0, padding))
    matrix = shifted_weight(array.reshape(-1, array.shape[-1]))
    packed = pack_weight(matrix, _panel_widths(region, config, isa), kernel)
    if packed_shape(region, config, isa, index)[0] > packed.size:
        term = ZeroPoints.of(region).column_term(matrix)
        padding = math.ceil(term.size / kernel.lanes) * kernel.lanes - term.size
        packed = np.concatenate([packed, np.pad(term, (0, padding)).view(np.int8)])
    return packed


def unpack(
    region: Region, config: MatmulConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The weight [K, N] or [taps, C, N] as a Relax expression of its packed form."""
    kernel = check(region, config, isa)
    _, n, k = dimensions(region)
    if index > 1:
        columns = relax.op.strided_slice(expr, [0], [0], [n])
        if region.inputs[1].dtype == "uint8":
            columns = relax.op.add(columns, relax.const(128, "int32"))
        return relax.op.reshape(columns, region.inputs[index].shape)
    padded = math.ceil(k / kernel.kr) * kernel.kr
    panels, position = [], 0
    for width in _panel_widths(region, config, isa):
        columns = width * kernel.lanes
        panel = relax.op.strided_slice(expr, [0], [position], [position + padded * columns])
        if kernel.kr > 1:
            groups = relax.op.reshape(panel, (padded // kernel.kr, columns, kernel.kr))
            panel = relax.op.permute_dims(groups, [0, 2, 1])
        panels.append(relax.op.reshape(panel, (padded, columns)))
        position += padded * columns
    matrix = relax.op.strided_slice(relax.op.concat(panels, axis=1), [0, 1], [0, 0], [k, n])
    if region.inputs[1].dtype == "uint8":
        wide = relax.op.add(relax.op.astype(matrix, "int32"), relax.const(128, "int32"))
        matrix = relax.op.astype(wide, "uint8")
    shape = region.inputs[1].shape
    return matrix if len(shape) == 2 else relax.op.reshape(matrix, shape)


def packed_shape(region: Region, config: MatmulConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of a packed constant: the weight, then four bytes for each column if needed."""
    kernel = check(region, config, isa)
    _, n, k = dimensions(region)
    columns = math.ceil(n / kernel.lanes) * kernel.lanes
    if index > 1:
        return (columns,)
    term = is_integer(region) and ZeroPoints.of(region).needs_column_sums
    return (packed_size(k, n, kernel) + (4 * columns if term else 0),)


def _parameter_shape(region: Region, config: MatmulConfig, isa: Isa, index: int) -> tuple[int, ...]:
    tensor = region.inputs[index]
    return packed_shape(region, config, isa, index) if tensor.constant else tensor.shape


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
    """The product in float64 or, of integers, int32; the weight as it is before packing."""
    if is_integer(region):
        return integer_reference(region, inputs)
    a, w = inputs
    if region.inputs[1].dtype == "bfloat16":
        a = a.astype(w.dtype)
    a, w = a.astype(np.float64), w.astype(np.float64)
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
