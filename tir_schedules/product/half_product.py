"""Products of float16: on AMX tiles that multiply it, or in f32 as on every other CPU.

128x768x768 on Granite Rapids     tiles: 16 times the products of f32 vectors
the same on Sapphire Rapids       no tiles for float16: f32
"""

from __future__ import annotations

from collections.abc import Sequence

from microkernels.machines.machine import Machine
from microkernels.registry import tile_kernels_for
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.amx_cost import LEAST_GAIN

from .batch_matmul import BATCH_MATMUL, busiest_cycles
from .matmul import MATMUL, estimated_cycles

HALF, WIDE = "float16", "float32"


def multiplies_half(machine: Machine) -> bool:
    """Whether there are tiles for products of float16."""
    return bool(tile_kernels_for(machine.isa, HALF, HALF))


def weighted_half_pays(machine: Machine, m: int, n: int, k: int) -> bool:
    """Whether a product with a constant weight is estimated to be faster by tiles of float16.

    Parameters
    ----------
    machine : Machine
        Its tiles multiply float16 (`multiplies_half`).
    m, n, k : int
        Rows, columns and K.
    """

    def cycles(dtype: str) -> float:
        inputs = Tensor((m, k), dtype), Tensor((k, n), dtype, True)
        region = Region(op="matmul", inputs=inputs, output=Tensor((m, n), WIDE))
        config = MATMUL.default_config(region, machine)
        return estimated_cycles(region, config, machine)

    return cycles(HALF) * LEAST_GAIN <= cycles(WIDE)


def batched_half_pays(
    machine: Machine, a: Sequence[int], b: Sequence[int], output: Sequence[int]
) -> bool:
    """Whether products of two activations are estimated to be faster by tiles of float16.

    Parameters
    ----------
    machine : Machine
        As of `weighted_half_pays`.
    a, b, output : sequence of int
        Shapes [..., M, K], [..., K, N] and [..., M, N].
    """
    inputs = Tensor(tuple(a), WIDE), Tensor(tuple(b), WIDE)
    axes = {"a_axes": tuple(range(len(a))), "b_axes": tuple(range(len(b)))}

    def cycles(rounded: dict[str, Attribute]) -> float:
        region = Region(
            op="batch_matmul",
            inputs=inputs,
            output=Tensor(tuple(output), WIDE),
            attrs={**axes, **rounded},
        )
        config = BATCH_MATMUL.default_config(region, machine)
        return busiest_cycles(region, config, machine)

    return cycles({"rounded": HALF}) * LEAST_GAIN <= cycles({})
