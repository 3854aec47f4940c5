"""Expressions of TIR as values: each computed once, by so many instructions of a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from .cycles import stored_in
from .index import UNKNOWN, Index, apply
from .nodes import (
    LIBRARY,
    Access,
    Body,
    Memory,
    Scopes,
    Value,
    base_of,
    intrinsic,
    key,
    kind_of,
    size_of,
)

# Calls that cost nothing, or what their first argument costs.
_FREE = ("tirx.likely", "tirx.reinterpret", "tirx.buffer_data")


class Expressions:
    """What expressions of a function yield while it is read.

    Parameters
    ----------
    vector_bits : int
        Bits of one register.
    """

    def __init__(self, vector_bits: int) -> None:
        self.vector_bits = vector_bits
        self.scopes = Scopes(Body())
        self.integers = Integers(self.value)
        self.arrays = Arrays(self.integers, self.scopes, vector_bits)
        self.bound: dict[Any, Value] = {}

    def bind(self, var: Any, value: Any) -> None:
        """Gives an expression a name."""
        index = self.integers.find(value)
        if index is not None:
            self.integers.known[key(var)] = index
        else:
            self.bound[key(var)] = self.value(value)

    def value(self, node: Any) -> Value:
        """What an expression yields."""
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
            operands = [self.value(each) for each in (node.a, node.b)]
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
            number = times * vectors_of(dtype, self.vector_bits)
            scope.body.work.counts[kind] += number
            lanes = int(dtype.lanes)
            if kind == "fma":
                scope.body.work.counts["products"] += lanes
            elif kind in ("dot", "bf16"):
                scope.body.work.counts["products"] += lanes * (2 if kind == "bf16" else 4)
        value = self.scopes.new(loops, self.scopes.chain(operands, kind))
        scope.values[name] = value
        return value

    def _sum(self, node: Any, name: str) -> Value:
        if str(node.ty.dtype).startswith("float"):
            for product, other in ((node.b, node.a), (node.a, node.b)):
                if type(product).__name__ == "Mul":
                    parts = [self.value(each) for each in (product.a, product.b, other)]
                    known = ("Mul", str(node.ty.dtype), parts[0].number, parts[1].number)
                    if self.scopes.known(known) is None and not (
                        parts[0].constant and parts[1].constant
                    ):
                        return self._computed(f"fma{name}", parts, "fma", node.ty.dtype)
        operands = [self.value(node.a), self.value(node.b)]
        return self._computed(name, operands, "vector", node.ty.dtype)

    def _value_Add(self, node: Any) -> Value:
        index = self.integers.find(node)
        return self._of_index(index) if index is not None else self._sum(node, "Add")

    def _value_Sub(self, node: Any) -> Value:
        index = self.integers.find(node)
        return self._of_index(index) if index is not None else self._sum(node, "Sub")

    def _value_TensorLoad(self, node: Any) -> Value:
        return self.arrays.load(node.source, node.indices[0], node.ty.dtype)

    def _value_Broadcast(self, node: Any) -> Value:
        inner = node.value
        while getattr(getattr(inner, "op", None), "name", "") == "tirx.reinterpret":
            inner = inner.args[0]
        if type(inner).__name__ == "TensorLoad" and key(inner.source) not in self.arrays.registers:
            loaded = self.arrays.load(inner.source, inner.indices[0], inner.ty.dtype, "broadcast")
            return self._computed("splat", [loaded], "", node.ty.dtype)
        value = self.value(node.value)
        return self._computed("splat", [value], "vector", node.ty.dtype)

    def _value_Ramp(self, node: Any) -> Value:
        value = self.value(node.base)
        return self._computed("ramp", [value], "" if value.constant else "vector", node.ty.dtype)

    def _value_Select(self, node: Any) -> Value:
        parts = [self.value(e) for e in (node.condition, node.true_value, node.false_value)]
        return self._computed("select", parts, "vector", node.ty.dtype)

    def _value_Cast(self, node: Any) -> Value:
        value = self.value(node.value)
        return self._computed("cast", [value], "vector", node.ty.dtype)

    def _value_Not(self, node: Any) -> Value:
        return self._computed("not", [self.value(node.a)], "vector", node.a.ty.dtype)

    def _value_Shuffle(self, node: Any) -> Value:
        parts = [self.value(each) for each in node.vectors]
        lanes = tuple(int(each.value) for each in node.indices)
        # The low part of a register is there.
        free = len(parts) == 1 and lanes == tuple(range(len(lanes)))
        return self._computed(("shuffle", lanes), parts, "" if free else "vector", node.ty.dtype)

    def _value_Let(self, node: Any) -> Value:
        self.bind(node.var, node.value)
        return self.value(node.body)

    def _value_Call(self, node: Any) -> Value:
        name = str(getattr(node.op, "name", ""))
        if name == "tirx.masked_load":
            self.value(node.args[2])
            return self.arrays.load(node.args[0], node.args[1], node.ty.dtype)
        if name == "tirx.masked_store":
            arguments = list(node.args)
            value = self.value(arguments[1])
            self.arrays.store(arguments[0], arguments[2], value, arguments[1].ty.dtype)
            return value
        if name in _FREE:
            return self.value(node.args[0])
        if name == "tirx.address_of":
            return self._constant(node)
        if name in ("tirx.if_then_else", "tirx.Select"):
            parts = [self.value(each) for each in node.args]
            return self._computed("select", parts, "vector", node.ty.dtype)
        if name.startswith("tirx.call_"):
            return self._intrinsic_call(node)
        parts = [self.value(each) for each in node.args]
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
            self.arrays.tile(pointer, stride.constant, kind)
        if kind.startswith("tile_"):
            work.counts[kind] += 1
            return self._constant(node.args[0])
        if kind == "prefetch":
            work.counts[kind] += 1
            return self._constant(node.args[0])
        if kind in ("permission", "arrival"):
            return self._constant(node.args[0])
        parts = [self.value(each) for each in arguments]
        widest = max(
            [node.ty.dtype, *(each.ty.dtype for each in arguments)],
            key=lambda dtype: int(dtype.bits) * int(dtype.lanes),
        )
        dtype = node.ty.dtype if kind in ("dot", "bf16") else widest
        return self._computed(text, parts, kind, dtype)


_TILE_ROWS, _TILE_BYTES = 16, 64


def vectors_of(dtype: Any, vector_bits: int) -> int:
    """Registers that a value of some type takes."""
    return max(1, -(-int(dtype.bits) * int(dtype.lanes) // vector_bits))


class Arrays:
    """Parameters, arrays in memory, and registers.

    Parameters
    ----------
    integers : Integers
        What is known of indices.
    scopes : Scopes
        The loops around what is being read.
    vector_bits : int
        Bits of one register.
    """

    def __init__(self, integers: Integers, scopes: Scopes, vector_bits: int) -> None:
        self.integers, self.scopes, self.vector_bits = integers, scopes, vector_bits
        self.registers: set[Any] = set()
        self.held: dict[Any, Value] = {}
        self._memories: dict[Any, Memory] = {}
        self._opened: dict[Any, int] = {}
        self._versions: dict[Any, int] = {}

    def add_parameter(self, var: Any, position: int) -> Memory:
        """An array that the kernel is given."""
        memory = Memory(str(var.name), position, size_of(var))
        self._memories[key(var)] = memory
        return memory

    def allocate(self, buffer: Any, shared: bool) -> None:
        """An array of the kernel's own; whether threads see the same one."""
        number = -1 - len(self._memories)
        self._memories[key(buffer)] = Memory(str(buffer.name), number, size_of(buffer), shared)

    def declare(self, node: tirx.DeclBuffer) -> None:
        """A view of an array."""
        found = self._memories.get(key(base_of(node)))
        if found is not None:
            self._memories[key(node.buffer)] = found

    def stored_in(self, body: Any) -> frozenset[Any]:
        """The arrays that a statement writes."""
        return stored_in(body, self._name)

    def _name(self, buffer: Any) -> Any:
        """One for an array and all its views."""
        memory = self._memories.get(key(buffer))
        return memory if memory is not None else key(buffer)

    def are_new(self, arrays: frozenset[Any]) -> bool:
        """Whether registers hold what does not depend on what was made of them before."""
        held = [value for slot, value in self.held.items() if slot[0] in arrays]
        return bool(held) and all(value.chain is None for value in held)

    def forget(self, arrays: frozenset[Any], loop: int) -> None:
        """From here on, what arrays hold is not known; it was written in a loop."""
        for each in arrays:
            self._versions[each] = self._versions.get(each, 0) + 1
            self._opened[each] = loop
        self.held = {slot: v for slot, v in self.held.items() if slot[0] not in arrays}

    def store(self, buffer: Any, index: Any, value: Value, dtype: Any) -> None:
        """Writes a value."""
        memory = self._name(buffer)
        if key(buffer) in self.registers:
            self.held[(memory, self._place(index), int(dtype.lanes))] = value
            return
        self._versions[memory] = self._versions.get(memory, 0) + 1
        access = self._access(buffer, index, dtype, True)
        work = self.scopes.inner.body.work
        work.accesses.append(access)
        work.counts["store"] += self._vectors(dtype)
        name = ("load", memory, access.start, access.width, self._versions[memory])
        self.scopes.inner.values[name] = value

    def load(self, buffer: Any, index: Any, dtype: Any, kind: str = "load") -> Value:
        """Reads a value; once, if nothing was written since."""
        memory = self._name(buffer)
        if key(buffer) in self.registers:
            slot = (memory, self._place(index), int(dtype.lanes))
            if slot not in self.held:
                loop = self._opened.get(memory, self.scopes.loop())
                inside = frozenset((loop,)) if loop >= 0 else frozenset[int]()
                self.held[slot] = self.scopes.new(inside, (loop, 0, 0))
            return self.held[slot]
        access = self._access(buffer, index, dtype, False)
        writing = (scope.loop for scope in self.scopes.stack if memory in scope.stored)
        loops = access.start.loops.union(writing)
        if not access.start.known:
            loops |= {self.scopes.loop()}
        version = self._versions.get(memory, 0)
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

    def tile(self, pointer: Any, stride: int, kind: str) -> None:
        """Reads or writes a tile of AMX."""
        if getattr(getattr(pointer, "op", None), "name", "") != "tirx.address_of":
            return
        element = pointer.args[0]
        size = (int(element.ty.dtype.bits) + 7) // 8
        memory = self._memories.get(key(element.source))
        if memory is None:
            return
        start = self.integers.index(element.indices[0]).times(size)
        self.scopes.inner.body.work.accesses.append(
            Access(memory, start, _TILE_BYTES, _TILE_ROWS, stride, kind == "tile_store")
        )

    def _access(self, buffer: Any, index: Any, dtype: Any, store: bool) -> Access:
        memory = self._memories.get(key(buffer)) or Memory(str(buffer.name), -1000, 0)
        size, lanes = (int(dtype.bits) + 7) // 8, int(dtype.lanes)
        if int(index.ty.dtype.lanes) > 1:
            found = self.integers.ramp(index)
            if found is None:  # wherever data say
                self.integers.of_data(index)
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

    def _vectors(self, dtype: Any) -> int:
        return vectors_of(dtype, self.vector_bits)


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


