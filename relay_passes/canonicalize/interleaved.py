"""Results of transposed convolutions before their phases are interleaved.

A value stands for a tensor [N, *outputs, C] that is not interleaved yet. Its elements are channels
of one tensor (with a level of factors for each transposed convolution), or one tensor for each
phase. Operators that treat all elements alike, or all elements of a channel, run before the
interleaving.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from relay_passes.ir.graph import known_tensor, relax_shape
from relay_passes.ir.rewrite import Bindings
from tir_schedules.core.size import is_open


@dataclass(frozen=True)
class Interleaved:
    """A tensor in pieces.

    Attributes
    ----------
    parts : tuple of relax.Expr
        [N, *counts, ...]: one tensor with all phases and channels behind, or one for each phase
        but those of the last axis that are still together, the last axis' next to each other.
    factors : tuple of (tuple of int)
        For each level, how many phases each axis has; a single level if there are several parts.
    pieces : tuple of int
        For each axis, how many parts it has.
    groups : int
        Groups that the channels of a part are in, each with all phases.
    first, outputs : tuple of int
        For each axis, how many results there are too many at the beginning, and the extent.
    channels : int
        C.
    """

    parts: tuple[relax.Expr, ...]
    factors: tuple[tuple[int, ...], ...]
    pieces: tuple[int, ...]
    groups: int
    first: tuple[int, ...]
    outputs: tuple[int, ...]
    channels: int

    @property
    def plain(self) -> bool:
        """Whether it is one tensor, nothing of which is cut off, in one group."""
        whole = all(
            count * math.prod(level[axis] for level in self.factors) == output
            for axis, (count, output) in enumerate(zip(self._counts, self.outputs, strict=True))
        )
        return len(self.parts) == 1 and self.groups == 1 and whole and not any(self.first)

    @property
    def _counts(self) -> tuple[int, ...]:
        tensor = known_tensor(self.parts[0])
        return tensor.shape[1 : 1 + len(self.outputs)]

    @property
    def rows(self) -> relax.Expr:
        """The one tensor with a row of C channels for each phase, [N, *counts, phases, C]."""
        tensor = known_tensor(self.parts[0])
        shape = (*tensor.shape[:-1], tensor.shape[-1] // self.channels, self.channels)
        return _reshaped(self.parts[0], shape)

    @property
    def phases(self) -> int:
        """Of each group, among the channels of a part."""
        tensor = known_tensor(self.parts[0])
        return tensor.shape[-1] // self.channels

    def map(
        self, block: Bindings, apply: Callable[..., relax.Expr], others: Sequence[Interleaved] = ()
    ) -> Interleaved:
        """An operator applied to every part, with the same parts of others."""
        parts = zip(self.parts, *(other.parts for other in others), strict=True)
        return replace(self, parts=tuple(block.emit(apply(*each)) for each in parts))

    def matches(self, other: Interleaved) -> bool:
        """Whether the elements of another tensor lie at the same places."""
        return replace(other, parts=()) == replace(self, parts=()) and len(other.parts) == len(
            self.parts
        )

    def per_channel(self, values: np.ndarray) -> np.ndarray:
        """A number for each channel as what broadcasts to every part."""
        repeated = values.reshape(self.groups, 1, -1).repeat(self.phases, axis=1)
        return np.ascontiguousarray(repeated.reshape(-1))

    def emitted_per_channel(self, block: Bindings, vector: relax.Expr) -> relax.Var:
        """The same of numbers that are no constants."""
        op, own = relax.op, self.channels // self.groups
        rows = block.emit(op.reshape(vector, (self.groups, 1, own)))
        repeated = block.emit(op.broadcast_to(rows, (self.groups, self.phases, own)))
        return block.emit(op.reshape(repeated, (self.groups * self.phases * own,)))

    def whole(self, block: Bindings) -> relax.Expr:
        """[N, *outputs, C]; the last operator is not bound yet."""
        together = self._from_phases(block) if len(self.parts) > 1 else self._from_channels(block)
        tensor = known_tensor(block.builder.normalize(together))
        rank = len(self.outputs)
        if tensor.shape[1 : 1 + rank] == self.outputs:
            return together
        ends = [size + start for start, size in zip(self.first, self.outputs, strict=True)]
        whole = block.emit(together)
        return relax.op.strided_slice(
            whole,
            list(range(1, 1 + rank)),
            list(self.first),
            relax_shape(ends, whole, *self.parts),
            assume_inbound=is_open(ends),  # else TVM does not see what is left of open extents
        )

    def _from_channels(self, block: Bindings) -> relax.Expr:
        """[N, Q, P, s, t, C] -> [N, Q, s, P, t, C] -> [N, Q * s, P * t, C]"""
        rank, levels = len(self.outputs), len(self.factors)
        tensor = known_tensor(self.parts[0])
        batch, counts = tensor.shape[0], self._counts
        extents = [
            count * math.prod(level[axis] for level in self.factors)
            for axis, count in enumerate(counts)
        ]
        outer = [level[axis] for level in self.factors for axis in range(rank - 1)]
        if self.groups == 1 and set(outer) <= {1}:
            return _reshaped(self.parts[0], (batch, *extents, self.channels))
        grouped = () if self.groups == 1 else (self.groups,)
        own = self.channels // self.groups
        split = (batch, *counts, *grouped, *itertools.chain(*self.factors), own)
        start = 1 + rank + len(grouped)
        order = [0]
        for axis in range(rank):
            order += [1 + axis, *(start + level * rank + axis for level in range(levels))]
        order += [*range(1 + rank, start), len(split) - 1]
        moved = block.emit(
            relax.op.permute_dims(block.emit(_reshaped(self.parts[0], split)), order)
        )
        return _reshaped(moved, (batch, *extents, self.channels))

    def _from_phases(self, block: Bindings) -> relax.Expr:
        """Axis by axis from the last one: phases side by side, then as more of their axis."""
        (factors,) = self.factors
        batch, counts = self._batch, self._counts
        parts = list(self.parts)
        row = self.phases * self.channels
        for axis in reversed(range(len(factors))):
            size = self.pieces[axis]
            joined = [
                block.emit(relax.op.concat(parts[at : at + size], axis=-1)) if size > 1 else part
                for at, part in list(enumerate(parts))[::size]
            ]
            row *= counts[axis] * size
            shape = (batch, *counts[:axis], row)
            parts = [block.emit(_reshaped(part, shape)) for part in joined]
        extents = [count * factor for count, factor in zip(counts, factors, strict=True)]
        return _reshaped(parts[0], (batch, *extents, self.channels))

    @property
    def _batch(self) -> int:
        tensor = known_tensor(self.parts[0])
        return tensor.shape[0]


def _reshaped(expr: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """Another shape, whose symbols are those of a tensor; not bound yet."""
    return relax.op.reshape(expr, relax_shape(shape, expr))
