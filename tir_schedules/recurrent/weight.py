"""The weight of a recurrence, packed in panels.

    [directions, gates * hidden, hidden]
        ->  flat: [direction][product][panel][K / kr][unit][gate][lane][kr]

K is padded with zeros. Elements have the type that the kernel multiplies: narrow floats are widened
unless it multiplies them. After panels of bytes come their large pairs (`large_pairs`), if the
kernel adds pairs, and the sums of columns, int32. Other constant inputs, such as biases, are not
packed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import KR, has_pairs, split_pairs
from microkernels.vector.expressions import Expr, Index, materialise, ramp, reinterpret_group
from tir_schedules.core.arrays import A, as_type, chosen, joined, padded, permuted, reshaped, sliced
from tir_schedules.core.region import Region
from tir_schedules.core.template import PackedInput

from .config import RecurrentConfig, check, kernel_of, loaded, panels_of, starts_with_sums
from .problem import RecurrentProblem

WEIGHT = 1
"""Number of the weight among the inputs."""


def large_pairs(problem: RecurrentProblem, config: RecurrentConfig) -> LargePairs | None:
    """Places of the pairs that bytes cannot add; None if the kernel does not add pairs of bytes."""
    kernel = kernel_of(problem, config)
    if not (starts_with_sums(kernel) and has_pairs(kernel)):
        return None
    (panels,) = panels_of(problem, config)  # only an LSTM has a weight of bytes
    count = problem.directions * panels.count
    return LargePairs(count, panels.steps, panels.vectors, panels.lanes * panels.kr)


class RecurrentWeight(PackedInput):
    """The weight of the recurrence in panels, flat.

    Attributes
    ----------
    problem, kernel, panels : RecurrentProblem, Microkernel, list of Panels
        They follow from the region and the configuration, which has to be legal.
    large : LargePairs or None
        See `large_pairs`.
    sums_at : int
        Elements before the columns' sums: all panels, and large pairs.
    """

    def __init__(self, region: Region, config: RecurrentConfig, isa: Isa) -> None:
        self.region, self.problem = region, check(region, config, isa)
        problem = self.problem
        self.kernel, self.panels = kernel_of(problem, config), panels_of(problem, config)
        self.large = large_pairs(problem, config)
        self.sums_at = problem.directions * sum(panels.size for panels in self.panels)
        if self.large is not None:
            self.sums_at = self.large.end
        sums = 4 * problem.directions * problem.gates * problem.hidden
        self.shape = (self.sums_at + sums * starts_with_sums(self.kernel),)

    def _in_panels(self, array: A) -> A:
        """The elements of all panels; zeros are padding."""
        sides, hidden, parts = self.problem.directions, self.problem.hidden, list[A]()
        gates = reshaped(array, (sides, self.problem.gates, hidden, hidden))
        for side, panels in itertools.product(range(sides), self.panels):
            first, count = panels.gates[0], len(panels.gates)
            own = sliced(sliced(gates, 0, side, side + 1), 1, first, first + count)
            # The last panel overlaps the one before it.
            starts = np.minimum(np.arange(panels.count) * panels.width, hidden - panels.width)
            rows = chosen(own, 2, np.add.outer(starts, np.arange(panels.width)).reshape(-1))
            whole = padded(rows, (0, 0, 0, panels.steps * panels.kr - hidden))
            shape = (count, panels.count, panels.units, panels.lanes, panels.steps, panels.kr)
            parts.append(permuted(reshaped(whole, shape), (1, 4, 2, 0, 3, 5)))
        return joined(parts)

    def pack(self, array: A) -> A:
        packed = self._in_panels(as_type(array, self.kernel.b_dtype))
        if not starts_with_sums(self.kernel):
            return packed
        if not isinstance(array, np.ndarray):
            name = self.kernel.name
            raise ConfigError(f"{name} packs bytes of constants alone, in {self.region.key}")
        if self.large is not None:
            packed = self.large.pack(packed)
        sums = array.sum(axis=-1, dtype=np.int32)
        return joined([packed, sums.reshape(-1).view(packed.dtype)])

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        tensor = self.region.inputs[WEIGHT]
        numbers = np.arange(1, 1 + np.prod(tensor.shape)).reshape(tensor.shape)  # 0 is of padding
        sources = self._in_panels(numbers)
        # Where each element lies in the packed form.
        places = np.empty(1 + numbers.size, np.int32)
        places[sources] = np.arange(len(sources))
        if self.large is not None:
            expr = self.large.unpack(expr)
        elements = relax.op.take(expr, relax.const(places[1:]), axis=0, mode="fast")
        return relax.op.astype(relax.op.reshape(elements, tensor.shape), tensor.dtype)


# Large pairs: pairs of weights whose products two bytes cannot add are multiplied apart.
#
#     packed weight = weight without large pairs + rest
#
#     after the panels:     rests [panel][entry][vector][lane][kr]    s8
#                           firsts [panel][entry][vector]             int32: the first k of each
#                           count                                     int32: entries that are needed
#
# Products of bytes by vpmaddubsw are exact unless the weight has a large pair (see
# `microkernels.kernels.byte_pairs`). Trained weights have few: with one scale for all columns, 0.2%
# of the pairs of 256 normal values, and 0.05% of Silero's voice detector (0.9% of its vectors).
# Each vector of a panel has a list of the steps of K where its rest is not 0, as long as the
# longest of all; no branch depends on it. If a list is longer than one in `SHARE` steps, count is
# -1, the panels hold the weight itself, and products are by halves. That happens if each column has
# a scale: then 6% of the pairs are large.


SHARE = 4
NUMBER = 4  # bytes of an int32
TOO_MANY = -1


@dataclass
class LargePairs:
    """Places of the rests of a packed weight, in bytes.

    Attributes
    ----------
    panels : int
        Panels of all directions.
    steps, vectors : int
        Steps of K of a panel, and vectors of each step.
    width : int
        Bytes of a vector.
    """

    panels: int
    steps: int
    vectors: int
    width: int

    def __post_init__(self) -> None:
        # Room for entries of a vector, and places in all vectors of all panels.
        self.most = self.steps // SHARE
        self.places = self.panels * self.most * self.vectors
        # The first bytes after the panels, after the rests and after the count.
        self.start = self.panels * self.steps * self.vectors * self.width
        self.firsts = self.start + self.places * self.width
        self.end = self.firsts + self.places * NUMBER + NUMBER

    def pack(self, packed: np.ndarray) -> np.ndarray:
        """Panels without large pairs, and after them the rests, first k and count."""
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
        """The panels plus their rests, from the packed weight."""
        panels = relax.op.strided_slice(packed, [0], [0], [self.start])
        if not self.most:
            return panels
        rests = relax.op.strided_slice(packed, [0], [self.start], [self.firsts])
        firsts = relax.op.strided_slice(packed, [0], [self.firsts], [self.end - NUMBER])
        digits = relax.op.astype(relax.op.reshape(firsts, (self.places, NUMBER)), "int32")
        digits = relax.op.bitwise_and(digits, relax.const(255, "int32"))
        weights = relax.const(np.array([[1, 1 << 8, 1 << 16, 0]], np.int32))
        k = relax.op.sum(relax.op.multiply(digits, weights), axis=[1], keepdims=True)
        # For each entry the first byte of its panel and vector, then all bytes of the entry.
        panel, _, vector = np.indices((self.panels, self.most, self.vectors))
        first = (panel * self.steps * self.vectors + vector).reshape(-1, 1) * self.width
        first = first + np.arange(self.width)
        step = relax.op.multiply(k, relax.const(np.int32(self.vectors * self.width // KR)))
        indices = relax.op.add(relax.const(first.astype(np.int32)), step)
        indices = relax.op.reshape(indices, (self.places * self.width,))
        return relax.op.scatter_elements(panels, indices, rests, axis=0, reduction="add")


class RestsOf:
    """The rests of a packed weight in the PrimFunc under construction; it emits their count."""

    def __init__(self, packed: RecurrentWeight, weight: Expr) -> None:
        assert packed.large is not None
        self.places, self.kernel, self.weight = packed.large, packed.kernel, weight
        self.count = materialise(self._number(self.places.end - NUMBER))
        # Whether all large pairs have an entry; if not, the panels hold the weight itself.
        self.fit = self.count >= tirx.const(0, "int32")

    def entry(self, panel: Expr, entry: Expr, vector: int) -> tuple[Expr, Expr]:
        """(first k, rest) of an entry of a vector; panels are numbered over all directions."""
        places = self.places
        at = (panel * places.most + entry) * places.vectors + vector
        first = self._number(places.firsts + at * NUMBER)
        rest = self.kernel.b_operand(self.weight, places.start + at * places.width, 0)
        return first, loaded(rest)

    def _number(self, place: Index) -> Expr:
        return reinterpret_group("int32", self.weight[ramp(place, NUMBER)], 1)
