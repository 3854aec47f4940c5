"""Random arguments for a region that make a wrong kernel show, and how far off a right one may be.

Zero points lie within their types, scales are positive, 8-bit tensors use all 256 values. Where a
region quantises something, a value that is too loud saturates everywhere, and one that is too quiet
rounds to the same integer everywhere: then a wrong product would go unnoticed. So the arguments are
drawn at several volumes, until every quantisation yields many different integers.

A float anchor sums n products, each rounded to u = 2^-24. Probabilistic analysis (Higham and
Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, section 3) puts the error of
such a sum below lambda * sqrt(n) * u * sum |products|, with lambda a small constant; for data of
mixed sign, as here, the sum of magnitudes is itself about sqrt(n) times the result's size, and
partial sums of random signs lose a further sqrt(n) less. We allow 8 * sqrt(n) * u * max |result|.
The epilogue then amplifies or damps this: it is evaluated at the result plus and minus that error.
On top come 64 u of the largest output for the epilogue's own roundings, and one unit in the last
place of an output that is narrower than f32.

An integer product is exact, and so are most steps after it, each rounded by itself: then there is
no tolerance at all. Functions that kernels approximate (FUSIBLE_OPS other than `EXACT`) are within
`FUNCTION_ERROR` of their value or argument: the epilogue is evaluated with them that much larger,
and smaller. So an integer may be off by one only where such a difference decides its rounding.
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
from tir_schedules.core.region import Region, Step, Tensor
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
"""Different integers of one quantisation with which no other volume is tried."""

QUANTIZING = ("quantize", "requantize")
SCALES = (0.01, 0.05)
_TYPICAL_PRODUCT = 5000.0  # of two random 8-bit integers, zero points subtracted
_STEPS = 60.0  # of a quantisation, that a random sum reaches
_BEYOND = 16  # quantised values reach that many steps past the ends of their type


def random_arguments(
    region: Region, template: Template[Any], seed: int, known: Mapping[int, np.ndarray] = {}
) -> list[np.ndarray]:
    """Inputs, unpacked, and operands, in the order of the kernel's parameters.

    Float inputs are normal, constant ones (weights) scaled so that sums stay near one. Operands lie
    in [0.5, 1.5], where a division, a root or a logarithm is well conditioned; those that an
    integer product is multiplied by bring it near one.

    Parameters
    ----------
    region : Region
        The region.
    template : Template
        Its template, whose `reference` tells what is quantised.
    seed : int
        Of the generator.
    known : mapping
        Arguments that are not drawn, by their number.
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
    """Of the quantisation that has fewest; -1 if what is requantised leaves the 16 bits that it is
    known to fit in."""
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
    """Whether what a step requantises fits in 16 bits before it is saturated."""
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
    """One set of arguments."""

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
        """An input of a float product, a normalisation or an elementwise region."""
        if tensor.dtype not in FLOATS:
            return self._integers(tensor)
        array = self.generator.standard_normal(tensor.shape)
        factor = 1 / math.sqrt(self.terms) if tensor.constant else 1.0
        # A normalisation undoes what its input is multiplied by, so take the constants if any.
        if tensor.constant or not any(other.constant for other in self.region.inputs):
            factor *= self.volume
        return (array * factor).astype(element_type(tensor.dtype))

    def _of_integer_product(self) -> list[np.ndarray]:
        """A, B, and their zero points as `zero_point_inputs` has them."""
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
        """A f32 tensor that the kernel quantises: a little past both ends of the type."""
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
        """A, Wq, scales, and zero points: integers that a value of the weight may have."""
        region, generator = self.region, self.generator
        a, weight, scale, *zeros = region.inputs
        values = 2 ** region.integer("bits")
        first = 0 if weight.dtype == "uint8" else -values // 2
        step = 2 / (values * math.sqrt(self.terms))
        found = [self._plain(a), self._integers(weight)]
        found.append(generator.uniform(0.5 * step, 1.5 * step, scale.shape).astype(scale.dtype))
        for tensor in zeros:
            drawn = generator.integers(first, first + values, tensor.shape)
            found.append(drawn.astype(tensor.dtype))
        return found

    def _operand(self, number: int) -> np.ndarray:
        """An operand, as its users want it."""
        region, generator = self.region, self.generator
        tensor, value = region.operands[number], number + 1
        uses = [(step, step.args.index(value)) for step in region.epilogue if value in step.args]
        kinds = {(step.op, place) for step, place in uses}
        if any(op == "item" for op, _ in kinds):
            return self._range()
        if kinds & {("requantize", 2), ("requantize", 3)}:
            array = generator.uniform(0.5, 1.5, tensor.shape)
            if ("requantize", 2) in kinds:  # sums to some tens of steps
                array *= _STEPS / (_TYPICAL_PRODUCT * math.sqrt(self.terms))
            return array.astype(tensor.dtype)
        if kinds & {("quantize", 1), ("dequantize", 1)}:
            return generator.uniform(*SCALES, tensor.shape).astype(tensor.dtype)
        for step, place in uses:
            if step.op in ("quantize", "dequantize") and place == 2:
                # Of the step's 8-bit type; the smaller half of both if that is not known.
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
        """The operands that an integer product is multiplied by."""
        if not self.is_product:
            return set()
        steps = (step for step in self.region.epilogue if step.op == "multiply")
        scaling = {value for step in steps for value in step.args}
        return {
            number
            for number, tensor in enumerate(self.region.operands)
            if tensor.dtype in FLOATS
            and tensor.size == max((1, *tensor.shape[-1:]))  # others gate what is already scaled
            and number + 1 in scaling
        }

    def _range(self) -> np.ndarray:
        """Scale and zero point of a dynamic quantisation."""
        scale = self.generator.uniform(*SCALES)
        return np.array([scale, self.generator.integers(0, 256)], np.float32)

    def _integers(self, tensor: Tensor) -> np.ndarray:
        if tensor.dtype == "bool":
            return self.generator.integers(0, 2, tensor.shape).astype(bool)
        low, high = RANGES.get(tensor.dtype, (-100, 100))
        drawn = self.generator.integers(low, high + 1, tensor.shape)
        return np.asarray(drawn).astype(tensor.dtype)


