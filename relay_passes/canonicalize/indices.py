"""Indices: clipped, without casts, as slices if constant; one-hot products become look-ups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from relay_passes.ir.constants import array_of
from relay_passes.ir.functions import named_pass, with_args
from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    known_tensor,
    op_name,
    region_tensor,
    scalar_constant,
    static_tensor,
    variables,
)
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import RESHAPES
from tir_schedules.epilogue.fusible_ops import FUSIBLE_BY_RELAX

_ND = ("relax.gather_nd", "relax.scatter_nd")
_ON_PLACES = ("relax.gather_elements", *_ND, "relax.index_tensor", "relax.index_put")
_WIDE = ("int32", "int64")


@named_pass
def clip_indices(mod: IRModule) -> IRModule:
    """Clip: a negative index counts from the end, and an index out of range is clipped.

    Before

        R.take(table, indices, axis=0, mode="fast")

    After

        R.take(table, R.where(R.less(indices, 0), R.add(indices, 5), indices), axis=0, mode="clip")

    Constant indices are computed at compile time. gather_elements, gather_nd, scatter_nd,
    index_tensor and index_put have no mode: their indices are clipped by minimum and maximum, also
    for dynamic extents. The kernel of scatter_elements clips its indices itself (`legalize.moves`).

    In ONNX and PyTorch a negative index counts from the end, and an index out of range is an error.
    TVM does not check: a token id that is too large would crash the process or overwrite other
    memory. If a user asks for the error, the front end has added a kernel that checks before the
    look-up.
    """

    clipper = _Clipper(mod)
    for gvar, function in mod.functions_items():
        if isinstance(function, relax.Function):
            clipper.builder_.update_func(gvar, clipper.visit_expr(function))
    return clipper.builder_.get()


@mutator
class _Clipper(PyExprMutator):
    """Rewrites every operator that reads or writes at indices."""

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        """The call with indices in range."""
        call = super().visit_call_(op)
        if not isinstance(call, relax.Call):
            return call
        name = op_name(call)
        if name == "relax.take" and call.attrs.mode == "fast":
            return self._take(call)
        shape = _extents(call.args[0]) if name in _ON_PLACES else None
        if shape is None:
            return call
        arguments = list(call.args)
        if name == "relax.gather_elements":
            arguments[1] = self._inside(arguments[1], [shape[int(call.attrs.axis)]])
        elif name in _ND:
            first = int(call.attrs.batch_dims) if name == "relax.gather_nd" else 0
            rows = _extents(arguments[1])
            if rows is None or not isinstance(rows[-1], int):
                return call
            arguments[1] = self._inside(arguments[1], shape[first : first + rows[-1]])
        elif isinstance(arguments[1], relax.Tuple):
            fields = enumerate(arguments[1].fields)
            arguments[1] = relax.Tuple([self._inside(f, [shape[i]]) for i, f in fields])
        return with_args(call, arguments)

    def _take(self, call: relax.Call) -> relax.Expr:
        data, indices = call.args
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        tensor = static_tensor(data)
        if tensor is None or not isinstance(indices.ty, relax.TensorType):
            # An unknown extent is only available to `wrap`, which takes the remainder.
            return relax.op.take(data, indices, axis=axis, mode="wrap")
        extent = int(np.prod(tensor.shape)) if axis is None else tensor.shape[axis]
        return relax.op.take(data, self._counted(indices, [extent]), axis=axis, mode="clip")

    def _inside(self, indices: relax.Expr, extents: Sequence[Any]) -> relax.Expr:
        """Indices clipped to 0..extent - 1."""
        indices = self._counted(indices, extents)
        constant = isinstance(indices, ir.GenericConst) and _all_known(extents)
        dtype = str(indices.ty.dtype)
        if constant or dtype == "bool":
            return indices
        last = self._numbers([extent - 1 for extent in extents], dtype)
        indices = self.builder_.emit(relax.op.minimum(indices, last))
        return self.builder_.emit(relax.op.maximum(indices, _constant(np.zeros(1), dtype)))

    def _counted(self, indices: relax.Expr, extents: Sequence[Any]) -> relax.Expr:
        """Indices counted from the front; constant ones are clipped, too."""
        dtype = str(indices.ty.dtype)
        if dtype == "bool":
            return indices
        if isinstance(indices, ir.GenericConst) and _all_known(extents):
            values, sizes = indices.value.numpy().astype(np.int64), np.asarray(extents)
            fixed = np.clip(np.where(values < 0, values + sizes, values), 0, sizes - 1)
            return indices if np.array_equal(fixed, values) else _constant(fixed, "int64")
        if dtype not in _WIDE:
            indices = self.builder_.emit(relax.op.astype(indices, "int64"))
            if dtype.startswith("uint"):
                return indices
            dtype = "int64"
        wrapped = self.builder_.emit(relax.op.add(indices, self._numbers(extents, dtype)))
        below = self.builder_.emit(relax.op.less(indices, _constant(np.zeros(1), dtype)))
        return self.builder_.emit(relax.op.where(below, wrapped, indices))

    def _numbers(self, sizes: Sequence[Any], dtype: str) -> relax.Expr:
        """Sizes as a tensor: one number for each coordinate, or a single one for all."""
        if _all_known(sizes):
            return _constant(np.asarray(sizes), dtype)
        found = self.builder_.emit(relax.op.shape_to_tensor(relax.ShapeExpr(list(sizes))))
        found = self.builder_.emit(relax.op.astype(found, dtype))
        return found if len(sizes) > 1 else self.builder_.emit(relax.op.reshape(found, ()))


def _extents(expr: relax.Expr) -> list[Any] | None:
    """The sizes of a tensor, static ones as int; None if its shape is unknown."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [int(size) if isinstance(size, tirx.IntImm) else size for size in shape.values]


