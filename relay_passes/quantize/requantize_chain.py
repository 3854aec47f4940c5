"""The chain of operators after an integer sum, if all its parameters are known at compile time.

    cast(acc + bias) multiply(%0, scales) relu(%1) quantize(%2, 0.0371, 131):uint8

is, for each column, a function of the sum alone, and it never decreases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tvm import ir, relax

from microkernels.base.arrays import RANGES
from relay_passes.ir.constants import array_of
from tir_schedules.core.product_plan import quantized_dtype, zero_point_inputs
from tir_schedules.core.region import Region, Step
from tir_schedules.epilogue.fusible_ops import FUSIBLE_OPS
from tir_schedules.epilogue.packed_bytes import CONVOLUTIONS
from tir_schedules.epilogue.quantize_steps import quantize_reference

_ANCHORS = ("matmul", *CONVOLUTIONS)
_SCALES = ("multiply", "divide", "quantize")  # by a second argument
_BOUNDS = ("relu", "maximum", "minimum")
_ORDINARY = 2.0**60


@dataclass
class RequantizingChain:
    """The steps of an epilogue with their numbers.

    Attributes
    ----------
    dtype : str
        "uint8" or "int8": of the result.
    biases : list of int
        Numbers of the operands, int32, that are added before anything else.
    shift : ndarray
        Their sum, int64; like all numbers one element, or one for each column.
    scaling : list of (operator, numbers)
        What happens then; the last is the quantisation.
    slope : ndarray
        By how much a sum larger by one raises what is rounded, f64.
    """

    dtype: str
    biases: list[int] = field(default_factory=list)
    shift: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    scaling: list[tuple[str, list[np.ndarray]]] = field(default_factory=list)
    slope: np.ndarray = field(default_factory=lambda: np.ones(1))

    @property
    def zero_point(self) -> int:
        """Of the result."""
        return int(self.scaling[-1][1][1][0])

    @property
    def columns(self) -> int:
        """How many columns differ in what happens after the biases: all, or 1."""
        return max(array.size for _, numbers in self.scaling for array in (*numbers, self.slope))

    def evaluate(self, sums: np.ndarray) -> np.ndarray:
        """What the operators make of sums [n, columns], biases among them."""
        value = sums
        for op, numbers in self.scaling:
            if op == "cast":
                value = value.astype(np.float32)
            elif op == "quantize":
                value = quantize_reference(self.dtype, value, numbers[0], numbers[1])
            else:
                value = FUSIBLE_OPS[op].numpy(value, *numbers)
        return value

    def add(self, step: Step, current: int, others: list[int], numbers: list[np.ndarray]) -> bool:
        """Takes a step of value number `current`; whether it is of a form that can be."""
        if not self.scaling:
            if step.op == "add" and step.dtype == "int32":
                self.biases.append(others[0] - 1)
                self.shift = self.shift + numbers[0]
                return True
            if step.op == "cast" and step.dtype == "float32":
                self.scaling.append(("cast", []))
                return True
            return False
        if step.op in _SCALES:
            if step.args[0] != current and step.op != "multiply":
                return False
            if not _is_ordinary(numbers[0]):
                return False
            factor = numbers[0].astype(np.float64)
            self.slope = self.slope * (factor if step.op == "multiply" else 1 / factor)
        elif step.op not in _BOUNDS:
            return False
        self.scaling.append((step.op, numbers))
        return _is_ordinary(self.slope)


def requantizing_chain(region: Region, arguments: list[relax.Expr]) -> RequantizingChain | None:
    """The chain of a region that sums products of integers; None if it has none.

    Parameters
    ----------
    region : Region
        With steps that end in a quantisation.
    arguments : list of relax.Expr
        Its inputs and operands.
    """
    if region.op not in _ANCHORS or not region.epilogue or region.inputs[1].dtype not in RANGES:
        return None
    quantizations = [step for step in region.epilogue if step.op == "quantize"]
    if len(quantizations) != 1 or quantizations[0] is not region.epilogue[-1]:
        return None
    chain = RequantizingChain(quantizations[0].dtype)
    current = 0
    for number, step in enumerate(region.epilogue, 1 + len(region.operands)):
        if step.op == "constant":
            continue
        others = [arg for arg in step.args if arg != current]
        known = [_number(region, arguments, arg) for arg in others]
        numbers = [array for array in known if array is not None]
        alone = len(others) == len(step.args) - 1 and len(numbers) == len(others)
        if not alone or not chain.add(step, current, others, numbers):
            return None
        current = number
    return chain if all(array.size == 1 for array in chain.scaling[-1][1]) else None


def bounds_of_sums(
    region: Region, arguments: list[relax.Expr]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The least and the largest sum of products of each column, int64; None if not known."""
    further = dict(zip(zero_point_inputs(region), arguments[2:], strict=False))
    b_zero = further.get("b", region.attrs.get("b_zero_point", 0))
    if not isinstance(arguments[1], ir.GenericConst):
        return None
    weight = array_of(arguments[1].value).astype(np.int64).reshape(-1, region.output.shape[-1])
    if isinstance(b_zero, ir.GenericConst):
        weight = weight - b_zero.value.numpy()
    elif isinstance(b_zero, int):
        weight = weight - b_zero
    else:
        return None
    low, high = RANGES[quantized_dtype(region)]
    if isinstance(region.attrs.get("a_zero_point"), str):
        low, high = low - high, high - low
    else:  # what is padded counts as 0
        centre = region.integer("a_zero_point", 0)
        low, high = min(low - centre, 0), max(high - centre, 0)
    positive, negative = np.maximum(weight, 0).sum(axis=0), np.minimum(weight, 0).sum(axis=0)
    return positive * low + negative * high, positive * high + negative * low


def _number(region: Region, arguments: list[relax.Expr], value: int) -> np.ndarray | None:
    """A value of an epilogue if it is known and the same for all rows; flat."""
    first, columns = 1 + len(region.operands), region.output.shape[-1]
    if value >= first:
        step = region.epilogue[value - first]
        return np.array([step.value], np.float32) if step.op == "constant" else None
    expr = arguments[len(region.inputs) + value - 1] if value else None
    if not isinstance(expr, ir.GenericConst):
        return None
    array = array_of(expr.value)
    if array.size != 1 and (array.size != columns or array.shape[-1] != columns):
        return None
    return array.reshape(-1)


def _is_ordinary(scale: np.ndarray) -> bool:
    """Whether numbers are positive and far from the limits of f32."""
    return bool(np.all((scale > 1 / _ORDINARY) & (scale < _ORDINARY)))
