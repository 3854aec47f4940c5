"""Which arrays of a kernel are registers, and which a statement writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from .flat_tir import base_of, intrinsic, is_constant, key

_ADDRESSES = ("tirx.masked_load", "tirx.masked_store", "tirx.address_of", "tirx.buffer_data")


def registers_of(body: Any) -> set[Any]:
    """Arrays of its own that a kernel reads and writes at constant places only."""
    own: set[Any] = set()
    moving: set[Any] = set()

    def allocated(node: tirx.AllocBuffer) -> None:
        own.add(key(node.buffer))

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
    return own - moving


def stored_in(body: Any, name: Callable[[Any], Any]) -> frozenset[Any]:
    """What the arrays are called that a statement writes."""
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
