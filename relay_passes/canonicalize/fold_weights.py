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
from relay_passes.ir.traits import RESHAPES

_CAST = "relax.astype"
_FOLDED = {_CAST, "relax.permute_dims", *RESHAPES}


def fold_weights() -> ir.transform.Pass:
    """The pass."""
    return fold_pass("fold_weights", _Folder, _is_foldable)


@mutator
class _Folder(PyExprMutator):
    """Replaces foldable calls on constants."""

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        """Folds one call if it can be."""
        call = super().visit_call_(op)
        if not isinstance(call, relax.Call) or not call.args:
            return call
        argument: relax.Expr | None = call.args[0]
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        if not _folds(call, argument):
            return call
        assert isinstance(argument, ir.GenericConst)
        array = _folded(array_of(argument.value), call)
        return relax.const(np.ascontiguousarray(array), str(call.ty.dtype))


def _is_foldable(call: relax.Call) -> bool:
    return bool(call.args) and _folds(call, call.args[0])


def _folds(call: relax.Call, argument: relax.Expr | None) -> bool:
    """Whether a call is a view or a cast of a constant, and none that is to stay."""
    name = op_name(call)
    if name not in _FOLDED or not isinstance(argument, ir.GenericConst):
        return False
    if static_tensor(call) is None:
        return False
    # A weight of an integer product stays 8 bits wide.
    stays = str(argument.ty.dtype) in ("int8", "uint8") and len(argument.value.shape) > 1
    return name != _CAST or not stays


def _folded(array: np.ndarray, call: relax.Call) -> np.ndarray:
    """What a view or a cast makes of a constant."""
    if op_name(call) == _CAST:
        return array.astype(str(call.attrs.dtype))
    view = view_of(array, call)
    assert view is not None
    return view
