"""Evaluate: computes by NumPy what follows from constants alone, such as masks and positions.

Before

    lv = R.arange(0, 32, 1, dtype="int64")
    lv1 = R.less_equal(R.expand_dims(lv, [0]), R.expand_dims(lv, [1]))
    lv2 = R.where(lv1, R.const(0.0), R.const(-inf))
    gv = R.add(scores, lv2)

After

    gv = R.add(scores, const_mask)

Later passes then see what a mask hides. Tensors of one number stay calls, which take no memory, and
so do results of more than 4 M elements. A product with zeros, as the state before the first step of
a recurrent layer, is zeros. Elementwise arithmetic is that of IEEE, in float32, float64 and
integers; of bfloat16 and float16 only what needs none, such as rows of a table of positions.
Nothing else is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, relax

from relay_passes.ir.call_axes import view_of
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, scalar_constant, static_tensor
from relay_passes.ir.rewrite import block_pass
from relay_passes.ir.traits import RESHAPES

_MOST = 1 << 22
_NARROW = ("bfloat16", "float16")
Array = np.ndarray[Any, Any]

_ARITHMETIC: dict[str, Callable[..., Array]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.negative": np.negative,
}
_COMPARING: dict[str, Callable[..., Array]] = {
    "relax.equal": np.equal,
    "relax.not_equal": np.not_equal,
    "relax.less": np.less,
    "relax.less_equal": np.less_equal,
    "relax.greater": np.greater,
    "relax.greater_equal": np.greater_equal,
}
_LOGICAL: dict[str, Callable[..., Array]] = {
    "relax.logical_and": np.logical_and,
    "relax.logical_or": np.logical_or,
    "relax.logical_xor": np.logical_xor,
    "relax.logical_not": np.logical_not,
    "relax.where": np.where,
}
_TRIANGLES: dict[str, Callable[..., Array]] = {"relax.tril": np.tril, "relax.triu": np.triu}
# Of one number throughout.
_FILLED: dict[str, float | None] = {
    "relax.full": None,
    "relax.full_like": None,
    "relax.zeros": 0,
    "relax.zeros_like": 0,
    "relax.ones": 1,
    "relax.ones_like": 1,
}
# What needs no arithmetic, and is the same in any type.
_EXACT = (
    *(*_FILLED, "relax.take", "relax.astype", "relax.permute_dims", *RESHAPES),
    *("relax.broadcast_to", "relax.strided_slice", "relax.matmul", *_TRIANGLES, *_COMPARING),
)


def evaluate_constants() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.evaluate_constants", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The bindings with constants in the place of calls; None if all stay."""
    known: dict[relax.Expr, Array] = {}
    builder = relax.BlockBuilder()
    bindings: list[relax.Binding] = []
    changed = False
    for binding in graph.bindings:
        bindings.append(binding)
        array = _value(binding.value, known)
        if isinstance(binding.value, relax.TupleGetItem):
            array = _piece(graph, binding.value, known)
        if array is None or not isinstance(binding, relax.VarBinding):
            continue
        known[binding.var] = array
        # Another number of which there are many is no less work than the call.
        if 0 not in array.strides or array.size == 1:
            bindings[-1] = relax.VarBinding(binding.var, builder.normalize(constant_of(array)))
            changed = True
    return bindings if changed else None


def _value(expr: relax.Expr, known: dict[relax.Expr, Array]) -> Array | None:
    """What a call computes, if that follows from constants; repeated elements have strides of 0."""
    result = static_tensor(expr) if isinstance(expr, relax.Call) else None
    if result is None or not isinstance(expr, relax.Call) or not 0 < result.size <= _MOST:
        return None
    name, dtype = op_name(expr), result.dtype
    if not (_is_plain(dtype) or (dtype in _NARROW and name in _EXACT)):
        return None
    if name in _FILLED:
        number = _FILLED[name]
        number = scalar_constant(expr.args[1]) if number is None else number
        return None if number is None else np.broadcast_to(np.asarray(number, dtype), result.shape)
    if name == "relax.arange":
        return _arange(expr, dtype)
    operands = [
        _operand(arg, known, name in _EXACT)
        for arg in expr.args
        if not isinstance(arg, relax.ShapeExpr)
    ]
    if name in (*_TRIANGLES, "relax.strided_slice"):
        operands = operands[:1]
    if any(each is None for each in operands) or not operands:
        return None
    found = _computed(expr, [each for each in operands if each is not None], result.shape)
    return None if found is None else found.astype(dtype, copy=False)


