"""Evaluates operators of constants at compile time, and removes operators on empty tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from microkernels.base.errors import CompileError
from relay_passes.ir.axes import view_of
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, scalar_constant, static_tensor
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import ITEM, RuleGraph, rule
from relay_passes.ir.traits import RESHAPES

_MOST = 1 << 22
_NARROW = ("bfloat16", "float16")
Array = np.ndarray[Any, Any]

# Operators that NumPy computes with equal results, under the same names.
_ARITHMETIC = ("relax.add", "relax.subtract", "relax.multiply", "relax.negative")
_COMPARING = (
    *("relax.equal", "relax.not_equal", "relax.less", "relax.less_equal", "relax.greater"),
    "relax.greater_equal",
)
_LOGICAL = (
    *("relax.logical_and", "relax.logical_or", "relax.logical_xor", "relax.logical_not"),
    "relax.where",
)
_TRIANGLES = ("relax.tril", "relax.triu")
# Tensors of one repeated number.
_FILLED: dict[str, float | None] = {
    "relax.full": None,
    "relax.full_like": None,
    "relax.zeros": 0,
    "relax.zeros_like": 0,
    "relax.ones": 1,
    "relax.ones_like": 1,
}
# Operators without arithmetic, with equal results in any type.
_EXACT = (
    *(*_FILLED, "relax.take", "relax.astype", "relax.permute_dims", *RESHAPES),
    *("relax.broadcast_to", "relax.strided_slice", "relax.matmul", *_TRIANGLES, *_COMPARING),
)
_EVALUATED = (*_EXACT, *_ARITHMETIC, *_LOGICAL)


@rule(*_EVALUATED, "relax.arange", ITEM)
def evaluate_constants(graph: RuleGraph, block: Bindings, expr: relax.Expr) -> relax.Expr | None:
    """Evaluate: computes operators of constants by NumPy, such as masks and positions.

    Before

        lv = R.arange(0, 32, 1, dtype="int64")
        lv1 = R.less_equal(R.expand_dims(lv, [0]), R.expand_dims(lv, [1]))
        lv2 = R.where(lv1, R.const(0.0), R.const(-inf))
        gv = R.add(scores, lv2)

    After

        gv = R.add(scores, const_mask)

    Later passes then see which keys a mask hides. Tensors of one repeated number stay calls, which
    take no memory, and so do results of more than 4 M elements. A product with zeros, such as the
    state before the first step of a recurrent layer, becomes zeros. Elementwise arithmetic is IEEE
    arithmetic, in float32, float64 and integers; in bfloat16 and float16 only operators without
    arithmetic are evaluated, such as rows of a table of positions.
    """
    array = _piece(graph, expr) if isinstance(expr, relax.TupleGetItem) else _value(graph, expr)
    # A constant of one repeated number is no cheaper than the call.
    if array is None or 0 not in array.strides or array.size == 1:
        return None if array is None else constant_of(array)
    graph.note(block.var, array)
    return None


def _value(graph: RuleGraph, expr: relax.Expr) -> Array | None:
    """The result of a call if it depends on constants only; repeated elements have strides of 0."""
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
        bounds = [getattr(arg, "value", None) for arg in expr.args]
        numbers = [bound for bound in bounds if isinstance(bound, int)]
        known = len(numbers) == len(bounds) and "float" not in dtype
        return np.arange(*numbers).astype(dtype) if known else None
    args = expr.args[:1] if name in (*_TRIANGLES, "relax.strided_slice") else expr.args[:]
    operands = []
    for arg in args:
        if not isinstance(arg, relax.ShapeExpr):
            operand = _operand(graph, arg, name in _EXACT)
            if operand is None:
                return None
            operands.append(operand)
    found = _computed(expr, operands, result.shape) if operands else None
    return None if found is None else found.astype(dtype, copy=False)


def _piece(graph: RuleGraph, item: relax.TupleGetItem) -> Array | None:
    """An item of a split constant."""
    split, tensor = graph.definition(item.tuple_value), static_tensor(item)
    if tensor is None or not is_call(split, "relax.split"):
        return None
    array = _operand(graph, split.args[0], exact=True)
    if array is None or not 0 < tensor.size <= _MOST:
        return None
    axis = int(split.attrs.axis) % array.ndim
    begin = sum(int(ty.shape.values[axis]) for ty in split.ty.fields[: item.index])
    cut = [slice(None)] * array.ndim
    cut[axis] = slice(begin, begin + tensor.shape[axis])
    return array[tuple(cut)]


def _computed(call: relax.Call, arrays: list[Array], shape: tuple[int, ...]) -> Array | None:
    """The result of an operator on arrays; None if the operator is not evaluated here."""
    name, first = op_name(call), arrays[0]
    with np.errstate(all="ignore"):
        if name in (*_ARITHMETIC, *_COMPARING, *_LOGICAL):
            return np.asarray(getattr(np, name.removeprefix("relax."))(*arrays))
        if name in _TRIANGLES:
            diagonal = getattr(call.args[1], "value", None)
            compute = np.tril if name == "relax.tril" else np.triu
            return None if diagonal is None else compute(first, int(diagonal))
        if name == "relax.astype":
            return first.astype(str(call.attrs.dtype))
        if name == "relax.take":
            axis = None if call.attrs.axis is None else int(call.attrs.axis)
            extent, indices = first.size if axis is None else first.shape[axis], arrays[1]
            inside = bool((indices >= 0).all() and (indices < extent).all())
            return np.take(first, indices.astype(np.int64), axis) if inside else None
        if name == "relax.broadcast_to":
            return np.broadcast_to(first, shape)
        if name == "relax.matmul":
            # A product with zeros, such as the state before the first step.
            zero = not all(each.any() for each in arrays)
            finite = all(np.isfinite(each).all() for each in arrays)
            return np.broadcast_to(np.zeros((), first.dtype), shape) if zero and finite else None
        if name == "relax.strided_slice":  # only of one repeated number
            return None if any(first.strides) else np.broadcast_to(first[(0,) * first.ndim], shape)
    view = view_of(first, call)
    # NumPy would copy repeated elements that the new shape cannot express as a view.
    return None if view is None or not math.prod(view.shape) else view


def _operand(graph: RuleGraph, expr: relax.Expr, exact: bool) -> Array | None:
    """The elements of an operand; a narrow type only for operators that are `exact` in it."""
    tensor = static_tensor(expr)
    usable = tensor is not None and (_is_plain(tensor.dtype) or (exact and tensor.dtype in _NARROW))
    if not usable or not isinstance(expr, ir.GenericConst):
        return graph.known(expr) if usable else None
    small = tensor is not None and 0 < tensor.size <= _MOST
    # A weight of an integer product must stay 8 bits wide.
    narrow = tensor is not None and tensor.dtype in ("int8", "uint8") and len(tensor.shape) > 1
    return array_of(expr.value) if small and not narrow else None


def _is_plain(dtype: str) -> bool:
    """Whether NumPy computes in a type exactly as TVM does."""
    return dtype in ("bool", "float32", "float64") or dtype.lstrip("u").startswith("int")


@rule("relax.astype", "relax.permute_dims", *RESHAPES)
def fold_weights(_graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Fold: permutes, reshapes and casts constants at compile time, by NumPy.

    Before

        lv = R.permute_dims(const_w, axes=[1, 0])
        lv1 = R.matmul(x, lv)

    After

        lv1 = R.matmul(x, const_wT)
    """
    argument, result = call.args[0], static_tensor(call)
    if not isinstance(argument, ir.GenericConst) or result is None:
        return None
    array = array_of(argument.value)
    # A weight of an integer product must stay 8 bits wide.
    narrow = str(argument.ty.dtype) in ("int8", "uint8") and array.ndim > 1
    if narrow and is_call(call, "relax.astype"):
        return None
    folded = _computed(call, [array], result.shape)
    # np.ascontiguousarray would give a number one dimension.
    return None if folded is None else relax.const(np.asarray(folded, order="C"), result.dtype)


