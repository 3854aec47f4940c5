"""Template "weight_only_matmul": f32 activations times a weight that is 2, 4 or 8 bits in memory.

    C[m, n] = epilogue(sum over k of A[m, k] * (Wq[k, n] - Z[k / block, n]) * S[k / block, n])

Inputs are A [.., K], Wq [K, N] (int8 or uint8, constant), S and perhaps Z (f32, constant, broadcast
to [blocks, N]). Attributes: "bits" (the low bits of Wq that count), "block", and "zero_point" if it
is one number for all. Wq may have more rows than A has columns: padding of the last block.

With the attribute "rounded", "bfloat16", A and the weight may be rounded to that type. AMX tiles
then multiply many rows: a block of a panel is expanded to bfloat16 in cache (weight_only_tiles.py).

With the attribute "scales", "float16", all scales are numbers of that type. Kernels with vectors of
512 bits read them as such: 18 bytes for 32 elements of 4 bits instead of 20.

With the attribute "quantized", "int8", A may be quantised by blocks of K. It is then multiplied by
VNNI, where the CPU has it (quantized_rows.py).

With few rows the weight is decoded in registers, directly before the multiplication, and the sum of
a block is scaled once. The limits are memory, and decoding one vector per step. With many rows
(`staged`) a block of a panel is expanded to f32 in cache once per block of rows; the f32
microkernels then multiply it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, tirx

from microkernels.base.errors import ConfigError
from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for, microkernel_named, tile_kernels_for
from microkernels.vector.expressions import parameter
from tir_schedules.core import emission, extents, loop_nest, size
from tir_schedules.core.arrays import A
from tir_schedules.core.blocking import thread_grids
from tir_schedules.core.config import best_first
from tir_schedules.core.product_plan import ProductPlan, TileConfig
from tir_schedules.core.region import Region
from tir_schedules.core.template import PackedInput, Template, register_template
from tir_schedules.cost import amx_cost, parallel
from tir_schedules.epilogue.epilogue import Epilogue, rows_and_columns
from tir_schedules.epilogue.tile_results import RowResults

from . import narrow_weight, quantized_rows, tile_config, weight_only_tiles
from .activations import Activations
from .best_grid import ThreadGrid, best_grid, dynamic_grid
from .dynamic_rows import share_dynamic_rows
from .narrow_weight import NarrowWeight, most_digit_rows
from .quantized_rows import LEVELS
from .tile_loops import TileLoops
from .tile_products import OperandB

MOST_STAGED_ROWS = 128
# For a vector of the weight that is rounded and paired with another; counted, not measured.
ROUNDING_CYCLES = 2.0
# For a vector of the weight that becomes unsigned bytes, for a vector of A that is quantised, and
# for one of sums of a block that is scaled.
UNSIGNED_CYCLES, QUANTIZING_CYCLES, SCALING_CYCLES = 0.5, 8.0, 2.0
FEW_UNSIGNED_CYCLES = 0.125  # a word of eight steps in registers; counted, not measured


class WeightOnlyConfig(tile_config.MatmulConfig, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    staged : bool
        Whether a block of a panel is expanded to f32 before the tiles use it.
    digits : bool
        Whether VNNI multiplies one row as integers of three bytes, see `narrow_weight`. AVX2 always
        multiplies one and two rows as such integers.
    """

    staged: bool = False
    digits: bool = False


def dimensions(region: Region) -> tuple[int, int, int]:
    """(M, N, K) of the product."""
    m, k = rows_and_columns(region.inputs[0])
    return m, region.inputs[1].shape[-1], k


def weight_format(region: Region, lanes: int) -> NarrowWeight:
    """How the region's weight lies in memory, for vectors of `lanes` columns."""
    rows, columns = rows_and_columns(region.inputs[1])
    # AVX2 computes: to widen scales takes 0 to 6% more time than it saves (Zen 5, haswell's code).
    half = lanes == 16 and region.attrs.get("scales") == "float16"
    return NarrowWeight(
        bits=region.integer("bits"),
        signed=region.inputs[1].dtype == "int8",
        rows=rows,
        columns=columns,
        block=region.integer("block"),
        zero=region.real("zero_point", 0.0),
        lanes=lanes,
        scales="float16" if half else "float32",
    )


