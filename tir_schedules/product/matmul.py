"""Template "matmul": activations times a constant weight, with an epilogue in registers.

    C[m, n] = epilogue(sum over k of A[m, k] * W[k, n])

All leading dimensions of A are folded into m. With the attributes "window" (taps) and "stride",
rows are overlapping windows of A [N, L, C] and W is [taps, C, n]: see tile_config.py. The weight
is packed at compile time, panel by panel: [N/nr][K/kr][nr][kr], the columns of the last panel
padded with zeros to whole vectors. One parallel region over a grid of threads; inside a thread:
blocks of rows, panels of columns, blocks of K, register tiles.

The weight's type selects the product. f32: in f32. bfloat16, and float16 on AMX tiles only: a f32 A
is rounded to the weight's type. 8-bit integers: exact in int32, zero points included
(zero_points.py). The attributes "a_quantize" (the 8-bit type), "a_scale" and "a_zero_point"
quantise a f32 A while it is read; if they are "dynamic", the kernel finds A's range first
(DynamicQuantizeLinear). "weight_scale" gives each row of a f32 weight a scale (staged_panels.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from tvm import tirx

from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for, microkernel_named, tile_kernels_for
from microkernels.vector.expressions import Expr, parameter
from tir_schedules.core import attributes, blocking, emission, extents, loop_nest, size, template
from tir_schedules.core.config import best_first
from tir_schedules.core.product_plan import (
    Product,
    is_integer,
    quantizes_dynamically,
    reject_zero_points,
)
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost import amx_cost, parallel
from tir_schedules.epilogue.epilogue import Epilogue, unflatten
from tir_schedules.rows.quantization_range import emit_own_range, least_scale_of

from . import dynamic_rows, tile_config
from .batch_matmul import BATCH_MATMUL, busiest_cycles
from .best_grid import best_grid, dynamic_grid
from .byte_outliers import APART, SEVEN_BITS, SMALL_PAIRS, by_values, known_offset
from .matmul_product import MatmulProduct, packing
from .staged_panels import SCALE, WideProduct, has_scale, wide_product
from .tile_config import Fields, MatmulConfig, dimensions, region_kernels
from .zero_points import ZeroPoints, integer_reference

_SHAPING = ("window", "stride", "a_quantize", SCALE)
"""Attributes that decide how a product is computed; scales and zero points do not."""


def default_config(region: Region, machine: Machine) -> MatmulConfig:
    """The configuration with the fewest estimated cycles; no tuning is needed."""
    attrs = {name: region.attrs[name] for name in _SHAPING if name in region.attrs}
    return _default(machine, *region.inputs[:2], **attrs)


@functools.lru_cache(1 << 10)  # layers of a model repeat products, and so do blocks of chains
def _default(machine: Machine, *inputs: Tensor, **attrs: attributes.Attribute) -> MatmulConfig:
    region = Region(op=MATMUL.name, inputs=inputs, output=inputs[0], attrs=attrs)
    cycles = functools.partial(estimated_cycles, region, machine=machine)
    return tile_config.fewest_cycles(candidates(region, machine), cycles)


def candidates(region: Region, machine: Machine) -> list[MatmulConfig]:
    """The best configuration of every kernel worth trying; for dynamic rows, for any number."""
    m, n, k = dimensions(region)
    kernels, found = region_kernels(region, machine.isa), []
    if region.is_dynamic:
        for kernel, tile in _dynamic_tiles(region, machine, kernels):
            grid = dynamic_grid(tile, n, k, machine, 2 * n * k / kernel.kr)
            found.append(MatmulConfig(**tile, **grid))
        return found
    for kernel in tile_config.worth_trying(kernels, m):
        tile = _tile(region, machine, kernel)
        k_unit = kernel.depth if tile_config.shares_k(kernel, k) else None
        grid = best_grid(tile, m, n, k, machine, flops(region) / kernel.kr, k_unit)
        found.append(MatmulConfig(**tile, **grid))
    return found


def _dynamic_tiles(
    region: Region, machine: Machine, kernels: Iterable[Microkernel]
) -> list[tuple[Microkernel, Fields]]:
    """Lists vector kernels with tiles for any number of rows; only high tiles if there are any."""
    vector = [kernel for kernel in kernels if not kernel.by_tiles]
    tiles = [(kernel, _tile(region, machine, kernel)) for kernel in vector]
    # The kernel itself multiplies few rows, even if another kernel multiplies more rows by widened
    # panels: a tile has no more vectors than its kernel.
    tiles = [(kernel, tile) for kernel, tile in tiles if tile["vectors"] <= kernel.vectors]
    return [pair for pair in tiles if pair[1]["rows"] >= tile_config.DYNAMIC_HEIGHT] or tiles


def neighbourhood(region: Region, machine: Machine) -> Iterator[MatmulConfig]:
    """Configurations near the default tile of every kernel, for regions with many parts."""
    m, _, k = dimensions(region)
    near = (
        tile
        for kernel in region_kernels(region, machine.isa)
        for tile in tile_config.neighbouring_tiles(_tile(region, machine, kernel), m, k)
    )
    yield from _sorted(region, machine, near)


def _sorted(region: Region, machine: Machine, tiles: Iterable[Fields]) -> Iterator[MatmulConfig]:
    """Yields the default, then tiles on every grid of threads, the fastest estimate first."""
    default, k = default_config(region, machine), dimensions(region)[2]
    grids = {(1, 1, 1), *((*grid, 1) for grid in blocking.thread_grids(machine.threads))}
    # Threads divide K only in grids that are the best for some kernel.
    grids |= {each.grid for each in candidates(region, machine) if each.threads_k > 1}
    found = {
        MatmulConfig(**tile, **tile_config.on_grid(grid))
        for tile in tiles
        for grid in grids
        if grid[2] == 1 or tile_config.shares_k(microkernel_named(tile["kernel"]), k)
    }
    yield from best_first(default, found, lambda config: estimated_cycles(region, config, machine))


def estimated_cycles(region: Region, config: MatmulConfig, machine: Machine) -> float:
    """Cycles of the busiest thread."""
    plan = tile_config.plan_of(region, config)
    cycles = tile_config.tile_cycles(plan.busiest, machine, fetches=not has_scale(region))
    return cycles + tile_config.sum_cycles(plan, machine)


def product_of(region: Region, config: MatmulConfig, machine: Machine) -> Product:
    """The busiest thread's part of a matmul."""
    return Product(
        part=region,
        plan=tile_config.plan_of(region, config).busiest,
        cycles=estimated_cycles(region, config, machine),
        others=lambda: [
            (other.kernel, estimated_cycles(region, other, machine))
            for other in candidates(region, machine)
        ],
    )


