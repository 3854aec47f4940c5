"""The kernels that a lowered model calls, in their order, and where their arguments come from.

An argument was touched before: by the kernel that wrote it, or in the run before, as weights are.
What was touched since then says which cache still holds it (least recently used).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import DataType, IRModule, ir, relax

from microkernels.machines.machine import Machine
from tir_schedules.program.cycles import FAR, NEAR, SHARED
from tir_schedules.program.time import Origin
from tir_schedules.program.traffic import ALL, Part

# How much of a cache keeps what was touched before: it is not kept in the order of its use alone.
USED_CACHE = 0.75
_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


@dataclass(frozen=True)
class Tensor:
    """An argument: which memory, how many bytes, and whether it is a weight."""

    memory: int
    size: int
    weight: bool


@dataclass(frozen=True)
class ModelCall:
    """One call of a kernel.

    Attributes
    ----------
    node : str
        The value that it computes.
    function : str
        The kernel.
    arguments : tuple of Tensor
        In the order of the kernel's parameters.
    """

    node: str
    function: str
    arguments: tuple[Tensor, ...]


def model_calls(mod: IRModule) -> list[ModelCall]:
    """The calls of `main`, with memory that is used again as soon as nobody reads it any more."""
    function = mod["main"]
    bindings = [b for block in function.body.blocks for b in block.bindings]
    last = _last_uses(bindings, function.body.body)
    names: dict[Any, Tensor] = {}
    free: dict[int, list[int]] = {}
    count = 0
    calls: list[ModelCall] = []

    def new(size: int, weight: bool = False) -> Tensor:
        nonlocal count
        found = free.get(size)
        if found and not weight:
            return Tensor(found.pop(), size, weight)
        count += 1
        return Tensor(count, size, weight)

    def of(expression: Any) -> list[Tensor]:
        if isinstance(expression, relax.Tuple):
            return [tensor for field in expression.fields for tensor in of(field)]
        key = _key(expression)
        if isinstance(expression, ir.GenericConst):
            return [names.setdefault(key, new(_bytes(expression.ty), True))]
        if isinstance(expression, relax.Var):
            if key not in names:
                names[key] = new(_bytes(expression.ty))
            return [names[key]]
        return []

    for position, binding in enumerate(bindings):
        value, var = binding.value, _key(binding.var)
        if not isinstance(value, relax.Call):
            known = of(value)
            if known:
                names[var] = known[0]
            continue
        if getattr(value.op, "name", "") not in _CALLS:
            arguments = [t for a in value.args for t in of(a)]  # a view, or a call of the runtime
            names[var] = arguments[0] if arguments else new(_bytes(binding.var.ty))
            continue
        inputs = of(value.args[1])
        inplace = getattr(value.attrs, "inplace_indices", None)
        if inplace is not None:
            outputs: list[Tensor] = []
            names[var] = inputs[int(inplace[0])]
        else:
            outputs = [new(size) for size in _sizes(binding.var.ty)]
            names[var] = outputs[0]
        node, kernel = str(binding.var.name), str(value.args[0].name_hint)
        calls.append(ModelCall(node, kernel, (*inputs, *outputs)))
        for argument in last.get(position, []):
            tensor = names.get(argument)
            if tensor is not None and not tensor.weight and tensor is not names[var]:
                free.setdefault(tensor.size, []).append(tensor.memory)
    return calls


def _last_uses(bindings: Sequence[Any], result: Any) -> dict[int, list[int]]:
    """Position of a binding -> the variables that it is the last to use, views included."""
    root: dict[int, int] = {}
    uses: dict[int, int] = {}

    def variables(expression: Any) -> Iterator[int]:
        if isinstance(expression, relax.Tuple):
            for each in expression.fields:
                yield from variables(each)
        elif isinstance(expression, relax.Var):
            key = _key(expression)
            yield root.get(key, key)
        elif isinstance(expression, relax.Call):
            for each in expression.args:
                yield from variables(each)

    for position, binding in enumerate(bindings):
        used = list(variables(binding.value))
        for key in used:
            uses[key] = position
        calls = getattr(getattr(binding.value, "op", None), "name", "")
        if calls != "relax.call_tir" and used:
            root[_key(binding.var)] = used[-1] if "inplace" in calls else used[0]
    for key in variables(result):
        uses.pop(key, None)
    found: dict[int, list[int]] = {}
    for key, position in uses.items():
        found.setdefault(position, []).append(key)
    return found


def _sizes(type_: Any) -> list[int]:
    if isinstance(type_, relax.TupleType):
        return [_bytes(each) for each in type_.fields]
    return [_bytes(type_)]


def _bytes(type_: Any) -> int:
    if not isinstance(type_, relax.TensorType) or not isinstance(type_.shape, relax.ShapeExpr):
        return 0
    size = (int(DataType(str(type_.dtype)).bits) + 7) // 8
    for extent in type_.shape.values:
        size *= int(getattr(extent, "value", 1))
    return size


def origins(
    calls: Sequence[ModelCall], machine: Machine, parts: Mapping[str, Mapping[int, Part]]
) -> list[dict[int, Origin]]:
    """For every call where its arguments' bytes are, as `kernel_time` wants it.

    Parameters
    ----------
    calls : sequence of ModelCall
        In their order.
    machine : Machine
        With its number of threads.
    parts : mapping
        Kernel -> parameter -> what a thread touches of it.
    """
    threads = machine.threads
    sockets = max(1, -(-threads // int(machine.description.at("cores"))))
    touched: dict[int, int] = {}
    had: dict[int, Part] = {}
    found: list[dict[int, Origin]] = []
    for _ in range(2):  # in the second run everything was touched before
        found = []
        for call in calls:
            levels: dict[int, Origin] = {}
            order = list(touched)
            for parameter, tensor in enumerate(call.arguments):
                if tensor.memory in touched:
                    since = order[order.index(tensor.memory) + 1 :]
                else:
                    since = order
                distance = tensor.size + sum(touched[memory] for memory in since)
                part = parts[call.function].get(parameter)
                if tensor.weight and part is not None and part.form == ALL:
                    # Every core that reads all of it has a copy, if that fits.
                    own = distance <= machine.l2_bytes * USED_CACHE
                    levels[parameter] = Origin(NEAR if own else SHARED)
                    if distance > machine.l3_bytes * sockets:
                        levels[parameter] = Origin(FAR)
                elif distance <= machine.l2_bytes * threads * USED_CACHE:
                    levels[parameter] = Origin(NEAR, had.get(tensor.memory))
                elif distance <= machine.l3_bytes * sockets:
                    levels[parameter] = Origin(SHARED)
                else:
                    levels[parameter] = Origin(FAR)
            for parameter, tensor in enumerate(call.arguments):
                touched.pop(tensor.memory, None)
                touched[tensor.memory] = tensor.size
                part = parts[call.function].get(parameter)
                if part is not None:
                    had[tensor.memory] = part
            found.append(levels)
    return found


def _key(expression: Any) -> int:
    """What tells one node from another; equal constants are one."""
    return int(expression.__chandle__())
