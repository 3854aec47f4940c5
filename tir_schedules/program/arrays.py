"""Arrays of a kernel while it is read: what was loaded and stored, and what registers hold."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from .flat_tir import base_of, key, size_of
from .index import UNKNOWN
from .integers import Integers
from .nodes import Access, Memory
from .registers import stored_in
from .values import Scopes, Value

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
