"""The expected outputs of a model, and how far rounding may carry each element of them.

The model is evaluated node by node in float64, once without noise and several times with noise:
every operand and every result of an operator that rounds is multiplied by 1 + e, where |e| is at
most `NOISE` unit roundoffs of the node's type; sums get noise in proportion to the sums of the
absolute values, growing with the root of their length. This is Monte Carlo arithmetic (Parker,
"Monte Carlo arithmetic", UCLA CSD-970002, 1997): how far noise carries a result shows how far the
roundings of any order of computation may carry it. The tolerance is the largest distance that was
seen, plus the root mean square over the tensor for elements on which the noise happened to cancel.

So operators that round nothing allow no difference: moved values and integers must be equal. An
integer that noise changes is near a tie, and may differ. Where operands are rounded to bfloat16,
all bytes of a tensor may differ if noise changes one, since few passes find few of its ties. In
half of the passes, exponentials give 0 for tiny results, and products that an addition reads do not
overflow, nor do products that a constant multiplies, as it may be folded into their weight. A sum
of finite terms that may overflow on the way, in another order or with that constant on its weight,
is not compared, nor is a result that float32, computed literally, carries beyond the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from .folding import folded_factors
from .operator_kinds import (
    EXACT,
    EXPONENTIALS,
    FUSING,
    ROUNDED,
    SIGNED,
    SUMS,
    growth,
    length,
    unit_roundoff,
)
from .run_node import run_node

Array = NDArray[Any]

# Several times more than any rounding: a few passes do not meet the worst case. Functions of
# `microkernels.vector.vector_math` are off by up to 48 unit roundoffs.
NOISE = 64.0
HALF_NOISE = 16.0  # in unit roundoffs of a 16-bit type
PASSES = 6
# Exponentials may give 0 for results below 2^-126, which a factor of the exponential scales.
FLUSHED = 104 * 2.0**-126
# Noise of operands rounded to bfloat16. Other readers of an operand may get it rounded too: see
# `relay_passes.bfloat16.bf16_precision`. So all values have this noise if one operand has it.
BF16_NOISE = 2.0**-6
# Operators whose inputs after the first few are parameters and no operands.
PARAMETERS_AFTER = {"Resize": 1, "QuantizeLinear": 1, "DequantizeLinear": 1}
# Accumulators are float32.
_LARGEST_SUM = float(np.finfo(np.float32).max)
# Winograd's error, relative to the root mean square of the results: see `select_winograd`; "on"
# has no bound, but no transform of weights of some hundred channels is off by more.
WINOGRAD_NOISE = {"off": 0.0, "default": 2e-4, "on": 8e-4}


@dataclass(frozen=True)
class Expected:
    """The expected value of one output.

    Attributes
    ----------
    value : numpy.ndarray
        In the output's type.
    tolerance : numpy.ndarray
        For each element; infinite for elements that are not compared.
    signed : bool
        Whether the signs of zeros must be equal.
    """

    value: Array
    tolerance: Array
    signed: bool


class Oracle:
    """Evaluates one model.

    Parameters
    ----------
    model : onnx.ModelProto
        A graph without subgraphs.
    feeds : mapping from str to numpy.ndarray
        The model's inputs.
    precision, fast_math : str
        As for `tvm_hybrid.compile`.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Array],
        precision: str = "auto",
        fast_math: str = "default",
    ) -> None:
        self._nodes = list(model.graph.node)
        self._opset = next(each.version for each in model.opset_import if not each.domain)
        self._given = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        constants = self._given.keys() - feeds.keys()
        self._given.update(feeds)
        self._parameters = {
            name
            for node in self._nodes
            for name in node.input[PARAMETERS_AFTER.get(node.op_type, len(node.input)) :]
        }
        self._names = [each.name for each in model.graph.output]
        self._fusible = {
            name for node in self._nodes if node.op_type in FUSING for name in node.input
        }.difference(self._names)
        products = any(node.op_type in ROUNDED for node in self._nodes)
        self._bf16 = precision == "bf16" and products
        self._winograd = WINOGRAD_NOISE[fast_math]
        self._magnitudes: dict[tuple[int, bool], list[Array]] = {}
        self.plain = self._literally()
        self._folded = folded_factors(self._nodes, self.plain, constants, self._names)

    def _literally(self) -> dict[str, Array]:
        """Every value, computed in the types that the model states."""
        values = dict(self._given)
        for node in self._nodes:
            inputs = [values[name] if name else None for name in node.input]
            values.update(zip(node.output, run_node(node, inputs, self._opset), strict=False))
        return values

    def outputs(self) -> list[Expected]:
        """The expected values of all outputs."""
        exact = self._wide(None)
        noisy, fused = (
            [self._wide(np.random.default_rng(seed), fused) for seed in range(start, PASSES, 2)]
            for start, fused in ((0, False), (1, True))
        )
        signed = all(node.op_type in SIGNED for node in self._nodes)
        return [
            _expected(
                self.plain[name],
                exact[name],
                [each[name] for each in noisy],
                [each[name] for each in fused],
                signed,
                self._bf16,
            )
            for name in self._names
        ]

    def _wide(self, noise: np.random.Generator | None, fused: bool = False) -> dict[str, Array]:
        values = {name: _widened(array) for name, array in self._given.items()}
        if noise is not None and self._bf16:
            for name in sorted(set(self._given) - self._parameters):
                if self._given[name].dtype == np.float32:
                    values[name] = _times_noise(values[name], BF16_NOISE, noise)
        for place, node in enumerate(self._nodes):
            inputs = [values[name] if name else None for name in node.input]
            rounds = node.op_type not in EXACT
            if noise is not None:
                count = PARAMETERS_AFTER.get(node.op_type, len(inputs))
                inputs[:count] = [
                    self._disturbed(node, each, noise) if rounds or self._is_half(name) else each
                    for name, each in zip(node.input[:count], inputs, strict=False)
                ]
            results = run_node(node, inputs, self._opset)
            for number, (name, result) in enumerate(zip(node.output, results, strict=False)):
                if not name:
                    continue
                kind = self.plain[name].dtype
                if not _is_float(kind):
                    values[name] = np.asarray(result).astype(kind)
                    continue
                wide = np.asarray(result).astype(np.float64)
                if noise is not None and rounds:
                    folded = self._folded.get(name) if fused else None
                    wide = wide + self._rounding(place, number, wide, noise, folded)
                if noise is not None and self._bf16 and kind == np.float32:
                    wide = _times_noise(wide, BF16_NOISE, noise)
                if noise is not None and node.op_type not in SIGNED:  # such as Min of 0, -0
                    zeros = np.copysign(0.0, noise.uniform(-1, 1, wide.shape))
                    wide = np.where(wide == 0, zeros, wide)
                if fused and node.op_type in EXPONENTIALS:
                    wide = np.where(np.abs(wide) < FLUSHED, 0, wide)
                added = node.op_type == "Mul" and name in self._fusible
                free = fused and (added or name in self._folded)
                values[name] = wide if free else np.asarray(_in_range(wide, kind))
        return values

    def _is_half(self, name: str) -> bool:
        """Whether a value is computed and has 16 bits: its readers may get it with more bits."""
        return (
            bool(name)
            and name not in self._given
            and (unit_roundoff(self.plain[name].dtype) > 2.0**-24)
        )

    def _disturbed(
        self, node: onnx.NodeProto, array: Array | None, noise: np.random.Generator
    ) -> Array | None:
        if array is None or array.dtype != np.float64:
            return array
        return _times_noise(array, self._bound(node), noise)

    def _bound(self, node: onnx.NodeProto) -> float:
        """The relative noise of a node: that of the least exact type of its inputs and outputs."""
        names = [name for name in (*node.input, *node.output) if name]
        kinds = [self.plain[name].dtype for name in names if name in self.plain]
        units = [unit_roundoff(kind) for kind in kinds if _is_float(kind)]
        unit = max(units, default=2.0**-24)
        return unit * (NOISE if unit <= 2.0**-24 else HALF_NOISE)

    def _rounding(
        self,
        place: int,
        number: int,
        result: Array,
        noise: np.random.Generator,
        folded: Array | None,
    ) -> Array:
        """The noise to add to a result; `folded`: the factor of its weight."""
        node = self._nodes[place]
        bound = self._bound(node)
        size = np.abs(result)
        if node.op_type in SUMS:
            shapes = [self.plain[name].shape for name in node.input if name]
            size = self._magnitude(place, number)
            bound *= growth(length(node.op_type, shapes, result.shape))
        with np.errstate(all="ignore"):
            amount = bound * size
            if node.op_type == "Conv" and result.size:
                finite = np.where(np.isfinite(result), result, 0)
                amount = amount + self._winograd * np.sqrt(np.mean(finite**2))
            amount = np.where(np.isfinite(amount), amount, 0)
            if node.op_type in SUMS:
                if folded is not None:  # a finite term may overflow beside an infinite one
                    size = self._magnitude(place, number, finite=True) * np.abs(folded)
                amount = np.where(np.isfinite(size) & (size > _LARGEST_SUM), np.nan, amount)
            return amount * noise.uniform(-1, 1, result.shape)

    def _magnitude(self, place: int, number: int, finite: bool = False) -> Array:
        """The sum of the absolute values of a sum's terms, or of its finite terms."""
        if (place, finite) not in self._magnitudes:
            node = self._nodes[place]
            inputs = [_widened(self.plain[name]) if name else None for name in node.input]
            sizes = [
                _size(each, finite) if each is not None and each.dtype == np.float64 else each
                for each in inputs
            ]
            self._magnitudes[place, finite] = run_node(node, sizes, self._opset)
        return np.abs(self._magnitudes[place, finite][number])


