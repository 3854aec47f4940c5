"""Partitions a Relax module for users who have TVM's RunCodegen compile its regions."""

from __future__ import annotations

from tvm import IRModule

from .ir.decisions import DecisionLog
from .lower.codegen import annotate_codegen, note_partition
from .pipeline import Phase
from .pipeline_options import PipelineOptions
from .run_passes import passes_through, run_passes


def partition_module(mod: IRModule, options: PipelineOptions, decisions: DecisionLog) -> IRModule:
    """The module with its regions as functions for TVM's RunCodegen, still ordinary Relax.

    Weights are packed and configurations chosen; what is left is to compile each function.
    """
    passes = passes_through(Phase.CONFIGURE_REGIONS, options, decisions, meaning=True)
    annotate = annotate_codegen(options.target, options.threads)
    parts = run_passes(mod, [*passes, annotate], options)
    note_partition(parts, options.machine, decisions)
    return parts