class Integers:
    """What is known of the integers of a function while it is read.

    Parameters
    ----------
    of_data : callable
        Called with an expression that depends on data, wherever an index is needed.
    """

    def __init__(self, of_data: Callable[[Any], object]) -> None:
        self.known: dict[int, Index] = {}
        self.of_data = of_data

    def ramp(self, node: Any) -> tuple[Index, int] | None:
        """The first lane of consecutive indices and the distance of lanes, if it is fixed."""
        kind = type(node).__name__
        if kind == "Ramp":
            start, step = self.index(node.base), self.index(node.stride)
            return None if step.terms else (start, step.constant)
        if kind == "Broadcast":
            return self.index(node.value), 0
        if kind == "Cast":
            return self.ramp(node.value)
        if kind in ("Add", "Sub", "Mul"):
            a, b = self.ramp(node.a), self.ramp(node.b)
            if a is None or b is None:
                return None
            if kind == "Mul":
                vector, factor = (a, b) if b[1] == 0 else (b, a)
                if factor[1] or factor[0].terms:
                    return None
                times = factor[0].constant
                return vector[0].times(times), vector[1] * times
            sign = 1 if kind == "Add" else -1
            return a[0].plus(b[0], sign), a[1] + sign * b[1]
        return None

    def index(self, node: Any) -> Index:
        """An index; unknown if it depends on data."""
        found = self.find(node)
        if found is not None:
            return found
        self.of_data(node)
        return UNKNOWN

    def find(self, node: Any) -> Index | None:
        """An index, or None if it depends on data or is no integer."""
        kind = type(node).__name__
        if kind == "IntImm":
            return Index(int(node.value))
        if kind == "Var":
            return self.known.get(key(node))
        if kind in ("FloatImm", "TensorLoad", "Broadcast", "Ramp", "StringImm"):
            return None
        dtype = node.ty.dtype if hasattr(node.ty, "dtype") else None
        if dtype is None or int(dtype.lanes) > 1 or str(dtype).startswith(("float", "bfloat")):
            return None
        if kind in ("Add", "Sub", "Mul") or kind in _INTEGERS:
            a, b = self.find(node.a), self.find(node.b)
            if a is None or b is None:
                return None
            if kind == "Add":
                return a.plus(b)
            if kind == "Sub":
                return a.plus(b, -1)
            return apply("*" if kind == "Mul" else _INTEGERS[kind], a, b)
        if kind in ("GT", "GE"):
            a, b = self.find(node.a), self.find(node.b)
            return None if a is None or b is None else apply("<" if kind == "GT" else "<=", b, a)
        if kind == "Not":
            a = self.find(node.a)
            return None if a is None else apply("not", a)
        if kind == "Cast":
            return self.find(node.value)
        if kind == "Select":
            return self._apply("select", node.condition, node.true_value, node.false_value)
        if kind == "Call":
            name = str(getattr(node.op, "name", ""))
            if name == "tirx.likely":
                return self.find(node.args[0])
            if name == "tirx.if_then_else":
                operation = "select"
            elif name in _BITS:
                operation = _BITS[name]
            else:
                return None
            return self._apply(operation, *node.args)
        return None

    def _apply(self, operation: str, *nodes: Any) -> Index | None:
        parts = [self.find(node) for node in nodes]
        known = [part for part in parts if part is not None]
        return apply(operation, *known) if len(known) == len(parts) else None
