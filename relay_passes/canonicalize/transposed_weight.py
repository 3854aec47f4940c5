"""Weights of the ordinary convolutions that replace a transposed one.

    [IC, OC / G, *kernel]  ->  [*sizes, IC / G, G * phases * OC / G]

Each position of a window and each phase has a tap, or zeros where they do not meet. A constant
weight is put together by NumPy; one that is none by operators that move its elements:

    lv = R.nn.pad(R.reshape(w, [G, IC / G, OC / G, taps]), ...)     # zeros behind the taps
    lv1 = R.take(lv, const_taps, axis=3)
    lv2 = R.reshape(R.permute_dims(R.reshape(lv1, ...), ...), ...)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from relay_passes.ir.graph import known_tensor
from relay_passes.ir.rewrite import Bindings

from .transposed_taps import Window


def known_taps(
    weight: np.ndarray, groups: int, windows: Sequence[Window], fill: np.ndarray
) -> np.ndarray:
    """The weight of an ordinary convolution.

    Parameters
    ----------
    weight : numpy.ndarray
        [IC, OC / G, *kernel].
    groups : int
        G.
    windows : sequence of Window
        One for each axis.
    fill : numpy.ndarray
        What stands for zero: one number, or one for each of OC / G.
    """
    own, kernel = weight.shape[1], weight.shape[2:]
    flat = weight.reshape(groups, -1, own, math.prod(kernel))
    zeros = np.broadcast_to(fill.reshape(-1, 1), (*flat.shape[:2], own, 1)).astype(weight.dtype)
    places = _places(windows, kernel)
    chosen = np.concatenate([flat, zeros], axis=3)[..., places]
    return chosen.transpose(_ORDER).reshape(*_sizes(windows), flat.shape[1], -1)


def emitted_taps(
    block: Bindings,
    weight: relax.Expr,
    groups: int,
    windows: Sequence[Window],
    fill: int,
    matrix: bool,
) -> relax.Var:
    """The same of a weight that is no constant, by operators, with one number for zero.

    It is a matrix if wanted; windows have a single position then.
    """
    op, shape = relax.op, known_tensor(weight).shape
    depth, own, taps = shape[0] // groups, shape[1], math.prod(shape[2:])
    places = _places(windows, shape[2:])
    flat = block.emit(op.reshape(weight, (groups, depth, own, taps)))
    if np.any(places == taps):
        flat = block.emit(op.nn.pad(flat, [0, 0, 0, 0, 0, 0, 0, 1], pad_value=fill))
    if not np.array_equal(places.reshape(-1), np.arange(taps)):
        indices = relax.const(places.reshape(-1).astype(np.int32))
        flat = block.emit(op.take(flat, indices, axis=3, mode="clip"))
    parts = block.emit(op.reshape(flat, (groups, depth, own, *places.shape)))
    moved = block.emit(op.permute_dims(parts, _ORDER))
    columns = groups * places.shape[1] * own
    sizes = [] if matrix else _sizes(windows)
    return block.emit(op.reshape(moved, (*sizes, depth, columns)))


_ORDER = [3, 1, 0, 4, 2]  # [G, IC / G, OC / G, positions, phases] -> [positions, IC / G, G, ...]


def _sizes(windows: Sequence[Window]) -> list[int]:
    return [window.size for window in windows]


def _places(windows: Sequence[Window], kernel: Sequence[int]) -> np.ndarray:
    """[positions, phases]: the numbers of the taps that meet x there, and of one more for none."""
    sizes, phases = _sizes(windows), [len(window.taps) for window in windows]
    places = np.full((*sizes, *phases), math.prod(kernel))
    for at in itertools.product(*map(range, sizes)):
        for phase in itertools.product(*map(range, phases)):
            met = [w.taps[p][u] for w, p, u in zip(windows, phase, at, strict=True)]
            taps = [tap for tap in met if tap is not None]
            if len(taps) == len(met):
                places[(*at, *phase)] = np.ravel_multi_index(taps, kernel)
    return places.reshape(math.prod(sizes), math.prod(phases))


def diagonal(matrix: np.ndarray, repeats: int, fill: np.ndarray) -> np.ndarray:
    """A matrix several times along a diagonal, and elsewhere what its columns have for zero."""
    rows, columns = matrix.shape
    whole = np.empty((rows * repeats, columns * repeats), matrix.dtype)
    whole[...] = np.resize(fill, columns * repeats)
    for number in range(repeats):
        row, column = number * rows, number * columns
        whole[row : row + rows, column : column + columns] = matrix
    return whole


def tiled(block: Bindings, vector: relax.Expr, count: int) -> relax.Expr:
    """A vector so many times, one behind the other."""
    size = known_tensor(vector).size
    row = block.emit(relax.op.reshape(vector, (1, size)))
    rows = block.emit(relax.op.broadcast_to(row, (count, size)))
    return block.emit(relax.op.reshape(rows, (count * size,)))
