"""Copies of whole tensors to other shapes: one loop over all elements, whatever the sizes.

for i, j in grid(n, m): y[i, j] = x[(i * m + j) // k, (i * m + j) % k]

->  for i: y_flat[i] = x_flat[i]        LLVM calls memcpy
"""

from __future__ import annotations

from tvm import tirx
from tvm.relax.analysis import has_reshape_pattern

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from .dynamic.elements import flat_loop, require_open
from .loops import parameter_views, with_statements
from .nest import NotHandledError

WHOLE_COPY = "tvm_hybrid.whole_copy"
"""Attribute of a function that stores its first tensor's elements in its last, in order."""


def whole_copy(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """The loop; threads have a share each.

    Raises
    ------
    NotHandledError
        If all sizes are known, or elements change or move.
    """
    require_open(func)
    if WHOLE_COPY not in (func.attrs or {}) and not has_reshape_pattern(func):
        raise NotHandledError("it does more than copy")
    views, declarations = parameter_views(func)
    source, *_, result = views.values()

    def copied(at: Expr) -> tirx.Stmt:
        return tirx.BufferStore(result.flat, tirx.BufferLoad(source.flat, [at]), [at])

    loop = flat_loop(result.flat.shape[0], copied, machine)
    return with_statements(func, [*declarations, loop]), "generic_injective"
