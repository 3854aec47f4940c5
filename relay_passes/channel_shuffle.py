"""Channel shuffles: a permutation of channels, written as three operators.

lv = R.reshape(x, [N, 4, 28, H, W])                 # x: [N, 112, H, W]
lv1 = R.permute_dims(lv, [0, 2, 1, 3, 4])
lv2 = R.reshape(lv1, [N, 112, H, W])                # channel 4 * i + j of it is 28 * j + i of x
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from .axis_view import view_axes
from .graph import DataflowGraph, op_name, static_tensor


@dataclass(frozen=True)
class Shuffle:
    """A permutation of one axis.

    Attributes
    ----------
    source : relax.Expr
        What is permuted.
    factors : tuple of int
        What its channels are split into.
    order : tuple of int
        The factor for each factor of the result.
    positions : tuple of int
        Bindings between the source and the result.
    """

    source: relax.Expr
    factors: tuple[int, ...]
    order: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def permutation(self) -> np.ndarray:
        """The channel of the source for each channel of the result."""
        channels = np.arange(int(np.prod(self.factors))).reshape(self.factors)
        return channels.transpose(self.order).reshape(-1)


def match_shuffle(graph: DataflowGraph, position: int, last: bool = False) -> Shuffle | None:
    """The shuffle of axis 1, or of the `last`, whose final operator is at a position, else None."""
    join = graph.value(position)
    if op_name(join) != "relax.reshape":
        return None
    turn = graph.definition(join.args[0])
    if turn is None or op_name(turn) != "relax.permute_dims":
        return None
    split = graph.definition(turn.args[0])
    if split is None or op_name(split) != "relax.reshape":
        return None
    whole, parts, result = map(static_tensor, (split.args[0], split, join))
    axes = view_axes(turn)
    if whole is None or parts is None or result is None or axes is None:
        return None
    rank = len(whole.shape)
    if whole.shape != result.shape or rank < 2:
        return None
    start = rank - 1 if last else 1
    count = len(parts.shape) - rank + 1
    end = start + count
    expected = (*whole.shape[:start], *parts.shape[start:end], *whole.shape[start + 1 :])
    order = [axis - start for axis in axes[start:end] if axis is not None]
    kept = (*range(start), *(start + axis for axis in order), *range(end, len(parts.shape)))
    if parts.shape != expected or axes != kept or sorted(order) != list(range(count)):
        return None
    positions = tuple(graph.position[var] for var in (turn.args[0], join.args[0]))
    return Shuffle(split.args[0], parts.shape[start:end], tuple(order), positions)
