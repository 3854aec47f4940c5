"""Reshapes and transposes of constants become constants.

    lv = R.reshape(metadata["bias"], R.shape([1, 64, 1, 1]))    ->    metadata["bias"] of that shape

TVM's importer writes one for the bias of every convolution. numpy does it at once; TVM's
FoldConstant would compile and run a kernel for each.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst, Op

from .expressions import constant, literal, static_dims


def fold_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Folds in every Relax function of a module."""
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    for name, function in list(mod.functions.items()):
        if isinstance(function, relax.Function):
            mod[name] = _Folder(mod).visit_expr(function)
    return relax.transform.CanonicalizeBindings()(mod)


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        fold = _FOLDS.get(call.op.name) if isinstance(call.op, Op) else None
        if fold is None:
            return call
        source = call.args[0]
        if isinstance(source, relax.Var):
            source = self.lookup_binding(source)
        array = constant(source) if isinstance(source, GenericConst) else None
        dims = static_dims(call)
        if array is None or dims is None:
            return call
        return literal(fold(array, call, dims))


def _reshape(array: NDArray, call: relax.Call, dims: tuple[int, ...]) -> NDArray:
    return array.reshape(dims)


def _permute(array: NDArray, call: relax.Call, dims: tuple[int, ...]) -> NDArray:
    axes = call.attrs.axes
    return array.transpose(None if axes is None else [int(axis) for axis in axes])


_FOLDS: dict[str, Callable[[NDArray, relax.Call, tuple[int, ...]], NDArray]] = {
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.permute_dims": _permute,
}
