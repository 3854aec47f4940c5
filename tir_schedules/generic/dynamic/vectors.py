"""Writes a loop over elements in vectors if LLVM cannot, because an element has a branch.

    for i in range(n): y[i] = unlikely(x[i] > 100, f(x[i]), g(x[i]))

    ->  for j in range(n // 8): for v in vectorized(8): y[j * 8 + v] = unlikely(...)
        for i in range(n % 8): y[n // 8 * 8 + i] = unlikely(...)

All other loops over single elements are LLVM's to vectorise.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.tirx import ForKind

from microkernels.vector import unlikely
from microkernels.vector.expressions import Expr
from tir_schedules.core.emission import walk

from ..expressions import call_name, int64, substitute
from ..loops import sequence, without_repeats
from ..nest import Axis


def loop_of_elements(place: tirx.Var, extent: Expr, body: tirx.Stmt, lanes: int) -> tirx.Stmt:
    """A serial loop, in vectors where that takes more than LLVM."""
    if not _branches(body):
        return tirx.For(place, int64(0), extent, ForKind.SERIAL, body)
    vectors = tirx.FloorDiv(extent, int64(lanes))
    vector, lane = Axis.new(1, "vector"), Axis.new(lanes, "lane")
    allocated, wide = _widened(body, lanes, lane.var)
    wide = substitute(wide, {place: vector.var * int64(lanes) + lane.var})
    inner = without_repeats(tirx.For(lane.var, int64(0), int64(lanes), ForKind.VECTORIZED, wide))
    whole = sequence([*allocated, inner])
    rest, last = Axis.new(1, "rest"), vectors * int64(lanes)
    single = substitute(body, {place: last + rest.var})
    return sequence(
        [
            tirx.For(vector.var, int64(0), vectors, ForKind.SERIAL, whole),
            tirx.For(rest.var, int64(0), extent - last, ForKind.SERIAL, single),
        ]
    )


def _branches(body: tirx.Stmt) -> bool:
    """Whether a statement without loops has an unlikely branch."""
    if any(isinstance(each, tirx.For) for each in walk(body)):
        return False
    found: list[str] = []
    tvm_ffi.structural_walk(body, (Call, lambda call: found.append(call_name(call))))
    return unlikely.NAME.removeprefix("tirx.") in found


def _widened(body: tirx.Stmt, lanes: int, lane: tirx.Var) -> tuple[list[tirx.Stmt], tirx.Stmt]:
    """Buffers of vectors for a statement's own buffers of one element, and what uses them."""
    wide: dict[tirx.Var, tirx.Var] = {}
    rest: list[tirx.Stmt] = []
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if isinstance(statement, tirx.AllocBuffer):
            old = statement.buffer
            wide[old] = tirx.decl_buffer((int64(lanes),), old.dtype, old.name)
        else:
            rest.append(statement)

    def load(node: TensorLoad) -> Expr:
        own = wide.get(node.source)
        return node if own is None else tirx.BufferLoad(own, [lane])

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        own = wide.get(node.buffer)
        return node if own is None else tirx.BufferStore(own, node.value, [lane])

    changed = tvm_ffi.structural_map(
        sequence(rest), [(TensorLoad, load), (tirx.BufferStore, store)]
    )
    return [tirx.AllocBuffer(each) for each in wide.values()], changed
