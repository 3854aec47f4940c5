"""Lowers a Relax module to calls of TIR kernels, which nobody has compiled yet."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from tvm import IRModule, ir
from tvm.ir.transform import Pass

from microkernels.base.memory import without_full_collections

from .ir.decisions import DecisionLog
from .ir.stages import announce
from .lower.codegen import annotate_codegen, note_partition
from .lower.native_code import compile_native, with_weights
from .pipeline import Phase, phases
from .pipeline_options import PipelineOptions
from .run_passes import STAGES, announce_phase, passes_through, run_passes


def lower_module(
    mod: IRModule, options: PipelineOptions, decisions: DecisionLog | None = None
) -> IRModule:
    """The module as calls of TIR kernels, each with its own numbers, none of them compiled."""
    log = [] if decisions is None else decisions
    return run_passes(mod, passes_through(Phase.BUILD_LEFTOVERS, options, log), options)


def lower_shared(
    mod: IRModule, options: PipelineOptions, decisions: DecisionLog, keep: bool = True
) -> IRModule:
    """The module as calls of the TIR kernels that `compile_module` compiles; `keep` as of that."""
    table = phases(options, decisions)
    steps: list[Pass | Phase] = []
    for phase in list(Phase)[: list(Phase).index(Phase.LOWER_TO_VM)]:
        steps += [phase, *table[phase]]
    return run_passes(mod, steps, options, keep)


def partition_module(mod: IRModule, options: PipelineOptions, decisions: DecisionLog) -> IRModule:
    """The module with its regions as functions for TVM's RunCodegen, still ordinary Relax.

    Weights are packed and configurations chosen; what is left is to compile each function.
    """
    passes = passes_through(Phase.CONFIGURE_REGIONS, options, decisions, meaning=True)
    annotate = annotate_codegen(options.target, options.threads)
    parts = run_passes(mod, [*passes, annotate], options)
    note_partition(parts, options.machine, decisions)
    return parts


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
    announce(STAGES - 1, STAGES, "kernels optimised by LLVM", calling)
    native, code = compile_native(calling, options.target, options.threads, options.kernels)
    return CompiledModule(native, lowered, code, decisions)
