"""Integer products of every kind as regions, their values, and the products by definition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from tests.microkernels.operands import random_operand
from tests.onnx_reference.arithmetic import dynamic_quantize, integer_product, quantize
from tests.tir_schedules.run_region import INTEGER_ISAS, machine_for, run
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region, Tensor
from tir_schedules.product.matmul import MATMUL, MatmulConfig

DTYPES = ("uint8", "int8")
TYPES = list(itertools.product(DTYPES, DTYPES))
BEST = INTEGER_ISAS[-1]

every_isa = pytest.mark.parametrize("isa", INTEGER_ISAS)


def kernels(isa: str) -> tuple[Microkernel, ...]:
    """The integer kernels that can be chosen on an instruction set."""
    return kernels_for(machine_for(isa).isa, "uint8", "int8")


def matmul_region(
    lead: tuple[int, ...],
    k: int,
    n: int,
    a: str = "uint8",
    w: str = "int8",
    a_zero: int | str = 0,
    w_zero: int | str = 0,
    quantized: float | str | None = None,
    **fields: Any,
) -> Region:
    """A matmul of 8-bit integers.

    Parameters
    ----------
    lead : tuple of int
        Shape of A without its last dimension.
    a, w : str
        Types of the factors.
    a_zero, w_zero : int or str
        Zero points, as in the region's attributes.
    quantized : float, str or None
        The scale with which a f32 A is quantised to `a`.
    fields : Any
        Further fields of the Region.
    """
    attrs: dict[str, Attribute] = {}
    if a_zero != 0:
        attrs["a_zero_point"] = a_zero
    if w_zero != 0:
        attrs["b_zero_point"] = w_zero
    if quantized is not None:
        attrs |= {"a_quantize": a, "a_scale": quantized}
    further = []
    if "range" in (a_zero, quantized):
        further.append(Tensor((2,), "float32"))
    if a_zero == "input":
        further.append(Tensor((), a))
    if w_zero == "input":
        further.append(Tensor((n,), "int32", True))
    left = Tensor((*lead, k), a if quantized is None else "float32")
    return Region(
        op="matmul",
        inputs=(left, Tensor((k, n), w, True), *further),
        output=fields.pop("output", Tensor((*lead, n), "int32")),
        attrs=attrs,
        **fields,
    )


def values(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Integers over the whole range of their type, ends included; other inputs are ordinary."""
    rng = np.random.default_rng(seed)
    limits = np.iinfo(region.inputs[1].dtype)

    def value(number: int, tensor: Tensor) -> np.ndarray:
        if tensor.dtype in DTYPES:
            return random_operand(rng, tensor.shape, tensor.dtype)
        if tensor.dtype == "int32" and number < len(region.inputs):
            return rng.integers(limits.min, limits.max + 1, tensor.shape).astype(np.int32)
        if tensor.dtype == "int32":
            return rng.integers(-(2**20), 2**20, tensor.shape).astype(np.int32)
        if number == 2 and tensor.shape == (2,):
            return np.array([0.031, rng.integers(0, 256)], np.float32)
        return np.asarray(rng.standard_normal(tensor.shape)).astype(tensor.dtype)

    return [value(i, tensor) for i, tensor in enumerate((*region.inputs, *region.operands))]


def product(region: Region, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The int32 product by definition, (A - zA) (B - zB); A is quantised if the region says so."""
    a, w, *further = arrays[: len(region.inputs)]
    attrs = region.attrs
    a_zero, w_zero = (attrs.get(f"{name}_zero_point", 0) for name in "ab")
    numbers = further.pop(0) if "range" in (a_zero, attrs.get("a_scale")) else None
    if numbers is not None:
        a_zero = int(numbers[1])
    elif a_zero == "input":
        a_zero = int(further.pop(0))
    columns = further.pop(0) if w_zero == "input" else int(w_zero)
    if a_zero == "dynamic":
        a, _, found = dynamic_quantize(a, attrs.get("least_scale"))
        a_zero = int(found)
    elif "a_quantize" in attrs:
        scale = attrs["a_scale"] if numbers is None else numbers[0]
        a = quantize(a, np.float32(scale), np.array(a_zero, str(attrs["a_quantize"])))
    return integer_product(a.astype(np.int64) - int(a_zero), w.astype(np.int64) - columns)


def config_for(region: Region, isa: str, **fields: Any) -> MatmulConfig:
    """The default configuration with some fields changed."""
    default = MATMUL.default_config(region, machine_for(isa))
    return MatmulConfig(**{**default.to_dict(), **fields})


def check(region: Region, isa: str = BEST, **options: Any) -> None:
    """The kernel's integers equal those of the definition."""
    arrays = values(region)
    np.testing.assert_array_equal(run(region, arrays, isa, **options), product(region, arrays))
