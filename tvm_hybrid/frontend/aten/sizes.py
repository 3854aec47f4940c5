"""Sizes as torch writes them, in SymPy, and as TVM does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from tvm import sym, tirx

from microkernels.errors import UnsupportedOperatorError

# SymPy's functions and torch's own by their names; all are of whole numbers.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": tirx.floordiv,
    "CleanDiv": tirx.floordiv,
    "Mod": tirx.floormod,
    "PythonMod": tirx.floormod,
    "ModularIndexing": lambda size, by, most: tirx.floormod(tirx.floordiv(size, by), most),
    "Add": lambda *terms: functools.reduce(lambda a, b: a + b, terms),
    "Mul": lambda *factors: functools.reduce(lambda a, b: a * b, factors),
    "Max": lambda *sizes: functools.reduce(tirx.Max, sizes),
    "Min": lambda *sizes: functools.reduce(tirx.Min, sizes),
}


class Sizes:
    """TVM's variables of the symbols of one graph."""

    def __init__(self) -> None:
        self._symbols: dict[str, tirx.Var] = {}
        self._analyzer = sym.Analyzer()

    @property
    def names(self) -> set[str]:
        """The symbols that were asked for."""
        return set(self._symbols)

    def of(self, size: Any) -> Any:
        """A size that torch tells: an `int`, or a `torch.SymInt`.

        Returns
        -------
        int or tvm.ir.Expr

        Raises
        ------
        UnsupportedOperatorError
            It is no simple function of sizes of inputs.
        """
        return size if isinstance(size, int) else self._expression(size.node.expr)

    def differ(self, size: Any, found: Any) -> bool:
        """Whether a size that TVM found is known to be another one than torch's.

        Only sums and products are compared: what they are for all sizes, they say themselves.

        Parameters
        ----------
        size : int or torch.SymInt
            What torch tells.
        found : tvm.ir.Expr
        """
        try:
            wanted = self.of(size)
        except UnsupportedOperatorError:
            return False
        distance = self._analyzer.simplify(wanted - found)
        if isinstance(distance, tirx.IntImm):
            return int(distance) != 0
        return self._is_polynomial(distance)

    def _is_polynomial(self, expression: Any) -> bool:
        if isinstance(expression, tirx.Var):
            return any(expression.same_as(symbol) for symbol in self._symbols.values())
        if isinstance(expression, (tirx.Add, tirx.Sub, tirx.Mul)):
            return self._is_polynomial(expression.a) and self._is_polynomial(expression.b)
        return isinstance(expression, tirx.IntImm)

    def _expression(self, expression: Any) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            name = str(expression)
            if name not in self._symbols:
                self._symbols[name] = tirx.Var(name, "int64")
            return self._symbols[name]
        kind = type(expression).__name__
        parts = [self._expression(each) for each in expression.args]
        if kind == "Pow" and isinstance(parts[1], int) and parts[1] > 0:
            return functools.reduce(lambda a, b: a * b, [parts[0]] * parts[1])
        if kind not in _FUNCTIONS:
            raise UnsupportedOperatorError(f"the size {expression} cannot be told to TVM ({kind})")
        return _FUNCTIONS[kind](*parts)


def size_symbol(value: Any) -> str:
    """The symbol that a number is, if it can be a size, which is never below 0; else ""."""
    if not isinstance(value, torch.SymInt) or not value.node.expr.is_Symbol:
        return ""
    bounds = value.node.shape_env.var_to_range.get(value.node.expr)
    return "" if bounds is None or not bounds.lower >= 0 else str(value.node.expr)
