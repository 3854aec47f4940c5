"""Configurations of template "weight_only_matmul": defaults, costs, and which are legal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for, microkernel_named, tile_kernels_for
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import rows_and_columns

from . import narrow_weight, quantized_rows, tile_config, weight_only_tiles
from .best_grid import best_grid, dynamic_grid
from .narrow_weight import NarrowWeight, most_digit_rows

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
    # AVX2 is bound by computation, not by memory: with float16 scales a row took 1.01 (one thread)
    # and 1.06 (two threads) of the time with float32 (Zen 5, code for haswell).
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


def defaults(region: Region, machine: Machine) -> Iterator[WeightOnlyConfig]:
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
    return *rounding_kernels(region, isa), *_byte_kernels(region, isa)


def multiplies_f32(kernel: Microkernel) -> bool:
    """Whether a kernel multiplies A as f32; others take a weight that is expanded in cache."""
    return kernel.a_dtype == "float32"


def rounding_kernels(region: Region, isa: Isa) -> tuple[Microkernel, ...]:
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
    if not multiplies_f32(kernel):
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
    unit = _k_unit(region, kernel, staged) if multiplies_f32(kernel) else None
    grid = best_grid(tile, *sizes, machine, products, unit)
    few = sizes[0] <= most_digit_rows(kernel.lanes) and not staged
    digits = few and _by_vnni(region, kernel, machine.isa)
    return WeightOnlyConfig(**tile, **grid, staged=staged, digits=digits)


def estimated_cycles(region: Region, config: WeightOnlyConfig, machine: Machine) -> float:
    """Cycles of the busiest thread."""
    kernel = microkernel_named(config.kernel)
    whole = plan_of(region, config)
    plan = whole.busiest
    times = math.ceil(plan.m / (config.m_block if config.staged else config.rows))
    # What a vector of the weight costs besides its multiplications, on Zen 4 and 5: decoded next to
    # them, for every tile, or staged, for every block of rows.
    beside, staged = (0.2, 2.4) if kernel.lanes == 16 else (1.3, 2.6)
    decoding = staged if config.staged else beside
    others = 0.0
    if kernel.by_tiles:
        decoding += ROUNDING_CYCLES
    elif not multiplies_f32(kernel):
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
    if multiplies_f32(kernel):
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
    if not (few and multiplies_f32(kernel) and _suits_digits(region, kernel.lanes)):
        return False
    return config.digits or kernel.isa_name == "avx2"


def _has_digits(region: Region, kernel: Microkernel, isa: Isa) -> bool:
    """Whether an f32 kernel has digits beside it, by AVX2 or by VNNI for vectors of 512 bits."""
    lanes = kernel.lanes
    if not (multiplies_f32(kernel) and _suits_digits(region, lanes)):
        return False
    return lanes == 8 or any(each.lanes == lanes for each in quantized_rows.kernels(isa))


def _by_vnni(region: Region, kernel: Microkernel, isa: Isa) -> bool:
    """Whether `WeightOnlyConfig.digits` may be true for a kernel."""
    return kernel.lanes == 16 and _has_digits(region, kernel, isa)


def _suits_digits(region: Region, lanes: int) -> bool:
    return narrow_weight.span_of(weight_format(region, lanes), dimensions(region)[2]) is not None


def plan_of(region: Region, config: WeightOnlyConfig) -> ProductPlan:
    """How a configuration cuts the product; blocks of K are whole units or blocks of the weight."""
    kernel = microkernel_named(config.kernel)
    align = _k_unit(region, kernel, config.staged)
    plan = config.plan(*dimensions(region), k_align=align)
    # Integer sums of a block are added up in f32.
    return replace(plan, kernel=replace(kernel, acc_dtype="float32"))


def _k_unit(region: Region, kernel: Microkernel, staged: bool) -> int:
    """Steps of K that must not be cut."""
    weight = weight_format(region, kernel.lanes)
    if not multiplies_f32(kernel):
        return 1 if kernel.by_tiles else weight.block // kernel.kr
    return weight.unit if staged or weight.blocks == 1 else weight.block


def flops(region: Region) -> int:
    """Multiplications and additions of the product."""
    return 2 * math.prod(dimensions(region))
