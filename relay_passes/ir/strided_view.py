"""StridedView: where the elements of a reshaped, permuted, sliced or repeated tensor lie.

lv = R.reshape(x, R.shape([2, 5, 8, 4]))            # x: [2, 5, 32]
lv1 = R.permute_dims(lv, axes=[0, 2, 1, 3])         # element [b, h, s, d] = x[160b+4h+32s+d]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tvm import relax

from tir_schedules.core.size import quotient

from .axes import permutation
from .graph import DataflowGraph, is_call, known_tensor, op_name, region_tensor, relax_shape
from .rewrite import Emit
from .traits import RESHAPES

Factor = tuple[int, int]  # extent, stride in elements


def coalesced(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    """The same digits of an index with as few factors as possible, none of extent 1."""
    merged: list[Factor] = []
    for extent, stride in factors:
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return tuple(merged)


@dataclass(frozen=True)
class StridedView:
    """A tensor as a way to read another one.

    Attributes
    ----------
    dims : tuple of tuple of (extent, stride)
        For each dimension the digits of its index, the most significant first; none: extent 1.
    offset : int
        The first element.
    """

    dims: tuple[tuple[Factor, ...], ...]
    offset: int = 0

    @staticmethod
    def contiguous(shape: Sequence[int]) -> StridedView:
        """A tensor as it is stored."""
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        factors = zip(shape, strides, strict=True)
        return StridedView(tuple(coalesced([factor]) for factor in factors))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(math.prod(extent for extent, _ in dim) for dim in self.dims)

    @property
    def digits(self) -> tuple[Factor, ...]:
        """Those of all dimensions one after the other, as few as possible."""
        return coalesced(factor for dim in self.dims for factor in dim)

    def permuted(self, axes: Sequence[int]) -> StridedView:
        """With its dimensions in another order."""
        return StridedView(tuple(self.dims[axis] for axis in axes), self.offset)

    def reshaped(self, shape: Sequence[int]) -> StridedView | None:
        """In another shape; None if an index is not digits with a stride each."""
        if math.prod(shape) != math.prod(self.shape):
            return None
        digits = list(self.digits)
        dims = []
        for extent in shape:
            dim: list[Factor] = []
            while extent != 1:
                if not digits:
                    return None
                first, stride = digits.pop(0)
                more, left = quotient(extent, first), quotient(first, extent)
                if more is not None:
                    dim.append((first, stride))
                    extent = more
                elif left is not None:
                    dim.append((extent, stride * left))
                    digits.insert(0, (left, stride))
                    extent = 1
                else:
                    return None
            dims.append(coalesced(dim))
        return StridedView(tuple(dims), self.offset)

    def sliced(self, axis: int, begin: int, extent: int) -> StridedView | None:
        """With `extent` indices of one dimension from `begin` on; None as for `reshaped`."""
        dims = list(self.dims)
        if not dims[axis]:
            return self
        (_, stride), *inner = dims[axis]
        size = math.prod(extent for extent, _ in inner)
        first, count = quotient(begin, size), quotient(extent, size)
        if first is None or count is None:
            return None
        dims[axis] = coalesced([(count, stride), *inner])
        return StridedView(tuple(dims), self.offset + first * stride)

    def broadcast(self, shape: Sequence[int]) -> StridedView:
        """With dimensions of extent 1, and new leading ones, repeated as numpy does."""
        dims = [()] * (len(shape) - len(self.dims)) + list(self.dims)
        pairs = zip(dims, shape, strict=True)
        return StridedView(tuple(dim or coalesced([(e, 0)]) for dim, e in pairs), self.offset)

    def repeated(self, axis: int, repeats: int) -> StridedView:
        """With every index of one dimension several times in turn."""
        dims = list(self.dims)
        dims[axis] = coalesced([*dims[axis], (repeats, 0)])
        return StridedView(tuple(dims), self.offset)

    @property
    def apart(self) -> tuple[Factor, ...]:
        """The digits of all dimensions one after the other, those of each by themselves."""
        return tuple(factor for dim in self.dims for factor in dim)

    @staticmethod
    def reorder(digits: Sequence[Factor]) -> tuple[list[int], list[int]]:
        """The shape in which a tensor is permuted, and how, to lie in the order of its digits."""
        # Strides of the digits, the last one's first: the next one's is that of what it counts.
        counted, strides = {stride: extent for extent, stride in digits}, [1]
        while strides[0] in counted:
            strides.insert(0, counted[strides[0]] * strides[0])
        shape = [counted[stride] for stride in strides[1:]]
        return shape, [strides.index(stride) - 1 for _, stride in digits]

    def of(
        self, expr: relax.Expr, digits: Sequence[Factor], told: Sequence[relax.Expr], emit: Emit
    ) -> relax.Expr:
        """A tensor, all elements of which this one has once, as this one; the last operator is not
        bound yet. `digits` are this one's, `told` tells the symbols of the shapes."""
        shape, order = self.reorder(digits)
        if order != sorted(order):
            split = emit(relax.op.reshape(expr, relax_shape(shape, *told)))
            expr = emit(relax.op.permute_dims(split, order))
        return relax.op.reshape(expr, relax_shape(self.shape, *told))

    def inverse(self) -> StridedView:
        """The tensor that is read, as one dimension, in terms of this one as it would be stored.

        Only for what permutations and reshapes make: every element is read once.
        """
        digits = self.apart
        stored = StridedView.contiguous([extent for extent, _ in digits])
        places = [(stride, *dim[0]) for (_, stride), dim in zip(digits, stored.dims, strict=True)]
        return StridedView(
            (coalesced((extent, stride) for _, extent, stride in sorted(places, reverse=True)),)
        )


