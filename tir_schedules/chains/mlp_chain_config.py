"""What a chain is, and the configuration of its template.

Two modes: "rows", where a task takes a block of rows through all parts, and "columns", where all
threads work on one part after the other. cost.py estimates which mode is better, and how large a
block is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from microkernels.amx.tile_shapes import ROWS
from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tir_schedules.core.blocking import Group, shares_of_units
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import rows_and_columns
from tir_schedules.product import matmul
from tir_schedules.product.tile_config import MatmulConfig, dimensions
from tir_schedules.product.tile_config import check as check_matmul
from tir_schedules.rows import normalize, normalize_view
from tir_schedules.rows.normalize import NormalizeConfig

from .cost import estimate_chain, estimate_dynamic_chain
from .parts import PartConfig, with_rows

MOST_BLOCKS = 1 << 20


class MlpChainConfig(Config, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    mode : str
        "rows": block after block of rows through all parts; "columns": part after part.
    threads : int
        Threads of mode "rows"; in mode "columns" each part has its own number.
    row_blocks : int
        Blocks of mode "rows".
    row_unit : int
        Every block but the last has a multiple of this number of rows, whole tiles of the kernels.
    matmuls : tuple of MatmulConfig
        One for each matmul, in order; in mode "rows" for one thread and the rows of a block.
    norms : tuple of NormalizeConfig
        One for each normalisation, in order.
    most_rows : int
        Most rows of a block if their number is dynamic; the last block may have fewer.
    alone_rows : int
        If the number of rows is dynamic, up to this number one thread takes all.
    """

    mode: Literal["rows", "columns"]
    threads: int = 1
    row_blocks: int = 1
    row_unit: int = 1
    matmuls: tuple[MatmulConfig, ...] = ()
    norms: tuple[NormalizeConfig, ...] = ()
    most_rows: int = 1
    alone_rows: int = 0

    def of_parts(self, region: Region) -> list[PartConfig]:
        """The configuration of every part; ConfigError if their numbers do not agree."""
        matmuls, norms = iter(self.matmuls), iter(self.norms)
        wanted = sum(part.op == "matmul" for part in region.parts)
        if (wanted, len(region.parts)) != (len(self.matmuls), len(self.matmuls) + len(self.norms)):
            raise ConfigError(
                f"{len(self.matmuls)} matmuls and {len(self.norms)} normalisations are configured, "
                f"for {region.key}"
            )
        return [next(matmuls) if part.op == "matmul" else next(norms) for part in region.parts]

    def with_parts(self, region: Region, configs: Sequence[PartConfig]) -> MlpChainConfig:
        """The configuration with other ones for the parts."""
        return msgspec.structs.replace(
            self,
            matmuls=tuple(c for c in configs if isinstance(c, MatmulConfig)),
            norms=tuple(c for c in configs if isinstance(c, NormalizeConfig)),
        )


def rows_of(part: Region) -> int:
    """Rows of a part."""
    return dimensions(part)[0] if part.op == "matmul" else rows_and_columns(part.inputs[0])[0]


def check(region: Region, config: MlpChainConfig, isa: Isa) -> list[PartConfig]:
    """The configurations of the parts, all of them legal.

    Raises
    ------
    ConfigError
        If a configuration is not legal; the message says why.
    """
    limits = {"threads": 4096, "row_blocks": MOST_BLOCKS, "row_unit": MOST_BLOCKS}
    check_numbers(region, config, {**limits, "most_rows": MOST_BLOCKS})
    check_numbers(region, config, {"alone_rows": None}, least=0)
    configs = config.of_parts(region)
    if region.is_dynamic and config.mode != "rows":
        raise ConfigError(f"mode {config.mode} for a dynamic number of rows, for {region.key}")
    for part, found in zip(region.parts, configs, strict=True):
        if isinstance(found, MatmulConfig):
            check_matmul(part, found, isa)
            if config.mode == "rows" and found.threads > 1:
                raise ConfigError(f"threads within a part of a block of rows, for {region.key}")
        else:
            normalize.check(part, found, isa)
    return configs


def default_config(region: Region, machine: Machine) -> MlpChainConfig:
    """The mode and the blocks that `estimate_chain` prefers; no tuning is needed."""
    if region.is_dynamic:
        plan = estimate_dynamic_chain(region, machine).plan
        one = dataclasses.replace(machine, threads=1)
        config = MlpChainConfig(
            mode="rows", threads=plan.tasks, most_rows=plan.block, alone_rows=plan.alone
        )
        return config.with_parts(region, [default_of(part, one) for part in region.parts])
    plan = estimate_chain(region, machine).plan
    if plan.mode == "columns":
        return by_columns(region, machine)
    rows = math.ceil(rows_of(region.parts[0]) / plan.tasks)
    return by_rows(region, machine, plan.tasks, plan.tasks * math.ceil(rows / plan.block))


def blocks_of(m: int, config: MlpChainConfig) -> tuple[Group, ...]:
    """The blocks of `m` rows in mode "rows", the largest first."""
    return shares_of_units(m, config.row_blocks, config.row_unit)


def by_rows(region: Region, machine: Machine, threads: int, row_blocks: int) -> MlpChainConfig:
    """Mode "rows" with at most `row_blocks` blocks, so that the busiest thread multiplies least."""
    ways = cut_by_rows(region, machine, threads, row_blocks)
    return min(ways, key=lambda config: estimate(region, config, machine))


def cut_by_rows(
    region: Region, machine: Machine, threads: int, row_blocks: int
) -> Iterator[MlpChainConfig]:
    """Mode "rows" with equal blocks and, if a kernel has tiles, with blocks of whole ones."""
    m = rows_of(region.parts[0])
    one = dataclasses.replace(machine, threads=1)

    def cut(unit: int) -> MlpChainConfig:
        blocks = min(row_blocks, math.ceil(m / unit))
        config = MlpChainConfig(
            mode="rows", threads=min(threads, m), row_blocks=blocks, row_unit=unit
        )
        rows = blocks_of(m, config)[0].size
        parts = [default_of(with_rows(part, rows), one) for part in region.parts]
        return config.with_parts(region, parts)

    equal = cut(1)
    yield equal
    kernels = [microkernel_named(config.kernel) for config in equal.matmuls]
    heights = {height for kernel in kernels if kernel.by_tiles for height in (ROWS, kernel.mr)}
    yield from (cut(unit) for unit in sorted(heights) if unit < m)


def estimate(region: Region, config: MlpChainConfig, machine: Machine) -> float:
    """Cycles of the busiest thread's products; barriers, traffic and norms are left out."""
    groups = [(1, 0)]
    parts = list(zip(region.parts, config.of_parts(region), strict=True))
    if config.mode == "rows":
        blocks = blocks_of(rows_of(region.parts[0]), config)
        tasks = [group.size for group in blocks for _ in range(group.count)]
        mine = tasks[:: config.threads]
        groups = [(mine.count(size), size) for size in sorted(set(mine))]
    return sum(
        count * matmul.estimated_cycles(with_rows(part, size) if size else part, found, machine)
        for count, size in groups
        for part, found in parts
        if isinstance(found, MatmulConfig)
    )


def by_columns(region: Region, machine: Machine) -> MlpChainConfig:
    """Mode "columns", with each part configured as if it were alone."""
    config = MlpChainConfig(mode="columns")
    return config.with_parts(region, [default_of(part, machine) for part in region.parts])


def default_of(part: Region, machine: Machine) -> PartConfig:
    if part.op in normalize_view.NORM_OPS:
        return normalize.default_config(part, machine)
    return matmul.default_config(part, machine)
