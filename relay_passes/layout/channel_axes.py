"""Which axis of every tensor holds channels, as far as convolutions and pools tell.

    lv = R.nn.conv2d(x, w)                      # NCHW: axis 1 of x and of lv
    lv1 = R.add(lv, y)                          # so that of lv1 and of y too
    lv2 = R.permute_dims(lv1, [0, 2, 3, 1])     # axis 3

This is a guess of where to look for layouts. Callers check what they rely on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from tvm import relax

from relay_passes.ir.axis_view import view_axes
from relay_passes.ir.call_axes import reduced_axes
from relay_passes.ir.graph import DataflowGraph, op_name, region_tensor
from relay_passes.ir.traits import (
    CONVOLUTIONS,
    ELEMENTWISE,
    POOLS,
    REDUCTIONS,
    RESHAPES,
    RESIZES,
    SAME_AXES,
    TRANSPOSED_CONVOLUTIONS,
)

_Axes = dict[int, int]
_Link = tuple[relax.Var, relax.Var, _Axes]  # for axes of one, those of the other


def layout_attribute(call: relax.Expr) -> str:
    """The layout of a convolution, pool or resize; "" of others."""
    name = op_name(call)
    if name in (*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS):
        return str(call.attrs.data_layout)
    return str(call.attrs.layout) if name in (*POOLS, *RESIZES) else ""


def channel_axes(graph: DataflowGraph) -> dict[relax.Var, int]:
    """The axis of channels of every variable for which there is one; of a tuple that of its items.

    The first to say something about a variable is right.
    """
    links: dict[relax.Var, list[tuple[relax.Var, _Axes]]] = {}
    found: dict[relax.Var, int] = {}
    for binding in graph.bindings:
        value = binding.value
        for one, other, axes in _links(binding.var, value):
            links.setdefault(one, []).append((other, axes))
            links.setdefault(other, []).append((one, {there: axis for axis, there in axes.items()}))
        layout = layout_attribute(value)
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
    """Which axes of operands are which of a result."""
    if isinstance(value, relax.TupleGetItem):
        source, item = value.tuple_value, region_tensor(var)
        if item is not None and isinstance(source, relax.Var):
            yield source, var, _same(len(item.shape))
        return
    if not isinstance(value, relax.Call):
        return
    name = op_name(value)
    if name in ELEMENTWISE or name in ("relax.concat", "relax.broadcast_to"):
        yield from _aligned(var, value, ELEMENTWISE.get(name, 1))
    if not name or not value.args or not isinstance(value.args[0], relax.Var):
        return
    tensor = region_tensor(value.args[0])
    if tensor is None:
        return
    rank = len(tensor.shape)
    if name in SAME_AXES:
        yield value.args[0], var, _same(rank)
    elif name in REDUCTIONS:
        yield value.args[0], var, _kept(value, rank)
    elif name == "relax.permute_dims" or name in RESHAPES:
        result = region_tensor(var)
        if result is not None:
            yield value.args[0], var, _viewed(value, tensor.shape, result.shape)


def _aligned(var: relax.Var, call: relax.Call, arity: int) -> Iterator[_Link]:
    """Operands that broadcast: axes are counted from the end, and those of the first are there."""
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


def _kept(call: relax.Call, rank: int) -> _Axes:
    """Where a reduction leaves the axes of its argument."""
    if bool(call.attrs.keepdims):
        return _same(rank)
    reduced = reduced_axes(call)
    left = [axis for axis in range(rank) if axis not in reduced]
    return {axis: there for there, axis in enumerate(left)}


def _viewed(call: relax.Call, source: tuple[int, ...], result: tuple[int, ...]) -> _Axes:
    """Where a permutation or a reshape leaves the axes of its argument.

    An axis of a reshape stays if it has the same extent and as much before it.
    """
    if op_name(call) == "relax.permute_dims":
        return {axis: there for there, axis in enumerate(view_axes(call) or ()) if axis is not None}
    found: _Axes = {}
    for axis, extent in enumerate(source):
        before = math.prod(source[:axis])
        same = [
            there
            for there, size in enumerate(result)
            if size == extent and math.prod(result[:there]) == before
        ]
        near = len(result) - 1 if axis == len(source) - 1 else axis
        if same:  # several if there are extents of 1
            found[axis] = min(same, key=lambda there: abs(there - near))
    return found


def _same(rank: int) -> _Axes:
    return {axis: axis for axis in range(rank)}
