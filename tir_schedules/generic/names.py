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

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import ForKind

from microkernels.vector.expressions import Expr

from .expressions import const_int, int64, is_call


def names_in_memory(body: tirx.Stmt) -> tirx.Stmt:
    """The statement without any Let in a stored value."""
    body = tvm_ffi.structural_map(body, (tirx.For, _vectorized))
    return tvm_ffi.structural_map(body, (tirx.BufferStore, _alone))


def _vectorized(loop: tirx.For) -> tirx.Stmt:
    """A vectorised loop, behind the buffers of its names; any other loop stays."""
    lanes = const_int(loop.extent)
    if loop.kind != ForKind.VECTORIZED or lanes is None:
        return loop
    buffers: list[tirx.Var] = []

    def store(old: tirx.BufferStore) -> tirx.Stmt:
        return _Names(buffers, lanes, loop.loop_var).store(old)

    body = tvm_ffi.structural_map(loop.body, (tirx.BufferStore, store))
    if not buffers:
        return loop
    written = tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations
    )
    return tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), written])


def _alone(store: tirx.BufferStore) -> tirx.Stmt:
    """A store outside of vectorised loops, behind the buffers of its names."""
    buffers: list[tirx.Var] = []
    written = _Names(buffers, 1, int64(0)).store(store)
    return tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), written]) if buffers else store


class _Names:
    """Names on their way into memory.

    Parameters
    ----------
    buffers : list of buffers
        Receives one for every name.
    lanes : int
        Elements of each.
    lane : Expr
        The one to use.
    values : dict
        What names around the expression have become.
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
        """A store behind the statements that its value needs."""
        if not _has_names(store.value):
            return store
        value = self._without(store.value)
        written = tirx.BufferStore(store.buffer, value, store.indices)
        return tirx.SeqStmt([*self.statements, written])

    def _without(self, expression: Expr) -> Expr:
        """The expression without Lets; what they named is stored by `statements`."""
        callbacks = (
            (tirx.Let, self._let),
            (Call, self._call),
            (tirx.Var, self._name),
        )
        return tvm_ffi.structural_map(expression, callbacks, order="pre")

    def _name(self, var: tirx.Var) -> Expr:
        return self.values.get(var, var)

    def _let(self, let: tirx.Let) -> Expr:
        value = self._without(let.value)
        self.values[let.var] = self._stored(value)
        return self._without(let.body)

    def _call(self, call: Call) -> Expr:
        """A guarded value is worked out under its guard; any other call stays."""
        if not is_call(call, "if_then_else") or not any(map(_has_names, call.args[1:])):
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

    def _stored(self, value: Expr) -> Expr:
        element = self._element(value)
        self.statements.append(tirx.BufferStore(element.source, value, element.indices))
        return element

    def _element(self, value: Expr) -> Expr:
        """An element of a new buffer that can hold a value."""
        buffer = tirx.decl_buffer((int64(self.lanes),), str(value.ty.dtype), "named")
        self.buffers.append(buffer)
        return tirx.BufferLoad(buffer, [self.lane])


def _has_names(expression: Expr) -> bool:
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(expression, (tirx.Let, found.append))
    return bool(found)