def common_digits(views: Sequence[StridedView]) -> tuple[list[int], list[list[int]]] | None:
    """One way to write an index that gives each of its digits one stride in every view.

    Parameters
    ----------
    views : sequence of StridedView
        Of one dimension and equal extents.

    Returns
    -------
    tuple or None
        Extents of the digits, and for every view their strides; None if there is no such way.
    """
    places = {1}
    for view in views:
        extents = [extent for extent, _ in view.dims[0]]
        places |= {math.prod(extents[number:]) for number in range(len(extents))}
    ordered = sorted(places, reverse=True)
    extents = []
    for high, low in itertools.pairwise(ordered):
        extent = quotient(high, low)
        if extent is None:
            return None
        extents.append(extent)
    split = [view.reshaped(extents) for view in views]
    if not extents:
        return [1], [[0] for _ in views]
    strides = [[dim[0][1] for dim in view.dims] for view in split if view is not None]
    for number in reversed(range(len(extents) - 1)):
        inner = extents[number + 1]
        if all(each[number] == inner * each[number + 1] for each in strides):
            extents[number : number + 2] = [extents[number] * inner]
            for each in strides:
                del each[number]
    return extents, strides


@dataclass(frozen=True)
class Source:
    """What a tensor is made of.

    Attributes
    ----------
    expr : relax.Expr
        The tensor that is read.
    members : tuple of int
        Positions of the bindings between it and the tensor.
    view : StridedView
        How it is read.
    """

    expr: relax.Expr
    members: tuple[int, ...]
    view: StridedView


def sources(
    graph: DataflowGraph,
    expr: relax.Expr,
    same: Callable[[relax.Expr], relax.Expr | None] = lambda _: None,
) -> Iterator[Source]:
    """What a tensor can be read from, the furthest first and itself last.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    expr : relax.Expr
        A tensor of static shape without elements that do not exist.
    same : callable
        A tensor -> another one with its elements where they are, which may be read instead.
    """
    chain = [expr]

    def before(made: relax.Expr) -> relax.Expr | None:
        found = same(made)
        return _read_by(graph, made) if found is None else found

    while (given := before(chain[-1])) is not None:
        chain.append(given)
    for start in reversed(range(len(chain))):
        tensor = region_tensor(chain[start])
        if tensor is None or tensor.size == 0:
            continue
        view: StridedView | None = StridedView.contiguous(tensor.shape)
        passed = []
        for made in reversed(chain[:start]):
            value = graph.definition(made)
            if isinstance(value, relax.TupleGetItem):
                passed.append(graph.position[value.tuple_value])
            passed.append(graph.position[made])
            if view is not None and same(made) is None:
                view = through(graph, view, made)
        if view is not None:
            yield Source(chain[start], tuple(passed), view)


# Regrouping: splits, permutes and joins axes, in any layout.
#
# lv = R.reshape(x, [N, 4, 28, H, W])                 # x: [N, 112, H, W]: a channel shuffle
# lv1 = R.permute_dims(lv, [0, 2, 1, 3, 4])
# lv2 = R.reshape(lv1, [N, 112, H, W])
#
# lv = R.reshape(x, [N, 2, 2, 16, H, W])              # x: [N, 64, H, W]: depth to space
# lv1 = R.permute_dims(lv, [0, 3, 4, 1, 5, 2])
# lv2 = R.reshape(lv1, [N, 16, 2 * H, 2 * W])


