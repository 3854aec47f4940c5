"""Small building blocks for vector expressions in TIR: constants, ramps, named values.

`bind` gives a value a name, so that an expression used twice is computed once. Inside a PrimFunc
under construction it becomes a statement; inside `let_scope` (when a plain expression is wanted,
as in a rewriting pass) it becomes a Let around the final expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

Expr: TypeAlias = tirx.Expr


def parameter(name: str, shape: Sequence[int], dtype: str) -> Expr:
    """A parameter of the PrimFunc under construction, aligned to its elements only.

    TVM assumes 64 bytes unless told otherwise, and LLVM then uses instructions that fault on what a
    caller's array really is; unaligned ones cost nothing on aligned data.
    """
    align = max(1, DataType(dtype).itemsize)
    return I.arg(name, I.buffer(tuple(shape), dtype, align=align))


def lanes_of(value: Expr) -> int:
    """Number of lanes of an expression; 1 for a scalar."""
    return int(value.ty.dtype.lanes)


def element_of(value: Expr) -> str:
    """Element type of an expression, such as "float32", without its lanes."""
    return str(value.ty.dtype).split("x")[0]


def vector_type(element: str, lanes: int) -> str:
    """The name of a vector type; a single lane is the scalar type."""
    return element if lanes == 1 else f"{element}x{lanes}"


def splat(value: Expr, lanes: int) -> Expr:
    """A scalar expression in every lane."""
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def constant(value: float | int, element: str, lanes: int) -> Expr:
    """A number in every lane."""
    return splat(tirx.const(value, element), lanes)


def like(value: float | int, other: Expr) -> Expr:
    """A number with the type and lanes of `other`."""
    return constant(value, element_of(other), lanes_of(other))


def ramp(start: Expr | int, lanes: int) -> Expr:
    """Consecutive indices from `start`; a plain index for one lane."""
    if isinstance(start, int):
        start = tirx.const(start, "int32")
    return start if lanes == 1 else tirx.Ramp(start, tirx.const(1, "int32"), lanes)


def reinterpret(element: str, value: Expr) -> Expr:
    """The same bits as another element type of the same width."""
    return I.reinterpret(vector_type(element, lanes_of(value)), value)


def reinterpret_group(element: str, value: Expr, lanes: int) -> Expr:
    """The same bits as another number of wider or narrower lanes."""
    return I.reinterpret(vector_type(element, lanes), value)


def cast(element: str, value: Expr) -> Expr:
    """Converts every lane to another element type."""
    if element_of(value) == element:
        return value
    return tirx.Cast(vector_type(element, lanes_of(value)), value)


_let_scopes: list[list[tuple[tirx.Var, Expr]]] = []


def bind(value: Expr) -> Expr:
    """Names a value, so that using the result several times computes it once."""
    if not _let_scopes:
        return I.bind(value)
    variable = tirx.Var("v", str(value.ty.dtype))
    _let_scopes[-1].append((variable, value))
    return variable


@contextmanager
def let_scope() -> Iterator[list[tuple[tirx.Var, Expr]]]:
    """Collects what `bind` names, for `with_lets` to wrap around the result."""
    _let_scopes.append([])
    try:
        yield _let_scopes[-1]
    finally:
        _let_scopes.pop()


def with_lets(lets: list[tuple[tirx.Var, Expr]], body: Expr) -> Expr:
    """`body` inside one Let for every collected name, outermost first."""
    for variable, value in reversed(lets):
        body = tirx.Let(variable, value, body)
    return body
