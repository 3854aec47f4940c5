"""Reads a PrimFunc as LLVM will compile it: common subexpressions once, invariants hoisted.

A kernel's own arrays that are accessed only at constant indices are registers. A value is computed
in the innermost loop that it depends on. A product that is added to something is one instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.target import Target

from .expressions import Expressions
from .index import Index, key
from .nodes import Body, Branch, KernelLoops, Loop, Scope, base_of, intrinsic, is_constant, lowered


def read(function: tirx.PrimFunc, target: Target, vector_bits: int, name: str = "") -> KernelLoops:
    """Reads a function as loops and counted instructions.

    Parameters
    ----------
    function : tirx.PrimFunc
        A function as the pipeline passes it to LLVM.
    target : tvm.target.Target
        The target.
    vector_bits : int
        Bits of one register.
    name : str
        Name of the result.
    """
    flat, reader = lowered(function, target), _Reader(vector_bits)
    arrays = reader.arrays
    parameters = [arrays.add_parameter(var, place) for place, var in enumerate(flat.params)]
    arrays.registers = registers_of(flat.body)
    reader.statement(flat.body)
    return KernelLoops(name, reader.scopes.inner.body, tuple(parameters))


class _Reader:
    def __init__(self, vector_bits: int) -> None:
        self.expressions = Expressions(vector_bits)
        self.arrays, self.scopes = self.expressions.arrays, self.expressions.scopes
        self.integers = self.expressions.integers
        self.loops = 0

    def statement(self, node: Any) -> None:
        match type(node).__name__:
            case "SeqStmt":
                for each in node.seq:
                    self.statement(each)
            case "AttrStmt" | "While":
                self.statement(node.body)
            case "AllocBuffer":
                shared = not any(scope.loop >= 0 and scope.fixed for scope in self.scopes.stack[1:])
                self.arrays.allocate(node.buffer, shared)
            case "DeclBuffer":
                self.arrays.declare(node)
            case "Bind":
                self.expressions.bind(node.var, node.value)
            case "Evaluate" if type(node.value).__name__ != "IntImm":
                self.expressions.value(node.value)
            case "For":
                self._loop(node)
            case "IfThenElse":
                self._branch(node)
            case "BufferStore":
                value = self.expressions.value(node.value)
                self.arrays.store(node.buffer, node.indices[0], value, node.value.ty.dtype)
            case "AssertStmt" | "Evaluate":
                pass
            case kind:
                raise NotImplementedError(f"no meaning of {kind}")

    def _loop(self, node: tirx.For) -> None:
        number, self.loops = self.loops, self.loops + 1
        parallel = int(node.kind) == int(tirx.ForKind.PARALLEL)
        extent = self.integers.index(node.extent)
        stored = stored_in(self.arrays.name_of, node.body)
        loop = Loop(number, extent, parallel, Body(), self.arrays.are_new(stored))
        self.scopes.inner.body.children.append(loop)
        start = self.integers.index(node.min)
        self.integers.known[key(node.loop_var)] = Index(0, ((number, 1),)).plus(start)
        self.arrays.forget(stored, number)
        scope = Scope(loop.body, number, parallel, stored=stored)
        self.scopes.stack.append(scope)
        self.statement(node.body)
        for slot, value in self.arrays.held.items():
            if slot[0] in stored and value.chain is not None and value.chain[0] == number:
                loop.body.work.chains.add(value.chain[1:])
        self.scopes.stack.pop()
        self.arrays.forget(stored, self.scopes.loop())

    def _branch(self, node: tirx.IfThenElse) -> None:
        condition = self.integers.index(node.condition)
        branch = Branch(condition, Body(), Body())
        self.scopes.inner.body.children.append(branch)
        cases = ((branch.then, node.then_case), (branch.otherwise, node.else_case))
        for body, case in cases:
            if case is None:
                continue
            self.scopes.stack.append(Scope(body))
            kept = dict(self.arrays.held)
            self.statement(case)
            self.arrays.held = kept
            self.scopes.stack.pop()
            self.arrays.forget(stored_in(self.arrays.name_of, case), self.scopes.loop())


_ADDRESSES = ("tirx.masked_load", "tirx.masked_store", "tirx.address_of", "tirx.buffer_data")


def registers_of(body: Any) -> set[Any]:
    """A kernel's own arrays that are read and written at constant indices only."""
    own: set[Any] = set()
    moving: set[Any] = set()

    def allocated(node: tirx.AllocBuffer) -> None:
        own.add(key(node.buffer))

    def used(node: Any) -> None:
        if not all(is_constant(i) for i in node.indices):
            moving.add(key(node.buffer if isinstance(node, tirx.BufferStore) else node.source))

    def called(node: Any) -> None:
        if getattr(node.op, "name", "") in _ADDRESSES:
            argument = node.args[0]
            moving.add(key(getattr(argument, "source", argument)))

    def declared(node: tirx.DeclBuffer) -> None:
        moving.add(key(base_of(node)))

    visits = [(tirx.AllocBuffer, allocated), (tirx.BufferStore, used), (TensorLoad, used)]
    tvm_ffi.structural_walk(body, [*visits, (Call, called), (tirx.DeclBuffer, declared)])
    return own - moving


def stored_in(name: Callable[[Any], Any], body: Any) -> frozenset[Any]:
    """Names of the arrays that a statement writes."""
    found = set()

    def stored(node: tirx.BufferStore) -> None:
        found.add(name(node.buffer))

    def called(node: Any) -> None:
        function = getattr(node.op, "name", "")
        if function == "tirx.masked_store":
            found.add(name(node.args[0]))
        elif function == "tirx.call_llvm_intrin" and "store" in intrinsic(node):
            for argument in node.args:
                if getattr(getattr(argument, "op", None), "name", "") == "tirx.address_of":
                    found.add(name(argument.args[0].source))

    tvm_ffi.structural_walk(body, [(tirx.BufferStore, stored), (Call, called)])
    return frozenset(found)