@dataclass(frozen=True)
class Regroup:
    """A reshape, a permutation and a reshape.

    Attributes
    ----------
    source : relax.Expr
        What is regrouped.
    steps : tuple of relax.Var
        What the three operators make.
    """

    graph: DataflowGraph
    source: relax.Expr
    steps: tuple[relax.Expr, ...]

    def between(self, source: Sequence[int], result: Sequence[int]) -> StridedView | None:
        """The result with its axes stored in an order, as a view of the source with its axes in
        one; None if an index is not digits with a stride each."""
        shape = known_tensor(self.source).shape
        stored = StridedView.contiguous([shape[axis] for axis in source])
        view: StridedView | None = stored.permuted([source.index(axis) for axis in sorted(source)])
        for made in self.steps:
            view = None if view is None else through(self.graph, view, made)
        return None if view is None else view.permuted(result)


def match_regroup(graph: DataflowGraph, position: int) -> Regroup | None:
    """The regrouping whose last operator is at a position; None if there is none."""
    expr: relax.Expr = graph.bindings[position].var
    steps: list[relax.Expr] = []
    for name in ("relax.reshape", "relax.permute_dims", "relax.reshape"):
        call = graph.definition(expr)
        if not is_call(call, name) or region_tensor(call) is None:
            return None
        steps.insert(0, expr)
        expr = call.args[0]
    return None if region_tensor(expr) is None else Regroup(graph, expr, tuple(steps))


def _read_by(graph: DataflowGraph, expr: relax.Expr) -> relax.Expr | None:
    """The tensor that a tensor is a view of, if an operator makes it that `through` knows."""
    value = graph.definition(expr)
    if isinstance(value, relax.TupleGetItem):
        split = graph.definition(value.tuple_value)
        return split.args[0] if split is not None and op_name(split) == "relax.split" else None
    known = op_name(value) in _THROUGH and region_tensor(expr) is not None
    return value.args[0] if value is not None and known else None


def through(graph: DataflowGraph, view: StridedView, made: relax.Expr) -> StridedView | None:
    """The view of what one operator makes of a tensor; None if it is none.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    view : StridedView
        Of the operator's argument.
    made : relax.Expr
        The variable that is bound to the operator's result.
    """
    output, value = region_tensor(made), graph.definition(made)
    if output is None:
        return None
    if isinstance(value, relax.TupleGetItem):
        split = graph.definition(value.tuple_value)
        assert split is not None
        axis = int(split.attrs.axis) % len(view.dims)
        sizes = [ty.shape.values[axis] for ty in split.ty.fields]
        if not all(hasattr(size, "value") for size in sizes):
            return None
        return view.sliced(axis, sum(map(int, sizes[: value.index])), int(sizes[value.index]))
    rule = _THROUGH.get(op_name(value))
    if rule is None or not isinstance(value, relax.Call):
        return None
    return rule(view, value, output.shape)


def _slice(view: StridedView, call: relax.Call, shape: Sequence[int]) -> StridedView | None:
    fields = [item for arg in call.args[1:] for item in arg.fields]
    if not all(hasattr(item, "value") for item in fields):
        return None
    axes, begins, _ends, *steps = (
        [int(item.value) for item in arg.fields] for arg in call.args[1:]
    )
    if any(step != 1 for group in steps for step in group):
        return None
    result: StridedView | None = view
    for axis, begin in zip(axes, begins, strict=True):
        if result is not None:
            axis %= len(shape)
            first = begin + view.shape[axis] if begin < 0 else begin
            result = result.sliced(axis, max(0, first), shape[axis])
    return result


def _broadcast(view: StridedView, _call: relax.Call, shape: Sequence[int]) -> StridedView | None:
    own = zip(view.shape, shape[len(shape) - len(view.shape) :], strict=True)
    # An open size may be 1 or the one that is wanted: nobody knows before it runs.
    fits = all(size in (1, wanted) for size, wanted in own)
    return view.broadcast(shape) if fits else None


def _repeat(view: StridedView, call: relax.Call, _shape: Sequence[int]) -> StridedView | None:
    if call.attrs.axis is None:
        return None
    return view.repeated(int(call.attrs.axis) % len(view.dims), int(call.attrs.repeats))


_THROUGH = {
    **dict.fromkeys(RESHAPES, lambda view, _call, shape: view.reshaped(shape)),
    "relax.permute_dims": lambda view, call, _shape: view.permuted(permutation(call)),
    "relax.strided_slice": _slice,
    "relax.broadcast_to": _broadcast,
    "relax.repeat": _repeat,
}
