"""Legalises sums and products along an axis, with neighbours of a result in the innermost loop.

Before

    lv = R.cumsum(x, axis=0)                # x: [rows, columns]

After

    lv = R.call_tir(cumsum, (x,))

    for j in columns: y[0, j] = x[0, j]
    for i in rows - 1: for j in columns: y[i + 1, j] = y[i, j] + x[i + 1, j]

TVM's own, which DispatchSortScan puts in the place of what is left, runs down one column after the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.relax import Legalize
from microkernels.vector.expressions import Expr, cast, element_of
from tir_schedules.core.emission import opaque_block

_FIRST = {"cumsum": 0, "cumprod": 1}  # of an exclusive one


def _scan(name: str, combine: Callable[[Expr, Expr], Expr]) -> Legalize:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, attrs = call.args[0], call.attrs
        dtype = str(attrs.dtype or x.ty.dtype)
        if attrs.axis is None or "bool" in (dtype, str(x.ty.dtype)):
            return call
        axis = int(attrs.axis) % int(x.ty.ndim)

        def computed(x: te.Tensor) -> Any:
            def statement(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
                with IRBuilder() as kernel, opaque_block("scan"):
                    scan = _Scan(ins[0], outs[0], axis, bool(attrs.exclusive), combine)
                    scan.emit(tirx.const(_FIRST[name], dtype))
                return kernel.get()

            return te.extern([x.shape], [x], statement, name=name, dtype=dtype)

        return builder.call_te(computed, x, primfunc_name_hint=name)

    return legalize


@dataclass(frozen=True)
class _Scan:
    """The loops, in the PrimFunc under construction."""

    x: Expr
    y: Expr
    axis: int
    exclusive: bool
    combine: Callable[[Expr, Expr], Expr]

    def emit(self, first: Expr) -> None:
        """All of them; `first` is what an exclusive scan starts with."""
        extent = self.x.shape[self.axis]
        zero, one = (tirx.const(number, str(extent.ty.dtype)) for number in (0, 1))
        with ExitStack() as loops:
            before = _loops(loops, self.x.shape[: self.axis], shared=True)
            with I.serial(te.min(extent, one)):
                self._each(before, zero, lambda at: first if self.exclusive else self._x(at(zero)))
            with I.serial(extent - one) as step:
                place = step if self.exclusive else step + one
                self._each(
                    before,
                    step + one,
                    lambda at: self.combine(self.y[tuple(at(step))], self._x(at(place))),
                )

    def _x(self, at: list[Expr]) -> Expr:
        return cast(element_of(self.y[tuple(at)]), self.x[tuple(at)])

    def _each(
        self, before: list[Expr], place: Expr, value: Callable[[Callable[[Expr], list[Expr]]], Expr]
    ) -> None:
        """Stores a value at a place of the axis, for all elements behind it."""
        with ExitStack() as loops:
            behind = _loops(loops, self.x.shape[self.axis + 1 :])

            def at(number: Expr) -> list[Expr]:
                return [*before, number, *behind]

            I.buffer_store(self.y, value(at), at(place))


def _loops(stack: ExitStack, extents: Sequence[Expr], shared: bool = False) -> list[Expr]:
    """Loops; threads may share the outermost."""
    kinds = (I.parallel if shared and not number else I.serial for number in range(len(extents)))
    return [stack.enter_context(kind(extent)) for kind, extent in zip(kinds, extents, strict=True)]


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.cumsum": _scan("cumsum", lambda total, element: total + element),
    "relax.cumprod": _scan("cumprod", lambda total, element: total * element),
}
