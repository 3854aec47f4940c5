"""Which taps of a transposed convolution contribute to which results.

    y[o] = sum of x[i] * w[t] over all i, t with o = i * s + t * d - p

Along one axis let q, phase = divmod(o + p, s). The taps for o are those with t * d = phase (mod s);
they multiply x[q - t * d // s]. So each phase is a convolution over q, of stride 1, with every s-th
tap. The phases are computed together, as more channels of one convolution whose weight has zeros
where a phase has no tap, or each by itself without zeros. In both forms the first q is free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