def _size(array: Array, finite: bool) -> Array:
    return np.where(np.isfinite(array), np.abs(array), 0) if finite else np.abs(array)


def _times_noise(array: Array, bound: float, noise: np.random.Generator) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(array * (1 + bound * noise.uniform(-1, 1, array.shape)))


def _is_float(kind: np.dtype[Any]) -> bool:
    return kind.kind == "f" or kind == ml_dtypes.bfloat16


def _widened(array: Array) -> Array:
    return array.astype(np.float64) if _is_float(array.dtype) else array


def _in_range(wide: Array, kind: np.dtype[Any]) -> Array:
    """Casts to a type's range: larger values become infinities; values near 0 lose their bits."""
    if kind == np.float64:
        return wide
    with np.errstate(all="ignore"):
        small = np.abs(wide) < float(ml_dtypes.finfo(kind).smallest_normal)
        wide = np.where(small, wide.astype(kind).astype(np.float64), wide)
    largest = float(ml_dtypes.finfo(kind).max) * (1 + unit_roundoff(kind) / 2)
    return np.where(np.abs(wide) > largest, np.copysign(np.inf, wide), wide)


def _expected(
    plain: Array,
    exact: Array,
    noisy: Sequence[Array],
    fused: Sequence[Array],
    signed: bool,
    bf16: bool,
) -> Expected:
    kind = plain.dtype
    if not _is_float(kind):
        steps = kind.itemsize == 1 and kind.kind in "iu"
        changed = np.zeros(exact.shape, np.float64)
        for each in (plain, *noisy, *fused):
            far = np.abs(each.astype(np.int64) - exact) if steps else each != exact
            changed = np.maximum(changed, far)
        if bf16 and steps and changed.any():
            changed = np.maximum(changed, 1)
        room = changed if steps else np.where(changed > 0, np.inf, 0)
        return Expected(exact, np.asarray(room), False)
    with np.errstate(all="ignore"):
        largest = _farthest(exact, noisy)
        finite = largest[np.isfinite(largest)]
        usual = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
        if bf16:  # integers inside the model differ by whole steps, which their mean hides
            usual = max(2 * usual, float(finite.max(initial=0.0)))
        room = np.maximum(largest, _farthest(exact, fused)) + usual
        if usual:
            room = room + FLUSHED
        # Rounding to the output's type.
        rounding = unit_roundoff(kind) * np.abs(exact) if usual else 0.0
        room = room + np.where(np.isfinite(exact), rounding, 0.0)
        literal = plain.astype(np.float64)
        apart = ~_same(literal, exact) & ~(np.abs(literal - exact) <= room)
        room = np.where(apart, np.inf, room)
    return Expected(exact, np.asarray(room), signed)


def _farthest(exact: Array, others: Sequence[Array]) -> Array:
    """The largest distance of each element; infinite to a NaN."""
    far = [np.where(_same(each, exact), 0.0, np.abs(each - exact)) for each in others]
    return np.max([np.where(np.isnan(each), np.inf, each) for each in far], axis=0)


def _same(a: Array, b: Array) -> Array:
    return (a == b) | (np.isnan(a) & np.isnan(b))
