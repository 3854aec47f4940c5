"""Reads a block that reduces axes of one value as R.sum, R.max or R.min.

Before

    total[v_i] = 0
    total[v_i] += x[v_i, v_k]

After

    lv = R.sum(x, axis=[1], keepdims=True)
    lv1 = R.reshape(lv, [8])

The axes are kept until the reshape: what a later block computes of them meets the sum as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import DataType, relax, tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr
from tir_schedules.generic.expressions import const_int, loads_of, same_indices, variables_of
from tir_schedules.generic.nest import Axis, Nest, Store
from tir_schedules.tensorize.contraction import RefusedError

from .emission import Emission
from .tir_elements import Tensors
from .tir_values import ValueReader, block_axes

_REDUCTIONS: dict[type, Callable[..., relax.Expr]] = {
    tirx.Add: relax.op.sum,
    tirx.Max: relax.op.max,
    tirx.Min: relax.op.min,
}


def read_reduction(block: Emission, tensors: Tensors, nest: Nest) -> relax.Expr:
    """What a block with a reduction stores.

    Raises
    ------
    RefusedError
        If it is no plain sum, maximum or minimum of one value; says why.
    """
    if not nest.reduce or len(nest.stores) != 1 or nest.lets or nest.epilogue:
        raise RefusedError("a block of several values")
    store = nest.stores[0]
    value = store.value
    operator = _REDUCTIONS.get(type(value))
    if operator is None:
        raise RefusedError("a reduction that is neither a sum nor an extreme")
    own = [_is_element(side, store) for side in (value.a, value.b)]
    if own.count(True) != 1 or not _starts(type(value), store.start):
        raise RefusedError("a reduction that is neither a sum nor an extreme")
    term = value.b if own[0] else value.a
    if any(load.source.same_as(store.buffer) for load in loads_of(term)):
        raise RefusedError("a reduction of what it reduces to")
    out = block_axes(store, nest)
    axes = _in_order(term, out, nest.reduce)
    tensor = ValueReader(block, tensors, axes).whole(term)
    reduced = [axes.index(axis) for axis in nest.reduce]
    result = block.emit(operator(tensor, reduced, keepdims=True))
    kept = [axis for axis in axes if axis not in nest.reduce]
    wanted = [axis for axis in out if axis in axes]
    if kept != wanted:
        order = [axes.index(axis) for axis in (*wanted, *nest.reduce)]
        result = block.emit(relax.op.permute_dims(result, order))
    return block.emit(relax.op.reshape(result, [axis.stated for axis in out]))


def _in_order(term: Expr, out: Sequence[Axis], reduce: Sequence[Axis]) -> list[Axis]:
    """The axes in the order of the first tensor with most of them, the others before it.

    Of the result's axes of extent 1 only as many as that tensor has.
    """
    loads = loads_of(term)
    if not loads:
        return [*out, *reduce]
    most = max(loads, key=lambda load: sum(map(len, map(variables_of, load.indices))))
    places = {
        index: place for place, index in enumerate(most.indices) if isinstance(index, tirx.Var)
    }
    units = [axis for axis in out if axis.extent == 1]
    free = [place for place, index in enumerate(most.indices) if const_int(index) == 0]
    places |= {axis.var: place for axis, place in zip(units, free, strict=False)}
    left_out = units[len(free) :]
    axes = [axis for axis in (*out, *reduce) if axis not in left_out]
    return sorted(axes, key=lambda axis: places.get(axis.var, -1))


def _is_element(value: Expr, store: Store) -> bool:
    return (
        isinstance(value, TensorLoad)
        and value.source.same_as(store.buffer)
        and same_indices(value.indices, store.indices)
    )


def _starts(kind: type, start: Expr) -> bool:
    """Whether a reduction starts with what changes nothing."""
    if not isinstance(start, (tirx.FloatImm, tirx.IntImm)):
        return False
    dtype, number = str(start.ty.dtype), float(start.value)
    if kind is tirx.Add:
        return number == 0
    sign = -1 if kind is tirx.Max else 1
    if "float" in dtype:
        return number * sign >= 65504 and (dtype != "float32" or number * sign > 3.4e38)
    bits, signed = DataType(dtype).bits, not dtype.startswith("u")
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return number == (least if kind is tirx.Max else most)
