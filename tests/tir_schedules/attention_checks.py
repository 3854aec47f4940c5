"""Runs attention kernels between guard pages and compares them with the definition."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tvm_ffi

from tests.guard import guarded
from tests.tir_schedules.attention_reference import Expected, assert_near, expected
from tests.tir_schedules.attention_regions import Attention, values
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    ISAS,
    compiled,
    dtype_named,
    machine_for,
)
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of

ISAS_OF = {"f32": ISAS, "rounded": BF16_ISAS, "bf16": BF16_ISAS, "int8": INTEGER_ISAS}


def best(kind: str) -> str:
    """The instruction set with the fastest kernels here."""
    return ISAS_OF[kind][-1]


def kernel_of(
    attention: Attention, isa: str, threads: int = 1, config: Config | None = None
) -> tvm_ffi.Function:
    """The compiled kernel; without a configuration, the default one."""
    return _kernel(attention.region.to_json(), isa, threads, config)


@functools.lru_cache(maxsize=32)
def _kernel(text: str, isa: str, threads: int, config: Config | None) -> tvm_ffi.Function:
    region, machine = Region.from_json(text), machine_for(isa, threads)
    template = template_for(region.op)
    assert template.reject(region, machine.isa) is None, text
    config = config or template.default_config(region, machine)
    return compiled(template.build(region, config, machine.isa), isa)


def result_of(
    attention: Attention, kernel: tvm_ffi.Function, arrays: Sequence[np.ndarray], at_end: bool
) -> np.ndarray:
    """The kernel's result, with every buffer placed against an unmapped page."""
    output = guarded(np.zeros(attention.stored("out"), dtype_named(attention.output)), at_end)
    output[...] = 85 if output.dtype.kind in "iu" else np.nan
    kernel(*(tensor_of(guarded(x, at_end)) for x in arrays), tensor_of(output))
    return output


def check(
    attention: Attention,
    isa: str | None = None,
    arrays: Sequence[np.ndarray] | None = None,
    at_end: bool = True,
    threads: int = 1,
    config: Config | None = None,
) -> tuple[np.ndarray, Expected]:
    """The kernel's result is within the bound of the definition.

    Parameters
    ----------
    attention : Attention
        What to compute.
    isa : str or None
        The best one if None.
    arrays : sequence of ndarray or None
        Inputs of the region; drawn if None.
    at_end : bool
        Whether buffers end, or begin, at an unmapped page.
    threads, config
        For the template.

    Returns
    -------
    tuple
        The result and what was expected.
    """
    kernel = kernel_of(attention, isa or best(attention.kind), threads, config)
    arrays = values(attention) if arrays is None else arrays
    result = result_of(attention, kernel, arrays, at_end)
    wanted = expected(attention, arrays)
    assert_near(attention, result, wanted)
    return result, wanted
