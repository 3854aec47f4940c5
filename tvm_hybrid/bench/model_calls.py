"""The kernels that a lowered model calls, in their order, and where their arguments come from.

An argument was touched before: by the kernel that wrote it, or in the run before, as weights are.
What was touched since then says which cache still holds it (least recently used).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import IRModule

from microkernels.machines.machine import Machine
from tvm_hybrid.bench.kernel_times.time import FAR, NEAR, SHARED, Origin
from tvm_hybrid.bench.kernel_times.traffic import ALL, Part

from ..explain.program_graph import WEIGHT, named_graph

# How much of a cache keeps what was touched before: it is not kept in the order of its use alone.
USED_CACHE = 0.75


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
    main = mod["main"]
    graph, _ = named_graph(main, [each for block in main.body.blocks for each in block.bindings])
    kernels = {str(gvar.name_hint) for gvar in mod.get_global_vars()}
    last = {number: place for place, call in enumerate(graph.calls) for number in call.reads}
    memories: dict[int, int] = {}
    free: dict[int, list[int]] = {}

    def tensor(number: int) -> Tensor:
        value = graph.values[number]
        weight = value.kind == WEIGHT
        if number not in memories:
            unused = free.get(value.nbytes)
            memories[number] = unused.pop() if unused and not weight else number
        return Tensor(memories[number], value.nbytes, weight)

    calls: list[ModelCall] = []
    for place, call in enumerate(graph.calls):
        inputs = [tensor(number) for number in call.reads]
        for number, updated in zip(call.writes, call.updates, strict=False):
            memories[number] = memories[updated]
        outputs = [tensor(number) for number in call.writes[len(call.updates) :]]
        if call.function in kernels:
            calls.append(ModelCall(call.node, call.function, (*inputs, *outputs)))
        for number in {*call.reads} - {*call.updates, *graph.outputs}:
            if last[number] == place and graph.values[number].kind != WEIGHT:
                free.setdefault(graph.values[number].nbytes, []).append(memories[number])
    return calls


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
