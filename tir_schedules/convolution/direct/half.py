"""Convolutions of float16: on AMX tiles that multiply it, or in f32 as on every other CPU."""

from __future__ import annotations

import msgspec

from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.amx_cost import LEAST_GAIN
from tir_schedules.product.half_product import HALF

from .cost import default_config, estimated_cycles


def half_conv_pays(region: Region, machine: Machine) -> bool:
    """Whether a convolution is estimated to be faster by tiles of float16.

    Parameters
    ----------
    region : Region
        Of f32, of known sizes, its weight constant.
    machine : Machine
        Its tiles multiply float16.
    """
    inputs = tuple(Tensor(each.shape, HALF, each.constant) for each in region.inputs)

    def cycles(region: Region) -> float:
        return estimated_cycles(region, default_config(region, machine), machine)

    half = cycles(msgspec.structs.replace(region, inputs=inputs))
    return half * LEAST_GAIN <= cycles(region)