def anchor_result(region: Region, template: Template[Any], inputs: list[np.ndarray]) -> np.ndarray:
    """The anchor's result by the template's reference, in the shape that the epilogue gives it."""
    return template.reference(region, inputs).reshape(region.output.shape)


def terms_of_a_sum(region: Region) -> int:
    """About how many values are summed for one output; at least the longest row of an input."""
    elements = sum(tensor.size for tensor in region.inputs)
    rows = max((tensor.shape[-1] for tensor in region.inputs if tensor.shape), default=1)
    return max(1, rows, min(elements // max(1, region.output.size), elements))


def element_type(name: str) -> np.dtype:
    """The NumPy type of elements."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


F32_UNIT = 2.0**-24
NARROW_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

# Rounded alike by every kernel, as long as no multiplication and addition become one.
EXACT = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "abs", "relu"),
    *("sqrt", "where", "less", "less_equal", "greater", "greater_equal"),
}
# microkernels.vector.vector_math: at most 8.2 units in the last place, more only where the function
# is much smaller than its argument. A unit is at most 2^-23 of the value.
FUNCTION_ERROR = 16 * 2.0**-23


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
        text = f"{len(wrong)} of {expected.size} elements are wrong; the first at {index}: "
        text += f"{found[index]:.9g}, should be {expected[index]:.9g} "
        return f"{text}within {self.tolerance[index]:.2g}"


def expected_result(region: Region, template: Template[Any], arrays: list[np.ndarray]) -> Expected:
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
    inputs = arrays[: len(region.inputs)]
    result = anchor_result(region, template, inputs)
    # A reference in float64 is one whose sums are rounded; others are what every kernel finds.
    error: float | np.ndarray = 0.0
    if result.dtype == np.float64:
        largest = np.abs(result[np.isfinite(result)]).max(initial=0.0)
        error = 8 * math.sqrt(terms_of_a_sum(region)) * F32_UNIT * largest
    if "quantized" in region.attrs:  # the template may multiply A as integers, or as it is
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
    """What the epilogue makes of an anchor's result that is off by at most `error`.

    Parameters
    ----------
    region : Region
        The region.
    result : numpy.ndarray
        Of its anchor, in the shape of the output; float64 if sums are rounded.
    error : float or numpy.ndarray
        How far a right kernel's anchor may be from it; of every element, or element by element.
    operands : sequence of numpy.ndarray
        What the epilogue reads besides.
    own : numpy.ndarray or None
        Scale and zero point that the kernel finds itself.
    """
    evaluation = _Evaluation(region, result, operands, own)
    dtype = region.output.dtype
    off = np.asarray(error) != 0
    # Without integers, what is allowed for the epilogue's roundings covers the functions' errors.
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
            # Where the neighbourhood leaves the function's domain, any value is as good as another.
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
    """A region's epilogue, at the anchor's result or near it."""

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
        """What is stored, in float64, if the anchor is off by `error` and functions err by `push`
        times what they may."""
        result = self.result + error if np.any(error) else self.result

        def pushed(step: Step, arguments: Sequence[np.ndarray], value: np.ndarray) -> np.ndarray:
            if not self._is_inexact(step) or value.dtype == bool:
                return value
            size = largest_of(value, *arguments)
            return (value + push * FUNCTION_ERROR * size).astype(value.dtype)

        found = epilogue_reference(
            self.region, result, self.operands, self.own, pushed if push else None
        )
        stored = found.astype(element_type(self.region.output.dtype))
        return stored.astype(np.float64)

    def _is_inexact(self, step: Step) -> bool:
        """Whether kernels may find another value than numpy."""
        if step.op in SPECIAL_STEPS:
            return False
        return step.op not in EXACT or (not self.exact and step.op in ("add", "subtract"))


def widened(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Floats in float64, others as they are."""
    return [x.astype(np.float64) if x.dtype.name in FLOATS else x for x in arrays]


def largest_of(*arrays: np.ndarray) -> np.ndarray:
    """The largest magnitude of the elements at each place."""
    return functools.reduce(np.maximum, map(np.abs, arrays))


def as_stored(region: Region, value: np.ndarray) -> np.ndarray:
    """A result of the region's shape in the order of dimensions in which kernels store it."""
    return value.transpose(region.numbers("out_axes", range(value.ndim)))
