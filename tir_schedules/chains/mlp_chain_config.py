"""What a chain is, and the configuration of its template.

Two modes: "rows", where a task takes a block of rows through all parts, and "columns", where all
threads work on one part after the other. Which is better, and how large a block is, cost.py
estimates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from microkernels.amx.tile_shapes import ROWS
from microkernels.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import microkernel_named
from tir_schedules.core.blocking import Group
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.region import Region, Tensor
from tir_schedules.epilogue.epilogue import rows_and_columns
from tir_schedules.product import matmul
from tir_schedules.product.matmul_config import MatmulConfig, dimensions, product_types
from tir_schedules.product.matmul_config import check as check_matmul
from tir_schedules.product.tile_config import product_kernels
from tir_schedules.product.tile_space import register_tiles
from tir_schedules.rows import normalize
from tir_schedules.rows.normalize import NormalizeConfig
from tir_schedules.rows.normalize_view import NORM_OPS

from .cost import estimate_chain, row_groups

MOST_BLOCKS = 1 << 20

PartConfig = MatmulConfig | NormalizeConfig


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
        Every block but the last has a multiple of so many rows, whole tiles of the kernels.
    matmuls : tuple of MatmulConfig
        One for each matmul, in order; in mode "rows" for one thread and the rows of a block.
    norms : tuple of NormalizeConfig
        One for each normalisation, in order.
    """

    mode: Literal["rows", "columns"]
    threads: int = 1
    row_blocks: int = 1
    row_unit: int = 1
    matmuls: tuple[MatmulConfig, ...] = ()
    norms: tuple[NormalizeConfig, ...] = ()

    def of_parts(self, region: Region) -> list[PartConfig]:
        """The configuration of every part; ConfigError if their numbers do not agree."""
        matmuls, norms = iter(self.matmuls), iter(self.norms)
        wanted = sum(part.op == "matmul" for part in region.parts)
        if (wanted, len(region.parts)) != (
            len(self.matmuls),
            len(self.matmuls) + len(self.norms),
        ):
            raise ConfigError(
                f"{len(self.matmuls)} matmuls and {len(self.norms)} normalisations are configured, "
                f"for {region.key}"
            )
        return [next(matmuls) if part.op == "matmul" else next(norms) for part in region.parts]

    def with_parts(self, region: Region, configs: Sequence[PartConfig]) -> MlpChainConfig:
        """The configuration with others for the parts."""
        return MlpChainConfig(
            mode=self.mode,
            threads=self.threads,
            row_blocks=self.row_blocks,
            row_unit=self.row_unit,
            matmuls=tuple(c for c in configs if isinstance(c, MatmulConfig)),
            norms=tuple(c for c in configs if isinstance(c, NormalizeConfig)),
        )


def rows_of(part: Region) -> int:
    """Rows of a part."""
    if part.op == "matmul":
        return dimensions(part)[0]
    return rows_and_columns(part.inputs[0])[0]


def check(region: Region, config: MlpChainConfig, isa: Isa) -> list[PartConfig]:
    """The configurations of the parts, all of them legal.

    Raises
    ------
    ConfigError
        Saying what is not legal.
    """
    limits = {"threads": 4096, "row_blocks": MOST_BLOCKS, "row_unit": MOST_BLOCKS}
    check_numbers(region, config, limits)
    configs = config.of_parts(region)
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
    plan = estimate_chain(region, machine).plan
    if plan.mode == "columns":
        return by_columns(region, machine)
    rows = math.ceil(rows_of(region.parts[0]) / plan.tasks)
    return by_rows(region, machine, plan.tasks, plan.tasks * math.ceil(rows / plan.block))


def space(region: Region, machine: Machine) -> Iterator[MlpChainConfig]:
    """The default; both modes with other blocks; then other tiles in all parts or in one."""
    default = default_config(region, machine)
    found = {default}

    def new(configs: Iterator[MlpChainConfig]) -> Iterator[MlpChainConfig]:
        for config in configs:
            if config not in found:
                found.add(config)
                yield config

    yield default
    structures = list(_structures(region, default, machine))
    yield from new(iter(structures))
    for structure in dict.fromkeys(structures):
        yield from new(_other_tiles(region, structure, machine))
    yield from new(_variations(region, default, machine))


def blocks_of(m: int, config: MlpChainConfig) -> tuple[Group, ...]:
    """The blocks of `m` rows in mode "rows", the largest first."""
    return row_groups(m, config.row_blocks, config.row_unit)


def by_rows(region: Region, machine: Machine, threads: int, row_blocks: int) -> MlpChainConfig:
    """Mode "rows" with so many blocks, or fewer; the busiest thread has the least to multiply."""
    ways = list(_cut_by_rows(region, machine, threads, row_blocks))
    if len(ways) == 1:
        return ways[0]
    return min(ways, key=lambda config: _busiest_cycles(region, config, machine))