def _defaults(region: Region, machine: Machine) -> Iterator[WeightOnlyConfig]:
    """Either way for every kernel; of dynamic sizes one has both ways, for any number of rows."""
    kernels, few = f32_kernels(machine.isa), _are_few(region)
    if region.is_dynamic:
        _, n, k = dimensions(region)
        for kernel in (*kernels, *_staging_kernels(region, machine.isa)):
            tile = _tile(region.sampled(), machine, kernel, staged=True)
            grid = dynamic_grid(tile, n, k, machine, 2 * n * k)
            digits = _by_vnni(region, kernel, machine.isa)
            yield WeightOnlyConfig(**tile, **grid, staged=True, digits=digits)
        return
    for kernel in kernels:
        for staged in (False, True):
            yield _best(region, machine, kernel, staged)
    for kernel in _staging_kernels(region, machine.isa):
        for staged in (False, True) if few and not kernel.by_tiles else (True,):
            yield _best(region, machine, kernel, staged)


def _are_few(region: Region) -> bool:
    """Whether rows are few and their number is static, so that a tile may decode the weight."""
    return not region.is_dynamic and dimensions(region)[0] <= weight_only_tiles.MOST_ROWS


def f32_kernels(isa: Isa) -> tuple[Microkernel, ...]:
    """The kernels of f32; their panels are those of all kernels."""
    return kernels_for(isa, "float32", "float32")


def _byte_kernels(region: Region, isa: Isa) -> tuple[Microkernel, ...]:
    """The kernels of bytes that may multiply a region's operands, quantised."""
    if region.attrs.get("quantized") != "int8":
        return ()
    k = dimensions(region)[2]
    return quantized_rows.kernels(isa) if quantized_rows.suits(weight_format(region, 1), k) else ()


def _staging_kernels(region: Region, isa: Isa) -> tuple[Microkernel, ...]:
    """The kernels of other operands than f32, for which the weight of many rows is staged."""
    return *_tile_kernels(region, isa), *_byte_kernels(region, isa)


def _multiplies_f32(kernel: Microkernel) -> bool:
    """Whether a kernel multiplies A as f32; others take a weight that is expanded in cache."""
    return kernel.a_dtype == "float32"


def _tile_kernels(region: Region, isa: Isa) -> tuple[Microkernel, ...]:
    """The AMX tiles for a region's operands if they may be rounded to bfloat16."""
    if region.attrs.get("rounded") != "bfloat16" or region.is_dynamic:
        return ()
    if region.inputs[0].dtype not in tile_config.ACTIVATION_DTYPES["bfloat16"]:
        return ()
    return tile_kernels_for(isa, "bfloat16", "bfloat16")


