"""A known case: arguments of a region, and what a right kernel makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from .arguments import random_arguments
from .attention_bounds import attention_arguments, expected_of_attention, is_attention
from .bounds import Expected, expected_result
from .chain_bounds import chain_arguments, expected_of_chain, is_chain


def known_case(
    region: Region, template: Template[Any], seed: int
) -> tuple[list[np.ndarray], Expected]:
    """Inputs, unpacked, and operands; and the result, with how far off it may be.

    Parameters
    ----------
    region, template
        What is computed.
    seed : int
        For the arguments.
    """
    if is_chain(region):
        arrays = chain_arguments(region, seed)
        return arrays, expected_of_chain(region, arrays, seed)
    if is_attention(region):
        arrays = attention_arguments(region, seed)
        return arrays, expected_of_attention(region, arrays)
    arrays = random_arguments(region, template, seed)
    return arrays, expected_result(region, template, arrays)
