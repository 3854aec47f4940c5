"""Copies of whole tensors to other shapes: one loop over all elements, whatever the sizes.

for i, j in grid(n, m): y[i, j] = x[(i * m + j) // k, (i * m + j) % k]

->  for i: y_flat[i] = x_flat[i]        LLVM calls memcpy
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.relax.analysis import has_reshape_pattern
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from .expressions import const_int, int64
from .loops import sequence, view_of
from .nest import NotHandledError
from .read_program import is_number

WHOLE_COPY = "tvm_hybrid.whole_copy"
"""Attribute of a function that stores its first tensor's elements in its last, in order."""


def whole_copy(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """The loop; threads have a share each.

    Raises
    ------
    NotHandledError
        If all sizes are known, or elements change or move.
    """
    buffers = [param for param in func.params if not is_number(param)]
    if all(const_int(size) is not None for buffer in buffers for size in buffer.shape):
        raise NotHandledError("all sizes are known")
    if WHOLE_COPY not in (func.attrs or {}) and not has_reshape_pattern(func):
        raise NotHandledError("it does more than copy")
    source, result = (view_of(buffer) for buffer in (buffers[0], buffers[-1]))
    size = result.flat.shape[0]
    part, number = (tirx.Var(name, "int64") for name in ("part", "number"))
    share = tirx.floordiv(size + int64(machine.threads - 1), int64(machine.threads))
    first: Expr = part * share
    at = number if machine.threads == 1 else first + number
    store = tirx.BufferStore(result.flat, tirx.BufferLoad(source.flat, [at]), [at])
    count = size if machine.threads == 1 else tirx.Min(share, tirx.Max(size - first, int64(0)))
    loop = tirx.For(number, int64(0), count, ForKind.SERIAL, store)
    if machine.threads > 1:
        loop = tirx.For(part, int64(0), int64(machine.threads), ForKind.PARALLEL, loop)
    views = [
        tirx.DeclBuffer(view.flat, data=buffer.data)
        for view, buffer in ((source, buffers[0]), (result, buffers[-1]))
    ]
    root = s_tir.SBlock([], [], [], "root", sequence([*views, loop]))
    body = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    return func.with_body(body), "generic_injective"
