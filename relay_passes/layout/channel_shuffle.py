"""Channel shuffles: a permutation of the last axis, written as three operators.

lv = R.reshape(x, [N, H, W, 4, 28])                 # x: [N, H, W, 112]
lv1 = R.permute_dims(lv, [0, 1, 2, 4, 3])
lv2 = R.reshape(lv1, [N, H, W, 112])                # channel 4 * i + j of it is 28 * j + i of x
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from relay_passes.ir.graph import DataflowGraph, region_tensor
from relay_passes.ir.regroup_axes import match_regroup
from tir_schedules.core.size import is_open


@dataclass(frozen=True)
class Shuffle:
    """A permutation of the last axis.

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


def match_shuffle(graph: DataflowGraph, position: int) -> Shuffle | None:
    """The shuffle whose final operator is at a position; None if there is none."""
    regroup = match_regroup(graph, position)
    if regroup is None:
        return None
    whole, result = region_tensor(regroup.source), region_tensor(graph.bindings[position].var)
    if whole is None or result is None or whole.shape != result.shape or not whole.shape:
        return None
    if is_open(whole.shape[-1:]):
        return None
    split, joined = (
        [[part for part in group if regroup.parts[part] != 1] for group in groups]
        for groups in (regroup.split, regroup.joined)
    )
    before, after = split[-1], joined[-1]
    kept = split[:-1] == joined[:-1] and set(before) == set(after)
    if not kept or before == after:
        return None
    factors = tuple(regroup.parts[part] for part in before)
    order = tuple(before.index(part) for part in after)
    return Shuffle(regroup.source, factors, order, regroup.positions)
