"""What is known of a configuration before it is built: its loop nests and its estimated cycles.

The tables have an entry for each kind of region. For a kind without an entry, a cost model sees
only the configuration itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tir_schedules.attention import config as attention_config
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.chains.mlp_chain_config import MlpChainConfig, blocks_of, rows_of, with_rows
from tir_schedules.convolution.direct import cost as conv_cost
from tir_schedules.convolution.winograd import cost as winograd_cost
from tir_schedules.core.blocking import shares
from tir_schedules.core.config import Config
from tir_schedules.core.loop_nest import LoopNest
from tir_schedules.core.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.product import batch_matmul, matmul, weight_only_matmul
from tir_schedules.product.batch_operands import BatchProblem

from .product_nests import (
    attention_nests,
    batch_matmul_nests,
    chain_nests,
    matmul_nests,
    winograd_nests,
)
from .window_nests import conv_nests, depthwise_nests, depthwise_pointwise_nests


def loop_nests(region: Region, config: Config) -> tuple[LoopNest, ...]:
    """The nests of a configuration, in the order in which they run; empty if none are described."""
    describe = _NESTS.get(region.op)
    return tuple(describe(region, config)) if describe is not None else ()


def estimator(region: Region, machine: Machine) -> Callable[[Config], float] | None:
    """What estimates a configuration's cycles, by the template's own formula; None if it has none.

    What all configurations have in common may be missing from it.
    """
    make = _ESTIMATES.get(region.op)
    return make(region, machine) if make is not None else None


def _attention(region: Region, machine: Machine) -> Callable[[Any], float]:
    problem = AttentionProblem(region)
    return lambda config: attention_config.estimated_cycles(problem, config, machine)


def _batch_matmul(region: Region, machine: Machine) -> Callable[[Any], float]:
    problem = BatchProblem(region)
    return lambda config: batch_matmul.estimated_cycles(problem, config, machine)


def _winograd(region: Region, machine: Machine) -> Callable[[Any], float]:
    return lambda config: winograd_cost.winograd_cost(region, config, machine).total


def _chain(region: Region, machine: Machine) -> Callable[[Any], float]:
    """Of a chain: the products of the busiest thread; barriers, traffic and norms are left out."""

    def cycles(config: MlpChainConfig) -> float:
        groups = [(1, 0)]
        parts = list(zip(region.parts, config.of_parts(region), strict=True))
        if config.mode == "rows":
            blocks = blocks_of(rows_of(region.parts[0]), config)
            tasks = [group.size for group in blocks for _ in range(group.count)]
            mine = tasks[: shares(len(tasks), min(config.threads, len(tasks)))[0].size]
            groups = [(mine.count(size), size) for size in sorted(set(mine))]
        return sum(
            count * matmul.estimated_cycles(with_rows(part, size) if size else part, found, machine)
            for count, size in groups
            for part, found in parts
            if isinstance(found, matmul.MatmulConfig)
        )

    return cycles


def _directly(
    estimate: Callable[[Region, Any, Machine], float],
) -> Callable[[Region, Machine], Callable[[Any], float]]:
    return lambda region, machine: lambda config: estimate(region, config, machine)


_NESTS: dict[str, Callable[[Region, Any], Iterator[LoopNest]]] = {
    "attention": attention_nests,
    "batch_matmul": batch_matmul_nests,
    "conv1d": conv_nests,
    "conv2d": conv_nests,
    "conv2d_winograd": winograd_nests,
    "conv3d": conv_nests,
    "depthwise_conv2d": depthwise_nests,
    "depthwise_pointwise": depthwise_pointwise_nests,
    "matmul": matmul_nests,
    "mlp_chain": chain_nests,
    "weight_only_matmul": matmul_nests,
}

_ESTIMATES: dict[str, Callable[[Region, Machine], Callable[[Any], float]]] = {
    "attention": _attention,
    "batch_matmul": _batch_matmul,
    "conv1d": _directly(conv_cost.estimated_cycles),
    "conv2d": _directly(conv_cost.estimated_cycles),
    "conv2d_winograd": _winograd,
    "conv3d": _directly(conv_cost.estimated_cycles),
    "matmul": _directly(matmul.estimated_cycles),
    "mlp_chain": _chain,
    "weight_only_matmul": _directly(weight_only_matmul.estimated_cycles),
}
