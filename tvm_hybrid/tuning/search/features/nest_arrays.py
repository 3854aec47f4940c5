"""The loop nests of many configurations of one region as arrays, aligned at the innermost loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tir_schedules.core.loop_nest import KINDS, Loop, LoopNest

BUFFERS = 3


@dataclass(frozen=True)
class NestArrays:
    """[configurations, nests, loops] and what follows; missing loops are outermost, and run once.

    Attributes
    ----------
    extents : numpy.ndarray
        Iterations of every loop.
    touched : numpy.ndarray
        [..., buffers]: bytes, as of `Loop.touched`.
    kinds : numpy.ndarray
        Number of the loop's kind in KINDS.
    operations, useful, balance : numpy.ndarray
        [configurations, nests], as of `LoopNest`; a missing nest has no operations.
    names : tuple of str
        Of the loops of the configuration with the most, nest by nest, as "nest.name".
    """

    extents: np.ndarray
    touched: np.ndarray
    kinds: np.ndarray
    operations: np.ndarray
    useful: np.ndarray
    balance: np.ndarray
    names: tuple[str, ...]

    @staticmethod
    def unknown(configurations: int) -> NestArrays:
        """Nests of which nothing is known: all alike."""
        loop = Loop("", 1.0, "serial", (0.0, 0.0, 0.0))
        return NestArrays.of([[LoopNest((loop,) * 4, 0.0)]] * configurations)

    @staticmethod
    def of(nests: Sequence[Sequence[LoopNest]]) -> NestArrays:
        """The nests of every configuration, at least one each."""
        count = max(len(each) for each in nests)
        depth = max(len(nest.loops) for each in nests for nest in each)
        shape = (len(nests), count, depth)
        extents = np.ones(shape)
        touched = np.zeros((*shape, BUFFERS))
        kinds = np.full(shape, KINDS.index("serial"))
        operations, useful, balance = np.zeros(shape[:2]), np.ones(shape[:2]), np.ones(shape[:2])
        for i, each in enumerate(nests):
            for j, nest in enumerate(each):
                first = depth - len(nest.loops)
                extents[i, j, first:] = [loop.extent for loop in nest.loops]
                touched[i, j, first:] = [loop.touched for loop in nest.loops]
                touched[i, j, :first] = nest.loops[0].touched
                kinds[i, j, first:] = [KINDS.index(loop.kind) for loop in nest.loops]
                operations[i, j] = nest.operations
                useful[i, j], balance[i, j] = nest.useful, nest.balance
        longest = max(nests, key=lambda each: (len(each), sum(len(n.loops) for n in each)))
        names = [""] * (count * depth)
        for j, nest in enumerate(longest):
            for place, loop in enumerate(reversed(nest.loops), 1):
                names[(j + 1) * depth - place] = f"{j}.{loop.name}"
        return NestArrays(extents, touched, kinds, operations, useful, balance, tuple(names))

    @property
    def runs(self) -> np.ndarray:
        """How often every loop is begun, by all threads together: the product of those outside."""
        outside = np.cumprod(self.extents, axis=2)
        return np.concatenate([np.ones_like(outside[:, :, :1]), outside[:, :, :-1]], axis=2)

    @property
    def inside(self) -> np.ndarray:
        """Innermost iterations of one run of every loop."""
        return np.cumprod(self.extents[:, :, ::-1], axis=2)[:, :, ::-1]

    @property
    def threads(self) -> np.ndarray:
        """[configurations, nests]: iterations of parallel loops."""
        return np.where(self.kinds == KINDS.index("parallel"), self.extents, 1.0).prod(axis=2)
