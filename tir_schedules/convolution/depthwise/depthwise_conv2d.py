"""Template "depthwise_conv2d": every channel has a filter of its own; channels last.

    Y[n, h, w, c] = epilogue(sum over i, j of X[n, h s + i d - p, w s' + j d' - p', c] * W[i, j, c])

One or two axes, any kernel, strides, padding and dilation; vectors lie along the channels. f32 is
read in place (`convolution.depthwise.direct`). For integers and bfloat16 kr taps of a column are
interleaved, as the multiply-add of the matmul kernels wants them (`convolution.depthwise.staged`).
Integer sums are exact in int32, zero points included (zero_points.py); padded pixels have the value
of the zero point.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector import bfloat16
from microkernels.vector.expressions import parameter
from tir_schedules.convolution.direct.config import reject_operands
from tir_schedules.convolution.geometry import (
    ConvGeometry,
    ConvTemplate,
)
from tir_schedules.core.emission import (
    input_parameters,
    kernel_function,
    operand_parameters,
    task_loop,
    tensor_parameter,
)
from tir_schedules.core.extents import as_matrix, as_vector, flat_rows, flat_view, read_extents
from tir_schedules.core.region import Region
from tir_schedules.core.template import register_template
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.zero_points import named_inputs

from .config import DepthwiseConfig, check, default_config, dot_kernel, is_too_large, space
from .direct import DirectTiles
from .nests import nests, why_vectors
from .results import DepthwiseProblem, Results
from .staged import StagedTiles
from .weight import PACKING

X_DTYPES = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("uint8", "int8", "float32"),
}


class DepthwiseConv2d(ConvTemplate[DepthwiseConfig]):
    """A convolution whose every channel has a filter of its own."""

    name = "depthwise_conv2d"
    config_type = DepthwiseConfig
    default_config = staticmethod(default_config)
    space = staticmethod(space)
    check = staticmethod(check)
    nests = staticmethod(nests)
    why_vectors = staticmethod(why_vectors)
    packing = PACKING

    def build(self, region: Region, config: DepthwiseConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; its weight parameter is flat, as `pack` makes it."""
        problem = check(region, config, isa)
        kernel = dot_kernel(region, isa)
        with kernel_function("depthwise_conv2d") as builder:
            x = tensor_parameter("X", region.inputs[0])
            w = parameter("W", PACKING.shape(region, config, isa, 1), region.inputs[1].dtype)
            further = input_parameters(region, 2)
            operands = operand_parameters(region)
            y = tensor_parameter("Y", region.output)
            if region.is_open:
                read_extents()
            flat = flat_rows(region)
            y = flat_view(y, region.output, as_matrix(region.output))
            pairs = zip(operands, region.operands, flat.operands, strict=True)
            operands = [flat_view(*each) for each in pairs]
            narrow = bfloat16.narrow if kernel is None else kernel.narrow
            epilogue = Epilogue(flat, operands, narrow)
            lanes = isa.f32_lanes if kernel is None else kernel.lanes
            results = Results(flat, problem, lanes, y, epilogue)
            tiles: DirectTiles | StagedTiles
            if kernel is None:
                x = flat_view(x, region.inputs[0], as_vector(region.inputs[0]))
                tiles = DirectTiles(problem, config, lanes, x, w, results)
            else:
                x = flat_view(x, region.inputs[0], as_matrix(region.inputs[0]))
                inputs = named_inputs(region, further)
                tiles = StagedTiles(region, problem, config, kernel, x, w, inputs, results)
            items = tiles.items
            tasks = min(config.threads, items) if isinstance(items, int) else config.threads
            with task_loop(tasks) as task:
                tiles.share(I.floordiv(task * items, tasks), I.floordiv((task + 1) * items, tasks))
        return builder.get()

    def kernel_name(self, region: Region, config: DepthwiseConfig, isa: Isa) -> str:
        """ISA, types and tile, such as "avx512_f32_depthwise_1x7x16"."""
        kernel = dot_kernel(region, isa)
        if kernel is None:
            channels = config.vectors * isa.f32_lanes
            return f"{isa.vector_level}_f32_depthwise_{config.rows}x{config.columns}x{channels}"
        types = kernel.name.removesuffix(f"_{kernel.mr}x{kernel.nr}")
        channels = kernel.lanes * kernel.kr
        return f"{types}_depthwise_{config.rows}x{config.columns}x{channels}"

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        rank = len(region.inputs[0].shape) - 2
        if rank not in (1, 2):
            return f"a depthwise convolution of {rank} axes"
        reason = reject_operands(region, X_DTYPES)
        if reason is not None:
            return reason
        geometry = ConvGeometry.of(region)
        if not geometry.groups == geometry.channels == geometry.out_channels:
            return (
                f"{geometry.groups} groups, {geometry.channels} channels of x and "
                f"{geometry.out_channels} of the result"
            )
        if is_too_large(DepthwiseProblem.of(region), dot_kernel(region, isa)):
            return f"a kernel of {' by '.join(map(str, geometry.kernel))}"
        return None

    def at_run_time(self, region: Region, config: DepthwiseConfig) -> str:
        """What is decided at run time, for `explain`."""
        if not DepthwiseProblem.of(region).opens_image:
            return "how many images"
        text = f"lines in tiles of {config.columns} pixels, of which the last one may overlap"
        if config.rows > 1 and region.inputs[1].dtype == "float32":
            text += f"; {config.rows} lines at once, unless a line is shorter than a tile"
        return text


DEPTHWISE_CONV2D = register_template(DepthwiseConv2d())
