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

import numpy as np
from tvm import relax, tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from microkernels.vector.expressions import parameter
from tir_schedules.core import emission, extents, loop_nest, size
from tir_schedules.core.arrays import A
from tir_schedules.core.blocking import thread_grids
from tir_schedules.core.config import best_first
from tir_schedules.core.product_plan import TileConfig
from tir_schedules.core.region import Region
from tir_schedules.core.template import PackedInput, Template, register_template
from tir_schedules.cost import amx_cost, parallel
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.epilogue.tile_results import RowResults

from . import narrow_weight, quantized_rows, tile_config, weight_only_tiles
from .activations import Activations
from .best_grid import ThreadGrid
from .dynamic_rows import share_dynamic_rows
from .narrow_weight import most_digit_rows
from .quantized_rows import LEVELS
from .tile_loops import TileLoops
from .tile_products import OperandB
from .weight_only_config import (
    WeightOnlyConfig,
    by_digits,
    check,
    defaults,
    dimensions,
    estimated_cycles,
    f32_kernels,
    flops,
    multiplies_f32,
    plan_of,
    rounding_kernels,
    weight_format,
)


class NarrowInput(PackedInput):
    """The weight, its scales or its zero points, in panels."""

    def __init__(self, region: Region, config: WeightOnlyConfig, isa: Isa, index: int) -> None:
        self.weight = weight_format(region, check(region, config, isa).lanes)
        panels = plan_of(region, config).panels
        if not multiplies_f32(panels.kernel):  # packed for f32 kernels, whichever multiplies
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
        return min(defaults(region, machine), key=cycles)

    def space(self, region: Region, machine: Machine) -> Iterator[WeightOnlyConfig]:
        """Every kernel, staged or not, with neighbouring tiles and blocks, on every thread grid.

        Threads divide K only in the grid that is the best for the kernel.
        """
        if region.is_dynamic:
            yield from defaults(region, machine)
            return
        m, _, k = dimensions(region)
        default, fields = self.default_config(region, machine), TileConfig.__struct_fields__
        grids = {(1, 1, 1), *((*grid, 1) for grid in thread_grids(machine.threads))}
        found = {
            WeightOnlyConfig(
                **tile, **tile_config.on_grid(grid), staged=base.staged, digits=base.digits
            )
            for base in defaults(region, machine)
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
        plan, with_digits = plan_of(region, config), by_digits(region, config)
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
            decodes = kernel if multiplies_f32(kernel) else f32_kernels(isa)[0]
            given = decodes, weight, rows, packed, scales, zeros
            byte_kernel = quantized_rows.kernels(isa)[0] if config.digits else None
            tiles = weight_only_tiles.WeightOnlyTiles(*given, bytes_kernel=byte_kernel)
            expanded = weight_only_tiles.ExpandedPanels
            if region.is_dynamic:
                if multiplies_f32(kernel):
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
                    elif not multiplies_f32(kernel):
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
        elif not multiplies_f32(microkernel_named(config.kernel)):
            more = "activations quantised to int8 by blocks of the weight"
            few = f"1 to {most} rows: {more}, the weight made bytes in registers"
        return f"{few}; more: tiles of up to {config.rows} rows, {more}"

    def nests(self, region: Region, config: WeightOnlyConfig) -> Iterator[loop_nest.LoopNest]:
        """The loops of the product."""
        yield parallel.product_nest(plan_of(region, config))

    def why_vectors(self, region: Region, config: WeightOnlyConfig, machine: Machine) -> str:
        """Why the product stays on vectors."""
        if microkernel_named(config.kernel).by_tiles:
            return ""
        if not rounding_kernels(region, machine.isa):
            bits = region.attrs["bits"]
            return f"the weight of {bits} bits is expanded to float32, which AMX does not multiply"
        tiles = min(
            estimated_cycles(region, each, machine)
            for each in defaults(region, machine)
            if microkernel_named(each.kernel).by_tiles
        )
        m, _, k = dimensions(region)
        vectors = estimated_cycles(region, config, machine)
        return amx_cost.why_not_amx(m, tiles, vectors, config.kernel, 2 * k) or amx_cost.CONFIGURED


WEIGHT_ONLY_MATMUL = register_template(WeightOnlyMatmul())
