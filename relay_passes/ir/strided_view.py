"""StridedView: the element addresses of a reshaped, permuted, sliced or repeated tensor.

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
    """An index's digits merged into as few factors as possible, none of extent 1."""
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
    """A tensor as a strided view of another tensor.

    Attributes
    ----------
    dims : tuple of tuple of (extent, stride)
        For each dimension the digits of its index, the most significant first; empty for extent 1.
    offset : int
        The address of the first element.
    """

    dims: tuple[tuple[Factor, ...], ...]
    offset: int = 0

    @staticmethod
    def contiguous(shape: Sequence[int]) -> StridedView:
        """A contiguous tensor of a shape."""
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        factors = zip(shape, strides, strict=True)
        return StridedView(tuple(coalesced([factor]) for factor in factors))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(math.prod(extent for extent, _ in dim) for dim in self.dims)

    @property
    def digits(self) -> tuple[Factor, ...]:
        """The digits of all dimensions in order, merged into as few as possible."""
        return coalesced(factor for dim in self.dims for factor in dim)

    def permuted(self, axes: Sequence[int]) -> StridedView:
        """The view with its dimensions in another order."""
        return StridedView(tuple(self.dims[axis] for axis in axes), self.offset)

    def reshaped(self, shape: Sequence[int]) -> StridedView | None:
        """The view in another shape; None if an index does not split into digits with strides."""
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
        """The view of `extent` indices of one dimension from `begin` on; None as for `reshaped`."""
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
        """The view broadcast to a shape by NumPy's rules."""
        dims = [()] * (len(shape) - len(self.dims)) + list(self.dims)
        pairs = zip(dims, shape, strict=True)
        return StridedView(tuple(dim or coalesced([(e, 0)]) for dim, e in pairs), self.offset)

    def repeated(self, axis: int, repeats: int) -> StridedView:
        """The view with every index of one dimension repeated in turn."""
        dims = list(self.dims)
        dims[axis] = coalesced([*dims[axis], (repeats, 0)])
        return StridedView(tuple(dims), self.offset)

    @property
    def apart(self) -> tuple[Factor, ...]:
        """The digits of all dimensions in order; digits of different dimensions are not merged."""
        return tuple(factor for dim in self.dims for factor in dim)

    @staticmethod
    def reorder(digits: Sequence[Factor]) -> tuple[list[int], list[int]]:
        """The shape and permutation that store a contiguous tensor in the order of the digits."""
        # Strides in descending order: each is the stride below it times that digit's extent.
        counted, strides = {stride: extent for extent, stride in digits}, [1]
        while strides[0] in counted:
            strides.insert(0, counted[strides[0]] * strides[0])
        shape = [counted[stride] for stride in strides[1:]]
        return shape, [strides.index(stride) - 1 for _, stride in digits]

    def of(
        self, expr: relax.Expr, digits: Sequence[Factor], shaped: Sequence[relax.Expr], emit: Emit
    ) -> relax.Expr:
        """Emits this view of a contiguous tensor that it reads completely; the last operator is not
        bound yet. `digits` are this view's; the shapes of `shaped` define all symbols."""
        shape, order = self.reorder(digits)
        if order != sorted(order):
            split = emit(relax.op.reshape(expr, relax_shape(shape, *shaped)))
            expr = emit(relax.op.permute_dims(split, order))
        return relax.op.reshape(expr, relax_shape(self.shape, *shaped))

    def inverse(self) -> StridedView:
        """The viewed tensor, as one dimension, as a view of a contiguous copy of this view.

        Only for views made by permutations and reshapes: they read every element once.
        """
        digits = self.apart
        stored = StridedView.contiguous([extent for extent, _ in digits])
        places = [(stride, *dim[0]) for (_, stride), dim in zip(digits, stored.dims, strict=True)]
        return StridedView(
            (coalesced((extent, stride) for _, extent, stride in sorted(places, reverse=True)),)
        )


def common_digits(views: Sequence[StridedView]) -> tuple[list[int], list[list[int]]] | None:
    """Splits an index into digits, each with one stride in every view.

    Parameters
    ----------
    views : sequence of StridedView
        Views of one dimension, of equal extents.

    Returns
    -------
    tuple or None
        Extents of the digits, and their strides for every view; None if there is no such split.
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
    """A tensor that another tensor is a view of.

    Attributes
    ----------
    expr : relax.Expr
        The viewed tensor.
    members : tuple of int
        Positions of the bindings between the viewed tensor and the view.
    view : StridedView
        The view of `expr`.
    """

    expr: relax.Expr
    members: tuple[int, ...]
    view: StridedView


def sources(
    graph: DataflowGraph,
    expr: relax.Expr,
    same: Callable[[relax.Expr], relax.Expr | None] = lambda _: None,
) -> Iterator[Source]:
    """The tensors that a tensor is a view of, the furthest first, the tensor itself last.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    expr : relax.Expr
        A non-empty tensor of known shape.
    same : callable
        A tensor -> another one with equal elements in equal places, to read instead.
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
        The tensor that is regrouped.
    steps : tuple of relax.Var
        The results of the three operators.
    """

    graph: DataflowGraph
    source: relax.Expr
    steps: tuple[relax.Expr, ...]

    def between(self, source: Sequence[int], result: Sequence[int]) -> StridedView | None:
        """The result, its axes stored in the order `result`, as a view of the source, its axes
        stored in the order `source`; None if an index does not split into digits with one stride
        each."""
        shape = known_tensor(self.source).shape
        stored = StridedView.contiguous([shape[axis] for axis in source])
        view: StridedView | None = stored.permuted([source.index(axis) for axis in sorted(source)])
        for made in self.steps:
            view = None if view is None else through(self.graph, view, made)
        return None if view is None else view.permuted(result)


def match_regroup(graph: DataflowGraph, position: int) -> Regroup | None:
    """The regrouping that ends at a position; None if there is none."""
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
    """The tensor that a tensor is a view of, by an operator that `through` knows; else None."""
    value = graph.definition(expr)
    if isinstance(value, relax.TupleGetItem):
        split = graph.definition(value.tuple_value)
        return split.args[0] if split is not None and op_name(split) == "relax.split" else None
    known = op_name(value) in _THROUGH and region_tensor(expr) is not None
    return value.args[0] if value is not None and known else None


def through(graph: DataflowGraph, view: StridedView, made: relax.Expr) -> StridedView | None:
    """The view of an operator's result; None if the result is no strided view.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    view : StridedView
        The view of the operator's argument.
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
    # A dynamic size may be 1 or the wanted size: that is known only at run time.
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
