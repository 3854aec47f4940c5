"""The configurations of a chain that a search tries, and how its default is varied."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import msgspec

from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.product.matmul import neighbourhood
from tir_schedules.product.matmul_config import product_types
from tir_schedules.product.tile_config import product_kernels
from tir_schedules.product.tile_space import register_tiles

from .mlp_chain_config import (
    MlpChainConfig,
    blocks_of,
    by_columns,
    cut_by_rows,
    default_config,
    rows_of,
    with_rows,
)


def space(region: Region, machine: Machine) -> Iterator[MlpChainConfig]:
    """The default; both modes with other blocks; then other tiles in all parts or in one."""
    default = default_config(region, machine)
    if region.is_open:
        yield default
        return
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


def _structures(
    region: Region, default: MlpChainConfig, machine: Machine
) -> Iterator[MlpChainConfig]:
    blocks = default.row_blocks
    for threads in sorted({1, default.threads, machine.threads}):
        for factor in (1, 2, 4, 8):
            for row_blocks in sorted({blocks * factor, math.ceil(blocks / factor)}):
                whole = threads * math.ceil(row_blocks / threads)  # every thread has as many
                yield from cut_by_rows(region, machine, threads, whole)
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
        template_space = neighbourhood if part.op == "matmul" else template_for(part.op).space
        for found in template_space(part, machine):
            yield default.with_parts(region, [*configs[:number], found, *configs[number + 1 :]])
