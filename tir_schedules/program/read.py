"""Reads a PrimFunc as LLVM will: equal values once, what does not change outside of the loop.

Arrays that a kernel has for itself and reads at constant places only are registers. A value is
computed in the innermost loop on which it depends. A product that is added is one instruction.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.target import Target

from .flat_tir import base_of, intrinsic, is_constant, key, lowered, size_of
from .index import UNKNOWN, Index
from .integers import Integers
from .kinds import LIBRARY, kind_of
from .nodes import Access, Body, Branch, Loop, Memory, Program
from .values import Scope, Scopes, Value

# Calls that cost nothing, or what their first argument costs.
_FREE = ("tirx.likely", "tirx.reinterpret", "tirx.buffer_data")
_TILE_ROWS, _TILE_BYTES = 16, 64


def read(function: tirx.PrimFunc, target: Target, vector_bits: int, name: str = "") -> Program:
    """A function as loops and counted instructions.

    Parameters
    ----------
    function : tirx.PrimFunc
        As the pipeline hands it to LLVM.
    target : tvm.target.Target
        What it is for.
    vector_bits : int
        Bits of one register.
    name : str
        What to call it.
    """
    flat = lowered(function, target)
    return _Reader(flat, vector_bits).program(name)


class _Reader:
    def __init__(self, function: tirx.PrimFunc, vector_bits: int) -> None:
        self.function, self.vector_bits = function, vector_bits
        self.memories: dict[Any, Memory] = {}
        self.integers = Integers(self._value)
        self.bound: dict[Any, Value] = {}
        self.slots: dict[Any, Value] = {}
        self.opened: dict[Any, int] = {}
        self.versions: dict[Any, int] = {}
        self.loops = 0
        self.scopes = Scopes(Body())
        self.registers: set[Any] = set()

    def program(self, name: str) -> Program:
        parameters = []
        for position, var in enumerate(self.function.params):
            memory = Memory(str(var.name), position, size_of(var))
            self.memories[key(var)] = memory
            parameters.append(memory)
        self._survey(self.function.body)
        self._statement(self.function.body)
        return Program(name, self.scopes.inner.body, tuple(parameters))

    # What is a register.

    def _survey(self, body: Any) -> None:
        """Finds arrays that are read and written at constant places only."""
        own: dict[Any, Any] = {}
        moving: set[Any] = set()

        def allocated(node: tirx.AllocBuffer) -> None:
            own[key(node.buffer)] = node.buffer

        def stored(node: tirx.BufferStore) -> None:
            if not all(is_constant(i) for i in node.indices):
                moving.add(key(node.buffer))

        def loaded(node: Any) -> None:
            if not all(is_constant(i) for i in node.indices):
                moving.add(key(node.source))

        def called(node: Any) -> None:
            if getattr(node.op, "name", "") in _ADDRESSES:
                argument = node.args[0]
                moving.add(key(getattr(argument, "source", argument)))

        def declared(node: tirx.DeclBuffer) -> None:
            moving.add(key(base_of(node)))

        tvm_ffi.structural_walk(
            body,
            [
                (tirx.AllocBuffer, allocated),
                (tirx.BufferStore, stored),
                (TensorLoad, loaded),
                (Call, called),
                (tirx.DeclBuffer, declared),
            ],
        )
        self.registers = set(own) - moving

    def _stored_in(self, body: Any) -> frozenset[Any]:
        """The arrays that a statement writes."""
        found = set()

        def stored(node: tirx.BufferStore) -> None:
            found.add(self._memory_key(node.buffer))

        def called(node: Any) -> None:
            name = getattr(node.op, "name", "")
            if name == "tirx.masked_store":
                found.add(self._memory_key(node.args[0]))
            elif name == "tirx.call_llvm_intrin" and "store" in intrinsic(node):
                for argument in node.args:
                    if getattr(getattr(argument, "op", None), "name", "") == "tirx.address_of":
                        found.add(self._memory_key(argument.args[0].source))

        tvm_ffi.structural_walk(body, [(tirx.BufferStore, stored), (Call, called)])
        return frozenset(found)

    def _memory_key(self, buffer: Any) -> Any:
        """One key for an array and all its views."""
        memory = self.memories.get(key(buffer))
        return memory if memory is not None else key(buffer)

    # Statements.

    def _statement(self, node: Any) -> None:
        getattr(self, f"_on_{type(node).__name__}")(node)

    def _on_SeqStmt(self, node: tirx.SeqStmt) -> None:
        for each in node.seq:
            self._statement(each)

    def _on_AttrStmt(self, node: tirx.AttrStmt) -> None:
        self._statement(node.body)

    def _on_AllocBuffer(self, node: tirx.AllocBuffer) -> None:
        shared = not any(scope.loop >= 0 and scope.fixed for scope in self.scopes.stack[1:])
        own = Memory(str(node.buffer.name), -1 - len(self.memories), size_of(node.buffer), shared)
        self.memories[key(node.buffer)] = own

    def _on_DeclBuffer(self, node: tirx.DeclBuffer) -> None:
        found = self.memories.get(key(base_of(node)))
        if found is not None:
            self.memories[key(node.buffer)] = found

    def _on_AssertStmt(self, node: tirx.AssertStmt) -> None:
        pass

    def _on_Bind(self, node: tirx.Bind) -> None:
        self._bind(node.var, node.value)

    def _bind(self, var: Any, value: Any) -> None:
        index = self.integers.find(value)
        if index is not None:
            self.integers.known[key(var)] = index
        else:
            self.bound[key(var)] = self._value(value)

    def _on_Evaluate(self, node: tirx.Evaluate) -> None:
        if type(node.value).__name__ != "IntImm":
            self._value(node.value)

    def _on_For(self, node: tirx.For) -> None:
        number, self.loops = self.loops, self.loops + 1
        parallel = int(node.kind) == int(tirx.ForKind.PARALLEL)
        extent = self.integers.index(node.extent)
        loop = Loop(number, extent, parallel, Body())
        self.scopes.inner.body.children.append(loop)
        start = self.integers.index(node.min)
        self.integers.known[key(node.loop_var)] = Index(0, ((number, 1),)).plus(start)
        stored = self._stored_in(node.body)
        self._forget(stored, number)
        scope = Scope(loop.body, number, parallel, stored=stored)
        self.scopes.stack.append(scope)
        self._statement(node.body)
        for slot, value in self.slots.items():
            if slot[0] in stored and value.chain is not None and value.chain[0] == number:
                loop.body.work.chains.add(value.chain[1:])
        self.scopes.stack.pop()
        self._forget(stored, self.scopes.loop())

    def _on_IfThenElse(self, node: tirx.IfThenElse) -> None:
        condition = self.integers.index(node.condition)
        branch = Branch(condition, Body(), Body())
        self.scopes.inner.body.children.append(branch)
        cases = ((branch.then, node.then_case), (branch.otherwise, node.else_case))
        for body, case in cases:
            if case is None:
                continue
            self.scopes.stack.append(Scope(body))
            kept = dict(self.slots)
            self._statement(case)
            self.slots = kept
            self.scopes.stack.pop()
            self._forget(self._stored_in(case), self.scopes.loop())

    def _on_BufferStore(self, node: tirx.BufferStore) -> None:
        value = self._value(node.value)
        (index,) = node.indices
        self._store(node.buffer, index, value, node.value.ty.dtype)

    def _on_While(self, node: tirx.While) -> None:
        self._statement(node.body)

    def _forget(self, arrays: frozenset[Any], loop: int) -> None:
        """From here on, what arrays hold is not known; it was written in a loop."""
        for each in arrays:
            self.versions[each] = self.versions.get(each, 0) + 1
            self.opened[each] = loop
        self.slots = {slot: v for slot, v in self.slots.items() if slot[0] not in arrays}

    # Memory.

    def _store(self, buffer: Any, index: Any, value: Value, dtype: Any) -> None:
        memory = self._memory_key(buffer)
        if key(buffer) in self.registers:
            self.slots[(memory, self._place(index), int(dtype.lanes))] = value
            return
        self.versions[memory] = self.versions.get(memory, 0) + 1
        access = self._access(buffer, index, dtype, True)
        work = self.scopes.inner.body.work
        work.accesses.append(access)
        work.counts["store"] += self._vectors(dtype)
        name = ("load", memory, access.start, access.width, self.versions[memory])
        self.scopes.inner.values[name] = value

    def _load(self, buffer: Any, index: Any, dtype: Any, kind: str = "load") -> Value:
        memory = self._memory_key(buffer)
        if key(buffer) in self.registers:
            slot = (memory, self._place(index), int(dtype.lanes))
            if slot not in self.slots:
                loop = self.opened.get(memory, self.scopes.loop())
                inside = frozenset((loop,)) if loop >= 0 else frozenset[int]()
                self.slots[slot] = self.scopes.new(inside, (loop, 0, 0))
            return self.slots[slot]
        access = self._access(buffer, index, dtype, False)
        writing = (scope.loop for scope in self.scopes.stack if memory in scope.stored)
        loops = access.start.loops.union(writing)
        if not access.start.known:
            loops |= {self.scopes.loop()}
        version = self.versions.get(memory, 0)
        name = ("load", memory, access.start, access.width, version)
        known = self.scopes.known(name)
        if known is not None:
            return known
        scope = self.scopes.place_of(loops)
        value = self.scopes.new(loops)
        scope.values[name] = value
        scope.body.work.accesses.append(access)
        if kind == "load" and access.pieces > 1:
            scope.body.work.counts["gather"] += access.pieces
        else:
            scope.body.work.counts[kind] += self._vectors(dtype) if kind == "load" else 1
        return value

    def _access(self, buffer: Any, index: Any, dtype: Any, store: bool) -> Access:
        memory = self.memories.get(key(buffer)) or Memory(str(buffer.name), -1000, 0)
        size, lanes = (int(dtype.bits) + 7) // 8, int(dtype.lanes)
        if int(index.ty.dtype.lanes) > 1:
            found = self.integers.ramp(index)
            if found is None:  # wherever data say
                self._value(index)
                return Access(memory, UNKNOWN, size, lanes, size, store)
            start, step = found
            if step == 0:
                return Access(memory, start.times(size), size, store=store)
            if step != 1:
                return Access(memory, start.times(size), size, lanes, size * step, store)
            return Access(memory, start.times(size), size * lanes, store=store)
        return Access(memory, self.integers.index(index).times(size), size * lanes, store=store)

    def _place(self, index: Any) -> int:
        if int(index.ty.dtype.lanes) > 1:
            found = self.integers.ramp(index)
            return found[0].constant if found else -1
        return self.integers.index(index).constant

    # Values.

    def _vectors(self, dtype: Any) -> int:
        return max(1, -(-int(dtype.bits) * int(dtype.lanes) // self.vector_bits))

    def _computed(
        self, name: Any, operands: list[Value], kind: str, dtype: Any, times: int = 1
    ) -> Value:
        """A value by one kind of instruction; only once for the same operands."""
        name = (name, str(dtype), *(each.number for each in operands))
        known = self.scopes.known(name)
        if known is not None:
            return known
        if operands and all(each.constant for each in operands):
            value = self.scopes.new(frozenset(), constant=True)
            self.scopes.stack[0].values[name] = value
            return value
        loops = frozenset().union(*(each.loops for each in operands))
        scope = self.scopes.place_of(loops)
        if kind:
            number = times * self._vectors(dtype)
            scope.body.work.counts[kind] += number
            lanes = int(dtype.lanes)
            if kind == "fma":
                scope.body.work.counts["products"] += lanes
            elif kind in ("dot", "bf16"):
                scope.body.work.counts["products"] += lanes * (2 if kind == "bf16" else 4)
        value = self.scopes.new(loops, self.scopes.chain(operands, kind))
        scope.values[name] = value
        return value

    def _value(self, node: Any) -> Value:
        kind = type(node).__name__
        if kind == "Var":
            found = self.bound.get(key(node))
            if found is not None:
                return found
            index = self.integers.known.get(key(node))
            if index is not None:
                return self._of_index(index)
            return self._constant(node)
        if kind in ("IntImm", "FloatImm", "StringImm"):
            return self._constant(node)
        method = getattr(self, f"_value_{kind}", None)
        if method is not None:
            result: Value = method(node)
            return result
        index = self.integers.find(node)
        if index is not None:
            return self._of_index(index)
        if hasattr(node, "a"):
            operands = [self._value(each) for each in (node.a, node.b)]
            dtype = node.ty.dtype
            if str(dtype).startswith("bool"):
                dtype = node.a.ty.dtype
            divides = kind in ("Div", "FloorDiv", "FloorMod", "Mod") and not operands[1].constant
            return self._computed(kind, operands, "divide" if divides else "vector", dtype)
        raise NotImplementedError(f"no meaning of {kind}")

    def _of_index(self, index: Index) -> Value:
        """An integer as a value: addresses are computed beside the vectors, for nothing."""
        name = ("index", index)
        known = self.scopes.known(name)
        if known is not None:
            return known
        scope = self.scopes.place_of(index.loops)
        scope.values[name] = self.scopes.new(index.loops, constant=not index.terms)
        return scope.values[name]

    def _constant(self, node: Any) -> Value:
        name = ("constant", str(node))
        if name not in self.scopes.stack[0].values:
            self.scopes.stack[0].values[name] = self.scopes.new(frozenset(), constant=True)
        return self.scopes.stack[0].values[name]

    def _sum(self, node: Any, name: str) -> Value:
        if str(node.ty.dtype).startswith("float"):
            for product, other in ((node.b, node.a), (node.a, node.b)):
                if type(product).__name__ == "Mul":
                    parts = [self._value(each) for each in (product.a, product.b, other)]
                    known = ("Mul", str(node.ty.dtype), parts[0].number, parts[1].number)
                    if self.scopes.known(known) is None and not (
                        parts[0].constant and parts[1].constant
                    ):
                        return self._computed(f"fma{name}", parts, "fma", node.ty.dtype)
        operands = [self._value(node.a), self._value(node.b)]
        return self._computed(name, operands, "vector", node.ty.dtype)

    def _value_Add(self, node: Any) -> Value:
        index = self.integers.find(node)
        return self._of_index(index) if index is not None else self._sum(node, "Add")

    def _value_Sub(self, node: Any) -> Value:
        index = self.integers.find(node)
        return self._of_index(index) if index is not None else self._sum(node, "Sub")

    def _value_TensorLoad(self, node: Any) -> Value:
        return self._load(node.source, node.indices[0], node.ty.dtype)

    def _value_Broadcast(self, node: Any) -> Value:
        inner = node.value
        while getattr(getattr(inner, "op", None), "name", "") == "tirx.reinterpret":
            inner = inner.args[0]
        if type(inner).__name__ == "TensorLoad" and key(inner.source) not in self.registers:
            loaded = self._load(inner.source, inner.indices[0], inner.ty.dtype, "broadcast")
            return self._computed("splat", [loaded], "", node.ty.dtype)
        value = self._value(node.value)
        return self._computed("splat", [value], "vector", node.ty.dtype)

    def _value_Ramp(self, node: Any) -> Value:
        value = self._value(node.base)
        return self._computed("ramp", [value], "" if value.constant else "vector", node.ty.dtype)

    def _value_Select(self, node: Any) -> Value:
        parts = [self._value(e) for e in (node.condition, node.true_value, node.false_value)]
        return self._computed("select", parts, "vector", node.ty.dtype)

    def _value_Cast(self, node: Any) -> Value:
        value = self._value(node.value)
        return self._computed("cast", [value], "vector", node.ty.dtype)

    def _value_Not(self, node: Any) -> Value:
        return self._computed("not", [self._value(node.a)], "vector", node.a.ty.dtype)

    def _value_Shuffle(self, node: Any) -> Value:
        parts = [self._value(each) for each in node.vectors]
        lanes = tuple(int(each.value) for each in node.indices)
        # The low part of a register is there.
        free = len(parts) == 1 and lanes == tuple(range(len(lanes)))
        return self._computed(("shuffle", lanes), parts, "" if free else "vector", node.ty.dtype)

    def _value_Let(self, node: Any) -> Value:
        self._bind(node.var, node.value)
        return self._value(node.body)

    def _value_Call(self, node: Any) -> Value:
        name = str(getattr(node.op, "name", ""))
        if name == "tirx.masked_load":
            self._value(node.args[2])
            return self._load(node.args[0], node.args[1], node.ty.dtype)
        if name == "tirx.masked_store":
            arguments = list(node.args)
            value = self._value(arguments[1])
            self._store(arguments[0], arguments[2], value, arguments[1].ty.dtype)
            return value
        if name in _FREE:
            return self._value(node.args[0])
        if name == "tirx.address_of":
            return self._constant(node)
        if name in ("tirx.if_then_else", "tirx.Select"):
            parts = [self._value(each) for each in node.args]
            return self._computed("select", parts, "vector", node.ty.dtype)
        if name.startswith("tirx.call_"):
            return self._intrinsic_call(node)
        parts = [self._value(each) for each in node.args]
        if name in LIBRARY:
            times = max(1, int(node.ty.dtype.lanes))
            scope = self.scopes.place_of(frozenset().union(*(each.loops for each in parts)))
            scope.body.work.counts["library"] += times
            return self.scopes.new(frozenset().union(*(each.loops for each in parts)))
        kind = "divide" if "sqrt" in name else "vector"
        return self._computed(name, parts, kind, node.ty.dtype)

    def _intrinsic_call(self, node: Any) -> Value:
        text = intrinsic(node)
        kind = kind_of(text)
        work = self.scopes.inner.body.work
        arguments = list(node.args)[1:]
        if kind in ("tile_load", "tile_store"):
            pointer, stride = arguments[-2], self.integers.index(arguments[-1])
            self._tile(pointer, stride.constant, kind)
        if kind.startswith("tile_"):
            work.counts[kind] += 1
            return self._constant(node.args[0])
        if kind == "prefetch":
            work.counts[kind] += 1
            return self._constant(node.args[0])
        if kind in ("permission", "arrival"):
            return self._constant(node.args[0])
        parts = [self._value(each) for each in arguments]
        widest = max(
            [node.ty.dtype, *(each.ty.dtype for each in arguments)],
            key=lambda dtype: int(dtype.bits) * int(dtype.lanes),
        )
        dtype = node.ty.dtype if kind in ("dot", "bf16") else widest
        return self._computed(text, parts, kind, dtype)

    def _tile(self, pointer: Any, stride: int, kind: str) -> None:
        if getattr(getattr(pointer, "op", None), "name", "") != "tirx.address_of":
            return
        element = pointer.args[0]
        size = (int(element.ty.dtype.bits) + 7) // 8
        memory = self.memories.get(key(element.source))
        if memory is None:
            return
        start = self.integers.index(element.indices[0]).times(size)
        self.scopes.inner.body.work.accesses.append(
            Access(memory, start, _TILE_BYTES, _TILE_ROWS, stride, kind == "tile_store")
        )


_ADDRESSES = ("tirx.masked_load", "tirx.masked_store", "tirx.address_of", "tirx.buffer_data")
