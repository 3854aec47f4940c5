"""Values of TIR expressions: each is computed once, by counted instructions of one kind."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from . import nodes
from .index import UNKNOWN, Index, Integers, key

# Calls that cost nothing beyond their first argument.
_FREE = ("tirx.likely", "tirx.reinterpret", "tirx.buffer_data")

# Expressions that take one instruction for each vector, and their operands.
_VECTORS = {
    "Select": ("condition", "true_value", "false_value"),
    "Cast": ("value",),
    "Not": ("a",),
    "BitwiseNot": ("a",),
}


class Expressions:
    """Evaluates expressions of a function while it is read; registers have `vector_bits` bits."""

    def __init__(self, vector_bits: int) -> None:
        self.vector_bits = vector_bits
        self.scopes = nodes.Scopes(nodes.Body())
        self.integers = Integers(self.value)
        self.arrays = Arrays(self.integers, self.scopes, vector_bits)
        self.bound: dict[Any, nodes.Value] = {}

    def bind(self, var: Any, value: Any) -> None:
        """Binds a variable to an expression."""
        index = self.integers.find(value)
        if index is not None:
            self.integers.known[key(var)] = index
        else:
            self.bound[key(var)] = self.value(value)

    def value(self, node: Any) -> nodes.Value:
        """Returns the value of an expression."""
        kind = type(node).__name__
        if kind == "Var" and key(node) in self.bound:
            return self.bound[key(node)]
        if kind == "Var":
            index = self.integers.known.get(key(node))
            return self._constant(node) if index is None else self._of_index(index)
        if kind in ("IntImm", "FloatImm", "StringImm"):
            return self._constant(node)
        if kind == "Call":
            return self._call(node)
        if kind == "TensorLoad":
            return self.arrays.load(node.source, node.indices[0], node.ty.dtype)
        if kind == "Let":
            self.bind(node.var, node.value)
            return self.value(node.body)
        if kind in ("Broadcast", "Ramp", "Shuffle"):
            return self._arranged(node, kind)
        if kind in _VECTORS:
            operands = [self.value(getattr(node, each)) for each in _VECTORS[kind]]
            dtype = (node.a if kind == "Not" else node).ty.dtype
            return self._computed(kind, operands, "vector", dtype)
        index = self.integers.find(node)
        if index is not None:
            return self._of_index(index)
        if kind in ("Add", "Sub"):
            return self._sum(node, kind)
        if hasattr(node, "a"):
            operands = [self.value(each) for each in (node.a, node.b)]
            dtype = (node.a if str(node.ty.dtype).startswith("bool") else node).ty.dtype
            divides = kind in ("Div", "FloorDiv", "FloorMod", "Mod") and not operands[1].constant
            return self._computed(kind, operands, "divide" if divides else "vector", dtype)
        raise NotImplementedError(f"no meaning of {kind}")

    def _of_index(self, index: Index) -> nodes.Value:
        """Makes a value of an integer; address computations run beside vectors and cost nothing."""
        name = ("index", index)
        known = self.scopes.known(name)
        if known is not None:
            return known
        value = self.scopes.new(index.loops, constant=not index.terms)
        return self.scopes.place_of(index.loops).values.setdefault(name, value)

    def _constant(self, node: Any) -> nodes.Value:
        name = ("constant", str(node))
        values = self.scopes.stack[0].values
        if name not in values:
            values[name] = self.scopes.new(frozenset(), constant=True)
        return values[name]

    def _computed(
        self, name: Any, operands: list[nodes.Value], kind: str, dtype: Any
    ) -> nodes.Value:
        """Makes a value by one kind of instruction, or finds it if it was computed before."""
        name = (name, str(dtype), *(each.number for each in operands))
        known = self.scopes.known(name)
        if known is not None:
            return known
        if operands and all(each.constant for each in operands):
            value = self.scopes.new(frozenset(), constant=True)
            return self.scopes.stack[0].values.setdefault(name, value)
        loops = frozenset().union(*(each.loops for each in operands))
        scope = self.scopes.place_of(loops)
        if kind:
            scope.body.work.counts[kind] += vectors_of(dtype, self.vector_bits)
            products = {"fma": 1, "bf16": 2, "dot": 4}
            if kind in products:
                scope.body.work.counts["products"] += products[kind] * int(dtype.lanes)
        value = self.scopes.new(loops, self.scopes.chain(operands, kind))
        return scope.values.setdefault(name, value)

    def _sum(self, node: Any, name: str) -> nodes.Value:
        if str(node.ty.dtype).startswith("float"):
            for product, other in ((node.b, node.a), (node.a, node.b)):
                if type(product).__name__ == "Mul":
                    parts = [self.value(each) for each in (product.a, product.b, other)]
                    known = ("Mul", str(node.ty.dtype), parts[0].number, parts[1].number)
                    constant = parts[0].constant and parts[1].constant
                    if self.scopes.known(known) is None and not constant:
                        return self._computed(f"fma{name}", parts, "fma", node.ty.dtype)
        operands = [self.value(node.a), self.value(node.b)]
        return self._computed(name, operands, "vector", node.ty.dtype)

    def _arranged(self, node: Any, kind: str) -> nodes.Value:
        """Makes a vector of equal lanes, of counting lanes, or of lanes of other vectors."""
        if kind == "Ramp":
            value = self.value(node.base)
            moved = "" if value.constant else "vector"
            return self._computed("ramp", [value], moved, node.ty.dtype)
        if kind == "Shuffle":
            parts = [self.value(each) for each in node.vectors]
            lanes = tuple(int(each.value) for each in node.indices)
            # The low part of a register needs no instruction.
            free = len(parts) == 1 and lanes == tuple(range(len(lanes)))
            moved = "" if free else "vector"
            return self._computed(("shuffle", lanes), parts, moved, node.ty.dtype)
        inner = node.value
        while getattr(getattr(inner, "op", None), "name", "") == "tirx.reinterpret":
            inner = inner.args[0]
        if type(inner).__name__ == "TensorLoad" and key(inner.source) not in self.arrays.registers:
            loaded = self.arrays.load(inner.source, inner.indices[0], inner.ty.dtype, "broadcast")
            return self._computed("splat", [loaded], "", node.ty.dtype)
        value = self.value(node.value)
        return self._computed("splat", [value], "vector", node.ty.dtype)

    def _call(self, node: Any) -> nodes.Value:
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
        if name in nodes.LIBRARY:
            loops = frozenset[int]().union(*(each.loops for each in parts))
            counts = self.scopes.place_of(loops).body.work.counts
            counts["library"] += max(1, int(node.ty.dtype.lanes))
            return self.scopes.new(loops)
        kind = "divide" if "sqrt" in name else "vector"
        return self._computed(name, parts, kind, node.ty.dtype)

    def _intrinsic_call(self, node: Any) -> nodes.Value:
        text = nodes.intrinsic(node)
        kind = nodes.kind_of(text)
        arguments = list(node.args)[1:]
        if kind in ("tile_load", "tile_store"):
            pointer, stride = arguments[-2], self.integers.index(arguments[-1])
            self.arrays.tile(pointer, stride.constant, kind)
        if kind.startswith(("tile_", "prefetch")):
            self.scopes.inner.body.work.counts[kind] += 1
            return self._constant(node.args[0])
        if kind in ("permission", "arrival"):
            return self._constant(node.args[0])
        parts = [self.value(each) for each in arguments]
        types = [each.ty.dtype for each in (node, *arguments)]
        widest = max(types, key=lambda dtype: int(dtype.bits) * int(dtype.lanes))
        dtype = node.ty.dtype if kind in ("dot", "bf16") else widest
        return self._computed(text, parts, kind, dtype)


_TILE_ROWS, _TILE_BYTES = 16, 64


def vectors_of(dtype: Any, vector_bits: int) -> int:
    """Number of registers of a value of this type."""
    return max(1, -(-int(dtype.bits) * int(dtype.lanes) // vector_bits))


class Arrays:
    """The function's parameters, arrays in memory, and arrays in registers."""

    def __init__(self, integers: Integers, scopes: nodes.Scopes, vector_bits: int) -> None:
        self.integers, self.scopes, self.vector_bits = integers, scopes, vector_bits
        self.registers: set[Any] = set()
        self.held: dict[Any, nodes.Value] = {}
        self._memories: dict[Any, nodes.Memory] = {}
        self._opened: dict[Any, int] = {}
        self._versions: dict[Any, int] = {}

    def add_parameter(self, var: Any, position: int) -> nodes.Memory:
        """Adds an array that is a parameter of the kernel."""
        memory = nodes.Memory(str(var.name), position, nodes.size_of(var))
        self._memories[key(var)] = memory
        return memory

    def allocate(self, buffer: Any, shared: bool) -> None:
        """Adds an array of the kernel's own, either shared by all threads or one for each."""
        number = -1 - len(self._memories)
        self._memories[key(buffer)] = nodes.Memory(
            str(buffer.name), number, nodes.size_of(buffer), shared
        )

    def declare(self, node: tirx.DeclBuffer) -> None:
        """Adds a view of an array."""
        found = self._memories.get(key(nodes.base_of(node)))
        if found is not None:
            self._memories[key(node.buffer)] = found

    def name_of(self, buffer: Any) -> Any:
        """A common name for an array and all its views."""
        memory = self._memories.get(key(buffer))
        return memory if memory is not None else key(buffer)

    def are_new(self, arrays: frozenset[Any]) -> bool:
        """Whether registers of these arrays do not depend on the outer loop's last iteration."""
        held = [value for slot, value in self.held.items() if slot[0] in arrays]
        return bool(held) and all(value.chain is None for value in held)

    def forget(self, arrays: frozenset[Any], loop: int) -> None:
        """Marks the contents of arrays as unknown from here on, because `loop` writes them."""
        for each in arrays:
            self._versions[each] = self._versions.get(each, 0) + 1
            self._opened[each] = loop
        self.held = {slot: v for slot, v in self.held.items() if slot[0] not in arrays}

    def store(self, buffer: Any, index: Any, value: nodes.Value, dtype: Any) -> None:
        """Records a write of a value."""
        memory = self.name_of(buffer)
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

    def load(self, buffer: Any, index: Any, dtype: Any, kind: str = "load") -> nodes.Value:
        """Records a read, unless the value was read and nothing was written since."""
        memory = self.name_of(buffer)
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
        """Records a read or write of an AMX tile."""
        if getattr(getattr(pointer, "op", None), "name", "") != "tirx.address_of":
            return
        element = pointer.args[0]
        size = (int(element.ty.dtype.bits) + 7) // 8
        memory = self._memories.get(key(element.source))
        if memory is None:
            return
        start = self.integers.index(element.indices[0]).times(size)
        self.scopes.inner.body.work.accesses.append(
            nodes.Access(memory, start, _TILE_BYTES, _TILE_ROWS, stride, kind == "tile_store")
        )

    def _access(self, buffer: Any, index: Any, dtype: Any, store: bool) -> nodes.Access:
        memory = self._memories.get(key(buffer)) or nodes.Memory(str(buffer.name), -1000, 0)
        size, lanes = (int(dtype.bits) + 7) // 8, int(dtype.lanes)
        found = self._lanes(index)
        if found is None:  # the address depends on data
            self.integers.of_data(index)
            return nodes.Access(memory, UNKNOWN, size, lanes, size, store)
        start, step = found[0].times(size), found[1]
        if step in (0, 1):
            return nodes.Access(memory, start, size * (lanes if step else 1), store=store)
        return nodes.Access(memory, start, size, lanes, size * step, store)

    def _lanes(self, index: Any) -> tuple[Index, int] | None:
        """First index and distance of consecutive lanes; None if the distance varies."""
        vector = int(index.ty.dtype.lanes) > 1
        return self.integers.ramp(index) if vector else (self.integers.index(index), 1)

    def _place(self, index: Any) -> int:
        found = self._lanes(index)
        return found[0].constant if found else -1

    def _vectors(self, dtype: Any) -> int:
        return vectors_of(dtype, self.vector_bits)
