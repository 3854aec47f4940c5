"""Products of several sizes with simulated speeds of configurations, for tests of learning."""

from __future__ import annotations

import functools
import math

import numpy as np

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region, Tensor
from tir_schedules.product.matmul import MATMUL
from tvm_hybrid.records.record import Record, make_record
from tvm_hybrid.records.record_store import ConfigSpace

MACHINE = Machine("here", isa_named("avx512"))


def matmul(m: int, k: int, n: int) -> Region:
    """A f32 product."""
    a, w = Tensor((m, k), "float32"), Tensor((k, n), "float32", True)
    return Region(op="matmul", inputs=(a, w), output=Tensor((m, n), "float32"))


@functools.cache
def space_of(m: int, k: int, n: int) -> ConfigSpace:
    """The template's space for the product."""
    return ConfigSpace.of(matmul(m, k, n), MATMUL, MACHINE)


def scores_of(m: int, k: int, n: int) -> np.ndarray:
    """Tiles of 16 vectors, two vectors wide, with an 8 KB block of B are fast; the default is 1.0.

    The template's estimate ignores this rule, which is equal for products of every size.
    """
    speeds = []
    for config in space_of(m, k, n).configs:
        fields = config.to_dict()
        tiles = math.ceil(m / fields["rows"])
        rows, vectors = m / tiles, fields["vectors"]
        panel = min(fields["k_block"], k) * vectors * 64
        away = abs(math.log2(rows * vectors / 16)) + 0.5 * abs(math.log2(vectors / 2))
        speeds.append(1 / (1 + away + 0.3 * abs(math.log2(panel / 8192))))
    return np.array(speeds) / speeds[0]


def records_of(m: int, k: int, n: int) -> list[Record]:
    """The whole space as records, with 100 us for the default."""
    configs, scores = space_of(m, k, n).configs, scores_of(m, k, n)
    return [
        make_record(
            matmul(m, k, n), MATMUL, MACHINE, config, "ok", [100 / float(score)], baseline_us=100.0
        )
        for config, score in zip(configs, scores, strict=True)
    ]
