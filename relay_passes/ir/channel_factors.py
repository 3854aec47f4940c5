"""Arithmetic with one constant per channel, as a factor and a term: what folds into weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from .algebra import LARGEST, LEAST
from .constants import array_of, constant_of
from .graph import DataflowGraph, is_call, region_tensor
from .rewrite import Bindings

_OPERATORS = ("relax.multiply", "relax.add", "relax.subtract", "relax.divide")


@dataclass(frozen=True)
class ChannelFactors:
    """A value as x * factor + term.

    Attributes
    ----------
    x : relax.Expr
        The value that is no constant.
    factor, term : ndarray of float64 [channels]
        One each for every channel.
    """

    x: relax.Expr
    factor: np.ndarray
    term: np.ndarray

    def then(self, later: ChannelFactors) -> ChannelFactors:
        """Both, one after the other."""
        return ChannelFactors(
            self.x, self.factor * later.factor, self.term * later.factor + later.term
        )


def factors_of(call: relax.Expr | None, axis: int) -> ChannelFactors | None:
    """A product or sum with a constant per channel, or one for all; None if it is none.

    Parameters
    ----------
    call : relax.Expr or None
        What may be one.
    axis : int
        Where the channels of x are, counted from the end.
    """
    if not is_call(call, *_OPERATORS):
        return None
    constants = [isinstance(arg, ir.GenericConst) for arg in call.args]
    if sum(constants) != 1:
        return None
    first = not constants[0]
    x, constant = (call.args[0], call.args[1]) if first else (call.args[1], call.args[0])
    tensor, result = region_tensor(x), region_tensor(call)
    if tensor is None or result is None or tensor.shape != result.shape:
        return None
    if tensor.dtype not in ("float16", "float32", "float64") or len(tensor.shape) < -axis:
        return None
    values = per_channel(array_of(constant.value), tensor.shape, len(tensor.shape) + axis)
    if values is None:
        return None
    found = linear(str(call.op.name).removeprefix("relax."), values, first)
    return None if found is None else ChannelFactors(x, *found)


def constant_readers(graph: DataflowGraph) -> Counter[relax.Expr]:
    """How often the calls of a block read each constant."""
    return Counter(
        arg
        for binding in graph.bindings
        if isinstance(binding.value, relax.Call)
        for arg in binding.value.args
        if isinstance(arg, ir.GenericConst)
    )


def linear(name: str, values: np.ndarray, first: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """The factor and the term of an operator of x and some values, in this order if x is `first`.

    None if it is neither a sum nor a product, or the numbers leave no room for further ones.
    """
    one, zero = np.ones_like(values), np.zeros_like(values)
    with np.errstate(all="ignore"):
        match name:
            case "multiply":
                found = values, zero
            case "add":
                found = one, values
            case "subtract":
                found = (one, -values) if first else (-one, values)
            case "divide" if first and bool((values != 0).all()):
                found = 1 / values, zero
            case _:
                return None
    return found if all(map(_has_room, found)) else None


def _has_room(values: np.ndarray) -> bool:
    """Whether products and sums with these neither overflow nor, in every channel, underflow.

    The factors of some channels may be as small as they like, as those of channels that training
    has turned off.
    """
    largest = float(np.abs(values).max(initial=0.0))
    return largest == 0 or LEAST <= largest <= LARGEST


def per_channel(constant: np.ndarray, shape: Sequence[int | None], axis: int) -> np.ndarray | None:
    """A constant as one float64 per channel, or None if it is more than that or widens x."""
    channels = shape[axis] if axis < len(shape) else None
    if constant.ndim > len(shape) or not isinstance(channels, int):
        return None
    if constant.size == 1:
        return np.full(channels, constant.reshape(-1)[0], np.float64)
    aligned = (1,) * (len(shape) - constant.ndim) + constant.shape
    wanted = tuple(channels if i == axis else 1 for i in range(len(shape)))
    return constant.reshape(-1).astype(np.float64) if aligned == wanted else None


def in_shape(block: Bindings, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """One number per channel, [channels], with an axis for each axis behind the channels."""
    if isinstance(value, ir.GenericConst):
        return constant_of(array_of(value.value).reshape(shape))
    return block.emit(relax.op.reshape(value, shape)) if len(shape) > 1 else value
