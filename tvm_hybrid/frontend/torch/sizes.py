"""Converts sizes from torch's form, in SymPy, to TVM's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from tvm import relax, sym, tirx

from microkernels.base.errors import UnsupportedOperatorError

from ..expressions import emit
from .promotion import as_type


def _in_int64(size: Any) -> Any:
    """A size as an int64 expression, as TVM's operators of two sizes need it."""
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


# Names of SymPy's and torch's functions of whole numbers -> TVM's.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": tirx.floordiv,
    "CleanDiv": tirx.floordiv,
    "Mod": tirx.floormod,
    "PythonMod": tirx.floormod,
    "ModularIndexing": lambda size, by, most: tirx.floormod(tirx.floordiv(size, by), most),
    "Add": lambda *terms: functools.reduce(lambda a, b: a + b, terms),
    "Mul": lambda *factors: functools.reduce(lambda a, b: a * b, factors),
    "Max": lambda *sizes: functools.reduce(tirx.Max, map(_in_int64, sizes)),
    "Min": lambda *sizes: functools.reduce(tirx.Min, map(_in_int64, sizes)),
}


class Sizes:
    """The TVM variables for one graph's symbols; `symbols` has those used so far."""

    def __init__(self) -> None:
        self.symbols: dict[str, tirx.Var] = {}
        self._analyzer = sym.Analyzer()

    def of(self, size: Any) -> Any:
        """Converts a size of torch: an `int`, or a `torch.SymInt`.

        Returns
        -------
        int or tvm.ir.Expr

        Raises
        ------
        UnsupportedOperatorError
            The size is no simple function of input sizes.
        """
        return size if isinstance(size, int) else self._expression(size.node.expr)

    def differ(self, size: Any, found: Any) -> bool:
        """Whether a size that TVM inferred is known to differ from torch's size.

        Only sums and products are compared, as TVM's simplifier proves those for all sizes.

        Parameters
        ----------
        size : int or torch.SymInt
            torch's size.
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
            return any(expression.same_as(symbol) for symbol in self.symbols.values())
        if isinstance(expression, (tirx.Add, tirx.Sub, tirx.Mul)):
            return self._is_polynomial(expression.a) and self._is_polynomial(expression.b)
        return isinstance(expression, tirx.IntImm)

    def _expression(self, expression: Any) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            name = str(expression)
            if name not in self.symbols:
                self.symbols[name] = tirx.Var(name, "int64")
            return self.symbols[name]
        kind = type(expression).__name__
        if kind in _TO_WHOLE:
            above, below = self._fraction(expression.args[0], expression)
            may_be_negative = any(each.is_Number and each < 0 for each in expression.atoms())
            return _TO_WHOLE[kind](above, below, may_be_negative)
        parts = [self._expression(each) for each in expression.args]
        if kind == "Pow" and isinstance(parts[1], int) and parts[1] > 0:
            return functools.reduce(lambda a, b: a * b, [parts[0]] * parts[1])
        if kind not in _FUNCTIONS:
            raise UnsupportedOperatorError(f"the size {expression} has no form in TVM ({kind})")
        return _FUNCTIONS[kind](*parts)

    def tensor(self, expression: Any) -> relax.Expr:
        """Converts a `torch.SymInt` or `torch.SymFloat` to a tensor []: int64, or float64 computed
        as in torch.

        Raises
        ------
        UnsupportedOperatorError
            The size is no simple function of input sizes.
        """
        kind = type(expression).__name__
        if expression.is_Float:
            return relax.const(float(expression), "float64")
        floats = expression.find(lambda part: type(part).__name__ in ("Float", *_IN_FLOAT))
        if kind not in _IN_FLOAT and not (kind in _OF_BOTH and floats):
            size = relax.ShapeExpr([self._expression(expression)])
            return emit(relax.op.reshape(emit(relax.op.shape_to_tensor(size)), ()))
        parts = [as_type(self.tensor(part), "float64") for part in expression.args]
        operator = _IN_FLOAT.get(kind) or _OF_BOTH[kind]
        return functools.reduce(lambda one, other: emit(operator(one, other)), parts)

    def _fraction(self, expression: Any, whole: Any) -> tuple[Any, int]:
        """Numerator and denominator of a floating-point expression of torch, if they are exact."""
        kind = type(expression).__name__
        if kind == "ToFloat":
            return self._expression(expression.args[0]), 1
        if kind == "IntTrueDiv":
            return self._expression(expression.args[0]), self._expression(expression.args[1])
        if expression.is_Number:
            number = Fraction(float(expression))
            if max(abs(number.numerator), number.denominator) < _MOST:
                return number.numerator, number.denominator
        elif kind in _OF_BOTH:
            (above, below), *parts = (self._fraction(each, whole) for each in expression.args)
            if all(isinstance(divisor, int) for _, divisor in ((above, below), *parts)):
                for term, divisor in parts:
                    is_product = kind == "Mul"
                    above = above * term if is_product else above * divisor + term * below
                    below *= divisor
                return above, below
        raise UnsupportedOperatorError(
            f"the size {whole} has no form in TVM: torch rounds {expression}; use factors such "
            "as 2, 1.5 or 0.25, or give sizes"
        )


# Names of torch's functions -> whole number from a numerator and a denominator.
_TO_WHOLE: dict[str, Callable[[Any, Any, bool], Any]] = {
    "TruncToInt": lambda above, below, may_be_negative: (
        tirx.truncdiv if may_be_negative else tirx.floordiv
    )(above, below),
    "FloorToInt": lambda above, below, _: tirx.floordiv(above, below),
    "CeilToInt": lambda above, below, _: tirx.floordiv(above + below - 1, below),
}
# Names of torch's functions -> operator of float64.
_IN_FLOAT: dict[str, Callable[..., relax.Expr]] = {
    "ToFloat": relax.op.add,  # it has one argument, so this is never applied
    "IntTrueDiv": relax.op.divide,
    "FloatTrueDiv": relax.op.divide,
    "FloatPow": relax.op.power,
}
_OF_BOTH = {"Add": relax.op.add, "Mul": relax.op.multiply}  # also of whole numbers
# Numbers up to this, times any size, are exact in float64.
_MOST = 2**16


def size_symbol(value: Any) -> str:
    """The symbol of a number that can be a size, as it is never negative; else ""."""
    if not isinstance(value, torch.SymInt) or not value.node.expr.is_Symbol:
        return ""
    bounds = value.node.shape_env.var_to_range.get(value.node.expr)
    return "" if bounds is None or not bounds.lower >= 0 else str(value.node.expr)
