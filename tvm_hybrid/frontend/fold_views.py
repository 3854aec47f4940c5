"""Reshapes and transposes of constants become constants.

    lv = R.reshape(metadata["bias"], R.shape([1, 64, 1, 1]))    ->    metadata["bias"] of that shape

Likewise of dequantised constants, as dequantisations of other integers. TVM's importer writes one
for the bias of every convolution. numpy does it at once; TVM's FoldConstant would compile and run a
kernel for each.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from relay_passes.ir.call_axes import view_of
from relay_passes.ir.graph import is_call
from relay_passes.ir.moving_operators import result_axis
from relay_passes.ir.quantization import Quantized, read_dequantize
from relay_passes.ir.traits import RESHAPES

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
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = super().visit_call_(op)
        if not is_call(call, *RESHAPES, "relax.permute_dims") or static_dims(call) is None:
            return call
        source: relax.Expr | None = call.args[0]
        if isinstance(source, relax.Var):
            source = self.lookup_binding(source)
        array = _constant(source)
        if array is not None:
            return literal(_viewed(array, call))
        quantized = read_dequantize(source)
        array = None if quantized is None else _constant(quantized.data)
        if quantized is None or array is None:
            return call
        return _dequantized(call, quantized, _viewed(array, call))


def _constant(expr: relax.Expr | None) -> np.ndarray | None:
    return constant(expr) if isinstance(expr, GenericConst) else None


def _dequantized(call: relax.Call, quantized: Quantized, integers: np.ndarray) -> relax.Expr:
    """The view of a dequantised constant; as it was if the axis of its scales is cut by it."""
    axis = quantized.quantization.axis
    if axis is not None:
        axis = result_axis(call, axis)
        if axis is None:
            return call
    viewed = Quantized(literal(integers), quantized.quantization.along(axis), quantized.dtype)
    return viewed.dequantize()


def _viewed(array: np.ndarray, call: relax.Call) -> np.ndarray:
    view = view_of(array, call)
    assert view is not None
    return view
