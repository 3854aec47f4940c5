"""Reads every second, third or fourth element, or backwards, a vector at a time.

for v in vectorized(16): y[v] = x[2 * v]        (sixteen scalar loads)

->  row[0:16] = shuffle(x[0:16], x[15:31])      (never past the last element that is read)
    for v in vectorized(16): y[v] = row[v]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels.vector.expressions import Expr, element_of, like, reinterpret

from .expressions import (
    call_name,
    calls_of,
    const_int,
    divisions_of,
    int64,
    loads_of,
    map_calls,
    map_loads,
    ramp_at,
    same,
    shuffle,
    strides_of,
    substitute,
)
from .nest import Axis, Nest, analyzer_for, unchanged

STEPS = (-1, 2, 3, 4)
"""Distances from element to element that are read by whole vectors and shuffled."""


@dataclass(frozen=True)
class Staged:
    """Loads whose elements lie in register-sized local buffers, and the statements that do it."""

    loads: tuple[TensorLoad, ...]
    rows: tuple[tirx.Var, ...]
    statements: tuple[tirx.Stmt, ...]

    def lane(self, lane: Expr) -> Callable[[TensorLoad], Expr]:
        """Replaces staged loads by one lane of their rows."""
        if not self.loads:
            return unchanged

        def change(load: TensorLoad) -> Expr:
            for other, row in zip(self.loads, self.rows, strict=True):
                if same(load, other):
                    element = tirx.BufferLoad(row, [lane])
                    dtype = str(load.ty.dtype)
                    return element if str(row.dtype) == dtype else reinterpret(dtype, element)
            return load

        return change


NOTHING_STAGED = Staged((), (), ())


def strided_loads(nest: Nest, axis: Axis, still: Axis | None = None) -> list[TensorLoad]:
    """Loads of a flat nest with one of STEPS along `axis`, that stand still along `still`."""
    if any(calls_of(value, "if_then_else") for value in nest.expressions()):
        return []
    analyzer = analyzer_for(nest.axes())
    axes = [axis.var] if still is None else [axis.var, still.var]
    found: list[TensorLoad] = []
    for load in nest.reads():
        strides = strides_of(load.indices[0], axes, analyzer)
        if strides[axis.var] not in STEPS or (still is not None and strides[still.var] != 0):
            continue
        if str(load.ty.dtype) != "bool" and not any(same(load, other) for other in found):
            found.append(load)
    return found


def stage(loads: list[TensorLoad], axis: Axis, at: dict[tirx.Var, Expr], width: int) -> Staged:
    """The elements of `loads` for `width` steps along `axis` from the point `at`."""
    if width == 1:
        return NOTHING_STAGED
    rows = []
    statements: list[tirx.Stmt] = []
    for load in loads:
        first = substitute(load.indices[0], at)
        second = substitute(load.indices[0], {**at, axis.var: at[axis.var] + int64(1)})
        step = int(analyzer_for(()).simplify(second - first).value)
        vectors = _vectors(load.source, first, step, width)
        statements += [tirx.Bind(var, value) for var, value in vectors]
        last, _ = vectors[-1]
        row = tirx.decl_buffer((int64(width),), element_of(last), "row")
        statements.append(tirx.AllocBuffer(row))
        statements.append(tirx.BufferStore(row, last, [ramp_at(int64(0), width)]))
        rows.append(row)
    return Staged(tuple(loads), tuple(rows), tuple(statements))


def _vectors(source: tirx.Var, first: Expr, step: int, width: int) -> list[tuple[tirx.Var, Expr]]:
    """Names for the vectors that hold the elements, and last for what is picked out of them."""
    found: list[tuple[tirx.Var, Expr]] = []

    def named(value: Expr) -> tirx.Var:
        var = tirx.Var("strided", str(value.ty.dtype))
        found.append((var, value))
        return var

    def read(start: Expr) -> tirx.Var:
        vector = tirx.BufferLoad(source, [ramp_at(start, width)])
        # TVM's legalisation of bfloat16 changes values that are bound, and not their names.
        bfloat16 = element_of(vector) == "bfloat16"
        return named(reinterpret("uint16", vector) if bfloat16 else vector)

    if step == -1:
        vector = read(first - int64(width - 1))
        named(shuffle([vector], reversed(range(width))))
        return found
    # The last vector ends at the last element, beyond which there may be none.
    last = step * (width - 1) + 1 - width
    starts = [min(number * width, last) for number in range(step)]
    value = read(first)
    lanes = [step * lane for lane in range(width)]
    for number, start in enumerate(starts[1:], 1):
        limit = number * width
        vector = read(first + int64(start))
        picked = []
        for lane, at in enumerate(lanes):
            if at >= limit:
                picked.append(min(width + at - start, 2 * width - 1))
            else:
                picked.append(at if number == 1 else lane)
        value = named(shuffle([value, vector], picked))
    return found


def with_selects(nest: Nest) -> Nest:
    """Choices whose sides are both computed, so that LLVM makes vectors of them.

        y[i] = Select(x[i] > 1, x[i], p[0])

        ->  a = x[i]; b = p[0]; y[i] = Select(a > 1, a, b)

    TVM makes a branch of a choice that reads elements: they might not exist. These do.

    The nest with elements named that choices read, if they exist.

    Parameters
    ----------
    nest : Nest
        Its tensors have their own shapes.
    """
    analyzer = nest.analyzer()
    named: list[tuple[TensorLoad, tirx.Var]] = []

    def name(load: TensorLoad) -> Expr:
        if not _exists(load, analyzer):
            return load
        for other, var in named:
            if same(load, other):
                return var
        named.append((load, tirx.Var("read", str(load.ty.dtype))))
        return named[-1][1]

    def chosen(call: Call) -> Expr:
        if call_name(call) != "if_then_else" or not all(map(_can_do, call.args[1:])):
            return call
        return tirx.Select(*call.args)

    def _can_do(side: Expr) -> bool:
        divisors = [const_int(division.b) for division in divisions_of(side)]
        return None not in divisors and all(_exists(load, analyzer) for load in loads_of(side))

    def select(choice: tirx.Select) -> Expr:
        sides = (map_loads(side, name) for side in (choice.true_value, choice.false_value))
        return tirx.Select(choice.condition, *sides)

    def in_value(value: Expr) -> Expr:
        return tvm_ffi.structural_map(map_calls(value, chosen), (tirx.Select, select))

    found = nest.mapped(lambda store: replace(store, value=in_value(store.value)), lambda v: v)
    return replace(found, lets=(*((var, load) for load, var in named), *found.lets))


def _exists(load: TensorLoad, analyzer: Analyzer) -> bool:
    """Whether an element is known to be in its tensor."""
    return all(
        not loads_of(index)
        and analyzer.can_prove(index >= int64(0))
        and analyzer.can_prove(index < size)
        for index, size in zip(load.indices, load.source.shape, strict=True)
    )


def _extreme(node: type[tirx.Max | tirx.Min]) -> Callable[[Expr, Expr], Expr]:
    def combine(total: Expr, element: Expr) -> Expr:
        if not element_of(total).startswith(("float", "bfloat")):
            return node(total, element)
        # Not total == total, which TVM takes for true.
        is_number = tirx.LE(total, like(math.inf, total))
        return tirx.Select(is_number, node(total, element), total)

    return combine


COMBINE: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Max: _extreme(tirx.Max),
    tirx.Min: _extreme(tirx.Min),
}
"""By the node that updates an element: (what it is so far, what comes to it) -> what it is then."""


def keeping_nan(value: Expr) -> Expr:
    """How reductions combine two numbers: a NaN stays, whichever of the two it is.

        y[i] = max(y[i], x[i, k])    ->    y[i] = y[i] <= inf ? max(y[i], x[i, k]) : y[i]

    x86's maximum returns its second argument if either is a NaN. So the new value comes second, and
    a comparison keeps an old NaN. That takes one more instruction on AVX-512 (a masked maximum),
    and two more elsewhere.

    An update `max(y[i], x)` or `min(y[i], x)` that keeps a NaN; any other value as it is.
    """
    if isinstance(value, tirx.Max | tirx.Min) and isinstance(value.a, TensorLoad):
        return COMBINE[type(value)](value.a, value.b)
    return value
