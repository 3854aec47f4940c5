"""Kernel context: which of TVM's passes are skipped when our kernels are compiled.

TVM's passes that find common subexpressions and hoist conditions take up to a quarter of the
compile time on unrolled register tiles and long epilogues; those that remove what does nothing and
that rewrite divisions take a tenth each of what TVM's passes take. LLVM does the same work, and the
machine code is the same without them. Passes for GPUs visit every statement and change nothing.
TVM's analyzer takes long to find out that buffers of templates cannot shrink, and minutes where
sizes are expressions; kernels of templates say that their buffers are exact.
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm import tirx
from tvm.ir.transform import PassContext

from microkernels.base.tvm_compat.relax import GPU_PASSES, SLOW_PASSES, WITHOUT_CSE
from tir_schedules.core.emission import EXACT_BUFFERS

_SHRINKS_BUFFERS = "s_tir.CompactBufferAllocation"


def has_exact_buffers(function: object) -> bool:
    """Whether the buffers of a function stay as they are."""
    return isinstance(function, tirx.PrimFunc) and EXACT_BUFFERS in (function.attrs or {})


def kernel_context(functions: Iterable[object] = ()) -> PassContext:
    """The context to call `tvm.compile` in; whatever else the caller's context says stays.

    Parameters
    ----------
    functions : iterable
        What is compiled, if kernels with exact buffers may be among it.
    """
    exact = [_SHRINKS_BUFFERS] if any(map(has_exact_buffers, functions)) else []
    outer = PassContext.current()
    return PassContext(
        opt_level=outer.opt_level,
        required_pass=list(outer.required_pass),
        disabled_pass=[*outer.disabled_pass, *SLOW_PASSES, *GPU_PASSES, *exact],
        config={**outer.config, **WITHOUT_CSE},
    )
