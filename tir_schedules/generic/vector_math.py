"""Replaces calls that would become scalar library calls by arithmetic that vectorises.

    T.exp(x), T.sin(x)  ->  polynomials of microkernels.vector
    T.pow(x, 2.0)       ->  x * x
    T.bfloat16(x)       ->  integer arithmetic on the bits of x, rounding to nearest even
    T.truncmod(x, y)    ->  arithmetic of microkernels.vector.remainder
    T.exp10(x)          ->  exp10f(x), of the C library
    T.isnan(x)          ->  a comparison of the bits of x
    T.atan2(half, half) ->  T.float16(T.atan2(T.float32(half), T.float32(half)))
    p == q, booleans    ->  T.uint8(p) == T.uint8(q)

Calls in float64, and functions without a vector form, stay if TVM compiles them by an accurate
formula. (TVM's 0.5 * log((1 + x) / (1 - x)) gives 0 for the atanh of a small x.) TVM's own
conversion to bfloat16 repeats its argument and makes infinity of a NaN. TVM compares booleans as if
they were floats, which LLVM refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.tirx.expr import BinaryOpExpr, CmpExpr

from microkernels.vector import bfloat16, ieee, remainder, trigonometry, vector_math
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr

from .expressions import Tree, call_name, const_int, int64, nodes_of

_VECTOR_FORMS = {
    vector_math: "exp log erf tanh sigmoid rsqrt softplus",
    trigonometry: "sin cos tan asin acos atan sinh cosh asinh acosh atanh log1p",
    remainder: "fmod",
}
_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    name: getattr(module, name) for module, names in _VECTOR_FORMS.items() for name in names.split()
}
# Functions of the C library that TVM does not know, or computes by a formula with cancellation.
_LIBRARY = {"float32": ("exp10",), "float64": ("atanh", "cosh", "exp10", "fmod", "sinh", "tanh")}
# Functions that TVM does not compile in float16, or not accurately.
_NOT_IN_HALF = ("atan2", "copysign", "exp10", "hypot")
_KNOWN = {*_FUNCTIONS, *_NOT_IN_HALF, *(name for names in _LIBRARY.values() for name in names)}
_SINGLE = ("float32", "float16")  # computed in float32
_OF_PAIRS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Max, tirx.Min, tirx.Mod)


def lower_math(tree: Tree) -> Tree:
    """The expression or statement with library calls replaced, on scalars and vectors."""
    rules = [(Call, _lowered), (tirx.Cast, _converted), *((kind, _paired) for kind in _OF_PAIRS)]
    return tvm_ffi.structural_map(tree, rules)


def _paired(pair: BinaryOpExpr | CmpExpr) -> Expr:
    """A remainder of floats as arithmetic, an operation of booleans on bytes; others unchanged."""
    if isinstance(pair, tirx.Mod):
        element = ex.element_of(pair)
        return _computed("fmod", element, (pair.a, pair.b)) if element in _SINGLE else pair
    if ex.element_of(pair.a) != "bool":
        return pair
    return ex.cast("bool", type(pair)(ex.cast("uint8", pair.a), ex.cast("uint8", pair.b)))


def _converted(conversion: tirx.Cast) -> Expr:
    """A cast between bfloat16 and f32 or float16, on bits; another cast is returned unchanged."""
    source, target = ex.element_of(conversion.value), ex.element_of(conversion)
    # TVM computes bfloat16 in f32, so a computed value has no bits to read.
    if (source, target) == ("bfloat16", "float32") and not _is_computed(conversion.value):
        return bfloat16.widen(bfloat16.bits_of(conversion.value))
    if target == "bfloat16" and source in ("float32", "float16"):
        value = ex.cast("float32", conversion.value)
        with ex.let_scope() as lets:
            return ex.with_lets(lets, bfloat16.from_bits(bfloat16.narrow(value)))
    return conversion


def _is_computed(value: Expr) -> bool:
    """Whether TVM computes a value of type bfloat16, other than by reading it or its bits."""
    if isinstance(value, tirx.Let):
        return _is_computed(value.body)
    if isinstance(value, Call):
        return call_name(value) != "reinterpret"
    return isinstance(value, (BinaryOpExpr, tirx.Select))


def _lowered(call: Call) -> Expr:
    name = call_name(call)
    if name == "pow":
        return _power(call)
    if name == "isnan":
        return ieee.is_nan(call.args[0]) if ieee.is_float(call.args[0]) else call
    if name not in _KNOWN:
        return call  # for example an address, which has no elements
    element = ex.element_of(call)
    if element == "float16" and name in _NOT_IN_HALF:
        wide = getattr(tirx, name)(*(ex.cast("float32", argument) for argument in call.args))
        return ex.cast(element, _lowered(wide))
    if name in _LIBRARY.get(element, ()) and ex.lanes_of(call) == 1:
        symbol = f"{name}f" if element == "float32" else name
        return tirx.call_pure_extern(element, symbol, *call.args)
    if name not in _FUNCTIONS or element not in _SINGLE:
        return call
    arguments = [each for each in call.args if not isinstance(each, StringImm)]  # without the name
    return _computed(name, element, arguments)


def _computed(name: str, element: str, arguments: Iterable[Expr]) -> Expr:
    with ex.let_scope() as lets:
        result = _FUNCTIONS[name](*(ex.cast("float32", each) for each in arguments))
        return ex.with_lets(lets, ex.cast(element, result))


def _power(call: Call) -> Expr:
    """A constant power by multiplications and roots; else the call."""
    base, exponent = call.args
    if not isinstance(exponent, tirx.FloatImm | tirx.IntImm) or not isinstance(base, tirx.Expr):
        return call
    value = float(exponent.value)
    if value == 1.0:
        return base
    if value not in (2.0, 3.0, 4.0, -1.0, 0.5, -0.5):
        return call
    variable = tirx.Var("base", str(base.ty.dtype))
    squared = variable * variable
    # The root of -inf is a NaN, and the root of -0 is -0, but powers of -inf and -0 are positive.
    infinite = tirx.EQ(variable, ex.like(-math.inf, variable))

    def root() -> Expr:
        return ieee.absolute(tirx.sqrt(variable))

    results: dict[float, Callable[[], Expr]] = {
        2.0: lambda: squared,
        3.0: lambda: squared * variable,
        4.0: lambda: squared * squared,
        -1.0: lambda: ex.like(1.0, base) / variable,
        0.5: lambda: tirx.Select(infinite, ex.like(math.inf, base), root()),
        -0.5: lambda: tirx.Select(infinite, ex.like(0.0, base), ex.like(1.0, base) / root()),
    }
    return tirx.Let(variable, base, results[value]())


def ascending(tree: Tree) -> Tree:
    """Writes divisions of positions that count down as divisions of positions that count up.

        x[(9 - v) // 2]    ->    x[4 - v // 2]
        x[(9 - v) % 5]     ->    x[4 - v % 5]

    They come from backward reads through a reshape, a tile or a repetition. TVM's FlattenBuffer
    loses their constant: it makes v % -5 * -1 of (4 - v) % 5.
    """
    return tvm_ffi.structural_map(tree, ((tirx.FloorDiv, tirx.FloorMod), _upward))


def _upward(node: tirx.FloorDiv | tirx.FloorMod) -> Expr:
    """A division of c - e, which counts down, as a division of e + k, which counts up.

        (c - e) // n    ->    -1 - q - (e + k) // n
        (c - e) % n     ->    n - 1 - (e + k) % n

    with q, k = divmod(-1 - c, n).
    """
    terms, size = _counting_down(node.a), const_int(node.b)
    if terms is None or size is None or size <= 0:
        return node
    constant, falling = terms
    quotient, rest = divmod(-1 - constant, size)
    position = falling + ex.like(rest, falling) if rest else falling
    last = -1 - quotient if isinstance(node, tirx.FloorDiv) else size - 1
    return ex.like(last, node) - type(node)(position, node.b)


def _counting_down(value: Expr) -> tuple[int, Expr] | None:
    """c and e of a position c - e in which no term counts up; None if a term does."""
    constant = 0
    falling: Expr | None = None
    pending = [(value, 1)]
    while pending:
        term, factor = pending.pop()
        number = const_int(term)
        if number is not None:
            constant += factor * number
        elif isinstance(term, tirx.Add):
            pending += [(term.a, factor), (term.b, factor)]
        elif isinstance(term, tirx.Sub):
            pending += [(term.a, factor), (term.b, -factor)]
        elif isinstance(term, tirx.Mul) and const_int(term.b) is not None:
            pending.append((term.a, factor * (const_int(term.b) or 0)))
        elif factor > 0:
            return None
        elif factor < 0:
            part = term if factor == -1 else term * ex.like(-factor, term)
            falling = part if falling is None else falling + part
    return None if falling is None else (constant, falling)


def names_in_memory(body: tirx.Stmt) -> tirx.Stmt:
    """Puts named values within expressions into memory, so that TVM does not substitute them.

    Before

        for v in vectorized(16):
            y[v] = let t = exp(x[v]) in t * t + if_then_else(i > 0, let u = ... in u * u, 0)

    After

        for v in vectorized(16):
            a[v] = exp(x[v])
            if i > 0: b[v] = ...; c[v] = b[v] * b[v]
            else:     c[v] = 0
            y[v] = a[v] * a[v] + c[v]

    TVM substitutes a Let while it writes LLVM's code, so that a chain of them grows exponentially
    (see `microkernels.vector.expressions`). LLVM makes registers of the buffers.
    """
    body = tvm_ffi.structural_map(body, (tirx.For, _vectorized))
    return tvm_ffi.structural_map(body, (tirx.BufferStore, _alone))


def _vectorized(loop: tirx.For) -> tirx.Stmt:
    """A vectorised loop after allocations for its names; another loop is returned unchanged."""
    lanes = const_int(loop.extent)
    if loop.kind != tirx.ForKind.VECTORIZED or lanes is None:
        return loop
    buffers: list[tirx.Var] = []

    def store(old: tirx.BufferStore) -> tirx.Stmt:
        return _Names(buffers, lanes, loop.loop_var).store(old)

    body = tvm_ffi.structural_map(loop.body, (tirx.BufferStore, store))
    if not buffers:
        return loop
    bounds = loop.loop_var, loop.min, loop.extent
    written = tirx.For(*bounds, loop.kind, body, annotations=loop.annotations)
    return tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), written])


def _alone(store: tirx.BufferStore) -> tirx.Stmt:
    """A store outside of vectorised loops, after allocations for its names."""
    buffers: list[tirx.Var] = []
    written = _Names(buffers, 1, int64(0)).store(store)
    return tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), written]) if buffers else store


class _Names:
    """Moves the names of an expression into memory.

    Parameters
    ----------
    buffers : list of buffers
        Receives one buffer for every name.
    lanes : int
        Elements of each buffer.
    lane : Expr
        The element to use.
    values : dict
        The elements of names around the expression.
    """

    def __init__(
        self,
        buffers: list[tirx.Var],
        lanes: int,
        lane: Expr,
        values: dict[tirx.Var, Expr] | None = None,
    ) -> None:
        self.buffers, self.lanes, self.lane = buffers, lanes, lane
        self.values = dict(values or {})
        self.statements: list[tirx.Stmt] = []

    def store(self, store: tirx.BufferStore) -> tirx.Stmt:
        """A store, after the statements that its value needs."""
        if not _has_names(store.value):
            return store
        value = self._without(store.value)
        written = tirx.BufferStore(store.buffer, value, store.indices)
        return tirx.SeqStmt([*self.statements, written])

    def _without(self, expression: Expr) -> Expr:
        """The expression without Lets; `statements` store the named values."""
        name = (tirx.Var, lambda var: self.values.get(var, var))
        callbacks = ((tirx.Let, self._let), (Call, self._call), name)
        return tvm_ffi.structural_map(expression, callbacks, order="pre")

    def _let(self, let: tirx.Let) -> Expr:
        value = self._without(let.value)
        element = self.values[let.var] = self._element(value)
        self.statements.append(tirx.BufferStore(element.source, value, element.indices))
        return self._without(let.body)

    def _call(self, call: Call) -> Expr:
        """Computes a guarded value under its guard; another call is returned unchanged."""
        if call_name(call) != "if_then_else" or not any(map(_has_names, call.args[1:])):
            return call
        condition = self._without(call.args[0])
        result = self._element(call)
        sides = []
        for side in call.args[1:]:
            inside = _Names(self.buffers, self.lanes, self.lane, self.values)
            value = inside._without(side)
            end = tirx.BufferStore(result.source, value, result.indices)
            sides.append(tirx.SeqStmt([*inside.statements, end]) if inside.statements else end)
        self.statements.append(tirx.IfThenElse(condition, *sides))
        return result

    def _element(self, value: Expr) -> Expr:
        """An element of a new buffer for a value."""
        buffer = tirx.decl_buffer((int64(self.lanes),), str(value.ty.dtype), "named")
        self.buffers.append(buffer)
        return tirx.BufferLoad(buffer, [self.lane])


def _has_names(expression: Expr) -> bool:
    return bool(nodes_of(expression, tirx.Let))
