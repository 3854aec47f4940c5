"""The memory of a program: weights as kernels read them, and the storage planned for values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...explain.program_graph import VALUE
from ...explain.storage_plan import NO_PLAN
from ...runtime.tensors import numpy_dtype
from .data import Memory

if TYPE_CHECKING:
    from ...executable.executable import Executable


def memory_of(executable: Executable, model_file: int | None) -> Memory:
    """Bytes of a program; of a library without an outline, those of weights."""
    outline = executable.outline
    plan, values = NO_PLAN, 0
    weights = sum(each.size for each in executable.manifest.weights)
    if outline is not None:
        graph, plan, weights = outline.graph, outline.plan, outline.weights
        updated = {each for call in graph.calls for each in call.updates}
        values = sum(
            value.nbytes
            for number, value in enumerate(graph.values)
            if value.kind == VALUE and number not in updated and number not in graph.outputs
        )
    return Memory(
        model_file=model_file,
        weights=weights,
        planned=plan.planned,
        peak=plan.peak,
        blocks=plan.blocks,
        values=values,
        inputs=sum(map(_bytes, executable.inputs)),
        outputs=sum(map(_bytes, executable.outputs)),
    )


def _bytes(info: Any) -> int:
    shape = info.static_shape
    return 0 if shape is None else math.prod(shape) * numpy_dtype(info.dtype).itemsize