def _all_known(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _constant(values: np.ndarray, dtype: str) -> ir.GenericConst:
    """A constant with one value for each coordinate, or a single one for all."""
    array = values.astype(dtype)
    return relax.const(tvm.runtime.tensor(array.reshape(()) if array.size == 1 else array))


_LONGEST = 6  # most elementwise operators after a look-up


@rule("relax.matmul", "relax.take")
def recognize_one_hot(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Replaces products with one-hot rows by look-ups; applies following operators to the table.

    Before

        lv = R.equal(R.reshape(ids, [1, 2048, 1]), R.const(arange(257)))
        lv1 = R.matmul(R.astype(lv, "float32"), const_w)        # [257, 64]
        lv2 = R.add(lv1, const_bias)
        gv = R.nn.gelu_tanh(lv2)

    After

        lv = R.where(R.less(ids, 0), 257, ids)
        lv1 = R.minimum(lv, 257)
        gv = R.take(const_table, lv1, axis=0)                   # gelu_tanh([w; 0] + bias)

    A number that is no class selects the row of zeros at the end. The table is computed in float64
    and rounded once; elementwise operators move to it if it is no larger than the looked-up rows.
    """
    var, bounded = block.var, is_call(call, "relax.take")
    found = _take(call) if bounded else _one_hot_product(graph, call)
    if found is None:
        return None
    last, table = _move(graph, var, found[0])
    if bounded and last is var:
        return None
    block.at(last)
    index = found[1]
    if not bounded:  # a number that is no class selects the last row
        dtype = str(index.ty.dtype)
        none, zero = relax.const(len(table) - 1, dtype), relax.const(0, dtype)
        negative = block.emit(relax.op.less(index, zero))
        index = block.emit(relax.op.where(negative, none, index))
        index = block.emit(relax.op.minimum(index, none))
    return relax.op.take(relax.const(table), index, axis=0, mode="clip")


def _one_hot_product(
    graph: DataflowGraph, product: relax.Expr
) -> tuple[np.ndarray, relax.Expr] | None:
    """(weight with a row of zeros, class numbers) of a product with one-hot rows; else None."""
    cast = graph.definition(product.args[0])
    equal = graph.definition(cast.args[0]) if is_call(cast, "relax.astype") else None
    if not is_call(equal, "relax.equal") or not isinstance(product.args[1], ir.GenericConst):
        return None
    weight, rows = array_of(product.args[1].value), static_tensor(product.args[0])
    if rows is None or weight.ndim != 2 or {str(weight.dtype), rows.dtype} != {"float32"}:
        return None
    for spread, classes in (equal.args, reversed(equal.args)):
        if not isinstance(classes, ir.GenericConst):
            continue
        numbers = classes.value.numpy()
        wanted = np.arange(len(weight)).reshape((1,) * (numbers.ndim - 1) + (-1,))
        if numbers.shape != wanted.shape or (numbers != wanted).any():
            continue
        # Integers [...] that are viewed as [..., 1] for the comparison.
        view, tensor = graph.definition(spread), static_tensor(spread)
        if not is_call(view, *RESHAPES) or tensor is None or tensor.shape != (*rows.shape[:-1], 1):
            continue
        source = static_tensor(view.args[0])
        if source is not None and source.shape == rows.shape[:-1] and source.dtype in _WIDE:
            return np.vstack([weight, np.zeros_like(weight[:1])]), view.args[0]
    return None


def _take(call: relax.Call) -> tuple[np.ndarray, relax.Expr] | None:
    """(table, indices) of a look-up of rows in a constant; else None."""
    if not isinstance(call.args[0], ir.GenericConst) or call.attrs.axis is None:
        return None
    if int(call.attrs.axis) != 0 or str(call.attrs.mode) != "clip":
        return None
    table = array_of(call.args[0].value)
    known = table.ndim == 2 and str(table.dtype) == "float32" and static_tensor(call) is not None
    return (table, call.args[1]) if known else None


def _move(graph: RuleGraph, var: relax.Var, table: np.ndarray) -> tuple[relax.Var, np.ndarray]:
    """The last elementwise operator after a look-up, and the table with all of them applied."""
    tensor = known_tensor(var)
    if table.size > tensor.size:
        return var, table
    exact = table.astype(np.float64)
    for _ in range(_LONGEST):
        user = graph.only_user(var)
        moved = None if user is None else _apply(graph.value(user), var, exact)
        if user is None or moved is None or static_tensor(graph.bindings[user].var) != tensor:
            break
        var, exact = graph.bindings[user].var, moved
    return var, exact.astype(np.float32)


def _apply(call: relax.Expr, var: relax.Var, table: np.ndarray) -> np.ndarray | None:
    """An elementwise operator on rows; None unless its other operands are one row or one number."""
    entry = FUSIBLE_BY_RELAX.get(op_name(call))
    if entry is None or len(call.args) != entry.arity or variables(call) != [var]:
        return None
    arguments = []
    for argument in call.args:
        if not isinstance(argument, ir.GenericConst):
            arguments.append(table)
            continue
        array = argument.value.numpy()
        if array.size not in (1, array.shape[-1] if array.ndim else 1):
            return None
        arguments.append(array.reshape(-1).astype(np.float64))
    result = entry.numpy(*arguments)
    return result if result.shape == table.shape and result.dtype == np.float64 else None


@rule("relax.take")
def plain_indices(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Plain indices: rows are taken by the indices themselves, without a cast or a reshape before.

    Before

        lv = R.astype(tokens, "int32")                  # tokens: [1, 32] of int64
        lv1 = R.reshape(lv, R.shape([32]))
        lv2 = R.take(table, lv1, axis=0)
        gv = R.reshape(lv2, R.shape([1, 32, 64]))

    After

        gv = R.take(table, tokens, axis=0)

    TVM imports torch's embeddings in this form, and its nn.Embedding has it, too.

    It needs A-normal form, and must run before indices are clipped.
    """
    if call.attrs.axis is None or int(call.attrs.axis) != 0:
        return None
    table, indices = call.args
    found = indices
    # Casts that keep every index, and reshapes.
    while is_call(inner := graph.definition(found), "relax.astype", *RESHAPES):
        source = region_tensor(inner.args[0])
        if source is None or not source.shape:
            break
        if not {source.dtype, str(inner.ty.dtype)} <= {*_WIDE}:
            break
        found = inner.args[0]
    if found.same_as(indices):
        return None
    taken = relax.op.take(table, found, axis=0, mode=str(call.attrs.mode))
    before, after = region_tensor(indices), region_tensor(found)
    if before is not None and after is not None and before.shape == after.shape:
        return taken
    return relax.op.reshape(block.emit(taken), call.ty.shape)


@rule("relax.take")
def slice_takes(_graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Slice: a look-up at one constant index becomes a slice.

    Before

        gv = R.take(x, R.const(1), axis=0, mode="clip")             # x: [3, 4, 5]

    After

        lv = R.strided_slice(x, axes=[0], begin=[1], end=[2])
        gv = R.reshape(lv, R.shape([4, 5]))

    PyTorch writes x[1] like this. A product then reads the slice in place. `clip_indices` must run
    first: the index is in range.
    """
    if call.attrs.axis is None:
        return None
    data, index = call.args
    tensor, number = region_tensor(data), scalar_constant(index)
    if tensor is None or number is None or tensor.constant or math.isnan(number):
        return None
    axis = int(call.attrs.axis) % len(tensor.shape)
    extent, begin = call.args[0].ty.shape.values[axis], int(number)
    if not hasattr(extent, "value") or not 0 <= begin < int(extent):
        return None
    cut = relax.op.strided_slice(data, [axis], [begin], [begin + 1])
    return relax.op.reshape(block.emit(cut), call.ty.shape)


@rule("relax.strided_slice")
def slice_flips(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Slice: one row of a flipped tensor becomes a row of the tensor itself.

    Before

        lv = R.flip(x, axis=0)                                      # x: [10, 2, 192]
        gv = R.strided_slice(lv, axes=[0], begin=[2], end=[3])

    After

        gv = R.strided_slice(x, axes=[0], begin=[7], end=[8])

    torch.export flips the rows of a recurrent layer's second direction before it takes them one by
    one; in ONNX they are read backwards.
    """
    flip, cut = graph.definition(call.args[0]), static_tensor(call)
    if not is_call(flip, "relax.flip"):
        return None
    source = static_tensor(flip.args[0])
    axes, begins = (_numbers(arg) for arg in call.args[1:3])
    if source is None or cut is None or axes is None or begins is None or len(axes) != 1:
        return None
    axis, extent = axes[0] % len(source.shape), source.shape[axes[0]]
    begin = begins[0] + extent * (begins[0] < 0)
    if int(flip.attrs.axis) % len(source.shape) != axis or cut.shape[axis] != 1:
        return None
    row = extent - 1 - min(max(begin, 0), extent - 1)
    return relax.op.strided_slice(flip.args[0], [axis], [row], [row + 1])


def _numbers(arg: relax.Expr) -> list[int] | None:
    """The constant numbers of a tuple; None if one is not constant."""
    fields = list(getattr(arg, "fields", ()))
    known = all(hasattr(each, "value") for each in fields)
    return [int(each.value) for each in fields] if known else None
