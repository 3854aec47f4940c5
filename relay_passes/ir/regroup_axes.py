"""Regrouping: splits, permutes and joins axes, in any layout.

lv = R.reshape(x, [N, 4, 28, H, W])                 # x: [N, 112, H, W]: a channel shuffle
lv1 = R.permute_dims(lv, [0, 2, 1, 3, 4])
lv2 = R.reshape(lv1, [N, 112, H, W])

lv = R.reshape(x, [N, 2, 2, 16, H, W])              # x: [N, 64, H, W]: depth to space
lv1 = R.permute_dims(lv, [0, 3, 4, 1, 5, 2])
lv2 = R.reshape(lv1, [N, 16, 2 * H, 2 * W])
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from tir_schedules.core.size import quotient

from .axis_view import view_axes
from .graph import DataflowGraph, op_name, region_tensor

Groups = tuple[tuple[int, ...], ...]  # for each axis the parts that it is made of


@dataclass(frozen=True)
class Regroup:
    """A reshape, a permutation and a reshape.

    Attributes
    ----------
    source : relax.Expr
        What is regrouped.
    parts : tuple of int
        Extents of the parts that its axes are split into.
    split, joined : tuple of tuple of int
        For each axis of the source and of the result, its parts.
    positions : tuple of int
        Bindings between the source and the result.
    """

    source: relax.Expr
    parts: tuple[int, ...]
    split: Groups
    joined: Groups
    positions: tuple[int, ...]

    def between(
        self, source: tuple[int, ...], result: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of the first reshape and the permutation, for axes stored in other orders."""
        before = [part for axis in source for part in self.split[axis]]
        after = [part for axis in result for part in self.joined[axis]]
        shape = tuple(self.parts[part] for part in before)
        return shape, tuple(before.index(part) for part in after)


def match_regroup(graph: DataflowGraph, position: int) -> Regroup | None:
    """The regrouping whose last operator is at a position; None if there is none."""
    join = graph.value(position)
    if op_name(join) != "relax.reshape":
        return None
    turn = graph.definition(join.args[0])
    if turn is None or op_name(turn) != "relax.permute_dims":
        return None
    split = graph.definition(turn.args[0])
    if split is None or op_name(split) != "relax.reshape":
        return None
    source, parts, result = map(region_tensor, (split.args[0], split, join))
    axes = view_axes(turn)
    if source is None or parts is None or result is None or axes is None:
        return None
    order = [axis for axis in axes if axis is not None]
    before = _groups(source.shape, parts.shape)
    after = _groups(result.shape, tuple(parts.shape[axis] for axis in order))
    if before is None or after is None:
        return None
    joined = tuple(tuple(order[index] for index in group) for group in after)
    positions = tuple(graph.position[var] for var in (turn.args[0], join.args[0]))
    return Regroup(split.args[0], parts.shape, before, joined, positions)


def _groups(whole: tuple[int, ...], parts: tuple[int, ...]) -> Groups | None:
    """The parts of every axis; None if one of them belongs to two axes."""
    groups: list[list[int]] = []
    place = 0
    for extent in whole:
        group: list[int] = []
        product = 1
        if extent == 1 and parts[place : place + 1] == (1,):
            group.append(place)
            place += 1
        while product != extent:
            if place == len(parts) or quotient(extent, product * parts[place]) is None:
                return None
            group.append(place)
            product = product * parts[place]
            place += 1
        groups.append(group)
    left = range(place, len(parts))
    if any(parts[place] != 1 for place in left):
        return None
    if groups:
        groups[-1].extend(left)
    return tuple(map(tuple, groups))
