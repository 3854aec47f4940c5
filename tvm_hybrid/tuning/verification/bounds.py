"""Random arguments that expose wrong kernels of a region, and error bounds of right kernels.

Zero points lie within their types, scales are positive, 8-bit tensors use all 256 values. Where a
region quantises, values that are too large saturate everywhere, and values that are too small all
round to one integer: then a wrong product would go unnoticed. So arguments are drawn at several
volumes, until every quantisation yields many different integers.

A float anchor sums n products, each rounded to u = 2^-24. Probabilistic analysis (Higham and Mary,
"A New Approach to Probabilistic Rounding Error Analysis", 2019, section 3) bounds the error of such
a sum by lambda * sqrt(n) * u * sum |products|, with lambda a small constant. For data of mixed
sign, as here, the sum of magnitudes is itself about sqrt(n) times the result's size, and partial
sums of random signs save another factor sqrt(n). We allow 8 * sqrt(n) * u * max |result|. The
epilogue then amplifies or damps this: it is evaluated at the result plus and minus that error. 64 u
of the largest output are added for the epilogue's own roundings, and one unit in the last place of
an output that is narrower than f32.

An integer product is exact, and so are most steps after it, each rounded separately: then there is
no tolerance at all. Functions that kernels approximate (FUSIBLE_OPS other than `EXACT`) are within
`FUNCTION_ERROR` of their value or argument: the epilogue is evaluated with function values that
much larger, and smaller. So an integer may be off by one only where such a difference decides its
rounding.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microkernels.base.arrays import RANGES
from tir_schedules.core.product_plan import quantized_dtype, zero_point_inputs
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import Template
from tir_schedules.epilogue.epilogue import epilogue_reference, is_exact
from tir_schedules.epilogue.fusible_ops import SPECIAL_STEPS
from tir_schedules.epilogue.quantize_steps import WORD
from tir_schedules.product.weight_only_matmul import quantization_error
from tir_schedules.product.zero_points import own_range
from tvm_hybrid.runtime.feeds import BFLOAT16

FLOATS = ("float64", "float32", "float16", "bfloat16")
VOLUMES = (1.0, 2.0**-3, 2.0**3, 2.0**-6, 2.0**6, 2.0**-10, 2.0**10)
ENOUGH = 48
"""Different integers of one quantisation that suffice: no other volume is tried."""

QUANTIZING = ("quantize", "requantize")
SCALES = (0.01, 0.05)
_TYPICAL_PRODUCT = 5000.0  # of two random 8-bit integers, zero points subtracted
_STEPS = 60.0  # quantisation steps that a random sum reaches
_BEYOND = 16  # quantised values reach this many steps past the ends of their type


def random_arguments(
    region: Region, template: Template[Any], seed: int, known: Mapping[int, np.ndarray] = {}
) -> list[np.ndarray]:
    """Draws unpacked inputs and operands, in the order of the kernel's parameters.

    Float inputs are normal, constant ones (weights) scaled so that sums stay near one. Operands lie
    in [0.5, 1.5], where a division, a root or a logarithm is well conditioned; factors of an
    integer product bring it near one.

    Parameters
    ----------
    region : Region
        The region.
    template : Template
        Its template, whose `reference` gives the values that are quantised.
    seed : int
        Seed of the generator.
    known : mapping
        Number of an argument -> fixed value that replaces the drawn one.
    """

    def draw(volume: float) -> list[np.ndarray]:
        drawn = _Draw(region, seed, volume).arrays()
        return [known.get(number, array) for number, array in enumerate(drawn)]

    if all(step.op not in QUANTIZING for step in region.epilogue):
        return draw(1.0)
    best, most = draw(VOLUMES[0]), -1
    for volume in VOLUMES:
        arrays = draw(volume)
        found = _different_integers(region, template, arrays)
        if found > most:
            best, most = arrays, found
        if most >= min(ENOUGH, region.output.size // 4):
            break
    return best


def _different_integers(region: Region, template: Template[Any], arrays: list[np.ndarray]) -> int:
    """Counts the integers of the quantisation that has fewest; -1 if a value that is requantised
    does not fit in 16 bits, as kernels assume."""
    inputs, operands = arrays[: len(region.inputs)], arrays[len(region.inputs) :]
    result, own = anchor_result(region, template, inputs), own_range(region, inputs)
    counts = []
    for number, step in enumerate(region.epilogue):
        if step.op == "requantize" and not _fits(region, number, result, operands):
            return -1
        if step.op in QUANTIZING:
            beginning = region.replace(epilogue=region.epilogue[: number + 1])
            with np.errstate(all="ignore"):
                counts.append(len(np.unique(epilogue_reference(beginning, result, operands, own))))
    return min(counts)


def _fits(region: Region, number: int, result: np.ndarray, operands: list[np.ndarray]) -> bool:
    """Whether a requantised value fits in 16 bits before it saturates."""
    before = region.epilogue[:number]
    values: list[np.ndarray] = [result, *operands]
    for last, step in enumerate(before):
        if step.op == "constant":
            values.append(np.asarray(step.value))
        else:
            part = region.replace(epilogue=before[: last + 1])
            values.append(epilogue_reference(part, result, operands))
    read = (values[arg].astype(np.float64) for arg in region.epilogue[number].args)
    value, zero_point, *factors = read
    for factor in factors:
        value = value * factor
    return bool(np.all(np.abs(value + zero_point) < WORD))


class _Draw:
    """One random set of arguments."""

    def __init__(self, region: Region, seed: int, volume: float) -> None:
        self.region, self.volume = region, volume
        self.generator, self.terms = np.random.default_rng(seed), terms_of_a_sum(region)
        # Whether the anchor is a product of 8-bit integers.
        several = "bits" not in region.attrs and len(region.inputs) > 1
        self.is_product = several and region.inputs[1].dtype in RANGES

    def arrays(self) -> list[np.ndarray]:
        if "bits" in self.region.attrs:
            found = self._of_narrow_weight()
        elif self.is_product:
            found = self._of_integer_product()
        else:
            found = [self._plain(tensor) for tensor in self.region.inputs]
        found += [self._operand(number) for number in range(len(self.region.operands))]
        return [np.asarray(array, order="C") for array in found]

    def _plain(self, tensor: Tensor) -> np.ndarray:
        """Draws an input of a float product, a normalisation or an elementwise region."""
        if tensor.dtype not in FLOATS:
            return self._integers(tensor)
        array = self.generator.standard_normal(tensor.shape)
        factor = 1 / math.sqrt(self.terms) if tensor.constant else 1.0
        # A normalisation cancels a factor of its input, so the constants, if any, get the volume.
        if tensor.constant or not any(other.constant for other in self.region.inputs):
            factor *= self.volume
        return (array * factor).astype(element_type(tensor.dtype))

    def _of_integer_product(self) -> list[np.ndarray]:
        """Draws A, B, and zero points in the order of `zero_point_inputs`."""
        region, generator = self.region, self.generator
        a, b, *further = region.inputs
        points: dict[str, np.ndarray] = {}
        for name, tensor in zip(zero_point_inputs(region), further, strict=True):
            if name == "range":
                points[name] = self._range()
            else:
                limits = np.iinfo(b.dtype if name == "b" else quantized_dtype(region))
                drawn = generator.integers(limits.min, limits.max + 1, tensor.shape)
                points[name] = np.asarray(drawn).astype(tensor.dtype)
        left = self._quantizable(a, points) if a.dtype in FLOATS else self._integers(a)
        right = self._integers(b)
        if self.volume < 1 and not self._factors:
            zero = points.get("b", region.attrs.get("b_zero_point", 0))
            quieter = np.rint((right - np.asarray(zero, np.float64)) * self.volume) + zero
            right = quieter.astype(b.dtype)
        return [left, right, *points.values()]

    def _quantizable(self, tensor: Tensor, points: dict[str, np.ndarray]) -> np.ndarray:
        """Draws an f32 tensor that the kernel quantises: a little past both ends of the type."""
        attrs = self.region.attrs
        if attrs["a_scale"] == "dynamic":
            return self.generator.standard_normal(tensor.shape).astype(tensor.dtype)
        if attrs["a_scale"] == "range":
            scale, zero = map(float, points["range"])
        else:
            scale = self.region.real("a_scale")
            zero = self.region.real("a_zero_point", 0)
        low, high = RANGES[str(attrs["a_quantize"])]
        steps = self.generator.uniform(low - _BEYOND, high + _BEYOND, tensor.shape)
        return ((steps - zero) * scale).astype(tensor.dtype)

    def _of_narrow_weight(self) -> list[np.ndarray]:
        """Draws A, Wq, scales, and zero points: integers that a value of the weight may have."""
        region, generator = self.region, self.generator
        a, weight, scale, *zeros = region.inputs
        values = 2 ** region.integer("bits")
        first = 0 if weight.dtype == "uint8" else -values // 2
        step = 2 / (values * math.sqrt(self.terms))
        found = [self._plain(a), self._integers(weight)]
        scales = generator.uniform(0.5 * step, 1.5 * step, scale.shape)
        scales = scales.astype(str(region.attrs.get("scales", scale.dtype)))
        found.append(scales.astype(scale.dtype))
        for tensor in zeros:
            drawn = generator.integers(first, first + values, tensor.shape)
            found.append(drawn.astype(tensor.dtype))
        return found

    def _operand(self, number: int) -> np.ndarray:
        """Draws an operand in the range that suits the steps that use it."""
        region, generator = self.region, self.generator
        tensor, value = region.operands[number], number + 1
        uses = [(step, step.args.index(value)) for step in region.epilogue if value in step.args]
        kinds = {(step.op, place) for step, place in uses}
        if any(op == "item" for op, _ in kinds):
            return self._range()
        if kinds & {("requantize", 2), ("requantize", 3)}:
            array = generator.uniform(0.5, 1.5, tensor.shape)
            if ("requantize", 2) in kinds:  # sums become some tens of steps
                array *= _STEPS / (_TYPICAL_PRODUCT * math.sqrt(self.terms))
            return array.astype(tensor.dtype)
        if kinds & {("quantize", 1), ("dequantize", 1)}:
            return generator.uniform(*SCALES, tensor.shape).astype(tensor.dtype)
        for step, place in uses:
            if step.op in ("quantize", "dequantize") and place == 2:
                # In the step's 8-bit type; if that is unknown, in 0..127, which fits both types.
                known = RANGES.get(tensor.dtype, (0, 127))
                low, high = RANGES[step.dtype] if step.op == "quantize" else known
                return generator.integers(low, high + 1, tensor.shape).astype(tensor.dtype)
        if tensor.dtype not in FLOATS:
            return self._integers(tensor)
        loudness = 1.0
        if number in self._factors:
            loudness = self.volume / (_TYPICAL_PRODUCT * math.sqrt(self.terms))
        array = generator.uniform(0.5, 1.5, tensor.shape) * loudness
        return array.astype(element_type(tensor.dtype))

    @functools.cached_property
    def _factors(self) -> set[int]:
        """Operands that scale an integer product."""
        if not self.is_product:
            return set()
        steps = (step for step in self.region.epilogue if step.op == "multiply")
        scaling = {value for step in steps for value in step.args}
        return {
            number
            for number, tensor in enumerate(self.region.operands)
            if tensor.dtype in FLOATS
            and tensor.size == max((1, *tensor.shape[-1:]))  # others gate an already scaled result
            and number + 1 in scaling
        }

    def _range(self) -> np.ndarray:
        """Draws scale and zero point of a dynamic quantisation."""
        scale = self.generator.uniform(*SCALES)
        return np.array([scale, self.generator.integers(0, 256)], np.float32)

    def _integers(self, tensor: Tensor) -> np.ndarray:
        if tensor.dtype == "bool":
            return self.generator.integers(0, 2, tensor.shape).astype(bool)
        low, high = RANGES.get(tensor.dtype, (-100, 100))
        drawn = self.generator.integers(low, high + 1, tensor.shape)
        return np.asarray(drawn).astype(tensor.dtype)


def anchor_result(region: Region, template: Template[Any], inputs: list[np.ndarray]) -> np.ndarray:
    """Evaluates the anchor by the template's reference, in the shape that the epilogue expects."""
    return template.reference(region, inputs).reshape(region.output.shape)


