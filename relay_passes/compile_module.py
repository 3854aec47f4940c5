"""Compiles a Relax module: from its operators to an executable with machine code."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from tvm import IRModule, ir

from microkernels.base.memory import without_full_collections

from .ir.decisions import DecisionLog
from .lower.native_code import compile_native, with_weights
from .lower_module import lower_shared
from .pipeline import Phase, phases
from .pipeline_options import PipelineOptions
from .run_passes import announce_llvm, announce_phase


@dataclass(frozen=True)
class CompiledModule:
    """A compiled module with its lowered IR and what was decided on the way.

    Attributes
    ----------
    native : tvm.relax.VMExecutable
        It imports the machine code, and has no large weights: it is not to run.
    mod : IRModule
        Calls of TIR kernels.
    code : IRModule
        What the virtual machine's code is made of, with all weights.
    decisions : list of Decision
        What `explain` shows.
    """

    native: Any
    mod: IRModule
    code: IRModule
    decisions: DecisionLog = field(default_factory=list)

    @functools.cached_property
    def executable(self) -> Any:
        """The relax.VMExecutable that runs; making it takes 1.2 ns for each byte of weights."""
        return with_weights(self.native, self.code)


@without_full_collections()
def compile_module(mod: IRModule, options: PipelineOptions, keep: bool = True) -> CompiledModule:
    """Runs every phase on a Relax module and compiles the result.

    Parameters
    ----------
    mod : IRModule
        Stays as it is if `keep`. Else it has no functions afterwards, and its weights go one by one
        when they have been packed.
    """
    decisions: DecisionLog = []
    lowered = lower_shared(mod, options, decisions, keep)
    announce_phase(Phase.LOWER_TO_VM, lowered)
    with options.target:
        calling = ir.transform.Sequential(phases(options, [])[Phase.LOWER_TO_VM])(lowered)
    announce_llvm(calling)
    native, code = compile_native(calling, options.target, options.threads, options.kernels)
    return CompiledModule(native, lowered, code, decisions)
