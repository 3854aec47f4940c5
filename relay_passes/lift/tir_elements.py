"""Reads elements of tensors as parts of these: permuted, cut, backwards, repeated or padded.

Before

    ... x[v_j, v_i * 2 + 1] ...                                     # of the axes v_i, v_j
    ... T.if_then_else(1 <= v_i and v_i < 5, y[v_i - 1], 0) ...

After

    lv = R.strided_slice(x, axes=[1], begin=[1], end=[8], strides=[2])
    lv1 = R.permute_dims(lv, [1, 0])
    lv2 = R.nn.pad(y, [1, 1])

An index is an axis of the block, a number, or a multiple of an axis plus a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import detect_linear_equation

from microkernels.vector.expressions import Expr
from relay_passes.ir.axes import AxisView
from relay_passes.ir.constants import array_of
from relay_passes.ir.graph import known_tensor, size_of
from tir_schedules.core.size import is_open
from tir_schedules.generic.expressions import call_name, const_int, variables_of
from tir_schedules.generic.nest import Axis
from tir_schedules.tensorize.arrangement import RefusedError

from .emission import Emission, Tensors


@dataclass(frozen=True)
class _Along:
    """An index: `start` + `stride` * axis; of no axis if that is None."""

    axis: tirx.Var | None
    start: int
    stride: int = 1


class ElementReader:
    """Emits the parts of tensors that a block reads.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    tensors : mapping
        What the buffers hold that are read.
    axes : sequence of Axis
        The axes of the block, in order.
    """

    def __init__(self, block: Emission, tensors: Tensors, axes: Sequence[Axis]) -> None:
        self._block = block
        self._tensors = tensors
        self._axes = list(axes)
        self._extents = {axis.var: axis.extent for axis in axes}

    def load(self, load: TensorLoad) -> relax.Expr:
        """What is read, with an axis for each of the block, or 1, but for leading ones.

        Raises
        ------
        RefusedError
            If it is no such part.
        """
        if load.source not in self._tensors:
            raise RefusedError(f"it reads {load.source.name} before that is written")
        source = self._tensors[load.source]
        shape = known_tensor(source).shape
        found = [self._along(index) for index in load.indices]
        source = self._sliced(source, shape, found)
        return self._viewed(source, [along.axis for along in found])

    def padded(self, condition: Expr, inside: Expr, outside: Expr) -> relax.Expr | None:
        """A tensor with a number around it; None if the choice is something else."""
        number = shown(outside)
        inside = shown(inside)
        if not isinstance(inside, TensorLoad) or inside.source not in self._tensors:
            return None
        if not isinstance(number, (tirx.FloatImm, tirx.IntImm)):
            return None
        bounds = _bounds(condition, set(self._extents))
        if bounds is None:
            return None
        source = self._tensors[inside.source]
        widths: list[int] = []
        axes: list[tirx.Var | None] = []
        for index, extent in zip(inside.indices, known_tensor(source).shape, strict=True):
            along = self._along(index)
            if along.axis is None or along.stride != 1:
                if (along.start, extent) != (0, 1):
                    return None
                widths += [0, 0]
            else:
                low, high = bounds.pop(along.axis, (None, None))
                total = self._extents[along.axis]
                low, high = max(low or 0, 0), total if high is None else high
                if not is_open([high, total]):
                    high = min(high, total)
                behind = total + -1 * high
                if (low, high) != (-along.start, extent + -1 * along.start):
                    return None
                if is_open([behind]) or behind < 0:
                    return None
                widths += [low, behind]
            axes.append(along.axis)
        if bounds:
            return None
        padded = relax.op.nn.pad(source, widths, "constant", number.value)
        return self._viewed(self._emit(padded), axes)

    def _emit(self, expr: relax.Expr) -> relax.Expr:
        return self._block.emit(expr) if isinstance(expr, relax.Call) else expr

    def _viewed(self, source: relax.Expr, axes: Sequence[tirx.Var | None]) -> relax.Expr:
        """A tensor with these axes as one with all axes of the block, in order."""
        used = [axis for axis in axes if axis is not None]
        if len(set(used)) < len(used):
            raise RefusedError("a diagonal")
        shape = known_tensor(source).shape
        units = [place for place, axis in enumerate(axes) if axis is None and shape[place] == 1]
        order: list[int | None] = []
        for axis in self._axes:  # one of extent 1 is one of the tensor's, if that has any
            place = axes.index(axis.var) if axis.var in used else None
            order.append(units.pop(0) if place is None and axis.extent == 1 and units else place)
        view = AxisView(source, shape, tuple(order))
        if view.shape == view.source_shape and not view.moves:
            return source
        view = view.without_leading_ones()
        return source if view.trivial else self._emit(view.emit(self._block))

    def _along(self, index: Expr) -> _Along:
        number = const_int(index)
        if number is not None:
            return _Along(None, number)
        inside = [axis.var for axis in self._axes if axis.var in variables_of(index)]
        if isinstance(index, tirx.Var) and inside:
            return _Along(index, 0)
        if len(inside) == 1 and variables_of(index) == set(inside):
            found = [const_int(x) for x in detect_linear_equation(index, inside)]
            if len(found) == 2 and found[0] and found[1] is not None:
                return _Along(inside[0], found[1], found[0])
        raise RefusedError("an index that is no multiple of one axis")

    def _sliced(
        self, source: relax.Expr, shape: Sequence[int], found: Sequence[_Along]
    ) -> relax.Expr:
        """What the indices reach of a tensor, each dimension in the order of its axis."""
        cut, flipped = [], []
        for dimension, (along, extent) in enumerate(zip(found, shape, strict=True)):
            count = 1 if along.axis is None else self._extents[along.axis]
            if count == extent and (along.start, along.stride) == (0, 1):
                continue
            if is_open([count, extent]) and along.axis is not None:
                raise RefusedError("a part of a tensor whose size is not known")
            ends = (along.start, along.start + along.stride * (count - 1))
            if min(ends) < 0 or max(ends) >= extent:
                raise RefusedError("an index outside of a tensor")
            if along.stride < 0:
                flipped.append(dimension)
            if count != extent:
                cut.append((dimension, min(ends), max(ends) + 1, abs(along.stride)))
        if isinstance(source, ir.GenericConst) and (cut or flipped):
            return _cut(source, cut, flipped)
        if cut:
            axes, begins, ends_, strides = map(list, zip(*cut, strict=True))
            source = self._emit(relax.op.strided_slice(source, axes, begins, ends_, strides))
        for dimension in flipped:
            source = self._emit(relax.op.flip(source, dimension))
        return source


def _cut(
    constant: ir.GenericConst, cut: Sequence[tuple[int, int, int, int]], flipped: Sequence[int]
) -> relax.Expr:
    """A part of a constant: (dimension, first, end, stride) each; some dimensions backwards."""
    array = array_of(constant.value)
    places = [slice(None)] * array.ndim
    for dimension, first, end, stride in cut:
        places[dimension] = slice(first, end, stride)
    found = np.flip(array[tuple(places)], tuple(flipped))
    return relax.const(np.ascontiguousarray(found), str(constant.ty.dtype))


def _bounds(
    condition: Expr, axes: set[tirx.Var]
) -> dict[tirx.Var, tuple[int | None, int | None]] | None:
    """For each axis the first place and the one behind the last; None of another condition."""
    bounds: dict[tirx.Var, tuple[int | None, int | None]] = {}
    waiting = [condition]
    while waiting:
        part = shown(waiting.pop())
        if isinstance(part, tirx.And):
            waiting += [part.a, part.b]
            continue
        if not isinstance(part, (tirx.LE, tirx.LT, tirx.GE, tirx.GT)):
            return None
        smaller, larger = part.a, part.b
        if isinstance(part, (tirx.GE, tirx.GT)):
            smaller, larger = larger, smaller
        strict = isinstance(part, (tirx.LT, tirx.GT))
        lower = const_int(smaller)
        if lower is not None and isinstance(larger, tirx.Var):
            first, last = bounds.get(larger, (None, None))
            bounds[larger] = (max(first or 0, lower + strict), last)
        elif isinstance(smaller, tirx.Var) and not variables_of(larger) & axes:
            end = size_of(larger) + (0 if strict else 1)
            first, last = bounds.get(smaller, (None, None))
            if last is not None and is_open([last, end]):
                return None
            bounds[smaller] = (first, end if last is None else min(last, end))
        else:
            return None
    return bounds


def shown(value: Expr) -> Expr:
    """A value without what hides it from TVM's simplifier.

    See `microkernels.vector.ieee.hidden`.

    Parameters
    ----------
    value : Expr
        Of a block out of `read_program`.
    """
    while call_name(value) == "reinterpret" and call_name(value.args[0]) == "reinterpret":
        inner = value.args[0].args[0]
        if inner.ty.dtype != value.ty.dtype:
            return value
        value = inner
    return value
