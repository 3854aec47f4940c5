"""Kernel context: which of TVM's passes are skipped when our kernels are compiled.

TVM's passes that find common subexpressions and hoist conditions take up to a quarter of the
compile time on unrolled register tiles and long epilogues. LLVM does the same work, and the machine
code is the same without them. Passes for GPUs visit every statement and change nothing.
"""

from __future__ import annotations

from tvm.ir.transform import PassContext

CONDITIONS = ("s_tir.HoistIfThenElse", "s_tir.InsertHoistIfThenElse")
# They look for what no kernel for a CPU has: threads of a GPU, its memories and its instructions.
FOR_GPUS = (
    "s_tir.InferFragment",
    "s_tir.InjectPermutedLayout",
    "s_tir.InjectSoftwarePipeline",
    "s_tir.InjectVirtualThread",
    "s_tir.LiftThreadBinding",
    "s_tir.LowerAutoCopy",
    "s_tir.LowerThreadAllreduce",
    "s_tir.LowerVtcmAlloc",
    "s_tir.MergeSharedMemoryAllocations",
    "s_tir.ThreadSync",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.UnifyThreadBinding",
)
SKIPPED = (*CONDITIONS, *FOR_GPUS)
CONFIG = {"tirx.disable_cse_tir": True}


def kernel_context() -> PassContext:
    """The context to call `tvm.compile` in; whatever else the caller's context says stays."""
    outer = PassContext.current()
    return PassContext(
        opt_level=outer.opt_level,
        required_pass=list(outer.required_pass),
        disabled_pass=[*outer.disabled_pass, *SKIPPED],
        config={**outer.config, **CONFIG},
    )
