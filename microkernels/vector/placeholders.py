"""Placeholders: numbers that can be exchanged for others after a kernel was built.

    trace = Trace((0.0107, 131))
    scale, zero_point = trace.placeholders()
    splat((scale * 2).emitted("float32"), 16)     # T.Broadcast(placeholder number 0, 16)
    Reading((0.0132, 128))(trace.numbers[0])      # 0.0264: the number of another kernel
    trace.holds((0.0132, 128))                    # whether the other kernel has equal code

A placeholder has a value: code computes and decides with it as with that number. A result computed
from it is a placeholder too, and remembers its computation. Each decision (a comparison, a
conversion to an ordinary number) becomes a condition: a kernel for other numbers has equal code if
all conditions have equal outcomes for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import ir, tirx

Values: TypeAlias = Sequence[Any]
EXTERN = "tvm_hybrid.placeholder"


class Trace:
    """Records how the code that builds a kernel uses some numbers.

    Parameters
    ----------
    values : sequence of float or int
        The numbers for which a kernel is built.

    Attributes
    ----------
    conditions : dict of Placeholder
        Decisions about the numbers; the value of each is its outcome.
    numbers : list of Placeholder
        Emitted numbers, in the order of the numbers in their expressions.
    """

    def __init__(self, values: Values) -> None:
        self.values = tuple(values)
        self.conditions: dict[int, Placeholder] = {}
        self.numbers: list[Placeholder] = []
        # One placeholder for each function and its arguments.
        self.known: dict[object, Placeholder] = {}

    def placeholders(self) -> list[Placeholder]:
        """A placeholder for each number."""
        return [Placeholder(self, value, None, (i,)) for i, value in enumerate(self.values)]

    def holds(self, values: Values) -> bool:
        """Whether all conditions have equal outcomes for other numbers."""
        read = Reading(values)
        try:
            return all(_same(read(each), each.value) for each in self.conditions.values())
        except (ArithmeticError, TypeError, ValueError):
            return False


class Placeholder:
    """A number of a trace, or a result computed from its numbers.

    Parameters
    ----------
    trace : Trace
        Receives conditions and emitted numbers.
    value : object
        Its value for the numbers of the trace.
    function : callable or None
        The function that computes it; None for a number of the trace.
    arguments : tuple
        Arguments of the function; for a number of the trace, its place.
    """

    __slots__ = ("arguments", "function", "trace", "value")

    def __init__(
        self,
        trace: Trace,
        value: Any,
        function: Callable[..., Any] | None,
        arguments: tuple[Any, ...],
    ) -> None:
        self.trace, self.value = trace, value
        self.function, self.arguments = function, arguments

    def emitted(self, element: str) -> tirx.Expr:
        """An expression of a scalar type that `number_of` recognises."""
        self.trace.numbers.append(self)
        number = tirx.const(len(self.trace.numbers) - 1, "int32")
        return tirx.call_pure_extern(element, EXTERN, number)

    def pinned(self) -> Any:
        """The value, as a condition: a kernel for other numbers must have an equal value."""
        self.trace.conditions[id(self)] = self
        return self.value

    def __float__(self) -> float:
        return float(self.pinned())

    def __int__(self) -> int:
        return int(self.pinned())

    def __index__(self) -> int:
        return operator.index(self.pinned())

    def __str__(self) -> str:
        return str(self.pinned())

    def __repr__(self) -> str:
        return repr(self.pinned())

    def __format__(self, form: str) -> str:
        return format(self.pinned(), form)

    def __hash__(self) -> int:
        return hash(self.pinned())

    def __bool__(self) -> bool:
        return _decided(bool, self)

    def __eq__(self, other: object) -> bool:
        return _decided(operator.eq, self, other)

    def __ne__(self, other: object) -> bool:
        return _decided(operator.ne, self, other)

    def __lt__(self, other: Any) -> bool:
        return _decided(operator.lt, self, other)

    def __le__(self, other: Any) -> bool:
        return _decided(operator.le, self, other)

    def __gt__(self, other: Any) -> bool:
        return _decided(operator.gt, self, other)

    def __ge__(self, other: Any) -> bool:
        return _decided(operator.ge, self, other)

    def __neg__(self) -> Any:
        return applied(operator.neg, self)

    def __abs__(self) -> Any:
        return applied(abs, self)

    def __add__(self, other: Any) -> Any:
        return applied(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return applied(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return applied(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return applied(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return applied(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return applied(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return applied(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return applied(operator.truediv, other, self)


Known = (float, int, Placeholder)
"""Types of numbers that are no expressions."""


class Reading:
    """Evaluates placeholders for other numbers than their trace's; each is computed once.

    Parameters
    ----------
    values : sequence of float or int
        The other numbers.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.known: dict[int, Any] = {}

    def __call__(self, found: Any) -> Any:
        """The value of a placeholder for the numbers; any other object is returned unchanged."""
        if not isinstance(found, Placeholder):
            return found
        if id(found) not in self.known:
            if found.function is None:
                self.known[id(found)] = self.values[found.arguments[0]]
            else:
                self.known[id(found)] = found.function(*map(self, found.arguments))
        return self.known[id(found)]


def applied(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function's result; a placeholder if an argument is one.

    Parameters
    ----------
    function : callable
        Its result depends on the arguments alone.
    *arguments : object
        Some may be placeholders, all of one trace.
    """
    found = [argument for argument in arguments if isinstance(argument, Placeholder)]
    if not found:
        return function(*arguments)
    trace = found[0].trace
    parts = [id(each) if isinstance(each, Placeholder) else repr(each) for each in arguments]
    key = (function, *parts)
    if key not in trace.known:
        values = [each.value if isinstance(each, Placeholder) else each for each in arguments]
        trace.known[key] = Placeholder(trace, function(*values), function, arguments)
    return trace.known[key]


def unpacked(found: Any) -> tuple[Any, ...] | None:
    """The items of a tuple, or None for None; placeholders if `applied` made `found` one."""
    if not isinstance(found, Placeholder):
        return None if found is None else tuple(found)
    if _decided(operator.is_, found, None):
        return None
    return tuple(applied(operator.getitem, found, i) for i in range(len(found.value)))


def as_real(value: Any) -> Any:
    """A number as a float."""
    return applied(float, value)


def as_integer(value: Any) -> Any:
    """A number as an int."""
    return applied(int, value)


def number_of(expr: ir.Call) -> int | None:
    """The number under which a trace emitted an expression; None for another expression."""
    if len(expr.args) != 2 or getattr(expr.args[0], "value", None) != EXTERN:
        return None
    return int(expr.args[1].value)


def _decided(function: Callable[..., Any], *arguments: Any) -> bool:
    """The outcome of a decision, which becomes a condition."""
    return bool(applied(function, *arguments).pinned())


def _same(one: object, other: object) -> bool:
    """Whether two numbers are identical; 0.0 and -0.0 are not."""
    return repr(one) == repr(other)
