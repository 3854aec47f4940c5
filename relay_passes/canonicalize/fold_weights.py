"""Fold: permutes, reshapes and casts constants at compile time, by NumPy.

Before

    lv = R.permute_dims(const_w, axes=[1, 0])
    lv1 = R.matmul(x, lv)

After

    lv1 = R.matmul(x, const_wT)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from relay_passes.ir.graph import known_tensor, op_name, static_tensor

Fold = Callable[[np.ndarray, relax.Call], np.ndarray | None]


def _permute(array: np.ndarray, call: relax.Call) -> np.ndarray:
    axes = call.attrs.axes
    return np.transpose(array, None if axes is None else [int(axis) for axis in axes])


def _reshape(array: np.ndarray, call: relax.Call) -> np.ndarray:
    tensor = known_tensor(call)
    return array.reshape(tensor.shape)


def _astype(array: np.ndarray, call: relax.Call) -> np.ndarray | None:
    dtype = str(call.attrs.dtype)
    if array.dtype in (np.int8, np.uint8) and array.ndim > 1:
        return None  # a weight of an integer product stays 8 bits wide
    return array.astype(dtype)


_FOLDS: dict[str, Fold] = {
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.squeeze": _reshape,
    "relax.expand_dims": _reshape,
    "relax.astype": _astype,
}


def fold_weights() -> ir.transform.Pass:
    """The pass."""

    @module_pass(opt_level=0, name="tvm_hybrid.fold_weights")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        folder = _Folder(mod)
        for gvar, function in mod.functions_items():
            if isinstance(function, relax.Function):
                folder.builder_.update_func(gvar, folder.visit_expr(function))
        folded = relax.transform.CanonicalizeBindings()(folder.builder_.get())
        return relax.transform.DeadCodeElimination()(folded)

    return run


@mutator
class _Folder(PyExprMutator):
    """Replaces foldable calls on constants."""

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        """Folds one call if it can be."""
        call = super().visit_call_(op)
        if not isinstance(call, relax.Call):
            return call
        fold = _FOLDS.get(op_name(call))
        if fold is None or static_tensor(call) is None:
            return call
        argument: relax.Expr | None = call.args[0]
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        if not isinstance(argument, ir.GenericConst):
            return call
        array = fold(argument.value.numpy(), call)
        if array is None:
            return call
        return relax.const(np.ascontiguousarray(array), str(call.ty.dtype))
