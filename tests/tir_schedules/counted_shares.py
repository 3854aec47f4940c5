"""Counts, from a kernel's TIR, how often each element is stored or read, and by which thread.

Loops around counted accesses run here, all passes of a loop at once in NumPy; others are skipped.
TVM gives each thread a contiguous chunk of a parallel loop, all chunks of equal size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op
from tvm.ir.expr import TensorLoad
from tvm.tirx import ForKind

from tir_schedules.core.emission import children, walk

# (variables, known contents of memory) for all passes at once: [passes or 1, lanes or 1]
Names = Mapping[Any, np.ndarray]

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: operator.lt,
    tirx.LE: operator.le,
    tirx.GT: operator.gt,
    tirx.GE: operator.ge,
    tirx.EQ: operator.eq,
    tirx.NE: operator.ne,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}


@dataclass
class Shares:
    """The counts of one kernel.

    Attributes
    ----------
    times : ndarray
        How often each element was stored or read.
    busiest : int
        Elements of the busiest thread, summed over consecutive parallel loops.
    threads : int
        The largest number of threads with any element.
    twice : int
        Elements accessed by two threads, or in two parallel loops.
    """

    times: np.ndarray
    busiest: int
    threads: int
    twice: int

    def unevenness(self, threads: int) -> float:
        """The largest chunk over the mean of this number of threads."""
        return self.busiest * threads / int(self.times.sum())


def stored_shares(function: tirx.PrimFunc, threads: int) -> Shares:
    """Counts stores to the last parameter."""
    return _Counter(function, function.params[-1], threads, reads=False).shares()


def read_shares(function: tirx.PrimFunc, threads: int) -> Shares:
    """Counts reads of the first parameter."""
    return _Counter(function, function.params[0], threads, reads=True).shares()


class _UnknownError(Exception):
    """A value that depends on data."""


@dataclass
class _Counter:
    function: tirx.PrimFunc
    target: Any
    threads: int
    reads: bool
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    loops: int = 0

    def shares(self) -> Shares:
        """Runs the function and summarises its counts."""
        self.shape = [int(extent) for extent in self.target.shape]
        self.views = {self.target: self.shape}
        for each in walk(self.function.body):
            if isinstance(each, tirx.DeclBuffer) and _reads_from(each.data, self.target):
                self.views[each.buffer] = [int(extent) for extent in each.buffer.shape]
        zero = np.zeros((1, 1), np.int64)
        self.run(self.function.body, 1, {"thread": zero, "instance": zero - 1})
        elements = np.concatenate([each for each, _, _ in self.found])
        instances = np.concatenate([each for _, each, _ in self.found])
        threads = np.concatenate([each for _, _, each in self.found])
        keys = (instances + 1) * self.threads + threads
        size = math.prod(self.shape)
        owner = np.zeros(size, np.int64)
        owner[elements] = keys
        counts = np.bincount(keys).reshape(-1) if len(keys) else np.zeros(0, np.int64)
        counts = np.pad(counts, (0, -len(counts) % self.threads)).reshape(-1, self.threads)
        return Shares(
            times=np.bincount(elements, minlength=size),
            busiest=int(counts.max(axis=1).sum()),
            threads=int((counts > 0).sum(axis=1).max()),
            twice=len(np.unique(elements[owner[elements] != keys])),
        )

    def run(self, statement: tirx.Stmt, passes: int, names: dict[Any, np.ndarray]) -> None:
        """Runs one statement in `passes` passes."""
        if isinstance(statement, tirx.Bind):
            self.count_reads(statement.value, passes, names)
            self.name(statement.var, statement.value, names)
        elif isinstance(statement, tirx.BufferStore):
            self.store(statement, passes, names)
        elif isinstance(statement, tirx.Evaluate):
            self.evaluate(statement.value, passes, names)
        elif not self.is_counted(statement):
            return
        elif isinstance(statement, tirx.For):
            self.loop(statement, passes, names)
        elif isinstance(statement, tirx.IfThenElse):
            self.branch(statement, passes, names)
        elif isinstance(statement, tirx.While):
            raise NotImplementedError("a while loop around what is counted")
        else:
            for child in children(statement):
                self.run(child, passes, names)

    def is_counted(self, statement: tirx.Stmt) -> bool:
        """Whether a statement contains counted accesses."""
        if isinstance(statement, tirx.SeqStmt):
            return True
        return any(self.is_counted_itself(each) for each in walk(statement))

    def is_counted_itself(self, statement: tirx.Stmt) -> bool:
        if self.reads:
            value = getattr(statement, "value", None)
            return value is not None and any(True for _ in self.loads(value))
        if isinstance(statement, tirx.BufferStore):
            return statement.buffer in self.views
        return isinstance(statement, tirx.Evaluate) and _masked(statement.value, self.views)

    def loop(self, loop: tirx.For, passes: int, names: dict[Any, np.ndarray]) -> None:
        """Runs all passes of a loop, in all passes around it."""
        extents = np.broadcast_to(_value(loop.extent, names), (passes, 1))[:, 0]
        outer = np.repeat(np.arange(passes), extents)
        if not len(outer):
            return
        starts = np.repeat(np.cumsum(extents) - extents, extents)
        inside = _of_passes(names, outer)
        number = (np.arange(len(outer)) - starts)[:, None]
        inside[loop.loop_var] = number + _value(loop.min, inside)
        if loop.kind == ForKind.PARALLEL:
            assert (names["instance"] < 0).all(), "a parallel loop inside another"
            chunks = -(-extents // self.threads)
            inside["thread"] = number // chunks[outer][:, None]
            inside["instance"] = self.loops + outer[:, None]
            self.loops += passes
        self.run(loop.body, len(outer), inside)

    def branch(self, branch: tirx.IfThenElse, passes: int, names: dict[Any, np.ndarray]) -> None:
        """Runs each case in the passes that take it."""
        condition = np.broadcast_to(_value(branch.condition, names), (passes, 1))[:, 0]
        for case, taken in ((branch.then_case, condition), (branch.else_case, ~condition)):
            if case is not None and taken.any():
                self.run(case, int(taken.sum()), _of_passes(names, taken))

    def name(self, var: tirx.Var, value: Any, names: dict[Any, np.ndarray]) -> None:
        if str(var.ty.dtype) in ("int32", "int64", "bool"):
            try:
                names[var] = _value(value, names)
            except _UnknownError:
                names.pop(var, None)

    def store(self, store: tirx.BufferStore, passes: int, names: dict[Any, np.ndarray]) -> None:
        self.count_reads(store.value, passes, names)
        if store.buffer in self.views:
            if not self.reads:
                self.count(store.buffer, store.indices, passes, names)
        elif store.buffer.dtype in ("int32", "int64"):
            place = (store.buffer, str(store.indices))
            try:
                names[place] = _value(store.value, names)
            except _UnknownError:
                names.pop(place, None)

    def evaluate(self, value: Any, passes: int, names: dict[Any, np.ndarray]) -> None:
        self.count_reads(value, passes, names)
        if not self.reads and _masked(value, self.views):
            buffer, _, *indices, mask = value.args
            self.count(buffer, indices, passes, names, mask)

    def count_reads(self, value: Any, passes: int, names: dict[Any, np.ndarray]) -> None:
        if self.reads:
            for buffer, indices, mask in self.loads(value):
                self.count(buffer, indices, passes, names, mask)

    def loads(self, value: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Reads of the target in an expression: buffer, indices and mask."""
        plain: list[tuple[Any, Any, Any]] = []

        def visit(load: TensorLoad) -> None:
            if load.source in self.views:
                plain.append((load.source, load.indices, None))

        def call(found: Call) -> None:
            if isinstance(found.op, Op) and found.op.name.endswith("masked_load"):
                buffer, *indices, mask = found.args
                if buffer in self.views:
                    plain.append((buffer, indices, mask))

        tvm_ffi.structural_walk(value, ((TensorLoad, visit), (Call, call)))
        return iter(plain)

    def count(
        self, buffer: Any, indices: Any, passes: int, names: dict[Any, np.ndarray], mask: Any = None
    ) -> None:
        """Records the elements at indices of a buffer."""
        flat: Any = np.zeros((1, 1), np.int64)
        for index, extent in zip(indices, self.views[buffer], strict=True):
            at = _value(index, names)
            assert mask is not None or ((at >= 0) & (at < extent)).all(), "outside of a tensor"
            flat = flat * extent + at
        flat = np.broadcast_to(flat, (passes, flat.shape[1]))
        taken = np.ones((1, 1), bool) if mask is None else _value(mask, names)
        taken = np.broadcast_to(taken, flat.shape)
        of_all = (np.broadcast_to(names[n], flat.shape) for n in ("instance", "thread"))
        instance, thread = of_all
        self.found.append((flat[taken], instance[taken], thread[taken]))