def _tile(region: Region, machine: Machine, kernel: Microkernel) -> Fields:
    """The best tile of one kernel; for dynamic sizes, for a sample of them."""
    m, n, k = dimensions(region.sampled())
    wide = wide_product(kernel, dimensions(region)[0], 1, 1)
    if wide is None:
        tile = tile_config.default_tile(kernel, m, n, k, machine, fetches=True)
    else:
        tile = _wide_tile(region, machine, kernel, wide)
    window = tile_config.window_of(region)
    if window is not None:  # overlapping rows take less of L2
        block = machine.l2_bytes // 2 // (4 * window.pitch)
        tile["m_block"] = max(tile["m_block"], min(m, block))
    elif not region.is_dynamic:
        tile["m_block"] = min(tile["m_block"], tile_config.rows_near(kernel, m, n, k, machine))
    return tile


def flops(region: Region) -> int:
    """Multiplications and additions of the product."""
    return 2 * math.prod(dimensions(region))


def _reject_scale(region: Region) -> str | None:
    """Why the inputs after A and W of a float product are invalid, or None."""
    a, w, *further = region.inputs
    if not has_scale(region):
        return f"{len(region.inputs)} inputs" if further else None
    if region.attrs[SCALE] != "input" or len(further) != 1:
        return f"{len(region.inputs)} inputs, {SCALE}={region.attrs[SCALE]}"
    if w.dtype != "float32" or not w.constant or tile_config.window_of(region) is not None:
        return f"scales of the rows of {w}, or of windows"
    scale, k = further[0], a.shape[-1]
    if scale.constant or scale.dtype != "float32" or (scale.size, scale.shape[-1:]) != (k, (k,)):
        return f"scales {scale} of {k} rows"
    return None


