"""Integers of TIR as indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .flat_tir import key
from .index import UNKNOWN, Index, apply

# TIR's binary operations on integers, and ours.
_INTEGERS = {
    "FloorDiv": "//",
    "FloorMod": "%",
    "Div": "//",
    "Mod": "%",
    "Min": "min",
    "Max": "max",
    "LT": "<",
    "LE": "<=",
    "EQ": "==",
    "NE": "!=",
    "And": "and",
    "Or": "or",
}
_BITS = {
    "tirx.bitwise_and": "&",
    "tirx.bitwise_or": "|",
    "tirx.bitwise_xor": "^",
    "tirx.shift_left": "<<",
    "tirx.shift_right": ">>",
}


class Integers:
    """What is known of the integers of a function while it is read.

    Parameters
    ----------
    of_data : callable
        Called with an expression that depends on data, wherever an index is needed.
    """

    def __init__(self, of_data: Callable[[Any], object]) -> None:
        self.known: dict[int, Index] = {}
        self.of_data = of_data

    def ramp(self, node: Any) -> tuple[Index, int] | None:
        """The first lane of consecutive indices and the distance of lanes, if it is fixed."""
        kind = type(node).__name__
        if kind == "Ramp":
            start, step = self.index(node.base), self.index(node.stride)
            return None if step.terms else (start, step.constant)
        if kind == "Broadcast":
            return self.index(node.value), 0
        if kind == "Cast":
            return self.ramp(node.value)
        if kind in ("Add", "Sub", "Mul"):
            a, b = self.ramp(node.a), self.ramp(node.b)
            if a is None or b is None:
                return None
            if kind == "Mul":
                vector, factor = (a, b) if b[1] == 0 else (b, a)
                if factor[1] or factor[0].terms:
                    return None
                times = factor[0].constant
                return vector[0].times(times), vector[1] * times
            sign = 1 if kind == "Add" else -1
            return a[0].plus(b[0], sign), a[1] + sign * b[1]
        return None

    def index(self, node: Any) -> Index:
        """An index; unknown if it depends on data."""
        found = self.find(node)
        if found is not None:
            return found
        self.of_data(node)
        return UNKNOWN

    def find(self, node: Any) -> Index | None:
        """An index, or None if it depends on data or is no integer."""
        kind = type(node).__name__
        if kind == "IntImm":
            return Index(int(node.value))
        if kind == "Var":
            return self.known.get(key(node))
        if kind in ("FloatImm", "TensorLoad", "Broadcast", "Ramp", "StringImm"):
            return None
        dtype = node.ty.dtype if hasattr(node.ty, "dtype") else None
        if dtype is None or int(dtype.lanes) > 1 or str(dtype).startswith(("float", "bfloat")):
            return None
        if kind in ("Add", "Sub", "Mul") or kind in _INTEGERS:
            a, b = self.find(node.a), self.find(node.b)
            if a is None or b is None:
                return None
            if kind == "Add":
                return a.plus(b)
            if kind == "Sub":
                return a.plus(b, -1)
            return apply("*" if kind == "Mul" else _INTEGERS[kind], a, b)
        if kind in ("GT", "GE"):
            a, b = self.find(node.a), self.find(node.b)
            return None if a is None or b is None else apply("<" if kind == "GT" else "<=", b, a)
        if kind == "Not":
            a = self.find(node.a)
            return None if a is None else apply("not", a)
        if kind == "Cast":
            return self.find(node.value)
        if kind == "Select":
            return self._apply("select", node.condition, node.true_value, node.false_value)
        if kind == "Call":
            name = str(getattr(node.op, "name", ""))
            if name == "tirx.likely":
                return self.find(node.args[0])
            if name == "tirx.if_then_else":
                operation = "select"
            elif name in _BITS:
                operation = _BITS[name]
            else:
                return None
            return self._apply(operation, *node.args)
        return None

    def _apply(self, operation: str, *nodes: Any) -> Index | None:
        parts = [self.find(node) for node in nodes]
        known = [part for part in parts if part is not None]
        return apply(operation, *known) if len(known) == len(parts) else None
