"""Lowers a Relax module to calls of TIR kernels, which nobody has compiled yet."""

from __future__ import annotations

from tvm import IRModule
from tvm.ir.transform import Pass

from .ir.decisions import DecisionLog
from .pipeline import Phase, phases
from .pipeline_options import PipelineOptions
from .run_passes import passes_through, run_passes


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
