"""The memory of a program: weights as kernels read them, and the storage planned for values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvm import relax

from relay_passes.ir.constants import bytes_of, constants_of
from relay_passes.ir.rewrite import MAIN

from ...program_graph import VALUE
from ...tensors import numpy_dtype
from .data import Memory

if TYPE_CHECKING:
    from ...executable import Executable

_STORAGE, _TENSOR, _KILL = "vm.alloc_storage", "vm.alloc_tensor", "vm.kill_object"


def memory_of(executable: Executable, model_file: int | None) -> Memory:
    """Bytes of a program; of a library, which keeps no plan, those of weights."""
    graph = executable.graph
    planned = peak = None
    blocks = 0
    if graph is not None:
        code = executable.program().code
        planned, peak, blocks = planned_storage(code[MAIN])
        # Entries share the memory of constants.
        kept = {each.value.data_ptr(): bytes_of(each.value) for each in constants_of(code)}
        weights = sum(kept.values())
    else:
        weights = sum(each.size for each in executable.manifest.weights)
    values = 0
    if graph is not None:
        updated = {each for call in graph.calls for each in call.updates}
        values = sum(
            value.nbytes
            for number, value in enumerate(graph.values)
            if value.kind == VALUE and number not in updated and number not in graph.outputs
        )
    return Memory(
        model_file=model_file,
        weights=weights,
        planned=planned,
        peak=peak,
        blocks=blocks,
        values=values,
        inputs=sum(map(_bytes, executable.inputs)),
        outputs=sum(map(_bytes, executable.outputs)),
    )


def planned_storage(main: Any) -> tuple[int | None, int | None, int]:
    """All bytes of storage, the most in use at a time, and the number of blocks.

    Parameters
    ----------
    main : relax.Function
        As the virtual machine's code is made of it. None for bytes if sizes are open.
    """
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
                return None, None, 0
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
    return total, peak, len(sizes)


def _is_view(value: Any) -> bool:
    """Whether a value is memory of another one."""
    callee = str(getattr(getattr(value, "op", None), "global_symbol", ""))
    return isinstance(value, relax.Var) or callee == "vm.builtin.reshape"


def _size(shape: Any) -> int | None:
    if not isinstance(shape, relax.ShapeExpr):
        return None
    sizes = [getattr(each, "value", None) for each in shape.values]
    return None if None in sizes else math.prod(int(each) for each in sizes if each is not None)


def _bytes(info: Any) -> int:
    shape = info.static_shape
    return 0 if shape is None else math.prod(shape) * numpy_dtype(info.dtype).itemsize
