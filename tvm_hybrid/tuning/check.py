"""Is a candidate right? Random arguments for a region, its meaning in float64, and how far off
a correct kernel may be.

The bound: the anchor sums n products, each rounded to u = 2^-24. Probabilistic analysis (Higham and
Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, section 3) puts the error of
such a sum below lambda * sqrt(n) * u * sum |products|, with lambda a small constant; for data of
mixed sign, as here, the sum of magnitudes is itself about sqrt(n) times the result's size, and
partial sums of random signs lose a further sqrt(n) less. We allow 8 * sqrt(n) * u * max |result|.
The epilogue then amplifies or damps this: it is evaluated at the result plus and minus that error.
On top come 64 u of the largest output for the epilogue's own roundings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tir_schedules.batch_operands import parse_axes
from tir_schedules.epilogue import epilogue_reference, is_exact
from tir_schedules.region import Region, Tensor
from tir_schedules.template import Template
from tir_schedules.zero_points import own_range

_UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Expected:
    """What the region yields, and how far a right kernel may be from it, element by element."""

    value: np.ndarray
    tolerance: np.ndarray

    def difference(self, actual: np.ndarray) -> str | None:
        """None if `actual`, as stored, is right, else a sentence about the first wrong element."""
        if actual.shape != self.value.shape:
            return f"the result has shape {actual.shape}, not {self.value.shape}"
        expected, found = self.value, actual.astype(self.value.dtype)
        with np.errstate(invalid="ignore"):
            near = (np.abs(found - expected) <= self.tolerance) | np.isinf(self.tolerance)
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        wrong = np.argwhere(~(near | same))
        if not len(wrong):
            return None
        index = tuple(map(int, wrong[0]))
        return (
            f"{len(wrong)} of {expected.size} elements are wrong; the first at {index}: "
            f"{found[index]:.9g}, should be {expected[index]:.9g} "
            f"within {self.tolerance[index]:.2g}"
        )


def random_arguments(region: Region, seed: int) -> list[np.ndarray]:
    """Random inputs and operands, in the order of the kernel's parameters.

    Inputs are normal; constant ones (weights) are scaled so that sums stay near one. Operands lie
    in [0.5, 1.5], where a division, a root or a logarithm is well conditioned.
    """
    generator = np.random.default_rng(seed)
    scale = 1 / math.sqrt(_reduction(region))
    arrays = [
        _random(tensor, generator, scale if tensor.constant else 1.0) for tensor in region.inputs
    ]
    for tensor in region.operands:
        if _is_float(tensor.dtype):
            arrays.append(generator.uniform(0.5, 1.5, tensor.shape).astype(tensor.dtype))
        else:
            arrays.append(_random(tensor, generator, 1.0))
    return [np.ascontiguousarray(array) for array in arrays]


def expected_result(region: Region, template: Template, arrays: list[np.ndarray]) -> Expected:
    """The region's meaning on these arguments.

    Parameters
    ----------
    region : Region
        The region.
    template : Template
        Its template, whose `reference` defines the anchor.
    arrays : list of numpy.ndarray
        Inputs and operands, constants unpacked.
    """
    inputs, operands = arrays[: len(region.inputs)], arrays[len(region.inputs) :]
    if not is_exact(region):
        operands = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in operands]
    own = own_range(region, inputs)
    result = template.reference(region, inputs)
    dtype = region.output.dtype
    if not _is_float(dtype):
        exact = epilogue_reference(region, result, operands, own).astype(dtype).astype(np.int64)
        exact = as_stored(region, exact)
        return Expected(exact, np.zeros(exact.shape, np.int64))
    with np.errstate(all="ignore"):
        value = epilogue_reference(region, result, operands, own)
        finite = np.abs(result[np.isfinite(result)])
        error = 8 * math.sqrt(_reduction(region)) * _UNIT["float32"] * finite.max(initial=0.0)
        largest = np.abs(value[np.isfinite(value)]).max(initial=0.0)
        tolerance = np.full(value.shape, 64 * _UNIT[dtype] * largest)
        for shift in (-error, error):
            neighbour = epilogue_reference(region, result + shift, operands, own)
            spread = np.where(value == neighbour, 0.0, np.abs(neighbour - value))
            both_nan = np.isnan(value) & np.isnan(neighbour)
            # Where the neighbourhood leaves the function's domain, any value is as good as another.
            spread = np.where(both_nan, 0.0, np.where(np.isnan(spread), np.inf, spread))
            tolerance = np.maximum(tolerance, spread + 64 * _UNIT[dtype] * largest)
        value = value.astype(dtype).astype(np.float64)
    return Expected(as_stored(region, value), as_stored(region, tolerance))


def as_stored(region: Region, value: np.ndarray) -> np.ndarray:
    """A result of the region's shape in the order of dimensions in which kernels store it."""
    return value.transpose(parse_axes(region, "out_axes", value.ndim))


def _reduction(region: Region) -> int:
    """About how many values are summed for one output; at least the longest row of an input."""
    elements = sum(tensor.size for tensor in region.inputs)
    rows = max((tensor.shape[-1] for tensor in region.inputs if tensor.shape), default=1)
    return max(1, rows, min(elements // max(1, region.output.size), elements))


def _is_float(dtype: str) -> bool:
    return dtype in _UNIT


def _random(tensor: Tensor, generator: np.random.Generator, scale: float) -> np.ndarray:
    if tensor.dtype == "bool":
        return generator.integers(0, 2, tensor.shape).astype(bool)
    if _is_float(tensor.dtype):
        return (generator.standard_normal(tensor.shape) * scale).astype(tensor.dtype)
    if tensor.dtype in ("int8", "uint8"):
        limits = np.iinfo(tensor.dtype)
        return generator.integers(limits.min, limits.max + 1, tensor.shape).astype(tensor.dtype)
    return generator.integers(-100, 101, tensor.shape).astype(tensor.dtype)