class Matmul(template.Template[MatmulConfig]):
    """Activations times a weight."""

    name = "matmul"
    config_type = MatmulConfig
    default_config = staticmethod(default_config)
    check = staticmethod(tile_config.check)
    flops = staticmethod(flops)
    estimate = staticmethod(estimated_cycles)
    packing = staticmethod(packing)

    def space(self, region: Region, machine: Machine) -> Iterator[MatmulConfig]:
        """Every register tile with blocks of several sizes, on every grid of threads."""
        if region.is_dynamic:
            default = default_config(region, machine)
            yield default
            yield from (each for each in candidates(region, machine) if each != default)
            return
        m, n, k = dimensions(region)
        kernels = region_kernels(region, machine.isa)
        bases = [_tile(region, machine, kernel) for kernel in kernels]
        n_vectors = math.ceil(n / kernels[0].lanes)
        tiles = tile_config.tiles_and_blocks(kernels, m, n_vectors, k, bases)
        yield from _sorted(region, machine, tiles)

    def build(self, region: Region, config: MatmulConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; its weight parameter is flat, as `pack` makes it."""
        kernel = tile_config.check(region, config, isa)
        with emission.kernel_function("matmul") as builder:
            a = emission.tensor_parameter("A", region.inputs[0])
            constants = [parameter("W", packing(region, config, isa, 1).shape, kernel.b_dtype)]
            for i, tensor in enumerate(region.inputs[2:], 2):
                shape = packing(region, config, isa, i).shape if tensor.constant else tensor.shape
                constants.append(parameter(f"input{i}", shape, tensor.dtype))
            operands = emission.operand_parameters(region)
            c = emission.tensor_parameter("C", region.output)

            if region.is_dynamic:
                region, a, operands, c = extents.matrix_view(region, a, operands, c)
            epilogue = Epilogue(region, operands, kernel.narrow)

            def stored_row(row: Expr) -> list[Expr]:
                return unflatten(row, region.output.shape[:-1])

            def find_range() -> Expr:
                least = least_scale_of(region)
                epilogue.own_range = emit_own_range(isa.f32_lanes, region.inputs[0], a, least)
                return epilogue.own_range

            kernel.admit()
            source = a, lambda row: unflatten(row, region.inputs[0].shape[:-1])
            target = c, extents.row_itself if region.is_dynamic else stored_row
            own = find_range if quantizes_dynamically(region) else None
            buffers = constants, epilogue, source, target, own
            MatmulProduct(region, config, kernel, *buffers).share()
        return builder.get()

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The product by the unpacked weight, in float64 or, of integers, in int32."""
        if is_integer(region):
            return integer_reference(region, inputs)
        a, w = inputs[:2]
        if region.inputs[1].dtype in ("bfloat16", "float16"):
            a = a.astype(w.dtype)
        a, w = a.astype(np.float64), w.astype(np.float64)
        if has_scale(region):
            w *= inputs[2].reshape(-1, 1)
        window = tile_config.window_of(region)
        return np.matmul(a, w) if window is None else window.product(a, w)

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        a, w = region.inputs[:2]
        if a.dtype not in tile_config.ACTIVATION_DTYPES.get(w.dtype, ()):
            return f"activations of type {a.dtype} and weight of type {w.dtype}"
        if region.output.dtype not in tile_config.RESULT_DTYPES:
            return f"output of type {region.output.dtype}"
        if w.dtype == "float16" and (
            region.is_dynamic or not tile_kernels_for(isa, w.dtype, w.dtype)
        ):
            return "a weight of type float16, which only AMX tiles multiply, by static rows"
        if min(dimensions(region)) <= 0:
            return "a dimension is 0"
        if w.dtype != "float32" and tile_config.window_of(region) is not None:
            return f"windows of type {w.dtype}"
        if is_integer(region) and not has_scale(region):
            if ("a_quantize" in region.attrs) != (a.dtype == "float32"):
                return f"activations of type {a.dtype}, quantised by the kernel"
            return reject_zero_points(region)
        return _reject_scale(region)

    def reject_dynamic(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region whose number of rows is dynamic, or None."""
        if any(tensor.is_dynamic for tensor in region.inputs[1:]):
            return "a weight of dynamic shape"
        if size.is_dynamic((region.inputs[0].shape[-1], region.output.shape[-1])):
            return "a dynamic number of columns"
        if tile_config.window_of(region) is not None:
            return "windows over a dynamic length"
        if has_scale(region):
            return "scales of a weight's rows, with dynamic sizes"
        return None

    def at_run_time(self, region: Region, config: MatmulConfig) -> str:
        """What is decided at run time, for `explain`."""
        plan = tile_config.plan_of(region, config)
        return dynamic_rows.tile_choices(plan, config.whole_rows, config.alone_rows)

    def by_values(self, region: Region, config: MatmulConfig) -> str:
        """What the values of A and W decide at run time, for `explain`."""
        plan = tile_config.plan_of(region, config)
        if not SMALL_PAIRS.suits(plan):
            return ""
        points = ZeroPoints.of(region, plan.kernel)
        return by_values(SEVEN_BITS.suits(plan), APART.suits(plan), known_offset(points))

    def nests(self, region: Region, config: MatmulConfig) -> Iterator[loop_nest.LoopNest]:
        """The loops of the product."""
        yield parallel.product_nest(tile_config.plan_of(region, config))

    def products(self, region: Region, config: MatmulConfig, machine: Machine) -> Iterator[Product]:
        """The product itself."""
        yield product_of(region, config, machine)


MATMUL = template.register_template(Matmul())


# A panel is widened once for each block of rows. Blocks of 200 rows that are read from L3 took 3%
# to 20% less time than blocks that fit in L2 (Zen 3, K from 512 to 4096).
WIDE_ROWS, WIDE_BYTES = 256, 4 << 20
# With at most this many tiles K is not cut: LLVM would keep sums across blocks, and spill them.
FEW_TILES = 8
# Most accumulators of a tile: 28, with steps of two parts, take 2.5 times as long (AVX-512).
MOST_SUMS = 24


def _wide_tile(region: Region, machine: Machine, kernel: Microkernel, wide: WideProduct) -> Fields:
    """`default_tile` for operands that are widened; the weight is packed for `kernel`."""
    (m, n, k), known = dimensions(region.sampled()), dimensions(region)[0]
    highest = kernel
    if wide.dtype != "int16":
        tiles = kernels_for(kernel.isa, "float32", "float32")
        fitting = (each for each in tiles if each.mr * each.vectors <= MOST_SUMS)
        highest = max(fitting, key=lambda each: each.mr)
    tile = tile_config.default_tile(highest, m, n, k, machine, fetches=True)
    block = min(WIDE_ROWS, WIDE_BYTES // (4 * highest.steps(k)))
    rows = max(tile["m_block"], block if size.is_dynamic((known,)) else min(known, block))
    steps, k_blocks = kernel.steps(k), 1
    if m > FEW_TILES * tile["rows"]:
        step_bytes = 4 * wide.parts * tile["vectors"] * kernel.lanes
        k_blocks = math.ceil(steps * step_bytes / (machine.l2_bytes // 2))
    k_block = math.ceil(steps / k_blocks)
    return {**tile, "kernel": kernel.name, "m_block": rows, "k_block": k_block}


# Products of float16: on AMX tiles that multiply float16, else in f32.
#
# 128x768x768 on Granite Rapids     tiles: 16 times the products of f32 vectors
# 128x768x768 on Sapphire Rapids    no tiles for float16: f32


HALF, WIDE = "float16", "float32"


def multiplies_half(machine: Machine) -> bool:
    """Whether there are tiles for products of float16."""
    return bool(tile_kernels_for(machine.isa, HALF, HALF))


def weighted_half_pays(machine: Machine, m: int, n: int, k: int) -> bool:
    """Whether a product with a constant weight is estimated to be faster on float16 tiles.

    Parameters
    ----------
    machine : Machine
        Its tiles multiply float16 (`multiplies_half`).
    m, n, k : int
        Rows, columns and K.
    """

    def cycles(dtype: str) -> float:
        inputs = Tensor((m, k), dtype), Tensor((k, n), dtype, True)
        region = Region(op="matmul", inputs=inputs, output=Tensor((m, n), WIDE))
        return estimated_cycles(region, default_config(region, machine), machine)

    return cycles(HALF) * amx_cost.LEAST_GAIN <= cycles(WIDE)


def batched_half_pays(
    machine: Machine, a: Sequence[int], b: Sequence[int], output: Sequence[int]
) -> bool:
    """Whether products of two activations are estimated to be faster on float16 tiles.

    Parameters
    ----------
    machine : Machine
        Its tiles multiply float16 (`multiplies_half`).
    a, b, output : sequence of int
        Shapes [..., M, K], [..., K, N] and [..., M, N].
    """
    inputs, c = (Tensor(tuple(a), WIDE), Tensor(tuple(b), WIDE)), Tensor(tuple(output), WIDE)
    axes = {"a_axes": tuple(range(len(a))), "b_axes": tuple(range(len(b)))}

    def cycles(rounded: dict[str, attributes.Attribute]) -> float:
        region = Region(op="batch_matmul", inputs=inputs, output=c, attrs={**axes, **rounded})
        return busiest_cycles(region, BATCH_MATMUL.default_config(region, machine), machine)

    return cycles({"rounded": HALF}) * amx_cost.LEAST_GAIN <= cycles({})
