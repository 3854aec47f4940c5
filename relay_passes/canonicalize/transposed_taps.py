"""Which taps of a transposed convolution contribute to which results.

    y[o] = sum of x[i] * w[t] over all i, t with o = i * s + t * d - p

Along one axis let q, phase = divmod(o + p, s). The taps for o are those with t * d = phase (mod s);
they multiply x[q - t * d // s]. So each phase is a convolution over q, of stride 1, with every s-th
tap. The phases are computed together, as more channels of one convolution whose weight has zeros
where a phase has no tap, or each by itself without zeros. In both forms the first q is free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from relay_passes.ir.graph import known_tensor
from relay_passes.ir.rewrite import Bindings


@dataclass(frozen=True)
class Window:
    """An ordinary convolution along one axis.

    Attributes
    ----------
    taps : tuple of (tuple of (int or None))
        For each phase computed, the tap of the transposed convolution at each position of the
        window; None where there is none.
    dilation : int
        Distance of the positions.
    before, after : int
        Positions added before and after x; removed if negative.
    count : int
        Results of each phase.
    """

    taps: tuple[tuple[int | None, ...], ...]
    dilation: int
    before: int
    after: int
    count: int

    @property
    def size(self) -> int:
        """Positions of the window."""
        return len(self.taps[0])

    @property
    def pointwise(self) -> bool:
        """Whether every result is computed from the position of x where it stands."""
        return self.size == 1 and self.before == self.after == 0


@dataclass(frozen=True)
class TransposedAxis:
    """One axis of a transposed convolution.

    Attributes
    ----------
    extent, kernel : int
        Positions of x, which may be symbolic, and of the weight.
    stride, dilation : int
        s and d.
    before : int
        p.
    more : int
        Positions of the result beyond `stride` for each of x; negative if they are fewer.
    """

    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    more: int

    @property
    def output(self) -> int:
        """Positions of the result."""
        return self.extent * self.stride + self.more

    @property
    def first(self) -> int:
        """Results of the window `together` before the first that is wanted."""
        return self.before % self.stride

    @property
    def cut(self) -> bool:
        """Whether `together` computes results that nobody wants."""
        return self.first != 0 or self.uneven

    @property
    def uneven(self) -> bool:
        """Whether phases have different numbers of results."""
        return self.more % self.stride != 0

    def together(self) -> Window:
        """All phases as channels of one convolution, in their order."""
        first = self.before // self.stride
        last = (self.more - 1 + self.before) // self.stride  # behind as many as x has
        return self._window(range(self.stride), first, last - first + 1)

    def apart(self) -> list[Window] | None:
        """One convolution for each o % s; None if one of them would have no taps."""
        more = -(-self.more // self.stride)
        found = []
        for residue in range(self.stride):
            first, phase = divmod(residue + self.before, self.stride)
            if not self._taps(phase):
                return None
            found.append(self._window([phase], first, more))
        return found

    def _taps(self, phase: int) -> dict[int, int]:
        """Taps of a phase by their distance from q."""
        products = ((tap, tap * self.dilation) for tap in range(self.kernel))
        return {at // self.stride: tap for tap, at in products if at % self.stride == phase}

    def _window(self, phases: Sequence[int], first: int, more: int) -> Window:
        """The window of some phases, which has so many results more than x has positions."""
        found = [self._taps(phase) for phase in phases]
        distances = sorted({distance for taps in found for distance in taps})
        nearest, farthest = distances[0], distances[-1]
        step = math.gcd(*(distance - nearest for distance in distances)) or 1
        positions = range(farthest, nearest - 1, -step)
        return Window(
            taps=tuple(tuple(taps.get(distance) for distance in positions) for taps in found),
            dilation=step,
            before=farthest - first,
            after=first + more - nearest,
            count=self.extent + more,
        )


# Weights of the ordinary convolutions that replace a transposed one.
#
#     [IC, OC / G, *kernel]  ->  [*sizes, IC / G, G * phases * OC / G]
#
# Each position of a window and each phase has a tap, or zeros where they do not meet. A constant
# weight is put together by NumPy; one that is none by operators that move its elements:
#
#     lv = R.nn.pad(R.reshape(w, [G, IC / G, OC / G, taps]), ...)     # zeros behind the taps
#     lv1 = R.take(lv, const_taps, axis=3)
#     lv2 = R.reshape(R.permute_dims(R.reshape(lv1, ...), ...), ...)


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