def _cut_by_rows(
    region: Region, machine: Machine, threads: int, row_blocks: int
) -> Iterator[MlpChainConfig]:
    """Mode "rows" with equal blocks and, if a kernel has tiles, with blocks of whole ones."""
    m = rows_of(region.parts[0])
    one = dataclasses.replace(machine, threads=1)

    def cut(unit: int) -> MlpChainConfig:
        config = MlpChainConfig(
            mode="rows",
            threads=min(threads, m),
            row_blocks=min(row_blocks, math.ceil(m / unit)),
            row_unit=unit,
        )
        rows = blocks_of(m, config)[0].size
        parts = [_default_of(with_rows(part, rows), one) for part in region.parts]
        return config.with_parts(region, parts)

    equal = cut(1)
    yield equal
    kernels = [microkernel_named(config.kernel) for config in equal.matmuls]
    heights = {height for kernel in kernels if kernel.by_tiles for height in (ROWS, kernel.mr)}
    yield from (cut(unit) for unit in sorted(heights) if unit < m)


def _busiest_cycles(region: Region, config: MlpChainConfig, machine: Machine) -> float:
    """Estimated cycles of the products of the thread with the most work."""
    times: list[float] = []
    for group in blocks_of(rows_of(region.parts[0]), config):
        parts = zip(region.parts, config.of_parts(region), strict=True)
        cycles = sum(
            matmul.estimated_cycles(with_rows(part, group.size), found, machine)
            for part, found in parts
            if isinstance(found, MatmulConfig)
        )
        times += [cycles] * group.count
    return sum(times[:: config.threads])  # the first takes the largest ones, as many as any


def by_columns(region: Region, machine: Machine) -> MlpChainConfig:
    """Mode "columns", each part as if it stood alone."""
    config = MlpChainConfig(mode="columns")
    return config.with_parts(region, [_default_of(part, machine) for part in region.parts])


def _structures(
    region: Region, default: MlpChainConfig, machine: Machine
) -> Iterator[MlpChainConfig]:
    blocks = default.row_blocks
    for threads in sorted({1, default.threads, machine.threads}):
        for factor in (1, 2, 4, 8):
            for row_blocks in sorted({blocks * factor, math.ceil(blocks / factor)}):
                whole = threads * math.ceil(row_blocks / threads)  # every thread has as many
                yield from _cut_by_rows(region, machine, threads, whole)
    yield by_columns(region, machine)


def _other_tiles(
    region: Region, config: MlpChainConfig, machine: Machine
) -> Iterator[MlpChainConfig]:
    """A configuration with one register tile in all products, as far as it cuts them."""
    first, *_ = (part for part in region.parts if part.op == "matmul")
    rows = rows_of(first)
    if config.mode == "rows":
        rows = blocks_of(rows, config)[0].size
    kernels = product_kernels(machine.isa, *product_types(first))
    vector = [kernel for kernel in kernels if not kernel.by_tiles]
    for kernel, tile_rows, vectors in register_tiles(vector, rows, 1 << 10):
        tile = {"kernel": kernel.name, "rows": tile_rows, "vectors": vectors}
        matmuls = tuple(
            msgspec.structs.replace(found, **tile, m_block=max(found.m_block, tile_rows))
            for found in config.matmuls
        )
        yield msgspec.structs.replace(config, matmuls=matmuls)


def _variations(
    region: Region, default: MlpChainConfig, machine: Machine
) -> Iterator[MlpChainConfig]:
    configs = default.of_parts(region)
    if default.mode == "rows":
        machine = dataclasses.replace(machine, threads=1)
    for number, part in enumerate(region.parts):
        if default.mode == "rows":
            part = with_rows(part, blocks_of(rows_of(part), default)[0].size)
        template_space = matmul.neighbourhood if part.op == "matmul" else normalize.space
        for found in template_space(part, machine):
            yield default.with_parts(region, [*configs[:number], found, *configs[number + 1 :]])


def _default_of(part: Region, machine: Machine) -> PartConfig:
    if part.op in NORM_OPS:
        return normalize.default_config(part, machine)
    return matmul.default_config(part, machine)


def with_rows(part: Region, rows: int) -> Region:
    """A part as if it had only so many rows, for its default configuration."""
    first, output = part.inputs[0], part.output
    attrs = {**part.attrs, "axis": 1} if "axis" in part.attrs else part.attrs
    return part.replace(
        inputs=(Tensor((rows, first.shape[-1]), first.dtype), *part.inputs[1:]),
        output=Tensor((rows, output.shape[-1]), output.dtype),
        operands=(),
        attrs=attrs,
    )