def _of_passes(names: Names, passes: np.ndarray) -> dict[Any, np.ndarray]:
    """The values of names in some passes."""
    return {name: value[passes] if len(value) > 1 else value for name, value in names.items()}


def _masked(value: Any, views: Mapping[Any, Any]) -> bool:
    """Whether an expression is a masked store to one of some buffers."""
    is_call = isinstance(value, Call) and isinstance(value.op, Op)
    return is_call and value.op.name.endswith("masked_store") and value.args[0] in views


def _reads_from(data: Any, buffer: Any) -> bool:
    """Whether a view's memory is that of a buffer."""
    return isinstance(data, Call) and len(data.args) > 0 and buffer.same_as(data.args[0])


def _arrived(counter: Any, names: Names) -> np.ndarray:
    """How many earlier passes counted at each pass's counter, if passes come in order."""
    passes = max(len(value) for value in names.values())
    counters = np.broadcast_to(_value(counter, names), (passes, 1))[:, 0]
    before = [int(np.sum(counters[:i] == at)) for i, at in enumerate(counters)]
    return np.array(before)[:, None]


def _value(expression: Any, names: Names) -> np.ndarray:
    """An integer or a condition in all passes, as [passes or 1, lanes or 1]."""
    if isinstance(expression, bool | int | np.integer):
        return np.full((1, 1), expression)
    if isinstance(expression, tirx.IntImm):
        number = int(expression.value)
        return np.full((1, 1), bool(number) if str(expression.ty.dtype) == "bool" else number)
    if expression in names and isinstance(expression, tirx.Var):
        return names[expression]
    operation = _BINARY.get(type(expression))
    if operation is not None:
        result = operation(_value(expression.a, names), _value(expression.b, names))
        return np.asarray(result)
    if isinstance(expression, tirx.Not):
        return np.logical_not(_value(expression.a, names))
    if isinstance(expression, tirx.Ramp):
        steps = np.arange(int(expression.lanes))[None, :]
        return _value(expression.base, names) + steps * _value(expression.stride, names)
    if isinstance(expression, tirx.Broadcast | tirx.Cast):
        return _value(expression.value, names)
    if isinstance(expression, tirx.Select):
        parts = (expression.condition, expression.true_value, expression.false_value)
        return np.where(*(_value(part, names) for part in parts))
    if isinstance(expression, TensorLoad):
        place = (expression.source, str(expression.indices))
        if place in names:
            return names[place]
    if isinstance(expression, Call) and isinstance(expression.op, Op):
        name = expression.op.name.rpartition(".")[2]
        if name in ("if_then_else", "likely"):
            parts = [_value(part, names) for part in expression.args]
            return parts[0] if name == "likely" else np.where(*parts)
        if name == "call_extern" and "hidden" in str(expression.args[0]):  # from LLVM
            return _value(expression.args[1], names)
        if name == "call_extern" and "arrive" in str(expression.args[0]):
            return _arrived(expression.args[1].args[0].indices[0], names)
    raise _UnknownError(str(expression))
