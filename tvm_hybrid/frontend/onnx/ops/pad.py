"""Converts Pad to operators that the layout pass can handle.

Pad(x, pads)                            ->    R.nn.pad(x, pads)
Pad(x, pads), some of them negative     ->    R.nn.pad(R.strided_slice(x, ...), ...)
Pad(x, pads, mode=reflect)              ->    R.take(x, [1, 0, 1, 2, ...], axis), axis by axis
of an axis of open size, or by amounts
that follow from sizes                  ->    a table of places (data_sized/pads.py)
Pad(x, pads), pads of expressions of
sizes, or negative for open sizes       ->    a kernel (data_sized/pads.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...expressions import Attrs, Expr, Inputs, constant, literal, normalize
from ..data_sized.elements import known_elements
from ..data_sized.pads import open_pad, pad_by_table
from ..data_sized.sizes import dims_of
from ..operators import operator

_MODES = ("reflect", "edge", "wrap")  # that take elements of the tensor


@operator("Pad")
def _pad(inputs: Inputs, attrs: Attrs) -> Any:
    x, dims = inputs[0], dims_of(inputs[0])
    if any(item is not None and constant(item) is None for item in inputs[2:]):
        raise ValueError("the value to pad with, or the axes, are computed at run time")
    amounts = _amounts(inputs, attrs)
    if amounts is None:
        raise ValueError("the amounts to pad by are computed at run time")
    pads = _by_axis(amounts, inputs, len(dims))
    mode = attrs.get("mode", "constant")
    if mode == "constant":
        return _pad_with(x, dims, pads, _number(inputs, attrs))
    if mode not in _MODES:
        raise ValueError(f"unknown mode {mode!r}")
    return _pad_from(x, dims, pads, mode)


def _amounts(inputs: Inputs, attrs: Attrs) -> np.ndarray | None:
    """Numbers, or objects if some are expressions of sizes; None if they are not known."""
    found = attrs.get("pads", attrs.get("paddings")) if len(inputs) < 2 else constant(inputs[1])
    if found is None and len(inputs) > 1:
        found = known_elements(inputs[1])
    if found is None:
        return None
    array = np.asarray(found)
    known = all(isinstance(each, int | np.integer) for each in array.ravel())
    return array.astype(np.int64) if known else array


def _by_axis(amounts: np.ndarray, inputs: Sequence[Any], rank: int) -> np.ndarray:
    """Amounts before and after each axis, [rank, 2]."""
    axes = constant(inputs[3])
    pads = np.zeros((rank, 2), amounts.dtype)
    places = np.arange(rank) if axes is None else axes % rank
    pads[places] = amounts.reshape(2, -1).T
    return pads


def _number(inputs: Inputs, attrs: Attrs) -> Any:
    """What is written around the elements."""
    value = constant(inputs[2])
    return attrs.get("value", 0.0) if value is None or not value.size else value.item()


def _pad_with(x: Expr, dims: Sequence[Expr], pads: np.ndarray, number: float) -> Expr:
    """With one value; negative amounts crop."""
    if pads.dtype == object:
        return open_pad(x, pads, number)
    cropped = [axis for axis, amounts in enumerate(pads) if amounts.min() < 0]
    if any(not isinstance(dims[axis], tirx.IntImm) for axis in cropped):
        return open_pad(x, pads, number)
    if cropped:
        begin = [max(0, -int(pads[axis, 0])) for axis in cropped]
        end = [int(dims[axis]) - max(0, -int(pads[axis, 1])) for axis in cropped]
        x = normalize(relax.op.strided_slice(x, cropped, begin, end))
    amounts = np.maximum(pads, 0)
    if not amounts.any():
        return x
    return relax.op.nn.pad(x, amounts.reshape(-1).tolist(), "constant", number)


def _pad_from(x: Expr, dims: Sequence[Expr], pads: np.ndarray, mode: str) -> Expr:
    """With elements of x."""
    for axis, (extent, amounts) in enumerate(zip(dims, pads, strict=True)):
        numbers = all(isinstance(each, int | np.integer) for each in amounts)
        if not numbers or not isinstance(extent, tirx.IntImm):
            x = pad_by_table(x, axis, amounts, mode)
        elif any(amounts):
            places = _places(mode, int(extent), *map(int, amounts))
            x = normalize(relax.op.take(x, literal(places), axis, mode="clip"))
    return x


def _places(mode: str, extent: int, before: int, after: int) -> np.ndarray:
    """Which element of an axis each place has.

    Negative amounts crop first, as in ONNX Runtime: it tells in mode "wrap".
    """
    first, kept = max(0, -before), extent + min(0, before) + min(0, after)
    place = np.arange(-max(0, before), kept + max(0, after), dtype=np.int64)
    if kept <= 0 and place.size:
        raise ValueError(f"an axis of {max(kept, 0)} elements is padded by some of them")
    if mode == "edge":
        return first + place.clip(0, kept - 1)
    if mode == "wrap":
        return first + place % kept
    period = max(2 * (kept - 1), 1)  # there and back
    inside = place % period
    return first + np.minimum(inside, period - inside)