def terms_of_a_sum(region: Region) -> int:
    """Estimates how many values are summed for one output; at least the longest input row."""
    elements = sum(tensor.size for tensor in region.inputs)
    rows = max((tensor.shape[-1] for tensor in region.inputs if tensor.shape), default=1)
    return max(1, rows, min(elements // max(1, region.output.size), elements))


def element_type(name: str) -> np.dtype:
    """Returns the NumPy type of a type name."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


F32_UNIT = 2.0**-24
NARROW_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

# Every kernel rounds these alike, unless a multiplication and an addition become one instruction.
EXACT = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "abs", "relu"),
    *("sqrt", "where", "less", "less_equal", "greater", "greater_equal"),
}
# microkernels.vector.vector_math: at most 8.2 units in the last place; more only where the function
# is much smaller than its argument. A unit is at most 2^-23 of the value.
FUNCTION_ERROR = 16 * 2.0**-23


@dataclass(frozen=True)
class Expected:
    """A region's exact result, and the largest error of a right kernel, element by element."""

    value: np.ndarray
    tolerance: np.ndarray

    def difference(self, actual: np.ndarray) -> str | None:
        """Describes the first wrong element of `actual`, as stored; None if all are right."""
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
        text = f"{len(wrong)} of {expected.size} elements are wrong; the first at {index}: "
        text += f"{found[index]:.9g}, should be {expected[index]:.9g} "
        return f"{text}within {self.tolerance[index]:.2g}"


def expected_result(region: Region, template: Template[Any], arrays: list[np.ndarray]) -> Expected:
    """Computes the region's result and its tolerance for these arguments.

    Parameters
    ----------
    region : Region
        The region.
    template : Template
        Its template, whose `reference` defines the anchor.
    arrays : list of numpy.ndarray
        Inputs and operands, constants unpacked.
    """
    inputs = arrays[: len(region.inputs)]
    result = anchor_result(region, template, inputs)
    # A float64 reference has sums that kernels round; other references are exact.
    error: float | np.ndarray = 0.0
    if result.dtype == np.float64:
        largest = np.abs(result[np.isfinite(result)]).max(initial=0.0)
        error = 8 * math.sqrt(terms_of_a_sum(region)) * F32_UNIT * largest
    if "quantized" in region.attrs:  # the template may multiply A as integers or as floats
        error = error + quantization_error(region, inputs).reshape(region.output.shape)
    operands = arrays[len(region.inputs) :]
    found = after_epilogue(region, result, error, operands, own_range(region, inputs))
    return Expected(as_stored(region, found.value), as_stored(region, found.tolerance))


def after_epilogue(
    region: Region,
    result: np.ndarray,
    error: float | np.ndarray,
    operands: Sequence[np.ndarray],
    own: np.ndarray | None = None,
) -> Expected:
    """Propagates an anchor's result with an error of at most `error` through the epilogue.

    Parameters
    ----------
    region : Region
        The region.
    result : numpy.ndarray
        The anchor's result, in the shape of the output; float64 if sums are rounded.
    error : float or numpy.ndarray
        Largest error of a right kernel's anchor; for all elements, or element by element.
    operands : sequence of numpy.ndarray
        Further arguments of the epilogue.
    own : numpy.ndarray or None
        Scale and zero point that the kernel computes itself.
    """
    evaluation = _Evaluation(region, result, operands, own)
    dtype = region.output.dtype
    off = np.asarray(error) != 0
    # For floats, the allowance for the epilogue's roundings covers errors of functions, too.
    pushed = evaluation.inexact and (evaluation.exact or not off.any())
    with np.errstate(all="ignore"):
        value = evaluation.value()
        tolerance = np.zeros(value.shape)
        for sign, push in itertools.product(
            (-1, 1) if off.any() else (0,), (-1, 0, 1) if pushed else (0,)
        ):
            neighbour = evaluation.value(sign * error, push)
            spread = np.where(value == neighbour, 0.0, np.abs(neighbour - value))
            both_nan = np.isnan(value) & np.isnan(neighbour)
            # If the neighbour leaves the function's domain, any value is allowed.
            spread = np.where(both_nan, 0.0, np.where(np.isnan(spread), np.inf, spread))
            tolerance = np.maximum(tolerance, spread)
        if dtype in FLOATS:
            largest = np.abs(value[np.isfinite(value)]).max(initial=0.0)
            last_place = 2 * NARROW_UNIT.get(dtype, 0.0) * np.abs(value)
            own_roundings = 64 * F32_UNIT * largest + np.where(np.isnan(value), 0, last_place)
            tolerance += np.where(off | pushed, own_roundings, 0.0)
    return Expected(value, tolerance)


@dataclass
class _Evaluation:
    """Evaluates a region's epilogue at the anchor's result or near it."""

    region: Region
    result: np.ndarray
    operands: Sequence[np.ndarray]
    own: np.ndarray | None

    def __post_init__(self) -> None:
        self.exact = is_exact(self.region)
        self.inexact = any(self._is_inexact(step) for step in self.region.epilogue)
        if not (self.exact or self.result.dtype == np.float32):
            self.operands = widened(self.operands)

    def value(self, error: float | np.ndarray = 0.0, push: int = 0) -> np.ndarray:
        """Returns the stored result, in float64, if the anchor is off by `error` and functions by
        `push` times their largest error."""
        result = self.result + error if np.any(error) else self.result

        def pushed(
            step: EpilogueOp, arguments: Sequence[np.ndarray], value: np.ndarray
        ) -> np.ndarray:
            if not self._is_inexact(step) or value.dtype == bool:
                return value
            size = largest_of(value, *arguments)
            return (value + push * FUNCTION_ERROR * size).astype(value.dtype)

        found = epilogue_reference(
            self.region, result, self.operands, self.own, pushed if push else None
        )
        stored = found.astype(element_type(self.region.output.dtype))
        return stored.astype(np.float64)

    def _is_inexact(self, step: EpilogueOp) -> bool:
        """Whether kernels may compute another value than NumPy."""
        if step.op in SPECIAL_STEPS:
            return False
        return step.op not in EXACT or (not self.exact and step.op in ("add", "subtract"))


def widened(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Converts floats to float64; leaves other types."""
    return [x.astype(np.float64) if x.dtype.name in FLOATS else x for x in arrays]


def largest_of(*arrays: np.ndarray) -> np.ndarray:
    """Elementwise largest magnitude of several arrays."""
    return functools.reduce(np.maximum, map(np.abs, arrays))


def as_stored(region: Region, value: np.ndarray) -> np.ndarray:
    """Transposes a result into the order of dimensions in which kernels store it."""
    return value.transpose(region.numbers("out_axes", range(value.ndim)))