_PRODUCTS = [f"nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose")]
# If an operand is empty, every element of a non-empty result is 0, or is undefined.
_ADDING = {"sum", "collapse_sum_to", "collapse_sum_like", "bucketize", "matmul", "einsum"}
_AVERAGING = {"mean", "variance", "std", *(f"nn.adaptive_avg_pool{n}d" for n in (1, 2, 3))}
_CHOOSING = {
    *("argmax", "argmin", "median", "take", "gather_elements", "gather_nd", "index_tensor"),
    *(f"nn.{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)),
    *("image.resize2d", "image.resize3d", "image.grid_sample", "topk"),
    *("vision.roi_align", "vision.roi_pool"),
}
_SCATTERING = {"scatter_elements", "scatter_nd", "slice_scatter", "index_put"}


@rule()
def fold_empty(graph: RuleGraph, _block: Bindings, value: relax.Expr) -> relax.Expr | None:
    """Fold: removes operators on tensors without elements, so that no template sees one.

    Before

        lv = R.nn.relu(past)                            # past: [1, 4, 0, 16], new: [1, 4, 1, 16]
        lv1 = R.concat((lv, new), axis=2)
        lv2 = R.max(past, axis=[2])
        gv = R.matmul(a, b)                             # a: [2, 0], b: [0, 3]

    After

        lv1 = new
        lv2 = R.broadcast_to(R.const(-inf), [1, 4, 16])
        gv = R.broadcast_to(R.const(0), [2, 3])

    An empty result becomes an empty constant. A non-empty result cannot depend on an empty operand:
    it is the sum, product or maximum of no elements, or follows from the other operands. Operators
    that choose an element (argmax, look-ups, pools) have no result then, and that is an error.

    It needs A-normal form.

    Raises
    ------
    CompileError
        If an operator chooses among no elements.
    """
    result = static_tensor(value)
    if result is None or isinstance(value, (relax.Var, ir.GenericConst)):
        return None
    if not result.size:
        return relax.const(tvm.runtime.empty(result.shape, result.dtype))
    if isinstance(value, relax.TupleGetItem):
        return _item(graph, value)
    if not isinstance(value, relax.Call) or not any(map(_has_empty, value.args)):
        return None
    name = op_name(value).removeprefix("relax.")
    if name == "concat":  # without its empty parts
        kept = [part for part in value.args[0].fields if not _has_empty(part)]
        return kept[0] if len(kept) == 1 else relax.op.concat(kept, axis=value.attrs.axis)
    if name in _SCATTERING:
        return value.args[0]
    if name in _CHOOSING and _has_empty(value.args[0]):
        raise _undefined(value)
    found = _of_nothing(value, name, result.dtype)
    if found is None:
        return None
    number = relax.const(found, result.dtype)
    # TVM 0.27 has no legalisation of R.full with a number that is not finite.
    return relax.op.broadcast_to(number, result.shape) if result.shape else number


def _of_nothing(call: relax.Call, name: str, dtype: str) -> float | None:
    """The result of an operator on no elements; None if it is unknown."""
    if name in _ADDING or name in _PRODUCTS:
        return 0
    if name in _AVERAGING:
        return 0 if "int" in dtype else np.nan
    if name == "prod":
        return 1
    if name == "nn.pad":
        if str(call.attrs.pad_mode) != "constant":
            raise _undefined(call)
        return float(call.attrs.pad_value)
    if name not in ("max", "min"):
        return None
    if dtype == "bool":
        return name == "min"
    if "int" in dtype:  # without an infinity
        limits = np.iinfo(dtype)
        return int(limits.min if name == "max" else limits.max)
    return -np.inf if name == "max" else np.inf


def _has_empty(expr: relax.Expr) -> bool:
    """Whether an operand, or one of a tuple of operands, has no elements."""
    if isinstance(expr, relax.Tuple):
        return any(map(_has_empty, expr.fields))
    tensor = static_tensor(expr)
    return tensor is not None and not tensor.size


def _item(graph: DataflowGraph, item: relax.TupleGetItem) -> relax.Expr | None:
    """An item of a split with empty items, as a slice; None for any other item."""
    call = graph.definition(item.tuple_value)
    if not isinstance(call, relax.Call):
        return None
    if op_name(call) == "relax.topk" and _has_empty(call.args[0]):
        raise _undefined(call)
    if op_name(call) != "relax.split":
        return None
    pieces = [tuple(map(int, field.shape.values)) for field in call.ty.fields]
    if all(map(math.prod, pieces)):
        return None
    axis = int(call.attrs.axis) % len(pieces[0])
    start = sum(piece[axis] for piece in pieces[: item.index])
    end = start + pieces[item.index][axis]
    return relax.op.strided_slice(call.args[0], [axis], [start], [end])


def _undefined(call: relax.Call) -> CompileError:
    """The error of an operator that has no element to choose."""
    operands = ", ".join(str(tensor) for arg in call.args if (tensor := static_tensor(arg)))
    return CompileError(
        f"{op_name(call).removeprefix('relax.')} of {operands}: an operand has no elements, so "
        "there is none to take as a result"
    )
