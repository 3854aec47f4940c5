"""Reads every second, third or fourth element, or backwards, a vector at a time.

for v in vectorized(16): y[v] = x[2 * v]        (sixteen scalar loads)

->  row[0:16] = shuffle(x[0:16], x[15:31])      (never past the last element that is read)
    for v in vectorized(16): y[v] = row[v]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr, element_of, reinterpret

from .expressions import calls_of, int64, ramp_at, same, shuffle, strides_of, substitute
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
