"""Fold: permutes, reshapes and casts constants at compile time, by NumPy.

Before

    lv = R.permute_dims(const_w, axes=[1, 0])
    lv1 = R.matmul(x, lv)

After

    lv1 = R.matmul(x, const_wT)
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from relay_passes.ir.call_axes import view_of
from relay_passes.ir.constants import array_of
from relay_passes.ir.fold import fold_pass
from relay_passes.ir.graph import op_name, static_tensor


def fold_weights() -> ir.transform.Pass:
    """The pass."""
    return fold_pass("fold_weights", _Folder)


@mutator
class _Folder(PyExprMutator):
    """Replaces foldable calls on constants."""

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        """Folds one call if it can be."""
        call = super().visit_call_(op)
        if not isinstance(call, relax.Call) or static_tensor(call) is None or not call.args:
            return call
        argument: relax.Expr | None = call.args[0]
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        if not isinstance(argument, ir.GenericConst):
            return call
        array = _folded(array_of(argument.value), call)
        if array is None:
            return call
        return relax.const(np.ascontiguousarray(array), str(call.ty.dtype))


def _folded(array: np.ndarray, call: relax.Call) -> np.ndarray | None:
    """What a view or a cast makes of a constant; None if it is to stay."""
    if op_name(call) != "relax.astype":
        return view_of(array, call)
    if array.dtype in (np.int8, np.uint8) and array.ndim > 1:
        return None  # a weight of an integer product stays 8 bits wide
    return array.astype(str(call.attrs.dtype))
