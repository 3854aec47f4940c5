"""Arithmetic with one constant per channel, as a factor and a term: what folds into weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from relay_passes.ir.channel_factors import linear, per_channel

from .graph import Graph, is_standard

_OPERATORS = {"Mul": "multiply", "Add": "add", "Sub": "subtract", "Div": "divide"}


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
    found = linear(_OPERATORS.get(node.op_type, ""), values, x == left)
    return None if found is None else Affine(x, *found)
