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

An empty result becomes an empty constant. A result with elements cannot depend on an empty operand:
it is the sum, product or maximum of no elements, or follows from the other operands. Operators that
choose an element (argmax, look-ups, pools) have no result then, and that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm
from tvm import ir, relax

from microkernels.base.errors import CompileError
from relay_passes.ir.graph import DataflowGraph, op_name, static_tensor
from relay_passes.ir.rewrite import Bindings, value_pass

Number = Callable[[relax.Call, str], float]


def _zero(call: relax.Call, dtype: str) -> float:
    return 0


def _one(call: relax.Call, dtype: str) -> float:
    return 1


def _least(call: relax.Call, dtype: str) -> float:
    """Minus infinity, or the least value of a type without one."""
    if dtype == "bool":
        return False
    return int(np.iinfo(dtype).min) if "int" in dtype else -np.inf


def _largest(call: relax.Call, dtype: str) -> float:
    if dtype == "bool":
        return True
    return int(np.iinfo(dtype).max) if "int" in dtype else np.inf


def _average(call: relax.Call, dtype: str) -> float:
    return 0 if "int" in dtype else np.nan


def _padding(call: relax.Call, dtype: str) -> float:
    if str(call.attrs.pad_mode) != "constant":
        raise _undefined(call)
    return float(call.attrs.pad_value)


_PRODUCTS = [f"nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose")]
# Every element of a result with elements, by operator, where an operand has none.
_NUMBERS: dict[str, Number] = {
    **dict.fromkeys(("sum", "collapse_sum_to", "collapse_sum_like", "bucketize"), _zero),
    **dict.fromkeys(("matmul", "einsum", *_PRODUCTS), _zero),
    **dict.fromkeys(("mean", "variance", "std"), _average),
    **{f"nn.adaptive_avg_pool{n}d": _average for n in (1, 2, 3)},
    "prod": _one,
    "max": _least,
    "min": _largest,
    "nn.pad": _padding,
}
_CHOOSING = {
    *("argmax", "argmin", "median", "take", "gather_elements", "gather_nd", "index_tensor"),
    *(f"nn.{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)),
    *("image.resize2d", "image.resize3d", "image.grid_sample", "topk"),
    *("vision.roi_align", "vision.roi_pool"),
}
_SCATTERING = {"scatter_elements", "scatter_nd", "slice_scatter", "index_put"}


def fold_empty() -> ir.transform.Pass:
    """The pass; it needs A-normal form.

    Raises
    ------
    CompileError
        An operator chooses among no elements.
    """
    return value_pass("tvm_hybrid.fold_empty", _simpler)


def _simpler(graph: DataflowGraph, _block: Bindings, value: relax.Expr) -> relax.Expr | None:
    """What a value is without empty tensors; None if it stays."""
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
    if name == "concat":
        return _joined(value)
    if name in _SCATTERING:
        return value.args[0]
    if name in _CHOOSING and _has_empty(value.args[0]):
        raise _undefined(value)
    if name not in _NUMBERS:
        return None
    number = relax.const(_NUMBERS[name](value, result.dtype), result.dtype)
    # TVM 0.27 has no legalisation of R.full with a number that is not finite.
    return relax.op.broadcast_to(number, result.shape) if result.shape else number


def _has_empty(expr: relax.Expr) -> bool:
    """Whether an operand, or one of a tuple of operands, has no elements."""
    if isinstance(expr, relax.Tuple):
        return any(map(_has_empty, expr.fields))
    tensor = static_tensor(expr)
    return tensor is not None and not tensor.size


def _joined(call: relax.Call) -> relax.Expr:
    """A concatenation without its empty parts."""
    kept = [part for part in call.args[0].fields if not _has_empty(part)]
    return kept[0] if len(kept) == 1 else relax.op.concat(kept, axis=call.attrs.axis)


def _item(graph: DataflowGraph, item: relax.TupleGetItem) -> relax.Expr | None:
    """A piece of a split with empty pieces, cut out by itself; None for any other item."""
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
    """Says that an operator has nothing to take a result from."""
    operands = ", ".join(str(tensor) for arg in call.args if (tensor := static_tensor(arg)))
    return CompileError(
        f"{op_name(call).removeprefix('relax.')} of {operands}: an operand has no elements, so "
        "there is none to take as a result"
    )
