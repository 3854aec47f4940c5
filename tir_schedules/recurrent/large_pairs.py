"""Pairs of weights whose products two bytes cannot add: they are multiplied apart.

    packed weight = weight without large pairs + rest

    behind the panels:    rests [panel][entry][vector][lane][kr]    s8
                          firsts [panel][entry][vector]             int32: the first k of each
                          count                                     int32: entries that are needed

Products of bytes by vpmaddubsw are exact unless the weight has a large pair (see
`microkernels.kernels.byte_pairs`). Trained weights have few: with one scale for all columns, 0.2%
of the pairs of 256 normal values, and 0.05% of Silero's voice detector (0.9% of its vectors). Each
vector of a panel has a list of the steps of K where its rest is not 0, as long as the longest of
all; no branch depends on it. If one is longer than one in `SHARE` steps, count is -1, the panels
hold the weight itself, and products are by halves. That is so for a scale for each column, where 6%
of the pairs are large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx

from microkernels.kernels.byte_pairs import KR, split_pairs
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, materialise, ramp, reinterpret_group

SHARE = 4
NUMBER = 4  # bytes of an int32
TOO_MANY = -1


@dataclass(frozen=True)
class LargePairs:
    """Where the rests of a packed weight lie, in bytes.

    Attributes
    ----------
    panels : int
        Those of all directions.
    steps, vectors : int
        Of a panel: steps of K, and vectors of each.
    width : int
        Bytes of a vector.
    """

    panels: int
    steps: int
    vectors: int
    width: int

    @property
    def most(self) -> int:
        """Entries that there is room for."""
        return self.steps // SHARE

    @property
    def start(self) -> int:
        """The first byte behind the panels."""
        return self.panels * self.steps * self.vectors * self.width

    @property
    def firsts(self) -> int:
        """The first byte behind the rests."""
        return self.start + self.places * self.width

    @property
    def places(self) -> int:
        """Entries of all vectors of all panels."""
        return self.panels * self.most * self.vectors

    @property
    def end(self) -> int:
        """The first byte behind the count."""
        return self.firsts + self.places * NUMBER + NUMBER

    def pack(self, packed: np.ndarray) -> np.ndarray:
        """Panels without large pairs, and what lies behind them."""
        within, rest = split_pairs(packed)
        rest = rest.reshape(self.panels, self.steps, self.vectors, self.width)
        large = rest.any(axis=-1)
        count = int(large.sum(axis=1).max(initial=0))
        if count > self.most:
            within, rest, count = packed, np.zeros_like(rest), TOO_MANY
        steps = np.argsort(~large, axis=1, kind="stable")[:, : self.most]
        rests = np.take_along_axis(rest, steps[..., None], axis=1)
        firsts_and_count = np.append(steps * KR, count).astype(np.int32).view(np.int8)
        return np.concatenate([within.reshape(-1), rests.reshape(-1), firsts_and_count])

    def unpack(self, packed: relax.Expr) -> relax.Expr:
        """The panels with their rests, of the packed weight."""
        panels = relax.op.strided_slice(packed, [0], [0], [self.start])
        if not self.most:
            return panels
        rests = relax.op.strided_slice(packed, [0], [self.start], [self.firsts])
        firsts = relax.op.strided_slice(packed, [0], [self.firsts], [self.end - NUMBER])
        digits = relax.op.astype(relax.op.reshape(firsts, (self.places, NUMBER)), "int32")
        digits = relax.op.bitwise_and(digits, relax.const(255, "int32"))
        weights = relax.const(np.array([[1, 1 << 8, 1 << 16, 0]], np.int32))
        k = relax.op.sum(relax.op.multiply(digits, weights), axis=[1], keepdims=True)
        # Of each entry the first byte of its panel and vector, then of its bytes.
        panel, _, vector = np.indices((self.panels, self.most, self.vectors))
        first = (panel * self.steps * self.vectors + vector).reshape(-1, 1) * self.width
        first = first + np.arange(self.width)
        step = relax.op.multiply(k, relax.const(np.int32(self.vectors * self.width // KR)))
        indices = relax.op.add(relax.const(first.astype(np.int32)), step)
        indices = relax.op.reshape(indices, (self.places * self.width,))
        return relax.op.scatter_elements(panels, indices, rests, axis=0, reduction="add")


class RestsOf:
    """The rests of a packed weight in the PrimFunc under construction; it emits their count."""

    def __init__(self, places: LargePairs, kernel: Microkernel, weight: Expr) -> None:
        self.places, self.kernel, self.weight = places, kernel, weight
        self.count = materialise(self._number(places.end - NUMBER))

    @property
    def fit(self) -> Expr:
        """Whether all large pairs have an entry; if not, the panels hold the weight itself."""
        return self.count >= tirx.const(0, "int32")

    def entry(self, panel: Expr, entry: Expr, vector: int) -> tuple[Expr, Expr]:
        """(first k, rest) of a vector of a panel, which is counted in all directions."""
        places = self.places
        at = (panel * places.most + entry) * places.vectors + vector
        first = self._number(places.firsts + at * NUMBER)
        rest = self.kernel.b_operand(self.weight, places.start + at * places.width, 0)
        assert isinstance(rest, tirx.Expr)
        return first, rest

    def _number(self, place: Expr | int) -> Expr:
        return reinterpret_group("int32", self.weight[ramp(place, NUMBER)], 1)
