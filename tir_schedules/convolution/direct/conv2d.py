"""Templates "conv1d", "conv2d", "conv3d": direct convolution on the registered microkernels.

    Y[n, o.., oc] = epilogue(sum over (k.., ic) of X[n, o * s + k * d - p, ic] * W[k.., ic, oc])

Channels are last (x may also have them first, if they are few). For one line of the kernel, a
window is contiguous memory: a run. So a convolution is a product whose reduction goes over planes
and lines of the kernel, and along the run of each line. Neither x nor its windows are copied,
except in the cases that `convolution.direct.windows` names. This is the direct convolution of
Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures"
(arXiv 1808.05567), section II, on the microkernels of matmul.

As in the template "matmul", the weight's type decides what is multiplied: f32, bfloat16, float16 or
8-bit integers, exact in int32. Pixels outside of x have the value of its zero point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named, tile_kernels_for
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, Index, parameter, ramp, reinterpret_group
from microkernels.vector.memory import PREFETCH_LLVM_IR
from tir_schedules.convolution.geometry import ConvGeometry, ConvTemplate
from tir_schedules.core import emission
from tir_schedules.core.extents import as_matrix, flat_operands, flat_view, read_extents, row_itself
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import register_template
from tir_schedules.cost.amx_cost import LEAST_GAIN
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector, unflatten
from tir_schedules.epilogue.tile_results import RowResults, store_columns
from tir_schedules.product.byte_outliers import by_values
from tir_schedules.product.matmul import HALF
from tir_schedules.product.tile_config import ACTIVATION_DTYPES
from tir_schedules.product.zero_points import Start, ZeroPoints, named_inputs, quantize_parameters

from .config import ConvConfig, check, reject_operands, wide_of
from .cost import default_config, estimated_cycles, space
from .loops import ConvLoops, Store
from .loops import Start as StartOf
from .weight import WeightLayout, nests, packed_weight, products
from .windows import ConvOutliers, Windows, lists_outliers

X_DTYPES = {w: x for w, x in ACTIVATION_DTYPES.items() if w != "uint8"}


def _zero_point(
    region: Region, layout: WeightLayout, inputs: dict[str, Expr], weight: Expr
) -> tuple[StartOf | None, Index]:
    """The initial value of the accumulators (see `ConvLoops`), and the value outside of x."""
    kernel = layout.kernel
    if not is_integer(region):
        return None, 0
    points = ZeroPoints.of(region, kernel)

    def term(first: Index) -> Expr:
        lanes = kernel.lanes
        return reinterpret_group("int32", weight[ramp(layout.size + 4 * first, 4 * lanes)], lanes)

    def address(first: Index) -> Address:
        return Address(I.address_of(weight[layout.size + 4 * first]), 0)

    start = Start(region, kernel, inputs, 0, term, lambda row: row, address)
    outside: Index = points.a
    if points.a_runtime:
        outside = start.a_zero_point()
    if not start.needed:
        return None, outside
    columns = layout.geometry.groups * layout.packed.columns

    def begin(number: Index, group: Index, vector: Index) -> Expr | Address:
        place = number * columns + group * layout.packed.columns + vector * kernel.lanes
        return start.columns(place) if kernel.by_tiles else start(tirx.const(0, "int32"), place)

    return begin, outside


def _store(
    region: Region,
    layout: WeightLayout,
    y: Expr,
    epilogue: Epilogue,
    leading_of: Callable[[Expr], Sequence[Expr]],
) -> Store:
    """`ConvLoops.store`: the epilogue of one vector of channels of one pixel."""
    lanes = layout.kernel.lanes
    channels = layout.geometry.group_out_channels
    if layout.geometry.groups == 1 or channels % lanes == 0:
        rows = RowResults(region, layout.kernel, y, epilogue, leading_of)
        vectors = channels // lanes

        def store(pixel: Expr, group: Index, vector: Index, value: Expr, last: bool) -> None:
            rows.store(pixel, group * vectors + vector, value, last)

        return store

    def store_cut(pixel: Expr, group: Index, vector: Index, value: Expr, last: bool) -> None:
        def put(of_group: Columns) -> None:
            columns = replace(of_group, start=group * channels + vector * lanes)
            store_vector(y, epilogue(value, pixel, columns), leading_of(pixel), columns)

        store_columns(channels, lanes, vector, last, put)

    return store_cut


class Conv(ConvTemplate[ConvConfig]):
    """A direct convolution over one to three axes."""

    config_type = ConvConfig
    default_config = staticmethod(default_config)
    space = staticmethod(space)
    check = staticmethod(check)
    nests = staticmethod(nests)
    estimate = staticmethod(estimated_cycles)
    products = staticmethod(products)
    packing = staticmethod(packed_weight)
    refuses_loans = True

    def __init__(self, axes: int) -> None:
        self.name = f"conv{axes}d"

    def build(self, region: Region, config: ConvConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; its weight parameter is flat, as `WeightLayout.pack` makes it."""
        kernel = check(region, config, isa)
        layout = WeightLayout.of(region, config, kernel)
        with emission.kernel_function(region.op) as builder:
            x = emission.tensor_parameter("X", region.inputs[0])
            w = parameter("W", layout.shape, kernel.b_dtype)
            further = emission.input_parameters(region, 2)
            operands = emission.operand_parameters(region)
            y = emission.tensor_parameter("Y", region.output)
            leading_of: Callable[[Expr], Sequence[Expr]]
            leading_of, flat = lambda pixel: unflatten(pixel, region.output.shape[:-1]), region
            read_extents()
            if layout.geometry.has_dynamic_image:
                y = flat_view(y, region.output, as_matrix(region.output))
                flat, operands = flat_operands(region, operands)
                leading_of = row_itself
            epilogue = Epilogue(flat, operands, kernel.narrow)
            inputs = named_inputs(region, further)
            kernel.admit()
            with emission.task_loop(math.prod(layout.plan.grid)) as task:
                start, outside = _zero_point(region, layout, inputs, w)
                quantizes = quantize_parameters(region, kernel, inputs)
                source = layout, x, quantizes, outside
                store = _store(flat, layout, y, epilogue, leading_of)
                loops = ConvLoops(config, layout, Windows(*source), w, start, store, epilogue.cost)
                if loops.windows.wide is not None and layout.has_answer:
                    fitting = replace(loops, windows=Windows(*source, widens=False), by_bytes=True)
                    if lists_outliers(layout):
                        outliers = ConvOutliers(layout, fitting.windows)
                        fitting = replace(fitting, outliers=outliers)
                    loops = replace(loops, fitting=fitting)
                with llvm_functions(PREFETCH_LLVM_IR if config.fetches else ""):
                    loops.emit(task)
        return builder.get()

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        weight = region.inputs[1].dtype
        if weight == "float16" and (region.is_dynamic or not tile_kernels_for(isa, weight, weight)):
            return "a float16 weight, which only AMX tiles multiply, and only with static sizes"
        return reject_operands(region, X_DTYPES)

    def at_run_time(self, region: Region, config: ConvConfig) -> str:
        """What is decided at run time, for `explain`."""
        if not ConvGeometry.of(region).has_dynamic_image:
            return "how many images"
        tiles = f"lines of an image in tiles of {config.rows} pixels, and a tail of a quarter, half"
        return f"{tiles}, three quarters or all of a tile"

    def by_values(self, region: Region, config: ConvConfig) -> str:
        """What depends on the values of the inputs, for `explain`."""
        kernel = microkernel_named(config.kernel)
        if not (has_pairs(kernel) and wide_of(region, kernel)):
            return ""
        return by_values(True, lists_outliers(WeightLayout.of(region, config, kernel)))


for _axes in (1, 2, 3):
    register_template(Conv(_axes))


def half_conv_pays(region: Region, machine: Machine) -> bool:
    """Whether a convolution is estimated to be faster by AMX tiles of float16.

    The region is of f32, with static sizes and a constant weight; `machine` has tiles of float16.
    """
    inputs = tuple(Tensor(each.shape, HALF, each.constant) for each in region.inputs)

    def cycles(region: Region) -> float:
        return estimated_cycles(region, default_config(region, machine), machine)

    half = cycles(msgspec.structs.replace(region, inputs=inputs))
    return half * LEAST_GAIN <= cycles(region)
