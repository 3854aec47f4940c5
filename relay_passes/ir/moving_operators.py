"""Operators that move elements and compute nothing, and where they move an axis.

An elementwise operator such as quantize may run before or after them. If it has parameters along an
axis, a pass must know the axis on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeGuard

from tvm import IRModule, ir, relax

from .axes import permutation, reshaped_axis
from .functions import with_args
from .graph import AnyBinding, DataflowGraph, is_call, op_name, region_tensor, static_tensor
from .rewrite import Bindings, is_relax
from .traits import MAX_POOLS, RESHAPES, RESIZES

# (call, axis of its argument or result) -> the axis on the other side; None if it has none there.
Shape = tuple[int, ...]
MapAxis = Callable[[relax.Call, int], "int | None"]


def moves(call: relax.Expr | None) -> TypeGuard[relax.Call]:
    """Whether an expression only moves elements of its first argument."""
    name = op_name(call)
    return (
        isinstance(call, relax.Call)
        and name in _TO_RESULT
        and name not in MAX_POOLS
        and not (name == "relax.take" and call.attrs.mode == "nan")
        and not (name in RESIZES and not _copies_nearest(call))
    )


def moves_all(call: relax.Expr | None) -> TypeGuard[relax.Call]:
    """Whether `moves` holds and no element is dropped, so that no work done before it is wasted."""
    if is_call(call, *RESIZES):
        before, after = region_tensor(call.args[0]), region_tensor(call)
        if before is None or after is None or not _copies_nearest(call):
            return False
        return all(map(int.__le__, before.shape, after.shape))
    return op_name(call) in _TO_ARGUMENT and op_name(call) not in MAX_POOLS


def keeps_order(call: relax.Expr | None) -> TypeGuard[relax.Call]:
    """Whether an expression only reshapes its argument."""
    return op_name(call) in RESHAPES


def picks_largest(call: relax.Expr | None) -> TypeGuard[relax.Call]:
    """Whether an expression picks the largest element of windows, none of which is empty.

    An increasing function such as dequantize may be applied before or after it.
    """
    if not is_call(call, *MAX_POOLS) or bool(call.attrs.ceil_mode):
        return False
    attrs = call.attrs
    if str(attrs.out_layout) != str(attrs.layout):
        return False
    padded = any(int(pad) for pad in attrs.padding)
    windows = [int(extent) for extent in attrs.pool_size] * 2
    inside = all(int(pad) < size for pad, size in zip(attrs.padding, windows, strict=True))
    return not padded or (inside and all(int(step) == 1 for step in attrs.dilation))


def result_axis(call: relax.Call, axis: int) -> int | None:
    """The result's axis for an axis of the argument; None if it does not survive unchanged."""
    return _TO_RESULT[op_name(call)](call, axis)


def argument_axis(call: relax.Call, axis: int) -> int | None:
    """The argument's axis for an axis of the result, if `moves_all` or `picks_largest`."""
    return _TO_ARGUMENT[op_name(call)](call, axis)


def on(call: relax.Call, data: relax.Expr) -> relax.Call:
    """The operator on another tensor of equal shape."""
    return with_args(call, [data, *call.args[1:]])


@dataclass(frozen=True)
class Scaled:
    """A value that is another value times a number.

    Attributes
    ----------
    source : relax.Expr
        The value that is multiplied.
    factor : float
        The number.
    path : tuple of relax.Call
        Calls that move or round the product on its way to the value, the first one first.
    """

    source: relax.Expr
    factor: float = 1.0
    path: tuple[relax.Call, ...] = ()

    def unscaled(self, block: Bindings) -> relax.Expr:
        """The value without the factor."""
        value = self.source
        for call in self.path:
            value = block.emit(on(call, value))
        return value


def only_needed_for(
    graph: DataflowGraph,
    var: relax.Expr,
    ends: Callable[[relax.Expr], bool],
    passes: Callable[[relax.Expr], bool],
) -> bool:
    """Whether all users of a value are of one kind, directly or behind operators that `passes`."""
    users = [graph.bindings[user] for user in graph.users_of(var)]
    return isinstance(var, relax.DataflowVar) and all(
        ends(each.value) or (passes(each.value) and only_needed_for(graph, each.var, ends, passes))
        for each in users
    )


def split_alike(
    block: Bindings, split: relax.Call, data: relax.Expr, change: Callable[[relax.Expr], relax.Expr]
) -> relax.Tuple:
    """Splits another tensor as `split` does, and changes each part."""
    parts = block.emit(on(split, data))
    items = [block.emit(relax.TupleGetItem(parts, i)) for i in range(len(parts.ty.fields))]
    return relax.Tuple([block.emit(change(item)) for item in items])


def parts_of_concat(call: relax.Call) -> list[relax.Expr]:
    """The tensors that a concat joins; empty if its argument is no explicit tuple."""
    tensors = call.args[0]
    return list(tensors.fields) if isinstance(tensors, relax.Tuple) else []


def joined_axis(call: relax.Call) -> int:
    """The axis of a concat or of a split, counted from the front."""
    tensor = call if op_name(call) == "relax.concat" else call.args[0]
    return int(call.attrs.axis) % _rank(tensor)


def _rank(expr: relax.Expr) -> int:
    return int(expr.ty.ndim)


