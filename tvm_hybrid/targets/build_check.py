"""Refuses to build a kernel for a CPU without its instructions, where LLVM would end the process.

`tensorize`, the rules of dlight and the pipeline with `native=False` give TVM's users kernels in
TIR, with the instructions of the target that they were made for. A user may then build such a
kernel for a plainer target. LLVM has no error for an instruction that a target lacks: it prints
"Do not know how to split the result of this operator!" and aborts.

So these kernels name the CPU features that they need in an attribute, and TVM's function
`target.build.llvm` compares them with the target first. Functions without the attribute are built
as ever. This module imports nothing heavy, because `import tvm` imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvm import IRModule, tirx
    from tvm.target import Target

    from relay_passes.ir.decisions import DecisionLog

NEEDS = "tvm_hybrid.needs"
"""Attribute of a kernel: LLVM's names of the features that it needs, separated by commas."""


def with_needs(kernel: tirx.PrimFunc, target: Target, decisions: DecisionLog) -> tirx.PrimFunc:
    """A kernel that names the features it needs.

    Parameters
    ----------
    kernel : tirx.PrimFunc
        The kernel.
    target : tvm.target.Target
        The target that it was made for. All features of the target's instruction set count, except
        those of AMX, which only some microkernels use.
    decisions : list of Decision
        The decisions of the kernel's products, with the names of microkernels.
    """
    from relay_passes.ir.decisions import uses_half_tiles, uses_tiles

    return _with_features(kernel, target, uses_tiles(decisions), uses_half_tiles(decisions))


def with_needs_by_name(kernel: tirx.PrimFunc, target: Target, name: str) -> tirx.PrimFunc:
    """As `with_needs`, for a kernel whose microkernels are part of its name."""
    return _with_features(kernel, target, "amx_" in name, "amx_fp16_" in name)


def _with_features(kernel: tirx.PrimFunc, target: Target, tiles: bool, half: bool) -> tirx.PrimFunc:
    from microkernels.amx.permission import AMX_FP16
    from microkernels.isa import target_isa

    names = [
        name
        for name in target_isa(target).features
        if (tiles and (half or name != AMX_FP16)) or not name.startswith("amx-")
    ]
    return kernel.with_attr(NEEDS, ",".join(names)) if names else kernel


def check_build(mod: IRModule, target: Target) -> None:
    """Compares the needs of all kernels of a module with the target that they are built for.

    Raises
    ------
    TargetError
        If the target lacks a feature that a kernel needs.
    """
    present: set[str] | None = None
    for gvar, function in mod.functions_items():
        if NEEDS not in (function.attrs or ()):
            continue
        if present is None:
            present = _features(target)
        missing = [name for name in str(function.attrs[NEEDS]).split(",") if name not in present]
        if missing:
            raise _refusal(str(gvar.name_hint), missing, target)


def _features(target: Target) -> set[str]:
    from tvm.target import codegen

    return {str(name) for name in codegen.llvm_get_cpu_features(target)}


def _refusal(name: str, missing: Sequence[str], target: Any) -> Exception:
    import relay_passes  # noqa: F401 - TVM passes on our errors as they are once it is imported
    from microkernels.base.errors import TargetError

    cpu = str(target.attrs.get("mcpu", "")) or "llvm, without a CPU,"
    return TargetError(
        f"{name} is a kernel of tvm_hybrid that needs {', '.join(missing)}, which the target "
        f"{cpu} lacks; build it for the target that it was made for, or make it again for this one"
    )
