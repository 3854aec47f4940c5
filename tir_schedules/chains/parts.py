"""What kernels of merged regions share: parameters, names, rows between parts, and matmuls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import DataType

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, constant, parameter, ramp
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import buffer_shape
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.row_distance import uncrowded
from tir_schedules.core.template import template_for
from tir_schedules.epilogue.epilogue import Columns, Epilogue, load_vector
from tir_schedules.product.activations import InPlace
from tir_schedules.product.matmul_config import MatmulConfig
from tir_schedules.product.matmul_product import MatmulProduct
from tir_schedules.product.scaled_weight import further_inputs
from tir_schedules.product.tile_stores import direct_store, row_store

from .packing import PartsConfig, packed_shape, parameter_dtype

Leading = Callable[[Expr], Sequence[Expr]]


def parts_parameters(region: Region, config: PartsConfig, isa: Isa) -> list[Expr]:
    """The kernel's parameters for the inputs of a merged region."""
    return [
        parameter(
            f"input{i}",
            buffer_shape(packed_shape(region, config, isa, i)),
            parameter_dtype(region, config, i),
        )
        for i in range(len(region.inputs))
    ]


def parts_kernel_name(region: Region, config: PartsConfig, isa: Isa) -> str:
    """The parts' kernels, each once."""
    names = [
        template_for(part.op).kernel_name(part, found, isa)
        for part, found in zip(region.parts, config.of_parts(region), strict=True)
    ]
    return " + ".join(dict.fromkeys(names))


def row_pitch(made: Tensor, reader: Microkernel | None) -> int:
    """Elements from one row of a result to the next.

    Where tiles multiply it as it is, its rows are padded to their steps of K, and lie in different
    sets of L1.
    """
    n = made.shape[-1]
    if reader is None or not reader.by_tiles or made.dtype != reader.a_dtype:
        return n
    return uncrowded(reader.steps(n) * reader.kr, int(DataType(made.dtype).itemsize))


def rows_between(made: Tensor, rows: int, pitch: int) -> Expr:
    """A buffer for so many rows of a result, in the calling thread; what pads them is 0."""
    kept = "uint16" if made.dtype == "bfloat16" else made.dtype  # see load_vector
    result = I.sblock_alloc_buffer((rows, pitch), kept, align=64)
    if pitch > made.shape[-1]:
        # Later stores leave the padding as it is.
        lanes = 64 // int(DataType(kept).itemsize)
        with opaque_block("pad"), I.serial(rows) as row:
            for start in range(made.shape[-1] // lanes * lanes, pitch, lanes):
                I.buffer_store(result, constant(0, kept, lanes), [row, ramp(start, lanes)])
    return result


def matmul_of_rows(
    part: Region,
    config: MatmulConfig,
    kernel: Microkernel,
    constants: Sequence[Expr],
    epilogue: Epilogue,
    source: tuple[Expr, Leading],
    target: tuple[Expr, Leading],
) -> MatmulProduct:
    """A matmul that reads and writes rows where they are.

    Parameters
    ----------
    constants : sequence of Expr
        The weight and the further inputs.
    source, target : tuple
        A buffer, and row -> leading indices of that row in it.
    """
    (a, leading_a), (c, leading_c) = source, target
    pitch = int(a.shape[-1])

    def read_a(row: Expr, columns: Columns) -> Expr:
        return load_vector(a, part.inputs[0].dtype, leading_a(row), columns)

    return MatmulProduct(
        part,
        config,
        kernel,
        constants[0],
        further_inputs(part, constants[1:]),
        read_a,
        row_store(part, kernel.lanes, c, epilogue, leading_c),
        epilogue.cost,
        rows=InPlace(
            a,
            lambda row, column: [*leading_a(row), column],
            pitch,
            padded=pitch > part.inputs[0].shape[-1],
        ),
        direct=direct_store(part, kernel, c, leading_c, int(c.shape[-1])),
    )