def _by_shapes(map_axis: Callable[[Shape, Shape, int], int | None]) -> MapAxis:
    """Makes a MapAxis of a function of (argument's shape, result's shape, axis)."""

    def mapped(call: relax.Call, axis: int) -> int | None:
        before, after = region_tensor(call.args[0]), region_tensor(call)
        if before is None or after is None:
            return None
        return map_axis(before.shape, after.shape, axis)

    return mapped


def _unbroadcast(before: Shape, after: Shape, axis: int) -> int | None:
    source = axis - (len(after) - len(before))
    return source if source >= 0 and before[source] == after[axis] else None


def _tiled(before: Shape, after: Shape, axis: int) -> int | None:
    other = axis + len(after) - len(before)
    return other if after[other] == before[axis] else None


def _sliced(call: relax.Call, axis: int) -> int | None:
    rank = _rank(call.args[0])
    sliced = [int(each.value) % rank for each in call.args[1].fields]
    return None if axis in sliced else axis


def _taken(call: relax.Call, axis: int) -> int | None:
    if call.attrs.axis is None:
        return None
    along = int(call.attrs.axis) % _rank(call.args[0])
    if axis == along:
        return None
    return axis if axis < along else axis + _rank(call.args[1]) - 1


def _beside(call: relax.Call, axis: int) -> int | None:
    if call.attrs.axis is None:
        return None
    return None if axis == int(call.attrs.axis) % _rank(call) else axis


def _pooled(call: relax.Call, axis: int) -> int | None:
    return None if str(call.attrs.layout)[axis] in "DHW" else axis


def _copies_nearest(call: relax.Call) -> bool:
    """Whether a resize only copies elements of its argument, in the argument's type."""
    attrs = call.attrs
    inside = str(attrs.coordinate_transformation_mode) != "tf_crop_and_resize"
    same_type = str(call.ty.dtype) == str(call.args[0].ty.dtype)
    untyped = attrs.out_dtype is None or str(attrs.out_dtype) in ("", "void")
    return str(attrs.method) == "nearest_neighbor" and inside and same_type and untyped


_TO_RESULT: dict[str, MapAxis] = {
    **dict.fromkeys(RESHAPES, _by_shapes(reshaped_axis)),
    "relax.permute_dims": lambda call, axis: permutation(call).index(axis),
    "relax.broadcast_to": lambda call, axis: axis + _rank(call) - _rank(call.args[0]),
    "relax.strided_slice": _sliced,
    "relax.take": _taken,
    **dict.fromkeys(("relax.flip", "relax.repeat"), _beside),
    "relax.tile": _by_shapes(_tiled),
    **dict.fromkeys((*MAX_POOLS, *RESIZES), _pooled),
}
MOVING = tuple(_TO_RESULT)  # operators that `moves` or `picks_largest` may accept
_TO_ARGUMENT: dict[str, MapAxis] = {
    **dict.fromkeys(RESHAPES, _by_shapes(lambda a, b, axis: reshaped_axis(b, a, axis))),
    "relax.permute_dims": lambda call, axis: permutation(call)[axis],
    "relax.broadcast_to": _by_shapes(_unbroadcast),
    **dict.fromkeys((*MAX_POOLS, *RESIZES), _pooled),
}


# Weights that are parameters of a function: known before a run, but not at compile time.
#
# TVM's front ends give such a function the attribute `num_input`: parameters after the first
# `num_input` are weights, or tuples of weights (`relax.transform.BundleModelParams`). A weight with
# its elements moved or padded is a weight, too.


NUM_INPUT = "num_input"
_FLOATS = ("float32", "bfloat16")


def has_weights(function: object) -> bool:
    """Whether a function says which of its parameters are weights."""
    return is_relax(function) and bool(function.attrs) and NUM_INPUT in function.attrs


def weights_of(mod: IRModule) -> set[relax.Expr]:
    """The parameters of a module's functions that are weights of floats, or tuples of tensors."""
    return {
        parameter
        for function in mod.functions.values()
        if is_relax(function) and has_weights(function)
        for parameter in function.params[int(function.attrs[NUM_INPUT]) :]
        if _is_weight(parameter) or isinstance(parameter.ty, relax.TupleType)
    }


def moved_weights(bindings: Iterable[AnyBinding], weights: set[relax.Expr]) -> set[relax.Expr]:
    """Weights, and what a block makes of them by moving, padding, or taking tuple items."""
    found = set(weights)
    for binding in bindings if found else ():
        value = binding.value
        made = isinstance(value, relax.TupleGetItem) and value.tuple_value in found
        if is_call(value, "relax.take"):  # only at constant indices
            known = isinstance(value.args[1], ir.GenericConst) and moves(value)
            made = known and value.args[0] in found
        elif is_call(value, "relax.nn.pad") or moves_all(value):
            made = value.args[0] in found
        if made and _is_weight(value):
            found.add(binding.var)
    return found


def weight_bytes(weights: Iterable[relax.Expr]) -> int:
    """Bytes of weights; a tuple counts all of its tensors."""
    types = [
        ty
        for weight in weights
        for ty in (weight.ty.fields if isinstance(weight.ty, relax.TupleType) else [weight.ty])
    ]
    tensors = [static_tensor(relax.Var("weight", ty)) for ty in types]
    return sum(t.nbytes for t in tensors if t is not None)


def _is_weight(expr: relax.Expr) -> bool:
    tensor = static_tensor(expr)
    return tensor is not None and tensor.dtype in _FLOATS
