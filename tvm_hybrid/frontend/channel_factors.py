"""Arithmetic with one constant per channel, as a factor and a term: what folds into weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from relay_passes.ir.algebra import LARGEST, LEAST

from .graph import Graph, is_standard


@dataclass(frozen=True)
class Affine:
    """A value as x * factor + term.

    Attributes
    ----------
    x : str
        The value that is no constant.
    factor, term : ndarray of float64 [channels]
        One each for every channel.
    """

    x: str
    factor: np.ndarray
    term: np.ndarray


def affine(node: onnx.NodeProto, graph: Graph, axis: int) -> Affine | None:
    """A Mul, Div, Add or Sub with a constant per channel, or one for all; None if it is none.

    Parameters
    ----------
    axis
        Where the channels of x are.
    """
    if not is_standard(node) or len(node.input) != 2:
        return None
    left, right = node.input
    if (left in graph.constants) == (right in graph.constants):
        return None
    x, constant = (
        (right, graph.constants[left])
        if left in graph.constants
        else (
            left,
            graph.constants[right],
        )
    )
    dims = graph.dims(x)  # others than the channels may be open
    if dims is None or len(dims) <= axis % max(len(dims), 1) or constant.dtype.kind != "f":
        return None
    values = per_channel(constant, dims, axis % len(dims))
    if values is None:
        return None
    with np.errstate(all="ignore"):
        found = _affine(node.op_type, x, values, x == left)
    if found is None or not (_has_room(found.factor) and _has_room(found.term)):
        return None
    return found


def _affine(op_type: str, x: str, values: np.ndarray, first: bool) -> Affine | None:
    """The operator of x and the values, in this order if x is first."""
    one, zero = np.ones_like(values), np.zeros_like(values)
    match op_type:
        case "Mul":
            return Affine(x, values, zero)
        case "Add":
            return Affine(x, one, values)
        case "Sub":
            return Affine(x, one, -values) if first else Affine(x, -one, values)
        case "Div" if first and bool((values != 0).all()):
            return Affine(x, 1 / values, zero)
    return None


def _has_room(values: np.ndarray) -> bool:
    """Whether products and sums with these neither overflow nor, in every channel, underflow.

    The factors of some channels may be as small as they like, as those of channels that training
    has turned off.
    """
    largest = float(np.abs(values).max(initial=0.0))
    return largest == 0 or LEAST <= largest <= LARGEST


def per_channel(
    constant: np.ndarray, shape: tuple[int | None, ...], axis: int
) -> np.ndarray | None:
    """A constant as one float64 per channel, or None if it is more than that or widens x."""
    channels = shape[axis] if axis < len(shape) else None
    if constant.ndim > len(shape) or channels is None:
        return None
    if constant.size == 1:
        return np.full(channels, constant.reshape(-1)[0], np.float64)
    aligned = (1,) * (len(shape) - constant.ndim) + constant.shape
    wanted = tuple(channels if i == axis else 1 for i in range(len(shape)))
    return constant.reshape(-1).astype(np.float64) if aligned == wanted else None
