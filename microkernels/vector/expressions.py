"""Small building blocks for vector expressions in TIR: constants, ramps, named values.

`bind` gives a value a name, so that an expression used twice is computed once. Inside a PrimFunc
under construction it becomes a statement; inside `let_scope` (when a plain expression is wanted,
as in a rewriting pass) it becomes a Let around the final expression.

TVM treats every name as an index. It substitutes names that read no memory, in StmtSimplify and
again while it writes LLVM's code, so that a chain of names grows exponentially. It also multiplies
the interval of a Select as if it were an integer's, which fails for a float. TVM does not
substitute what is in memory: `materialise` puts a value there, and LLVM makes a register of it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import DataType, tirx
from tvm.ir.expr import TensorLoad
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import walker

from .placeholders import Placeholder

Expr: TypeAlias = tirx.Expr
Index: TypeAlias = tirx.Expr | int
"""A number of rows, vectors or steps, or a place among them; an expression if it is dynamic."""


def parameter(
    name: str, shape: Sequence[Index], dtype: str, strides: Sequence[Index] | None = None
) -> Expr:
    """A parameter of the PrimFunc under construction, aligned to its elements only.

    Without strides, its elements are contiguous.

    TVM assumes an alignment of 64 bytes by default, and LLVM then uses instructions that fault on
    a caller's array with less; unaligned instructions cost nothing on aligned data.
    """
    align = max(1, DataType(dtype).itemsize)
    if strides is None:
        return I.arg(name, I.buffer(tuple(shape), dtype, align=align))
    sizes, apart = (  # as int64: TVM compares them with others of that type
        [tirx.const(size, "int64") if isinstance(size, int) else size for size in each]
        for each in (shape, strides)
    )
    return I.arg(name, I.buffer(sizes, dtype, strides=apart, align=align))


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


def scalar(value: float | int | Placeholder, element: str) -> Expr:
    """A scalar constant."""
    if isinstance(value, Placeholder):
        return value.emitted(element)
    return tirx.const(value, element)


def constant(value: float | int | Placeholder, element: str, lanes: int) -> Expr:
    """A constant in every lane."""
    return splat(scalar(value, element), lanes)


def like(value: float | int | Placeholder, other: Expr) -> Expr:
    """A constant with the type and lanes of `other`."""
    return constant(value, element_of(other), lanes_of(other))


@functools.lru_cache(1 << 10)  # numbers of lanes: a kernel has thousands of them
def _number(value: int) -> Expr:
    return tirx.const(value, "int32")


def ramp(start: Index, lanes: int) -> Expr:
    """Consecutive indices from `start`; a plain index for one lane."""
    if isinstance(start, int):
        start = _number(start)
    return start if lanes == 1 else tirx.Ramp(start, _number(1), lanes)


def shuffle(vectors: Sequence[Expr], lanes: Iterable[int]) -> Expr:
    """Chosen lanes of several vectors, whose lanes are numbered consecutively."""
    return tirx.Shuffle(list(vectors), [_number(lane) for lane in lanes])


def numbers(values: Sequence[int], element: str) -> Expr:
    """Different numbers in the lanes of a vector."""
    return shuffle([tirx.const(value, element) for value in values], range(len(values)))


def by_llvm(name: str, *values: Expr) -> Expr:
    """A call of a pure LLVM intrinsic that is named for the one float type of its arguments."""
    first = values[0]
    lanes, suffix = lanes_of(first), f"f{first.ty.dtype.bits}"
    full = f"{name}.{suffix}" if lanes == 1 else f"{name}.v{lanes}{suffix}"
    return I.call_llvm_pure_intrin(vector_type(element_of(first), lanes), full, *values)


def reinterpret(element: str, value: Expr) -> Expr:
    """Reads the bits of every lane as another element type of equal width."""
    return I.reinterpret(vector_type(element, lanes_of(value)), value)


def reinterpret_group(element: str, value: Expr, lanes: int) -> Expr:
    """Reads the bits of a vector as another number of wider or narrower lanes."""
    return I.reinterpret(vector_type(element, lanes), value)


def cast(element: str, value: Expr) -> Expr:
    """Converts every lane to another element type."""
    if element_of(value) == element:
        return value
    return tirx.Cast(vector_type(element, lanes_of(value)), value)


MOST_USES = 4
"""How many uses of values in memory a name may stand for, all names in it replaced; a value with
more uses is materialised."""


class _Names(threading.local):
    """This thread's open `let_scope`s, and for each name in the PrimFunc under construction the
    number of uses of values in memory."""

    def __init__(self) -> None:
        self.scopes: list[list[tuple[tirx.Var, Expr]]] = []
        self.builder: IRBuilder | None = None
        self.uses: dict[tirx.Var, int] = {}
        self.count, self.chooses = 0, False
        self.walk = walker(
            (TensorLoad, self._load), (tirx.Var, self._name), (tirx.Select, self._select)
        )

    def materialises(self, value: Expr) -> bool:
        """Whether a value must be hidden from TVM; `self.count` is then its number of uses."""
        builder = IRBuilder.current()
        if self.builder is None or not self.builder.same_as(builder):
            self.builder, self.uses = builder, {}
        self.count, self.chooses = 0, False
        self.walk(value)
        return self.count > MOST_USES or self.chooses

    def _load(self, _: TensorLoad) -> tvm_ffi.WalkResult:
        self.count += 1
        return tvm_ffi.WalkResult.SKIP

    def _name(self, var: tirx.Var) -> None:
        self.count += self.uses.get(var, 1)

    def _select(self, select: Expr) -> None:
        self.chooses = self.chooses or element_of(select).startswith("float")


_names = _Names()


def bind(value: Index) -> Expr:
    """Names a value, so that using the result several times computes it once."""
    if isinstance(value, int):
        return I.bind(value)
    if _names.scopes:
        variable = tirx.Var("v", str(value.ty.dtype))
        _names.scopes[-1].append((variable, value))
        return variable
    if lanes_of(value) == 1 and not element_of(value).startswith("float"):
        return I.bind(value)  # may be an index, which TVM has to analyse
    if _names.materialises(value):
        return materialise(value)
    name = I.bind(value)
    _names.uses[name] = _names.count
    return name


def materialise(value: Expr) -> Expr:
    """Names a value in a way that TVM cannot look through; inside `let_scope` it only binds."""
    if _names.scopes:
        return bind(value)
    lanes = lanes_of(value)
    buffer = I.sblock_alloc_buffer((lanes,), element_of(value), layout=None)  # TVM looks for one
    index = ramp(0, lanes)
    I.buffer_store(buffer, value, [index])
    return I.bind(buffer[index])


@contextmanager
def let_scope() -> Iterator[list[tuple[tirx.Var, Expr]]]:
    """Collects what `bind` names, for `with_lets` to wrap around the result."""
    _names.scopes.append([])
    try:
        yield _names.scopes[-1]
    finally:
        _names.scopes.pop()


def with_lets(lets: list[tuple[tirx.Var, Expr]], body: Expr) -> Expr:
    """`body` inside one Let for every collected name, outermost first."""
    for variable, value in reversed(lets):
        body = tirx.Let(variable, value, body)
    return body
