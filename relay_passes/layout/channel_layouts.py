"""Layouts: the two ways to store a tensor with channels, and how an operator runs in each.

FIRST    [N, C, H, W]    order (0, 1, 2, 3) if imported as NCHW, (0, 3, 1, 2) if imported as NHWC
LAST     [N, H, W, C]    order (0, 2, 3, 1) if imported as NCHW, (0, 1, 2, 3) if imported as NHWC

An order names the axis of the imported tensor for each axis of the stored one. A tensor without
channels, or with channels on another axis, is stored as imported.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from tvm import DataType, relax

from relay_passes.ir import traits
from relay_passes.ir.axes import moves, reduced_axes, view_axes
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor, variables
from relay_passes.ir.strided_view import StridedView

from .minimum_cut import FIRST, LAST

Order = tuple[int, ...]
LABELS = (FIRST, LAST)


@dataclass(frozen=True)
class Form:
    """A tensor, or a tuple of tensors with one layout.

    Attributes
    ----------
    shape : tuple of int
        Shape as imported; for a tuple, the shape of the tensor that it is split from.
    dtype : str
        Its element type.
    axis : int or None
        The axis of the imported tensor that holds channels: 1 or the last of at least three; None
        if the tensor has only one layout.
    tensor : bool
        False for a tuple.
    """

    shape: tuple[int, ...]
    dtype: str
    axis: int | None = None
    tensor: bool = True

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def imported(self) -> int:
        """The label of the imported layout."""
        return FIRST if self.axis == 1 else LAST

    @property
    def bytes(self) -> int:
        """Size in bytes; elements smaller than a byte count as one byte."""
        return int(math.prod(self.shape)) * max(1, DataType(self.dtype).bits // 8)

    def order(self, label: int) -> Order:
        """The order of the axes in the layout with a label."""
        axes = tuple(range(self.rank))
        if self.axis is None or self.axis == (1 if label == FIRST else self.rank - 1):
            return axes
        if label == LAST:
            return (0, *axes[2:], 1)
        return (0, self.rank - 1, *axes[1:-1])

    def stored(self, label: int) -> tuple[int, ...]:
        """The shape in a layout."""
        return permuted(self.shape, self.order(label))

    @property
    def moves(self) -> bool:
        """Whether the two layouts place elements differently in memory."""
        return moves(self.stored(FIRST), self.between(FIRST, LAST))

    def between(self, source: int, target: int) -> Order:
        """The permutation from one layout to another."""
        before = self.order(source)
        return tuple(before.index(axis) for axis in self.order(target))


def permuted(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """The shape of a permuted tensor."""
    return tuple(shape[axis] for axis in order)


def same_memory(
    source: tuple[int, ...], source_order: Order, result: tuple[int, ...], result_order: Order
) -> bool:
    """Whether a reshape moves nothing if its argument and its result are stored in these orders."""
    if 0 in source:
        return math.prod(result) == 0
    given = StridedView.contiguous(source).permuted(source_order)
    return given.digits == StridedView.contiguous(result).permuted(result_order).digits


class How(Enum):
    """How an operator reads an operand."""

    SAME = "in the layout in which the operator runs"
    TRANSPOSED = "permuted for this operator alone; a constant at compile time"
    PLAIN = "as imported"


@dataclass(frozen=True)
class Operand:
    """One operand of an operator.

    Attributes
    ----------
    expr : relax.Expr
        The expression in the imported module.
    how : How
        How it is read.
    orders : tuple of Order
        For TRANSPOSED: the order for each label; if the operand has fewer axes, leading axes of
        extent 1 are added.
    trims : bool
        For TRANSPOSED: whether leading axes of extent 1 may be dropped from a constant.
    """

    expr: relax.Expr
    how: How = How.SAME
    orders: tuple[Order, Order] = ((), ())
    trims: bool = False


Build = Callable[[int, list[relax.Expr]], relax.Expr]


@dataclass(frozen=True)
class Role:
    """How an operator runs in either layout.

    Attributes
    ----------
    operands : tuple of Operand
        The operands.
    build : callable
        (label, operands as read) -> the operator in that layout.
    labels : tuple of int
        The layouts that it runs in.
    on_request : tuple of int
        Layouts in which it runs only on request, because bytes alone do not favour them.
    bytes : tuple of int
        Bytes that the operator itself moves in FIRST and in LAST, beyond those moved in both.
    absorbs : tuple of int
        Positions of further bindings that it replaces.
    """

    operands: tuple[Operand, ...]
    build: Build
    labels: tuple[int, ...] = LABELS
    on_request: tuple[int, ...] = ()
    bytes: tuple[int, int] = (0, 0)
    absorbs: tuple[int, ...] = ()


class Forms:
    """The form of every variable that a dataflow block binds or reads.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    planes : bool
        Whether convolutions of one tap may run channels first without a request.
    """

    def __init__(self, graph: DataflowGraph, planes: bool = True) -> None:
        self.graph = graph
        self.planes = planes
        self._forms: dict[relax.Var, Form] = {}
        axes = channel_axes(graph)
        for binding in graph.bindings:
            for var in (*variables(binding.value), binding.var):
                form = self._read(var, axes.get(var))
                if form is not None:
                    self._forms[var] = form

    def of(self, expr: relax.Expr) -> Form | None:
        """The form of an expression; None if its shape is unknown. Constants have one layout."""
        if isinstance(expr, relax.Var):
            return self._forms.get(expr)
        tensor = region_tensor(expr)
        return None if tensor is None else Form(tensor.shape, tensor.dtype)

    def labelled(self, expr: relax.Expr) -> Form | None:
        """The form of a variable that has two layouts, else None."""
        form = self._forms.get(expr) if isinstance(expr, relax.Var) else None
        return None if form is None or form.axis is None else form

    def _read(self, var: relax.Var, axis: int | None) -> Form | None:
        whole: relax.Expr = var
        if isinstance(var.ty, relax.TupleType):  # of a split or a batch_norm
            definition = self.graph.definition(var)
            if axis is None or not isinstance(definition, relax.Call):
                return None
            whole = definition.args[0]
        tensor = region_tensor(whole)
        if tensor is None:
            return None
        legal = len(tensor.shape) > 2 and axis in (1, len(tensor.shape) - 1)
        return Form(tensor.shape, tensor.dtype, axis if legal else None, whole is var)


# The channel axis of every tensor, as far as convolutions and pools determine it.
#
#     lv = R.nn.conv2d(x, w)                      # NCHW: axis 1 of x and of lv
#     lv1 = R.add(lv, y)                          # so axis 1 of lv1 and of y, too
#     lv2 = R.permute_dims(lv1, [0, 2, 3, 1])     # axis 3
#
# This is a guess of where layouts matter. Callers check the facts that they rely on.


_Axes = dict[int, int]
_Link = tuple[relax.Var, relax.Var, _Axes]  # maps axes of the first to axes of the second


def channel_axes(graph: DataflowGraph) -> dict[relax.Var, int]:
    """The channel axis of every variable that has one; for a tuple, the channel axis of its items.

    The first operator that determines a variable's axis wins.
    """
    links: dict[relax.Var, list[tuple[relax.Var, _Axes]]] = {}
    found: dict[relax.Var, int] = {}
    for binding in graph.bindings:
        value = binding.value
        for one, other, axes in _links(binding.var, value):
            links.setdefault(one, []).append((other, axes))
            links.setdefault(other, []).append((one, {there: axis for axis, there in axes.items()}))
        layout = ""
        if is_call(value, *traits.CONVOLUTIONS, *traits.TRANSPOSED_CONVOLUTIONS):
            layout = str(value.attrs.data_layout)
        elif is_call(value, *traits.POOLS, *traits.RESIZES):
            layout = str(value.attrs.layout)
        if "C" in layout:
            for expr in (value.args[0], binding.var):
                if isinstance(expr, relax.Var):
                    found.setdefault(expr, layout.index("C"))
    queue = deque(found)
    while queue:
        var = queue.popleft()
        for other, axes in links.get(var, ()):
            if found[var] in axes and other not in found:
                found[other] = axes[found[var]]
                queue.append(other)
    return found


def _links(var: relax.Var, value: relax.Expr) -> Iterator[_Link]:
    """Which axes of operands become which axes of the result."""
    if isinstance(value, relax.TupleGetItem):
        source, item = value.tuple_value, region_tensor(var)
        if item is not None and isinstance(source, relax.Var):
            yield source, var, _same(len(item.shape))
        return
    if not isinstance(value, relax.Call):
        return
    name = op_name(value)
    if name in traits.ELEMENTWISE or name in ("relax.concat", "relax.broadcast_to"):
        yield from _aligned(var, value, traits.ELEMENTWISE.get(name, 1))
    if not name or not value.args or not isinstance(value.args[0], relax.Var):
        return
    tensor = region_tensor(value.args[0])
    if tensor is None:
        return
    rank = len(tensor.shape)
    if name in traits.SAME_AXES:
        yield value.args[0], var, _same(rank)
    elif name in traits.REDUCTIONS:
        reduced = [] if bool(value.attrs.keepdims) else reduced_axes(value)
        left = [axis for axis in range(rank) if axis not in reduced]
        yield value.args[0], var, {axis: there for there, axis in enumerate(left)}
    elif name == "relax.permute_dims" or name in traits.RESHAPES:
        result = region_tensor(var)
        if result is not None:
            yield value.args[0], var, _viewed(value, tensor.shape, result.shape)


def _aligned(var: relax.Var, call: relax.Call, arity: int) -> Iterator[_Link]:
    """Operands that broadcast; their axes are aligned from the end."""
    result = region_tensor(var)
    if result is None:
        return
    joined = call.args[0] if op_name(call) == "relax.concat" else None
    parts = list(joined.fields) if isinstance(joined, relax.Tuple) else call.args[:arity]
    for part in parts:
        tensor = region_tensor(part)
        if isinstance(part, relax.Var) and tensor is not None:
            missing = len(result.shape) - len(tensor.shape)
            yield part, var, {axis: axis + missing for axis in range(len(tensor.shape))}


def _viewed(call: relax.Call, source: tuple[int, ...], result: tuple[int, ...]) -> _Axes:
    """Where a permutation or a reshape moves the axes of its argument."""
    if op_name(call) == "relax.permute_dims":
        return {axis: there for there, axis in enumerate(view_axes(call) or ()) if axis is not None}
    # An axis survives a reshape if its extent and the number of elements before it are unchanged.
    found: _Axes = {}
    for axis, extent in enumerate(source):
        before = math.prod(source[:axis])
        same = [
            there
            for there, size in enumerate(result)
            if size == extent and math.prod(result[:there]) == before
        ]
        near = len(result) - 1 if axis == len(source) - 1 else axis
        if same:  # extents of 1 give several candidates
            found[axis] = min(same, key=lambda there: abs(there - near))
    return found


def _same(rank: int) -> _Axes:
    return {axis: axis for axis in range(rank)}
