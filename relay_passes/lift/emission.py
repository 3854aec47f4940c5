"""Emission: the bindings that lifted functions become, equal ones once, which may be taken back."""

from __future__ import annotations

import tvm_ffi
from tvm import relax

from relay_passes.ir.rewrite import Bindings


class Emission(Bindings):
    """Bindings in which no value is computed twice.

    What a function says twice, such as x - mean(x) in a variance, is one value for the passes that
    recognise it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, list[relax.VarBinding]] = {}
        self._places: dict[relax.Expr, int] = {}

    def emit(self, expr: relax.Expr, name: str = "lv") -> relax.Var:
        """The variable of an expression, bound to a new one if it is new."""
        value = self.builder.normalize(expr)
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

    def _is_there(self, var: relax.Expr) -> bool:
        place = self._places.get(var, -1) if isinstance(var, relax.Var) else -1
        return 0 <= place < len(self.bindings) and self.bindings[place].var.same_as(var)
