"""Products of float16: on AMX tiles that multiply it, or in f32 as on every other CPU.

    128x768x768 on Granite Rapids     tiles: 16 times the products of f32 vectors
    the same on Sapphire Rapids       no tiles for float16: f32
"""

from __future__ import annotations

from microkernels.machines.machine import Machine
from microkernels.microkernel import tile_kernels_for
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.amx_cost import LEAST_GAIN

from . import matmul

HALF, WIDE = "float16", "float32"


def multiplies_half(machine: Machine) -> bool:
    """Whether there are tiles for products of float16."""
    return bool(tile_kernels_for(machine.isa, HALF, HALF))


def half_pays(m: int, n: int, k: int, machine: Machine) -> bool:
    """Whether a product with a constant weight is estimated to be faster by tiles of float16.

    Parameters
    ----------
    m, n, k : int
        Rows, columns and K.
    machine : Machine
        Its tiles multiply float16 (`multiplies_half`).
    """
    narrow, wide = (_cycles(dtype, m, n, k, machine) for dtype in (HALF, WIDE))
    return narrow * LEAST_GAIN <= wide


def _cycles(dtype: str, m: int, n: int, k: int, machine: Machine) -> float:
    """Estimated cycles of the best configuration."""
    region = Region(
        op="matmul",
        inputs=(Tensor((m, k), dtype), Tensor((k, n), dtype, True)),
        output=Tensor((m, n), WIDE),
    )
    config = matmul.default_config(region, machine)
    return matmul.estimated_cycles(region, config, machine)
