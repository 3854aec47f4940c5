"""Expressions of TIR as values: each computed once, by so many instructions of a kind."""

from __future__ import annotations

from typing import Any

from .arrays import Arrays, vectors_of
from .flat_tir import intrinsic, key
from .index import Index
from .integers import Integers
from .kinds import LIBRARY, kind_of
from .nodes import Body
from .values import Scopes, Value

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
