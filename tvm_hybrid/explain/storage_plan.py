"""The storage that TVM plans for the values between kernels."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from tvm import relax

_STORAGE, _TENSOR, _KILL = "vm.alloc_storage", "vm.alloc_tensor", "vm.kill_object"


class Plan(msgspec.Struct, frozen=True):
    """How much storage there is.

    Attributes
    ----------
    planned : int or None
        Bytes of all blocks together; None if sizes are open.
    peak : int or None
        The most bytes of it that are in use at a time.
    blocks : int
        Number of blocks.
    """

    planned: int | None
    peak: int | None
    blocks: int


NO_PLAN = Plan(None, None, 0)


def storage_plan(main: Any) -> Plan:
    """The plan of a function `main`, as the virtual machine's code is made of it."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    owner: dict[int, int] = {}
    holders: dict[int, int] = {}
    sizes: dict[int, int] = {}
    used = peak = total = 0
    for binding in bindings:
        value, var = binding.value, int(binding.var.__chandle__())
        operator = str(getattr(getattr(value, "op", None), "name", ""))
        if operator.endswith(_STORAGE):
            size = _size(value.args[0])
            if size is None:
                return NO_PLAN
            owner[var], holders[var], sizes[var] = var, 1, size
            used, total = used + size, total + size
            peak = max(peak, used)
        elif isinstance(value, relax.Call | relax.Var):
            source = value.args[0] if isinstance(value, relax.Call) and value.args else value
            storage = owner.get(int(source.__chandle__()))
            if operator.endswith(_KILL) and storage is not None:
                holders[storage] -= 1
                used -= 0 if holders[storage] else sizes[storage]
            elif storage is not None and (operator.endswith(_TENSOR) or _is_view(value)):
                owner[var] = storage
                holders[storage] += 1
    return Plan(total, peak, len(sizes))


def _is_view(value: Any) -> bool:
    """Whether a value is memory of another one."""
    callee = str(getattr(getattr(value, "op", None), "global_symbol", ""))
    return isinstance(value, relax.Var) or callee == "vm.builtin.reshape"


def _size(shape: Any) -> int | None:
    if not isinstance(shape, relax.ShapeExpr):
        return None
    sizes = [getattr(each, "value", None) for each in shape.values]
    return None if None in sizes else math.prod(int(each) for each in sizes if each is not None)
