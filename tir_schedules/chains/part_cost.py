"""What a part of a chain costs: its arithmetic, and how often it reads its weight."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec

from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.work import norm_us
from tir_schedules.epilogue.epilogue import rows_and_columns
from tir_schedules.product.matmul import MATMUL, estimated_cycles
from tir_schedules.product.matmul_config import MatmulConfig
from tir_schedules.rows.normalize import NormalizeConfig
from tir_schedules.rows.normalize import default_config as normalize_config

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