def _piece(
    graph: DataflowGraph, item: relax.TupleGetItem, known: dict[relax.Expr, Array]
) -> Array | None:
    """One of the pieces that a constant is split into."""
    split, tensor = graph.definition(item.tuple_value), static_tensor(item)
    if tensor is None or not is_call(split, "relax.split"):
        return None
    array = _operand(split.args[0], known, exact=True)
    if array is None or not 0 < tensor.size <= _MOST:
        return None
    axis = int(split.attrs.axis) % array.ndim
    begin = sum(int(ty.shape.values[axis]) for ty in split.ty.fields[: item.index])
    cut = [slice(None)] * array.ndim
    cut[axis] = slice(begin, begin + tensor.shape[axis])
    return array[tuple(cut)]


def _computed(call: relax.Call, arrays: list[Array], shape: tuple[int, ...]) -> Array | None:
    """What a call of an operator computes of arrays; None if it is no operator for here."""
    name = op_name(call)
    with np.errstate(all="ignore"):
        if name in _ARITHMETIC:
            return _ARITHMETIC[name](*arrays)
        if name in _COMPARING or name in _LOGICAL:
            return (_COMPARING | _LOGICAL)[name](*arrays)
        if name in _TRIANGLES:
            diagonal = getattr(call.args[1], "value", None)
            return None if diagonal is None else _TRIANGLES[name](arrays[0], int(diagonal))
        if name == "relax.astype":
            return arrays[0].astype(str(call.attrs.dtype))
        if name == "relax.take":
            return _taken(call, *arrays)
        if name == "relax.broadcast_to":
            return np.broadcast_to(arrays[0], shape)
        if name == "relax.matmul":
            return _product(arrays, shape)
        if name == "relax.strided_slice":
            return _part(arrays[0], shape)
    view = view_of(arrays[0], call)
    # NumPy copies elements that are repeated and cannot be seen in the new shape.
    return None if view is None or not math.prod(view.shape) else view


def _part(array: Array, shape: tuple[int, ...]) -> Array | None:
    """A part of an array of one number; None of any other."""
    return None if any(array.strides) else np.broadcast_to(array[(0,) * array.ndim], shape)


def _product(arrays: list[Array], shape: tuple[int, ...]) -> Array | None:
    """The product with a state of zeros, as that before the first step; None for any other."""
    if all(each.any() for each in arrays) or not all(np.isfinite(each).all() for each in arrays):
        return None
    return np.broadcast_to(np.zeros((), arrays[0].dtype), shape)


def _operand(expr: relax.Expr, known: dict[relax.Expr, Array], exact: bool) -> Array | None:
    """The elements of an operand; of a narrow type only for what is `exact` in it."""
    tensor = static_tensor(expr)
    usable = tensor is not None and (_is_plain(tensor.dtype) or (exact and tensor.dtype in _NARROW))
    if not usable or not isinstance(expr, ir.GenericConst):
        return known.get(expr) if usable else None
    small = tensor is not None and 0 < tensor.size <= _MOST
    # A weight of an integer product stays 8 bits wide.
    narrow = tensor is not None and tensor.dtype in ("int8", "uint8") and len(tensor.shape) > 1
    return array_of(expr.value) if small and not narrow else None


def _is_plain(dtype: str) -> bool:
    """Whether NumPy computes with a type as TVM does."""
    return dtype in ("bool", "float32", "float64") or dtype.lstrip("u").startswith("int")


def _arange(call: relax.Call, dtype: str) -> Array | None:
    bounds = [getattr(arg, "value", None) for arg in call.args]
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    if len(numbers) < len(bounds) or "float" in dtype:
        return None
    return np.arange(*numbers).astype(dtype)


def _taken(call: relax.Call, data: Array, indices: Array) -> Array | None:
    """The elements at indices that are inside."""
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    extent = data.size if axis is None else data.shape[axis]
    inside = bool((indices >= 0).all() and (indices < extent).all())
    return np.take(data, indices.astype(np.int64), axis) if inside else None
