"""Emission: the bindings that lifted functions become, equal ones once, which may be taken back.

Before

    lv = R.subtract(R.astype(x, "int32"), R.const(3))       # x: uint8
    lv1 = R.permute_dims(lv, [1, 0])

After

    lv = R.permute_dims(x, [1, 0])
    lv1 = R.subtract(R.astype(lv, "int32"), R.const(3))

So a product finds the 8-bit integers and the zero point that its operand is made of.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm_ffi
from tvm import ir, relax, tirx

from microkernels.base.arrays import RANGES
from relay_passes.ir.axes import view_of
from relay_passes.ir.constants import array_of
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import is_call, scalar_constant
from relay_passes.ir.rewrite import Bindings
from tir_schedules.tensorize.arrangement import ChooseArrangement

Tensors = Mapping[tirx.Var, relax.Expr]
"""What the buffers of a function hold."""

_MOVES = ("relax.permute_dims", "relax.reshape", "relax.strided_slice", "relax.flip")


class Emission(Bindings):
    """Bindings in which no value is computed twice.

    What a function says twice, such as x - mean(x) in a variance, is one value for the passes that
    recognise it.

    Parameters
    ----------
    lanes : int
        Of vectors of float32 on the target, for estimates.
    arrange : callable, optional
        What records say of contractions.
    """

    def __init__(self, lanes: int = 16, arrange: ChooseArrangement | None = None) -> None:
        super().__init__()
        self.lanes, self.arrange = lanes, arrange
        self._known: dict[int, list[relax.VarBinding]] = {}
        self._places: dict[relax.Expr, int] = {}

    def emit(self, expr: relax.Expr, name: str = "lv") -> relax.Var:
        """The variable of an expression, bound to a new one if it is new."""
        value = self.builder.normalize(self._widened_last(expr))
        if isinstance(value, relax.Var):
            return value
        known = self._known.setdefault(tvm_ffi.structural_hash(value), [])
        for binding in known:
            if self._is_there(binding.var) and tvm_ffi.structural_equal(binding.value, value):
                return binding.var
        var = super().emit(value, name)
        self._places[var] = len(self.bindings) - 1
        known.append(relax.VarBinding(var, value))
        return var

    def definition(self, expr: relax.Expr) -> relax.Expr | None:
        """What was emitted for a variable; None of anything else."""
        binding = self.bindings[self._places[expr]] if self._is_there(expr) else None
        return binding.value if isinstance(binding, relax.VarBinding) else None

    @property
    def mark(self) -> int:
        """To give to `undo`, to go back to here."""
        return len(self.bindings)

    def undo(self, mark: int) -> None:
        """Takes back what was emitted since."""
        del self.bindings[mark:]

    def _widened_last(self, call: relax.Expr) -> relax.Expr:
        """A call that moves 8-bit integers that were widened, as one that widens what is moved."""
        if not is_call(call, *_MOVES, "relax.nn.pad"):
            return call
        wide = self.definition(call.args[0])
        if is_call(wide, "relax.astype") and str(wide.ty.dtype) == "int32":
            if str(wide.args[0].ty.dtype) not in RANGES:
                return call
            return relax.op.astype(self._moved(call, wide.args[0]), "int32")
        if is_call(wide, "relax.subtract") and str(wide.ty.dtype) == "int32":
            x, zero_point = wide.args
            if scalar_constant(zero_point) is None or is_call(call, "relax.nn.pad"):
                return call
            moved = self.emit(with_args(call, [x, *call.args[1:]]))
            return relax.op.subtract(moved, zero_point)
        return call

    def _moved(self, call: relax.Call, source: relax.Expr) -> relax.Expr:
        """A call that moves elements, of another tensor; of a constant, a constant."""
        if isinstance(source, ir.GenericConst):
            array = array_of(source.value)
            flips = is_call(call, "relax.flip")
            view = np.flip(array, int(call.attrs.axis)) if flips else view_of(array, call)
            if view is not None:
                return relax.const(np.ascontiguousarray(view), str(source.ty.dtype))
        return self.emit(with_args(call, [source, *call.args[1:]]))

    def _is_there(self, var: relax.Expr) -> bool:
        place = self._places.get(var, -1) if isinstance(var, relax.Var) else -1
        return 0 <= place < len(self.bindings) and self.bindings[place].var.same_as(var)
