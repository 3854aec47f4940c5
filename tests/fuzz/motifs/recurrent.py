"""LSTM, GRU and RNN in all forms, also chained."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..drawing import Array, Draw, Value
from ..recurrent_reference import DEFAULTS, FUNCTIONS, GATES, PARAMETERS
from .parts import epilogue, size

DIRECTIONS = ("forward", "reverse", "bidirectional")
WITH_LAYOUT, WITH_BFLOAT16 = 14, 22  # opsets


def recurrent(d: Draw) -> None:
    """Draws one or two layers, sometimes with zero steps."""
    kinds = ["float32"] * 12 + ["float16", "float64"]
    kind = d.pick([*kinds, *["bfloat16"] * (2 if d.opset >= WITH_BFLOAT16 else 0)])
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    steps = 0 if d.chance(0.06) else d.integer(1, 7)
    x = d.input(d.normal(steps, d.integer(1, 5), size(d, 33)).astype(dtype))
    y = _layer(d, x, dtype)
    if y.array.size and d.chance(0.35):
        _layer(d, d.node("Reshape", y, d.integers(0, 0, -1)), dtype)


def _layer(d: Draw, x: Value, dtype: np.dtype[Any]) -> Value:
    """A layer on [steps, batch, input]; its result is [steps, batch, ...]."""
    op, direction = d.pick(tuple(GATES)), d.pick(DIRECTIONS)
    hidden, sides = size(d, 49), 2 if direction == "bidirectional" else 1
    layout = int(d.opset >= WITH_LAYOUT and d.chance(0.2))
    steps, batch, depth = x.shape

    def numbers(*shape: int, scale: float = 1.0) -> Array:
        return d.normal(*shape, scale=scale).astype(dtype)

    def state() -> Value:
        shape = (batch, sides, hidden) if layout else (sides, batch, hidden)
        return d.either(numbers(*shape, scale=0.5), 0.3)

    rows = GATES[op] * hidden
    weights = [
        d.either(numbers(sides, rows, depth, scale=depth**-0.5), 0.8),
        d.either(numbers(sides, rows, hidden, scale=hidden**-0.5), 0.8),
        d.either(numbers(sides, 2 * rows, scale=0.5), 0.8) if d.chance(0.7) else None,
    ]
    ends = d.numbers.integers(0, steps + 1, batch).astype(np.int32)
    lengths = d.either(ends, 0.4) if d.chance(0.4) else None
    given = [*weights, lengths, state() if d.chance(0.4) else None]
    if op == "LSTM":
        given.append(state() if d.chance(0.4) else None)
        given.append(d.constant(numbers(sides, 3 * hidden, scale=0.3)) if d.chance(0.3) else None)
    while given[-1] is None:
        given.pop()
    if layout:
        x = d.node("Transpose", x, perm=[1, 0, 2])
    attributes = _attributes(d, op, sides)
    if layout:
        attributes["layout"] = 1
    outputs = d.integer(1, 3 if op == "LSTM" else 2)
    y, *_ = d.several(op, outputs, x, *given, hidden_size=hidden, direction=direction, **attributes)
    y = d.node("Transpose", y, perm=[1, 0, 2, 3] if layout else [0, 2, 1, 3])
    return epilogue(d, y, 2) if dtype == np.float32 and d.chance(0.4) else y


def _attributes(d: Draw, op: str, sides: int) -> dict[str, Any]:
    """Activations and other attributes; the two directions mostly have different activations."""
    found: dict[str, Any] = {}
    if d.chance(0.25):
        found["clip"] = d.pick((0.3, 1.0, 2.0))
    if op == "LSTM" and d.chance(0.2):
        found["input_forget"] = 1
    if op == "GRU" and d.chance(0.5):
        found["linear_before_reset"] = 1
    if d.chance(0.4):
        first = [d.pick(tuple(FUNCTIONS)) for _ in DEFAULTS[op]]
        both = [first, [d.pick(tuple(FUNCTIONS)) for _ in first] if d.chance(0.7) else first]
        names = [name for side in both[:sides] for name in side]
        found["activations"] = names
        for place, key in enumerate(("alpha", "beta")):
            count = sum(PARAMETERS.get(name, 0) > place for name in names)
            if count:
                found[f"activation_{key}"] = [d.pick((0.2, 0.5, 0.9)) for _ in range(count)]
    return found