def _tile(region: Region, machine: Machine, kernel: Microkernel, staged: bool) -> dict[str, Any]:
    m, n, k = dimensions(region)
    tile = tile_config.default_tile(kernel, m, n, k, machine)
    if kernel.by_tiles:
        return tile
    if staged:
        # Expanding a block is worth many rows, even if their part of A leaves L2.
        tile["m_block"] = max(tile["m_block"], min(m, MOST_STAGED_ROWS))
        step_bytes = 4 * tile["vectors"] * kernel.lanes
        tile["k_block"] = min(tile["k_block"], max(1, machine.l2_bytes * 3 // 8 // step_bytes))
        return tile
    rows, vectors = tile["rows"], tile["vectors"]
    if not _multiplies_f32(kernel):
        pass  # sums and totals of few rows have room
    elif m <= most_digit_rows(kernel.lanes) and _has_digits(region, kernel, machine.isa):
        on_avx2 = kernel.lanes == 8
        vectors = narrow_weight.DIGIT_VECTORS if on_avx2 else narrow_weight.VECTORS_BY_VNNI
    elif kernel.lanes < 16:
        vectors = max(1 if rows > 4 else 2, 6 // rows)
    elif rows > 3:  # every broadcast of A is used once, as the memory operand of a multiply-add
        vectors = 1
    else:  # two sets of accumulators, and a row has its zero points besides
        vectors = 6 if rows == 1 and len(region.inputs) > 3 else 12 // rows
    return {**tile, "vectors": min(tile["vectors"], vectors), "m_block": m, "k_block": k}


def _best(region: Region, machine: Machine, kernel: Microkernel, staged: bool) -> WeightOnlyConfig:
    """A tile with its grid of threads."""
    tile = _tile(region, machine, kernel, staged)
    sizes, products = dimensions(region), flops(region) / kernel.kr
    unit = _k_unit(region, kernel, staged) if _multiplies_f32(kernel) else None
    grid = best_grid(tile, *sizes, machine, products, unit)
    few = sizes[0] <= most_digit_rows(kernel.lanes) and not staged
    digits = few and _by_vnni(region, kernel, machine.isa)
    return WeightOnlyConfig(**tile, **grid, staged=staged, digits=digits)


def estimated_cycles(region: Region, config: WeightOnlyConfig, machine: Machine) -> float:
    """Cycles of the busiest thread."""
    kernel = microkernel_named(config.kernel)
    whole = _plan(region, config)
    plan = whole.busiest
    times = math.ceil(plan.m / (config.m_block if config.staged else config.rows))
    # What a vector of the weight costs besides its multiplications, on Zen 4 and 5: decoded next to
    # them, for every tile, or staged, for every block of rows.
    beside, staged = (0.2, 2.4) if kernel.lanes == 16 else (1.3, 2.6)
    decoding = staged if config.staged else beside
    others = 0.0
    if kernel.by_tiles:
        decoding += ROUNDING_CYCLES
    elif not _multiplies_f32(kernel):
        decoding = UNSIGNED_CYCLES if config.staged else FEW_UNSIGNED_CYCLES
        scaled = SCALING_CYCLES / weight_format(region, kernel.lanes).block
        others = plan.m * plan.k * (QUANTIZING_CYCLES / kernel.lanes + plan.n_vectors * scaled)
    return (
        others
        + tile_config.tile_cycles(plan, machine)
        + tile_config.sum_cycles(whole, machine)
        + times * decoding * plan.k * plan.n_vectors
    )


def check(region: Region, config: WeightOnlyConfig, isa: Isa) -> Microkernel:
    """The microkernel of a legal configuration; ConfigError for an illegal one."""
    threads = "threads_m", "threads_n", "threads_k"
    kernel = tile_config.check_tile(region, config, isa, None, *threads)
    if config.digits and not _by_vnni(region, kernel, isa):
        raise ConfigError(f"digits=True: {region.key} has no digits on {isa.name}")
    if _multiplies_f32(kernel):
        return kernel
    if kernel not in _staging_kernels(region, isa):
        rule = "is not rounded" if kernel.by_tiles else "cannot be quantised"
        raise ConfigError(f"{kernel.name} does not multiply {region.key}, which {rule}")
    staged = config.staged or (_are_few(region) and not kernel.by_tiles)
    if not (staged and config.threads_k == 1):
        raise ConfigError(f"{kernel.name} needs staged=True and threads_k=1")
    return kernel


def by_digits(region: Region, config: WeightOnlyConfig) -> bool:
    """Whether few rows are multiplied as digits, see `narrow_weight`: decoding the weight to f32
    takes longer than fetching it."""
    kernel = microkernel_named(config.kernel)
    most = most_digit_rows(kernel.lanes)
    few = region.is_dynamic or (dimensions(region)[0] <= most and not config.staged)
    if not (few and _multiplies_f32(kernel) and _suits_digits(region, kernel.lanes)):
        return False
    return config.digits or kernel.isa_name == "avx2"


def _has_digits(region: Region, kernel: Microkernel, isa: Isa) -> bool:
    """Whether an f32 kernel has digits beside it, by AVX2 or by VNNI for vectors of 512 bits."""
    lanes = kernel.lanes
    if not (_multiplies_f32(kernel) and _suits_digits(region, lanes)):
        return False
    return lanes == 8 or any(each.lanes == lanes for each in quantized_rows.kernels(isa))


def _by_vnni(region: Region, kernel: Microkernel, isa: Isa) -> bool:
    """Whether `WeightOnlyConfig.digits` may be true for a kernel."""
    return kernel.lanes == 16 and _has_digits(region, kernel, isa)


def _suits_digits(region: Region, lanes: int) -> bool:
    return narrow_weight.span_of(weight_format(region, lanes), dimensions(region)[2]) is not None


def _plan(region: Region, config: WeightOnlyConfig) -> ProductPlan:
    """How a configuration cuts the product; blocks of K are whole units or blocks of the weight."""
    kernel = microkernel_named(config.kernel)
    align = _k_unit(region, kernel, config.staged)
    plan = config.plan(*dimensions(region), k_align=align)
    # Integer sums of a block are added up in f32.
    return replace(plan, kernel=replace(kernel, acc_dtype="float32"))


def _k_unit(region: Region, kernel: Microkernel, staged: bool) -> int:
    """Steps of K that must not be cut."""
    weight = weight_format(region, kernel.lanes)
    if not _multiplies_f32(kernel):
        return 1 if kernel.by_tiles else weight.block // kernel.kr
    return weight.unit if staged or weight.blocks == 1 else weight.block


class NarrowInput(PackedInput):
    """The weight, its scales or its zero points, in panels."""

    def __init__(self, region: Region, config: WeightOnlyConfig, isa: Isa, index: int) -> None:
        self.weight = weight_format(region, check(region, config, isa).lanes)
        panels = _plan(region, config).panels
        if not _multiplies_f32(panels.kernel):  # packed for f32 kernels, whichever multiplies
            panels = replace(panels, kernel=f32_kernels(isa)[0])
        self.is_weight, self.read = index == 1, region.inputs[index].shape
        self.dtype = self.weight.scales if index == 2 else "float32"  # if it is not the weight
        self.panels = panels if self.is_weight else replace(panels, k=self.weight.blocks)
        size = self.weight.packed_bytes if self.is_weight else self.weight.per_block_size
        self.shape = (size,)

    def pack(self, array: A) -> A:
        assert isinstance(array, np.ndarray)  # weights that are parameters are not narrow
        if self.is_weight:
            return self.weight.pack(array, self.panels)
        return self.panels.pack(self.weight.per_block(array).astype(self.dtype))

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        if self.is_weight:
            return relax.op.reshape(self.weight.unpack(expr, self.panels), self.read)
        rows, columns = narrow_weight.per_block_shape(self.read)
        whole = relax.op.astype(self.panels.unpack(expr), "float32")
        matrix = relax.op.strided_slice(whole, [0, 1], [0, 0], [rows, columns])
        return relax.op.reshape(matrix, self.read)


def flops(region: Region) -> int:
    """Multiplications and additions of the product."""
    return 2 * math.prod(dimensions(region))


def dequantised(region: Region, inputs: list[np.ndarray]) -> np.ndarray:
    """The weight [K, N] in float64."""
    weight = weight_format(region, 1)
    values = weight.values(inputs[1])
    scale, *zeros = (
        np.repeat(weight.per_block(array.astype(np.float64)), weight.block, 0)[: weight.rows]
        for array in inputs[2:]
    )
    values = (values - zeros[0] if zeros else values) * scale
    return values[: dimensions(region)[2]]


def quantization_error(region: Region, inputs: list[np.ndarray]) -> np.ndarray:
    """By how much a result may differ if A is quantised: half a unit of each element's block."""
    block, (*lead, k) = region.integer("block"), inputs[0].shape
    blocks = np.zeros((*lead, -(-k // block), block))
    blocks.reshape(*lead, -1)[..., :k] = np.abs(inputs[0])
    units = blocks.max(-1) / LEVELS
    weight = np.abs(dequantised(region, inputs))
    starts = range(0, k, block)
    return np.asarray(units / 2 @ np.add.reduceat(weight, starts))


class WeightOnlyMatmul(Template[WeightOnlyConfig]):
    """Activations of f32 times a weight of 2, 4 or 8 bits."""

    name = "weight_only_matmul"
    config_type = WeightOnlyConfig
    check = staticmethod(check)
    flops = staticmethod(flops)
    estimate = staticmethod(estimated_cycles)
    packing = NarrowInput

    def default_config(self, region: Region, machine: Machine) -> WeightOnlyConfig:
        """The configuration with the fewest estimated cycles; no tuning is needed."""
        cycles = functools.partial(estimated_cycles, region, machine=machine)
        return min(_defaults(region, machine), key=cycles)

    def space(self, region: Region, machine: Machine) -> Iterator[WeightOnlyConfig]:
        """Every kernel, staged or not, with neighbouring tiles and blocks, on every thread grid.

        Threads divide K only in the grid that is the best for the kernel.
        """
        if region.is_dynamic:
            yield from _defaults(region, machine)
            return
        m, _, k = dimensions(region)
        default, fields = self.default_config(region, machine), TileConfig.__struct_fields__
        grids = {(1, 1, 1), *((*grid, 1) for grid in thread_grids(machine.threads))}
        found = {
            WeightOnlyConfig(
                **tile, **tile_config.on_grid(grid), staged=base.staged, digits=base.digits
            )
            for base in _defaults(region, machine)
            for tile in tile_config.neighbouring_tiles(
                {name: getattr(base, name) for name in fields}, m, k
            )
            for grid in {*grids, base.grid}
        }
        cycles = functools.partial(estimated_cycles, region, machine=machine)
        yield from best_first(default, found, cycles)

    def build(self, region: Region, config: WeightOnlyConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; its constant parameters are flat, as `pack` makes them."""
        kernel = check(region, config, isa)
        weight = weight_format(region, kernel.lanes)
        plan, with_digits = _plan(region, config), by_digits(region, config)
        with emission.kernel_function("weight_only_matmul") as builder:
            a = emission.tensor_parameter("A", region.inputs[0])
            packed = parameter("W", (weight.packed_bytes,), region.inputs[1].dtype)
            size, has_zeros = (weight.per_block_size,), len(region.inputs) > 3
            scales = parameter("S", size, weight.scales)
            zeros = parameter("Z", size, "float32") if has_zeros else None
            operands = emission.operand_parameters(region)
            c = emission.tensor_parameter("C", region.output)
            leading_of = None
            if region.is_dynamic:
                region, a, operands, c = extents.matrix_view(region, a, operands, c)
                leading_of = extents.row_itself
            results = RowResults(region, kernel, c, Epilogue(region, operands), leading_of)
            kernel.admit()
            rows = weight_only_tiles.SpreadRows(region.inputs[0], a, kernel.lanes)
            decodes = kernel if _multiplies_f32(kernel) else f32_kernels(isa)[0]
            given = decodes, weight, rows, packed, scales, zeros
            byte_kernel = quantized_rows.kernels(isa)[0] if config.digits else None
            tiles = weight_only_tiles.WeightOnlyTiles(*given, bytes_kernel=byte_kernel)
            expanded = weight_only_tiles.ExpandedPanels
            if region.is_dynamic:
                if _multiplies_f32(kernel):
                    few = weight_only_tiles.FewDecodedRows(tiles=tiles, with_digits=with_digits)
                    loops = TileLoops(plan, rows, expanded(tiles, plan), results, few_rows=few)
                else:
                    loops = quantized_rows.loops(tiles, kernel, plan, results, plan.m_block)
                share_dynamic_rows(loops, config)
            else:
                grid = ThreadGrid(plan)
                with grid.task() as task, llvm_functions(kernel.llvm_ir):
                    tiles = tiles.with_digits(with_digits)
                    if kernel.by_tiles:
                        block = min(max(plan.m_block, plan.rows), grid.most_rows)
                        a_rows = Activations(kernel, rows.tensor.dtype, plan.k, block, rows.vector)
                        panels = weight_only_tiles.RoundedPanels(tiles, plan)
                        loops = TileLoops(plan, a_rows, panels, results)
                    elif not _multiplies_f32(kernel):
                        block = min(plan.m_block, grid.most_rows)
                        cut = plan, results, block, config.staged
                        loops = quantized_rows.loops(tiles, kernel, *cut)
                    elif config.staged:
                        loops = TileLoops(plan, tiles.a, expanded(tiles, plan), results)
                    else:  # tiles decode the weight themselves
                        loops = TileLoops(plan, tiles.a, OperandB(), results, tiles=tiles)
                    grid.emit(task, loops)
        return builder.get()

    def kernel_name(self, region: Region, config: WeightOnlyConfig, isa: Isa) -> str:
        """The microkernel's name, the weight's type, and whether digits multiply."""
        sign = "" if region.inputs[1].dtype == "int8" else "u"
        digits = "" if region.is_dynamic or not by_digits(region, config) else "+digits"
        return f"{config.kernel}+{sign}int{region.attrs['bits']}{digits}"

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The product by the unpacked weight, in float64."""
        return np.matmul(inputs[0].astype(np.float64), dequantised(region, inputs))

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        a, w, *per_block = region.inputs
        bits, block = region.integer("bits"), region.integer("block")
        if a.dtype not in tile_config.ACTIVATION_DTYPES["float32"]:
            return f"activations of type {a.dtype}"
        if w.dtype not in ("int8", "uint8") or region.output.dtype not in tile_config.RESULT_DTYPES:
            return f"weight of type {w.dtype}, output of type {region.output.dtype}"
        if not all(tensor.constant for tensor in region.inputs[1:]):
            return "the weight or its scale is not a constant"
        if bits not in narrow_weight.BITS or block < 1:
            return f"{bits} bits in blocks of {block}"
        if min(dimensions(region)) <= 0:
            return "a dimension is 0"
        weight = weight_format(region, 1)
        if weight.rows < dimensions(region)[2]:
            return f"a weight of {weight.rows} rows for {dimensions(region)[2]} columns"
        if weight.blocks > 1 and block % weight.unit:
            return f"blocks of {block} are no multiple of {weight.unit}"
        whole = (weight.blocks, weight.columns)
        for tensor in per_block:
            shape = narrow_weight.per_block_shape(tensor.shape)
            if math.prod(shape) != tensor.size or any(
                extent not in (1, full) for extent, full in zip(shape, whole, strict=True)
            ):
                return f"{tensor} is not broadcast to {whole[0]} blocks of {whole[1]} columns"
            if tensor.dtype != "float32":
                return f"scales or zero points of type {tensor.dtype}"
        return None

    def reject_dynamic(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region whose number of rows is dynamic, or None."""
        if size.is_dynamic((region.inputs[0].shape[-1], region.output.shape[-1])):
            return "a dynamic number of columns"
        return None

    def at_run_time(self, region: Region, config: WeightOnlyConfig) -> str:
        """What is decided at run time, for `explain`."""
        most, more = weight_only_tiles.MOST_ROWS, "the weight expanded in cache"
        few = f"1 to {most} rows: the weight is decoded in registers"
        if by_digits(region, config):
            digits = most_digit_rows(microkernel_named(config.kernel).lanes)
            rows = f"1 to {digits} rows" if digits > 1 else "1 row"
            few = (
                f"{rows} of usual numbers: as integers of three bytes; "
                f"{digits + 1} to {most} or others: the weight is decoded in registers"
            )
        elif not _multiplies_f32(microkernel_named(config.kernel)):
            more = "activations quantised to int8 by blocks of the weight"
            few = f"1 to {most} rows: {more}, the weight made bytes in registers"
        return f"{few}; more: tiles of up to {config.rows} rows, {more}"

    def nests(self, region: Region, config: WeightOnlyConfig) -> Iterator[loop_nest.LoopNest]:
        """The loops of the product."""
        yield parallel.product_nest(_plan(region, config))

    def why_vectors(self, region: Region, config: WeightOnlyConfig, machine: Machine) -> str:
        """Why the product stays on vectors."""
        if microkernel_named(config.kernel).by_tiles:
            return ""
        if not _tile_kernels(region, machine.isa):
            bits = region.attrs["bits"]
            return f"the weight of {bits} bits is expanded to float32, which AMX does not multiply"
        tiles = min(
            estimated_cycles(region, each, machine)
            for each in _defaults(region, machine)
            if microkernel_named(each.kernel).by_tiles
        )
        m, _, k = dimensions(region)
        vectors = estimated_cycles(region, config, machine)
        return amx_cost.why_not_amx(m, tiles, vectors, config.kernel, 2 * k) or amx_cost.CONFIGURED


WEIGHT_ONLY_MATMUL = register_template(WeightOnlyMatmul())
