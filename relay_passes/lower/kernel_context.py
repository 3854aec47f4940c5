"""Kernel context: which of TVM's passes are skipped when our kernels are compiled.

TVM's passes that find common subexpressions and hoist conditions take up to a quarter of the
compile time on unrolled register tiles and long epilogues. LLVM does the same work, and the machine
code is the same without them. Passes for GPUs visit every statement and change nothing.
"""

from __future__ import annotations

from tvm.ir.transform import PassContext

from relay_passes.tvm_compat import GPU_PASSES, SLOW_PASSES, WITHOUT_CSE


def kernel_context() -> PassContext:
    """The context to call `tvm.compile` in; whatever else the caller's context says stays."""
    outer = PassContext.current()
    return PassContext(
        opt_level=outer.opt_level,
        required_pass=list(outer.required_pass),
        disabled_pass=[*outer.disabled_pass, *SLOW_PASSES, *GPU_PASSES],
        config={**outer.config, **WITHOUT_CSE},
    )
