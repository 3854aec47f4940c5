"""Reads a PrimFunc as LLVM will: equal values once, what does not change outside of the loop.

Arrays that a kernel has for itself and reads at constant places only are registers. A value is
computed in the innermost loop on which it depends. A product that is added is one instruction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import DataType, s_tir, tirx
from tvm.target import Target, codegen

from .index import OPERATIONS, UNKNOWN, Index, apply
from .nodes import Access, Body, Branch, Loop, Memory, Program, Work

# TIR's binary operations on integers, and ours.
_INTEGERS = {
    "FloorDiv": "//",
    "FloorMod": "%",
    "Div": "//",
    "Mod": "%",
    "Min": "min",
    "Max": "max",
    "LT": "<",
    "LE": "<=",
    "EQ": "==",
    "NE": "!=",
    "And": "and",
    "Or": "or",
}
_BITS = {
    "tirx.bitwise_and": "&",
    "tirx.bitwise_or": "|",
    "tirx.bitwise_xor": "^",
    "tirx.shift_left": "<<",
    "tirx.shift_right": ">>",
}
# Calls that cost nothing, or what their first argument costs.
_FREE = ("tirx.likely", "tirx.reinterpret", "tirx.buffer_data")
# Pieces of names of intrinsics, and what they are; the first that fits.
_INTRINSICS = (
    ("dpbf16", "bf16"),
    ("dpbusd", "dot"),
    ("dpwssd", "dot"),
    ("pmaddubs", "dot"),
    ("pmadd.ubs", "dot"),
    ("pmaddw", "dot"),
    ("tdp", "tile_product"),
    ("tileload", "tile_load"),
    ("tilestore", "tile_store"),
    ("tilezero", "tile_zero"),
    ("tilerelease", "tile_release"),
    ("amx_configure", "tile_configure"),
    ("amx_permi", "permission"),
    ("prefetch", "prefetch"),
    ("sqrt", "divide"),
    ("fma", "fma"),
)
_LIBRARY = ("tirx.exp", "tirx.log", "tirx.tanh", "tirx.erf", "tirx.pow", "tirx.sigmoid", "tirx.sin")
_TILE_ROWS, _TILE_BYTES = 16, 64


@dataclass(frozen=True, eq=False)
class _Value:
    """What an expression yields: on which loops it depends, and how long a chain leads to it."""

    number: int
    loops: frozenset[int] = frozenset()
    chain: tuple[int, int, int] | None = None  # loop, multiply-adds, other operations
    constant: bool = False


@dataclass(eq=False)
class _Scope:
    """A loop, a branch, or the whole function, while it is read."""

    body: Body
    loop: int = -1
    fixed: bool = True  # whether nothing moves out of it
    values: dict[Any, _Value] = field(default_factory=dict)
    stored: frozenset[Any] = frozenset()


def lowered(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A function with flat arrays, explicit vectors, and its unrolled loops written out."""
    function = function.with_attr("target", target)
    transform, general = s_tir.transform, tirx.transform
    passes = [
        transform.CanonicalizeLoop(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
        transform.LowerMatchBuffer(),
        transform.LowerOpaqueBlock(),
        general.FlattenBuffer(),
        general.BF16ComputeLegalize(),
        general.VectorizeLoop(True),
        general.UnrollLoop(),
    ]
    with target, tvm.ir.transform.PassContext(opt_level=3):
        module = tvm.ir.transform.Sequential(passes)(tvm.IRModule({"kernel": function}))
    return module["kernel"]


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
        self.indices: dict[Any, Index] = {}
        self.bound: dict[Any, _Value] = {}
        self.slots: dict[Any, _Value] = {}
        self.opened: dict[Any, int] = {}
        self.versions: dict[Any, int] = {}
        self.numbers = 0
        self.loops = 0
        self.scopes: list[_Scope] = []
        self.registers: set[Any] = set()
        self.stores: dict[int, frozenset[Any]] = {}

    def program(self, name: str) -> Program:
        parameters = []
        for position, var in enumerate(self.function.params):
            memory = Memory(str(var.name), position, _size(var))
            self.memories[_key(var)] = memory
            parameters.append(memory)
        self._survey(self.function.body)
        body = Body()
        self.scopes.append(_Scope(body))
        self._statement(self.function.body)
        return Program(name, body, tuple(parameters))

    # What is a register.

    def _survey(self, body: Any) -> None:
        """Finds arrays that are read and written at constant places only."""
        import tvm_ffi

        own: dict[Any, Any] = {}
        moving: set[Any] = set()

        def allocated(node: tirx.AllocBuffer) -> None:
            own[_key(node.buffer)] = node.buffer

        def stored(node: tirx.BufferStore) -> None:
            if not all(_is_constant(i) for i in node.indices):
                moving.add(_key(node.buffer))

        def loaded(node: Any) -> None:
            if not all(_is_constant(i) for i in node.indices):
                moving.add(_key(node.source))

        def called(node: Any) -> None:
            if getattr(node.op, "name", "") in _ADDRESSES:
                argument = node.args[0]
                moving.add(_key(getattr(argument, "source", argument)))

        def declared(node: tirx.DeclBuffer) -> None:
            moving.add(_key(_base(node)))

        from tvm.ir import Call
        from tvm.ir.expr import TensorLoad

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
        import tvm_ffi

        found = set()

        def stored(node: tirx.BufferStore) -> None:
            found.add(self._memory_key(node.buffer))

        def called(node: Any) -> None:
            name = getattr(node.op, "name", "")
            if name == "tirx.masked_store":
                found.add(self._memory_key(node.args[0]))
            elif name == "tirx.call_llvm_intrin" and "store" in _intrinsic(node):
                for argument in node.args:
                    if getattr(getattr(argument, "op", None), "name", "") == "tirx.address_of":
                        found.add(self._memory_key(argument.args[0].source))

        from tvm.ir import Call

        tvm_ffi.structural_walk(body, [(tirx.BufferStore, stored), (Call, called)])
        return frozenset(found)

    def _memory_key(self, buffer: Any) -> Any:
        """One key for an array and all its views."""
        memory = self.memories.get(_key(buffer))
        return memory if memory is not None else _key(buffer)

    # Statements.

    def _statement(self, node: Any) -> None:
        getattr(self, f"_on_{type(node).__name__}")(node)

    def _on_SeqStmt(self, node: tirx.SeqStmt) -> None:
        for each in node.seq:
            self._statement(each)

    def _on_AttrStmt(self, node: tirx.AttrStmt) -> None:
        self._statement(node.body)

    def _on_AllocBuffer(self, node: tirx.AllocBuffer) -> None:
        shared = not any(scope.loop >= 0 and scope.fixed for scope in self.scopes[1:])
        own = Memory(str(node.buffer.name), -1 - len(self.memories), _size(node.buffer), shared)
        self.memories[_key(node.buffer)] = own

    def _on_DeclBuffer(self, node: tirx.DeclBuffer) -> None:
        found = self.memories.get(_key(_base(node)))
        if found is not None:
            self.memories[_key(node.buffer)] = found

    def _on_AssertStmt(self, node: tirx.AssertStmt) -> None:
        pass

    def _on_Bind(self, node: tirx.Bind) -> None:
        self._bind(node.var, node.value)

    def _bind(self, var: Any, value: Any) -> None:
        index = self._index_or_none(value)
        if index is not None:
            self.indices[_key(var)] = index
        else:
            self.bound[_key(var)] = self._value(value)

    def _on_Evaluate(self, node: tirx.Evaluate) -> None:
        if type(node.value).__name__ != "IntImm":
            self._value(node.value)

    def _on_For(self, node: tirx.For) -> None:
        number, self.loops = self.loops, self.loops + 1
        parallel = int(node.kind) == int(tirx.ForKind.PARALLEL)
        extent = self._index(node.extent)
        loop = Loop(number, extent, parallel, Body())
        self.scopes[-1].body.children.append(loop)
        start = self._index(node.min)
        self.indices[_key(node.loop_var)] = Index(start.constant, ((number, 1),)) if not start.terms else Index(0, ((number, 1),)).plus(start)  # fmt: skip
        stored = self._stored_in(node.body)
        self._forget(stored, number)
        scope = _Scope(loop.body, number, parallel, stored=stored)
        self.scopes.append(scope)
        self._statement(node.body)
        for slot, value in self.slots.items():
            if slot[0] in stored and value.chain is not None and value.chain[0] == number:
                loop.body.work.chains.add(value.chain[1:])
        self.scopes.pop()
        self._forget(stored, self._innermost())

    def _on_IfThenElse(self, node: tirx.IfThenElse) -> None:
        condition = self._index(node.condition)
        branch = Branch(condition, Body(), Body())
        self.scopes[-1].body.children.append(branch)
        cases = ((branch.then, node.then_case), (branch.otherwise, node.else_case))
        for body, case in cases:
            if case is None:
                continue
            self.scopes.append(_Scope(body))
            kept = dict(self.slots)
            self._statement(case)
            self.slots = kept
            self.scopes.pop()
            self._forget(self._stored_in(case), self._innermost())

    def _on_BufferStore(self, node: tirx.BufferStore) -> None:
        value = self._value(node.value)
        (index,) = node.indices
        self._store(node.buffer, index, value, node.value.ty.dtype)

    def _on_While(self, node: tirx.While) -> None:
        self._statement(node.body)

    def _innermost(self) -> int:
        return next((scope.loop for scope in reversed(self.scopes) if scope.loop >= 0), -1)

    def _forget(self, arrays: frozenset[Any], loop: int) -> None:
        """From here on, what arrays hold is not known; it was written in a loop."""
        for each in arrays:
            self.versions[each] = self.versions.get(each, 0) + 1
            self.opened[each] = loop
        self.slots = {slot: v for slot, v in self.slots.items() if slot[0] not in arrays}

    # Memory.

    def _store(self, buffer: Any, index: Any, value: _Value, dtype: Any) -> None:
        key = self._memory_key(buffer)
        if _key(buffer) in self.registers:
            self.slots[(key, self._place(index), int(dtype.lanes))] = value
            return
        self.versions[key] = self.versions.get(key, 0) + 1
        access = self._access(buffer, index, dtype, True)
        work = self.scopes[-1].body.work
        work.accesses.append(access)
        work.counts["store"] += self._vectors(dtype)
        self.scopes[-1].values[("load", key, access.start, access.width, self.versions[key])] = (
            value
        )

    def _load(self, buffer: Any, index: Any, dtype: Any, kind: str = "load") -> _Value:
        key = self._memory_key(buffer)
        if _key(buffer) in self.registers:
            slot = (key, self._place(index), int(dtype.lanes))
            if slot not in self.slots:
                loop = self.opened.get(key, self._innermost())
                loops = frozenset((loop,)) if loop >= 0 else frozenset()
                self.slots[slot] = self._new(loops, (loop, 0, 0))
            return self.slots[slot]
        access = self._access(buffer, index, dtype, False)
        loops = set(access.start.loops)
        loops |= {scope.loop for scope in self.scopes if scope.loop >= 0 and key in scope.stored}
        if not access.start.known:
            loops |= {self._innermost()} - {-1}
        version = self.versions.get(key, 0)
        name = ("load", key, access.start, access.width, version)
        known = self._known(name)
        if known is not None:
            return known
        scope = self._place_of(frozenset(loops))
        value = self._new(frozenset(loops))
        scope.values[name] = value
        scope.body.work.accesses.append(access)
        if kind == "load" and access.pieces > 1:
            scope.body.work.counts["gather"] += access.pieces
        else:
            scope.body.work.counts[kind] += self._vectors(dtype) if kind == "load" else 1
        return value

    def _access(self, buffer: Any, index: Any, dtype: Any, store: bool) -> Access:
        memory = self.memories.get(_key(buffer)) or Memory(str(buffer.name), -1000, 0)
        size, lanes = (int(dtype.bits) + 7) // 8, int(dtype.lanes)
        if int(index.ty.dtype.lanes) > 1:
            found = self._ramp(index)
            if found is None:  # wherever data say
                self._value(index)
                return Access(memory, UNKNOWN, size, lanes, size, store)
            start, step = found
            if step == 0:
                return Access(memory, start.times(size), size, store=store)
            if step != 1:
                return Access(memory, start.times(size), size, lanes, size * step, store)
            return Access(memory, start.times(size), size * lanes, store=store)
        return Access(memory, self._index(index).times(size), size * lanes, store=store)

    def _place(self, index: Any) -> int:
        if int(index.ty.dtype.lanes) > 1:
            found = self._ramp(index)
            return found[0].constant if found else -1
        return self._index(index).constant

    def _ramp(self, node: Any) -> tuple[Index, int] | None:
        """The first lane of consecutive indices and the distance of lanes, if it is fixed."""
        kind = type(node).__name__
        if kind == "Ramp":
            start, step = self._index(node.base), self._index(node.stride)
            return None if step.terms else (start, step.constant)
        if kind == "Broadcast":
            return self._index(node.value), 0
        if kind == "Cast":
            return self._ramp(node.value)
        if kind in ("Add", "Sub", "Mul"):
            a, b = self._ramp(node.a), self._ramp(node.b)
            if a is None or b is None:
                return None
            if kind == "Mul":
                (start, step), (factor, none) = (a, b) if b[1] == 0 else (b, a)
                if none or factor.terms:
                    return None
                return start.times(factor.constant), step * factor.constant
            sign = 1 if kind == "Add" else -1
            return a[0].plus(b[0], sign), a[1] + sign * b[1]
        return None

    # Values.

    def _new(
        self,
        loops: frozenset[int],
        chain: tuple[int, int, int] | None = None,
        constant: bool = False,
    ) -> _Value:
        self.numbers += 1
        return _Value(self.numbers, loops, chain, constant)

    def _known(self, name: Any) -> _Value | None:
        for scope in reversed(self.scopes):
            if name in scope.values:
                return scope.values[name]
        return None

    def _place_of(self, loops: frozenset[int]) -> _Scope:
        """Where a value that depends on some loops is computed."""
        for scope in reversed(self.scopes):
            if scope.fixed or scope.loop in loops:
                return scope
        return self.scopes[0]

    def _vectors(self, dtype: Any) -> int:
        return max(1, -(-int(dtype.bits) * int(dtype.lanes) // self.vector_bits))

    def _computed(
        self, name: Any, operands: list[_Value], kind: str, dtype: Any, times: int = 1
    ) -> _Value:
        """A value by one kind of instruction; only once for the same operands."""
        name = (name, str(dtype), *(each.number for each in operands))
        known = self._known(name)
        if known is not None:
            return known
        if operands and all(each.constant for each in operands):
            value = self._new(frozenset(), constant=True)
            self.scopes[0].values[name] = value
            return value
        loops = frozenset().union(*(each.loops for each in operands))
        scope = self._place_of(loops)
        if kind:
            number = times * self._vectors(dtype)
            scope.body.work.counts[kind] += number
            lanes = int(dtype.lanes)
            if kind == "fma":
                scope.body.work.counts["products"] += lanes
            elif kind in ("dot", "bf16"):
                scope.body.work.counts["products"] += lanes * (2 if kind == "bf16" else 4)
        value = self._new(loops, self._chain(operands, kind))
        scope.values[name] = value
        return value

    def _chain(self, operands: list[_Value], kind: str) -> tuple[int, int, int] | None:
        """The longest chain that leads through operands, by one operation longer."""
        loop = self._innermost()
        chains = [each.chain for each in operands if each.chain and each.chain[0] == loop]
        if not chains:
            return None
        _, products, others = max(chains, key=lambda chain: (chain[1] + chain[2], chain))
        if kind in ("fma", "dot", "bf16"):
            return loop, products + 1, others
        return loop, products, others + (1 if kind else 0)

    def _value(self, node: Any) -> _Value:
        kind = type(node).__name__
        if kind == "Var":
            found = self.bound.get(_key(node))
            if found is not None:
                return found
            index = self.indices.get(_key(node))
            if index is not None:
                return self._of_index(index)
            return self._constant(node)
        if kind in ("IntImm", "FloatImm", "StringImm"):
            return self._constant(node)
        method = getattr(self, f"_value_{kind}", None)
        if method is not None:
            result: _Value = method(node)
            return result
        index = self._index_or_none(node)
        if index is not None:
            return self._of_index(index)
        if hasattr(node, "a"):
            operands = [self._value(each) for each in (node.a, *((node.b,) if hasattr(node, "b") else ()))]  # fmt: skip
            dtype = node.ty.dtype
            if str(dtype).startswith("bool"):
                dtype = node.a.ty.dtype
            divides = kind in ("Div", "FloorDiv", "FloorMod", "Mod") and not operands[1].constant
            return self._computed(kind, operands, "divide" if divides else "vector", dtype)
        raise NotImplementedError(f"no meaning of {kind}")

    def _of_index(self, index: Index) -> _Value:
        """An integer as a value: addresses are computed beside the vectors, for nothing."""
        name = ("index", index)
        known = self._known(name)
        if known is not None:
            return known
        scope = self._place_of(index.loops)
        scope.values[name] = self._new(index.loops, constant=not index.terms)
        return scope.values[name]

    def _constant(self, node: Any) -> _Value:
        name = ("constant", str(node))
        if name not in self.scopes[0].values:
            self.scopes[0].values[name] = self._new(frozenset(), constant=True)
        return self.scopes[0].values[name]

    def _sum(self, node: Any, name: str) -> _Value:
        if str(node.ty.dtype).startswith("float"):
            for product, other in ((node.b, node.a), (node.a, node.b)):
                if type(product).__name__ == "Mul":
                    parts = [self._value(each) for each in (product.a, product.b, other)]
                    known = ("Mul", str(node.ty.dtype), parts[0].number, parts[1].number)
                    if self._known(known) is None and not (parts[0].constant and parts[1].constant):
                        return self._computed(f"fma{name}", parts, "fma", node.ty.dtype)
        operands = [self._value(node.a), self._value(node.b)]
        return self._computed(name, operands, "vector", node.ty.dtype)

    def _value_Add(self, node: Any) -> _Value:
        index = self._index_or_none(node)
        return self._of_index(index) if index is not None else self._sum(node, "Add")

    def _value_Sub(self, node: Any) -> _Value:
        index = self._index_or_none(node)
        return self._of_index(index) if index is not None else self._sum(node, "Sub")

    def _value_TensorLoad(self, node: Any) -> _Value:
        return self._load(node.source, node.indices[0], node.ty.dtype)

    def _value_Broadcast(self, node: Any) -> _Value:
        inner = node.value
        while getattr(getattr(inner, "op", None), "name", "") == "tirx.reinterpret":
            inner = inner.args[0]
        if type(inner).__name__ == "TensorLoad" and _key(inner.source) not in self.registers:
            loaded = self._load(inner.source, inner.indices[0], inner.ty.dtype, "broadcast")
            return self._computed("splat", [loaded], "", node.ty.dtype)
        value = self._value(node.value)
        return self._computed("splat", [value], "vector", node.ty.dtype)

    def _value_Ramp(self, node: Any) -> _Value:
        value = self._value(node.base)
        return self._computed("ramp", [value], "" if value.constant else "vector", node.ty.dtype)

    def _value_Select(self, node: Any) -> _Value:
        parts = [self._value(e) for e in (node.condition, node.true_value, node.false_value)]
        return self._computed("select", parts, "vector", node.ty.dtype)

    def _value_Cast(self, node: Any) -> _Value:
        value = self._value(node.value)
        return self._computed("cast", [value], "vector", node.ty.dtype)

    def _value_Not(self, node: Any) -> _Value:
        return self._computed("not", [self._value(node.a)], "vector", node.a.ty.dtype)

    def _value_Shuffle(self, node: Any) -> _Value:
        parts = [self._value(each) for each in node.vectors]
        lanes = tuple(int(each.value) for each in node.indices)
        # The low part of a register is there.
        free = len(parts) == 1 and lanes == tuple(range(len(lanes)))
        return self._computed(("shuffle", lanes), parts, "" if free else "vector", node.ty.dtype)

    def _value_Let(self, node: Any) -> _Value:
        self._bind(node.var, node.value)
        return self._value(node.body)

    def _value_Call(self, node: Any) -> _Value:
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
        if name in _LIBRARY:
            times = max(1, int(node.ty.dtype.lanes))
            scope = self._place_of(frozenset().union(*(each.loops for each in parts)))
            scope.body.work.counts["library"] += times
            return self._new(frozenset().union(*(each.loops for each in parts)))
        kind = "divide" if "sqrt" in name else "vector"
        return self._computed(name, parts, kind, node.ty.dtype)

    def _intrinsic_call(self, node: Any) -> _Value:
        text = _intrinsic(node)
        kind = next((kind for part, kind in _INTRINSICS if part in text), "vector")
        work = self.scopes[-1].body.work
        arguments = list(node.args)[1:]
        if kind in ("tile_load", "tile_store"):
            pointer, stride = arguments[-2], self._index(arguments[-1])
            self._tile(pointer, stride.constant, kind)
        if kind.startswith("tile_"):
            work.counts[kind] += 1
            return self._constant(node.args[0])
        if kind == "prefetch":
            work.counts[kind] += 1
            return self._constant(node.args[0])
        if kind == "permission":
            return self._constant(node.args[0])
        parts = [self._value(each) for each in arguments]
        widest = max(
            [node.ty.dtype, *(each.ty.dtype for each in arguments)],
            key=lambda dtype: int(dtype.bits) * int(dtype.lanes),
        )
        value = self._computed(text, parts, kind, node.ty.dtype if kind in ("dot", "bf16") else widest)  # fmt: skip
        return value

    def _tile(self, pointer: Any, stride: int, kind: str) -> None:
        if getattr(getattr(pointer, "op", None), "name", "") != "tirx.address_of":
            return
        element = pointer.args[0]
        size = (int(element.ty.dtype.bits) + 7) // 8
        memory = self.memories.get(_key(element.source))
        if memory is None:
            return
        start = self._index(element.indices[0]).times(size)
        self.scopes[-1].body.work.accesses.append(
            Access(memory, start, _TILE_BYTES, _TILE_ROWS, stride, kind == "tile_store")
        )

    # Integers.

    def _index(self, node: Any) -> Index:
        found = self._index_or_none(node)
        if found is not None:
            return found
        self._value(node)
        return UNKNOWN

    def _index_or_none(self, node: Any) -> Index | None:
        kind = type(node).__name__
        if kind == "IntImm":
            return Index(int(node.value))
        if kind == "Var":
            return self.indices.get(_key(node))
        if kind in ("FloatImm", "TensorLoad", "Broadcast", "Ramp", "StringImm"):
            return None
        dtype = node.ty.dtype if hasattr(node.ty, "dtype") else None
        if dtype is None or int(dtype.lanes) > 1 or str(dtype).startswith(("float", "bfloat")):
            return None
        if kind in ("Add", "Sub", "Mul") or kind in _INTEGERS:
            a, b = self._index_or_none(node.a), self._index_or_none(node.b)
            if a is None or b is None:
                return None
            if kind == "Add":
                return a.plus(b)
            if kind == "Sub":
                return a.plus(b, -1)
            return apply("*" if kind == "Mul" else _INTEGERS[kind], a, b)
        if kind in ("GT", "GE"):
            a, b = self._index_or_none(node.a), self._index_or_none(node.b)
            return None if a is None or b is None else apply("<" if kind == "GT" else "<=", b, a)
        if kind == "Not":
            a = self._index_or_none(node.a)
            return None if a is None else apply("not", a)
        if kind == "Cast":
            return self._index_or_none(node.value)
        if kind == "Select":
            parts = [self._index_or_none(e) for e in (node.condition, node.true_value, node.false_value)]  # fmt: skip
            return None if None in parts else apply("select", *(p for p in parts if p))
        if kind == "Call":
            name = str(getattr(node.op, "name", ""))
            if name == "tirx.likely":
                return self._index_or_none(node.args[0])
            if name == "tirx.if_then_else":
                name, operation = name, "select"
            elif name in _BITS:
                operation = _BITS[name]
            else:
                return None
            parts = [self._index_or_none(each) for each in node.args]
            if any(part is None for part in parts):
                return None
            return apply(operation, *(part for part in parts if part is not None))
        return None


_ADDRESSES = ("tirx.masked_load", "tirx.masked_store", "tirx.address_of", "tirx.buffer_data")
assert set(_INTEGERS.values()) <= OPERATIONS.keys()


def _key(node: Any) -> int:
    return int(node.__chandle__())


def _base(node: tirx.DeclBuffer) -> Any:
    data: Any = node.data
    while getattr(getattr(data, "op", None), "name", "") == "tirx.buffer_data":
        data = data.args[0]
    return data


def _is_constant(index: Any) -> bool:
    if type(index).__name__ == "Ramp":
        index = index.base
    if type(index).__name__ in ("Broadcast", "Cast"):
        index = index.value
    if type(index).__name__ in ("Add", "Mul", "Sub", "FloorDiv", "FloorMod"):
        return _is_constant(index.a) and _is_constant(index.b)
    return type(index).__name__ == "IntImm"


def _size(var: Any) -> int:
    dtype = DataType(str(var.dtype))
    size = (int(dtype.bits) * int(dtype.lanes) + 7) // 8
    for extent in var.ty.shape:
        size *= int(extent.value) if hasattr(extent, "value") else 1
    return size


def _intrinsic(node: Any) -> str:
    """The name of what a call of an intrinsic or of a function calls."""
    first = node.args[0]
    if type(first).__name__ == "StringImm":
        return str(first.value)
    return str(codegen.llvm_get_intrinsic_name(int(first.value)))
