"""Clip: a negative index counts from the end, and an index out of range is clipped.

Before

    R.take(table, indices, axis=0, mode="fast")

After

    R.take(table, R.where(R.less(indices, 0), R.add(indices, 5), indices), axis=0, mode="clip")

Constant indices are computed at compile time. gather_elements, gather_nd, scatter_nd, index_tensor
and index_put have no mode: their indices are clipped by minimum and maximum, also if an extent is a
symbol. The kernel of scatter_elements clips its own (`legalize_scatters`).

In ONNX and PyTorch a negative index counts from the end, and an index out of range is an error. TVM
does not check: a token id that is too large would crash the process or overwrite other memory.
Where a user asks for the error, the front end has put a kernel that checks in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from relay_passes.ir.graph import op_name, static_tensor
from relay_passes.ir.with_args import with_args

_ALONG_AXIS = "relax.gather_elements"
_ND = ("relax.gather_nd", "relax.scatter_nd")
_BY_TENSORS = ("relax.index_tensor", "relax.index_put")
_ON_PLACES = (_ALONG_AXIS, *_ND, *_BY_TENSORS)
_WIDE = ("int32", "int64")


def clip_indices() -> ir.transform.Pass:
    """The pass."""

    @module_pass(opt_level=0, name="tvm_hybrid.clip_indices")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        clipper = _Clipper(mod)
        for gvar, function in mod.functions_items():
            if isinstance(function, relax.Function):
                clipper.builder_.update_func(gvar, clipper.visit_expr(function))
        return clipper.builder_.get()

    return run


@mutator
class _Clipper(PyExprMutator):
    """Rewrites every operator that reads or writes where its indices say."""

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        """The call with indices that are inside."""
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
        if name == _ALONG_AXIS:
            extents = [shape[int(call.attrs.axis)]]
            arguments[1] = self._inside(arguments[1], extents)
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
            # Of an extent that is not known, the remainder.
            return relax.op.take(data, indices, axis=axis, mode="wrap")
        extent = int(np.prod(tensor.shape)) if axis is None else tensor.shape[axis]
        return relax.op.take(data, self._counted(indices, [extent]), axis=axis, mode="clip")

    def _inside(self, indices: relax.Expr, extents: Sequence[Any]) -> relax.Expr:
        """Indices from 0 to the extents less one."""
        indices = self._counted(indices, extents)
        constant = isinstance(indices, ir.GenericConst) and _all_known(extents)
        if constant or str(indices.ty.dtype) == "bool":
            return indices
        dtype = str(indices.ty.dtype)
        last = self._numbers([extent - 1 for extent in extents], dtype)
        indices = self.builder_.emit(relax.op.minimum(indices, last))
        return self.builder_.emit(relax.op.maximum(indices, _constant(np.zeros(1), dtype)))

    def _counted(self, indices: relax.Expr, extents: Sequence[Any]) -> relax.Expr:
        """Indices counted from the front; constant ones are inside too."""
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
        """Sizes as a tensor: one for each coordinate, or for all."""
        if _all_known(sizes):
            return _constant(np.asarray(sizes), dtype)
        found = self.builder_.emit(relax.op.shape_to_tensor(relax.ShapeExpr(list(sizes))))
        found = self.builder_.emit(relax.op.astype(found, dtype))
        return found if len(sizes) > 1 else self.builder_.emit(relax.op.reshape(found, ()))


def _extents(expr: relax.Expr) -> list[Any] | None:
    """The sizes of a tensor, those that are known as numbers; None if it has none of its own."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [int(size) if isinstance(size, tirx.IntImm) else size for size in shape.values]


def _all_known(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _constant(values: np.ndarray, dtype: str) -> ir.GenericConst:
    """One value for each coordinate, or for all."""
    array = values.astype(dtype)
    return relax.const(tvm.runtime.tensor(array.reshape(()) if array.size == 1 else array))
