"""Requantise: replaces the scaling and quantising of an integer sum by one or two factors.

Before: the region of a call

    matmul(..) cast(acc) multiply(%0, scales) quantize(%1, 0.0371, 131):uint8

After, if this is proven to give the same integers for every possible sum

    matmul(..) requantize(acc, 131, factors):uint8

An int32 bias is added first in both forms. The function keeps its operators, which state its
meaning; constants that the kernel no longer reads move into it. The factors are parameters that
only the kernel reads. A chain without a proof is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tvm import IRModule, ir, relax

from microkernels.base.arrays import RANGES
from relay_passes.ir.constants import array_of
from relay_passes.ir.functions import emit_body, named_pass, region_function, region_of
from relay_passes.ir.rewrite import rewrite_region_calls
from tir_schedules.core.product_plan import quantized_dtype, zero_point_inputs
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.fusible_ops import FUSIBLE_OPS
from tir_schedules.epilogue.packed_bytes import CONVOLUTIONS
from tir_schedules.epilogue.quantize_steps import WORD, quantize_reference


@named_pass
def requantize(mod: IRModule) -> IRModule:
    """The pass, for a partitioned module whose weights are not packed yet."""
    builder = relax.BlockBuilder(mod)
    changed = False

    def with_factors(binding: relax.VarBinding, function: relax.Function) -> relax.Expr:
        call = binding.value
        arguments = list(call.args)
        found = _requantizing(region_of(function), arguments)
        if found is None:
            return call
        nonlocal changed
        changed = True
        region, biases, factors = found
        inputs = len(region.inputs)
        kept = [*range(inputs), *(inputs + number for number in biases)]
        # Operands that the changed region lacks become constants inside the function.
        values: dict[relax.Expr, relax.Expr] = dict(zip(function.params, arguments, strict=True))
        given = [function.params[number] for number in kept]
        parameters = [relax.Var(old.name, old.ty) for old in given]
        values.update(zip(given, parameters, strict=True))
        types = [relax.TensorType(factor.shape, "float32") for factor in factors]
        parameters += [relax.Var(f"factor{number}", ty) for number, ty in enumerate(types)]
        new = region_function(
            region, parameters, lambda b: emit_body(b, function, values), dict(function.attrs)
        )
        gvar = builder.add_func(new, call.op.name_hint)
        operands = [*(arguments[number] for number in kept), *map(relax.const, factors)]
        return relax.Call(gvar, operands, ret_ty=call.ty)

    written = rewrite_region_calls(mod, builder, with_factors)
    return relax.transform.DeadCodeElimination()(written) if changed else mod


_Requantizing = tuple[Region, list[int], list[np.ndarray]]
"""A changed region, the operands that it keeps, and the factors that become operands."""


def _requantizing(region: Region, arguments: list[relax.Expr]) -> _Requantizing | None:
    """The region with factors; None if no factors are proven to be equal."""
    chain = requantizing_chain(region, arguments)
    bounds = None if chain is None else bounds_of_sums(region, arguments)
    if chain is None or bounds is None:
        return None
    low, high = (side + chain.shift for side in bounds)
    if chain.columns == 1:
        low, high = low.min(keepdims=True), high.max(keepdims=True)
    if low.min() < -(2**31) or high.max() >= 2**31:
        return None
    slope, zero_point = np.broadcast_to(chain.slope, low.shape), chain.zero_point
    stairs = staircase(chain.evaluate, slope, low, high, chain.dtype, zero_point)
    factors = None if stairs is None else find_factors(stairs, low, high, zero_point)
    if factors is None:
        return None
    # The new steps are the biases and the requantisation.
    kept = list(dict.fromkeys(chain.biases))
    of_columns = [factor for factor in factors if factor.size != 1]
    operands = [region.operands[number] for number in kept]
    operands += [Tensor(factor.shape, "float32") for factor in of_columns]
    steps: list[EpilogueOp] = []

    def add(step: EpilogueOp) -> int:
        steps.append(step)
        return len(operands) + len(steps)

    current = 0
    for bias in chain.biases:
        current = add(EpilogueOp("add", (current, 1 + kept.index(bias)), dtype="int32"))
    args = [current, add(EpilogueOp("constant", value=float(zero_point)))]
    if of_columns:
        args += range(1 + len(kept), 1 + len(kept) + len(factors))
    else:
        args += [add(EpilogueOp("constant", value=float(factor[0]))) for factor in factors]
    add(EpilogueOp("requantize", tuple(args), dtype=chain.dtype))
    changed = region.replace(operands=tuple(operands), epilogue=tuple(steps))
    return changed, kept, of_columns


# Finds factors with which one or two products equal a chain of operators, for every sum.
#
#     chain(a)  = quantize(f32(a) * s * .., scale, z)            for integers a of low..high
#     result(a) = saturate(round(f32(f32(a) * f) * g + z))       or without the product by f
#
# Both are step functions that never decrease. They are equal if they reach every integer k at the
# same a. The steps of each column are found by evaluating the chain itself near their expected
# places. Then factors are tried until one pair has the same steps. Products of two f32 numbers are
# exact in f64, so the comparison is a proof.
#
# One factor mostly suffices if a step has at most 2^8 sums. With more, the chain's own roundings
# move some step by one sum, and one product does not reproduce that. Two products may: multiplying
# f and dividing g by a number gives the same scale with other roundings, and one such pair may fit.


Chain = Callable[[np.ndarray], np.ndarray]
"""Sums [n, columns], int64 -> the 8-bit integers that the operators compute from them."""

_AROUND = 4  # sums to look at on each side of a step's expected place
_CANDIDATES = 1024
_ULPS = (0, -1, 1)
_NEAR = 2.0**-20  # relative; only steps this close to a sum can differ between factors


@dataclass(frozen=True)
class Staircase:
    """The sums at which a chain's results change, one row for each column.

    Attributes
    ----------
    above : ndarray
        Smallest sum with a result of at least k; [columns, steps].
    is_above, is_below : ndarray of bool
        Whether `above` can occur; whether the sum before it can occur.
    steps : ndarray
        k minus the zero point, as f64.
    odd : ndarray of bool
        Whether k is odd.
    slope : ndarray
        Steps per unit of the sum, by column, as f64.
    """

    above: np.ndarray
    is_above: np.ndarray
    is_below: np.ndarray
    steps: np.ndarray
    odd: np.ndarray
    slope: np.ndarray


def staircase(
    chain: Chain, slope: np.ndarray, low: np.ndarray, high: np.ndarray, dtype: str, zero_point: int
) -> Staircase | None:
    """The staircase of a chain; None if no factors could produce it.

    Parameters
    ----------
    chain : callable
        The operators; the result must not decrease as the sum grows.
    slope : ndarray
        Approximate steps per unit of the sum, by column, f64; positive.
    low, high : ndarray
        Smallest and largest sum of each column.
    dtype : str
        "uint8" or "int8".
    zero_point : int
        Zero point of the result.
    """
    least, largest = RANGES[dtype]
    k = np.arange(least + 1, largest + 1)
    steps = (k - zero_point).astype(np.float64)
    low, high, slope = (np.asarray(x).reshape(-1, 1) for x in (low, high, slope))
    # Steps far outside are clipped; each step within low..high is near its expected place.
    places = np.clip((steps - 0.5) / slope, low - 2.0 * _AROUND, high + 2.0 * _AROUND)
    first = np.ceil(places).astype(np.int64) - _AROUND
    above, found = first + 2 * _AROUND, np.zeros(first.shape, bool)
    for offset in range(2 * _AROUND + 1):
        sums = first + offset
        given = chain(np.clip(sums, low, high).T).T
        if offset == 0 and ((given >= k) & (sums > low)).any():
            return None
        reached = (given >= k) | (sums > high)
        above = np.where(reached & ~found, sums, above)
        found |= reached
    if not found.all():
        return None
    # A step below all sums counts as reached by the smallest; one above all as never reached.
    above = np.clip(above, low, high + 1)
    return Staircase(above, above <= high, above > low, steps, k % 2 == 1, slope[:, 0])


def find_factors(
    stairs: Staircase, low: np.ndarray, high: np.ndarray, zero_point: int
) -> tuple[np.ndarray, ...] | None:
    """One or two factors for every column, f32; None if some column has none.

    Parameters
    ----------
    stairs : Staircase
        The staircase that the factors must reproduce.
    low, high : ndarray
        As in `staircase`.
    zero_point : int
        Zero point of the result.
    """
    columns = range(len(stairs.slope))
    for search in (_one_factor, _two_factors):
        found = []
        for column in columns:
            factors = search(stairs, column)
            if factors is None:
                break
            found.append(factors)
        if len(found) < len(columns):
            continue
        arrays = tuple(np.array(numbers, np.float32) for numbers in zip(*found, strict=True))
        ends = np.stack([np.broadcast_to(low, len(columns)), np.broadcast_to(high, len(columns))])
        fits = np.abs(_scaled(ends, *arrays) + zero_point) < WORD - 1
        if fits.all() and all(
            is_met(stairs, column, *numbers) for column, numbers in enumerate(found)
        ):
            return arrays
        return None
    return None


def is_met(stairs: Staircase, column: int, *factors: float) -> bool:
    """Whether factors reproduce exactly the steps of a column."""
    every = np.ones(len(stairs.steps), bool)
    numbers = [np.array([factor], np.float32) for factor in factors]
    return bool(_meets(stairs, column, every, every, *numbers)[0])


def _one_factor(stairs: Staircase, column: int) -> tuple[float, ...] | None:
    near = np.float32(stairs.slope[column])
    factors = near + np.spacing(near) * np.arange(-4, 5, dtype=np.float32)
    found = np.flatnonzero(_meets(stairs, column, *_close(stairs, column), factors))
    # Takes the middle one of the factors that fit.
    return (float(factors[found[len(found) // 2]]),) if found.size else None


def _two_factors(stairs: Staircase, column: int) -> tuple[float, ...] | None:
    slope, close = stairs.slope[column], _close(stairs, column)
    for start in range(0, _CANDIDATES, 64):
        order = np.arange(start, start + 64) * 389 % _CANDIDATES  # spread over 1..2
        first = (slope * (1 + order / _CANDIDATES)).astype(np.float32)
        nearest = (slope / first.astype(np.float64)).astype(np.float32)
        for ulps in _ULPS:
            second = (nearest + ulps * np.spacing(nearest)).astype(np.float32)
            found = np.flatnonzero(_meets(stairs, column, *close, first, second))
            if found.size:
                return float(first[found[0]]), float(second[found[0]])
    return None


def _close(stairs: Staircase, column: int) -> tuple[np.ndarray, np.ndarray]:
    """The steps that a factor near the slope may miss: at the sum `above`, at the sum before."""
    slope, steps = stairs.slope[column], stairs.steps
    beyond = slope * stairs.above[column] - (steps - 0.5)
    margin = (np.abs(steps) + 1) * _NEAR
    return beyond < margin, slope - beyond < margin


def _meets(
    stairs: Staircase, column: int, above: np.ndarray, below: np.ndarray, *factors: np.ndarray
) -> np.ndarray:
    """Which candidates reach the chosen steps of a column at `above`, and not one sum before."""
    met = np.ones(len(factors[0]), bool)
    candidates = [factor[:, None] for factor in factors]
    for chosen, offset, wanted in (
        (above & stairs.is_above[column], 0, True),
        (below & stairs.is_below[column], -1, False),
    ):
        scaled = _scaled(stairs.above[column][chosen] + offset, *candidates)
        half = stairs.steps[chosen] - 0.5
        # Half way between two integers, rounding takes the even one.
        reached = np.where(stairs.odd[chosen], scaled > half, scaled >= half)
        met &= (reached == wanted).all(axis=-1)
    return met


def _scaled(sums: np.ndarray, *factors: np.ndarray) -> np.ndarray:
    """The value before rounding, in f64, which holds it exactly."""
    real = sums.astype(np.float32)
    for factor in factors[:-1]:
        real = real * factor
    return real.astype(np.float64) * factors[-1].astype(np.float64)


# The chain of operators after an integer sum, if all its parameters are constants.
#
#     cast(acc + bias) multiply(%0, scales) relu(%1) quantize(%2, 0.0371, 131):uint8
#
# is, for each column, a function of the sum alone, and it never decreases.


_ANCHORS = ("matmul", *CONVOLUTIONS)
_SCALES = ("multiply", "divide", "quantize")  # by a second argument
_BOUNDS = ("relu", "maximum", "minimum")
_ORDINARY = 2.0**60


@dataclass
class RequantizingChain:
    """The steps of an epilogue with their constant parameters.

    Attributes
    ----------
    dtype : str
        Type of the result: "uint8" or "int8".
    biases : list of int
        Numbers of the int32 operands that are added before all other steps.
    shift : ndarray
        Sum of the biases, int64; like all arrays here, one element or one for each column.
    scaling : list of (operator, numbers)
        The steps after the biases; the last is the quantisation.
    slope : ndarray
        Increase of the value before rounding per unit of the sum, f64.
    """

    dtype: str
    biases: list[int] = field(default_factory=list)
    shift: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    scaling: list[tuple[str, list[np.ndarray]]] = field(default_factory=list)
    slope: np.ndarray = field(default_factory=lambda: np.ones(1))

    @property
    def zero_point(self) -> int:
        """Zero point of the result."""
        return int(self.scaling[-1][1][1][0])

    @property
    def columns(self) -> int:
        """Number of columns whose steps after the biases differ: all, or 1."""
        return max(array.size for _, numbers in self.scaling for array in (*numbers, self.slope))

    def evaluate(self, sums: np.ndarray) -> np.ndarray:
        """The result of the operators for sums [n, columns] that include the biases."""
        value = sums
        for op, numbers in self.scaling:
            if op == "cast":
                value = value.astype(np.float32)
            elif op == "quantize":
                value = quantize_reference(self.dtype, value, numbers[0], numbers[1])
            else:
                value = FUSIBLE_OPS[op].numpy(value, *numbers)
        return value

    def add(
        self, step: EpilogueOp, current: int, others: list[int], numbers: list[np.ndarray]
    ) -> bool:
        """Adds a step that reads value number `current`; returns whether the chain supports it."""
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
    """The chain of a region that sums integer products; None if it has none.

    Parameters
    ----------
    region : Region
        With steps that end in a quantisation.
    arguments : list of relax.Expr
        The region's inputs and operands.
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
    """The smallest and the largest sum of products of each column, int64; None if unknown."""
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
    else:  # padding counts as 0
        centre = region.integer("a_zero_point", 0)
        low, high = min(low - centre, 0), max(high - centre, 0)
    positive, negative = np.maximum(weight, 0).sum(axis=0), np.minimum(weight, 0).sum(axis=0)
    return positive * low + negative * high, positive * high + negative * low


def _number(region: Region, arguments: list[relax.Expr], value: int) -> np.ndarray | None:
    """A value of an epilogue, flat, if it is constant and equal for all rows; else None."""
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
    """Whether all numbers are positive and far from the limits of f32."""
    return bool(np.all((scale > 1 / _ORDINARY) & (scale < _ORDINARY)))
