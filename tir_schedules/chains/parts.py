"""What kernels of merged regions share: parameters, names, rows between parts, and matmuls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import DataType

from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, constant, parameter, ramp
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import buffer_shape, uncrowded
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.cost.cost import norm_us
from tir_schedules.epilogue.epilogue import (
    region_result,
    rows_and_columns,
)
from tir_schedules.product.matmul import MATMUL, estimated_cycles
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.rows.normalize import NormalizeConfig
from tir_schedules.rows.normalize import default_config as normalize_config

from .packing import PACKING, PartsConfig, parameter_dtype, sources_of, tensors_of

Leading = Callable[[Expr], Sequence[Expr]]


def parts_parameters(region: Region, config: PartsConfig, isa: Isa) -> list[Expr]:
    """The kernel's parameters for the inputs of a merged region."""
    return [
        parameter(
            f"input{i}",
            buffer_shape(PACKING.shape(region, config, isa, i)),
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


def rows_between(made: Tensor, rows: int | Expr, pitch: int) -> Expr:
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


PartConfig = MatmulConfig | NormalizeConfig


@dataclass(frozen=True)
class Share:
    """What the busiest thread does of one part."""

    compute: float  # microseconds
    passes: int  # times that it streams its columns of the weight
    threads_m: int = 1
    threads_n: int = 1
    threads_k: int = 1


def alone(part: Region, machine: Machine, config: PartConfig | None = None) -> Share:
    """A part as a kernel of its own, in its default configuration if there is no other."""
    m, n = rows_and_columns(part.output)
    if part.op != MATMUL.name:
        norm = config if isinstance(config, NormalizeConfig) else normalize_config(part, machine)
        threads = min(norm.threads, m) if m > norm.alone_rows else 1
        return Share(_norm_us(math.ceil(m / threads), n, machine), 1, threads)
    if not isinstance(config, MatmulConfig):
        config = MATMUL.default_config(part, machine)
    threads_m = min(config.threads_m, m)
    passes = math.ceil(math.ceil(m / threads_m) / config.m_block)
    cycles = estimated_cycles(part, config, machine)
    compute = cycles / machine.cycles_per_us
    return Share(compute, passes, threads_m, config.threads_n, config.threads_k)


def of_rows(part: Region, rows: int, machine: Machine, config: PartConfig | None = None) -> Share:
    """Some rows of a part on one thread."""
    n = part.output.shape[-1]
    if part.op != MATMUL.name:
        return Share(_norm_us(rows, n, machine), 1)
    a = part.inputs[0]
    a = Tensor((rows, a.shape[-1]), a.dtype)
    output = Tensor((rows, n), part.output.dtype)
    rows_only = Region(op=part.op, inputs=(a, *part.inputs[1:]), output=output, attrs=part.attrs)
    if isinstance(config, MatmulConfig):
        config = msgspec.structs.replace(config, threads_m=1, threads_n=1, threads_k=1)
    return alone(rows_only, replace(machine, threads=1), config)


def _norm_us(rows: int, n: int, machine: Machine) -> float:
    return norm_us(rows * math.ceil(n / machine.isa.f32_lanes), machine)


def tasks_of(share: Share) -> int:
    return share.threads_m * share.threads_n * share.threads_k


def weight_bytes_of(part: Region) -> int:
    return part.inputs[1].nbytes if part.op == MATMUL.name else 0


Evaluate = Callable[[Region, list[np.ndarray]], np.ndarray]


def chain_reference(
    region: Region, inputs: list[np.ndarray], evaluate: Evaluate = region_result
) -> np.ndarray:
    """The meaning of a merged region by NumPy: that of its parts, one after the other.

    Between parts, values are rounded as if they were stored (`region_reference`).

    The result of a region whose attribute "sources" connects the parts.

    Parameters
    ----------
    region : Region
        The merged region.
    inputs : list of ndarray
        Its inputs, constants unpacked.
    evaluate : callable
        (part, its inputs and operands) -> its result; to see what becomes of an error.
    """
    results: list[np.ndarray] = []
    for part, sources in zip(region.parts, sources_of(region), strict=True):
        arrays = [
            (results if source.part else inputs)[source.number].reshape(tensor.shape)
            for source, tensor in zip(sources, tensors_of(part), strict=True)
        ]
        results.append(evaluate(part, arrays))
    return results[-1].reshape(region.output.shape)
