"""Runs passes of `pipeline` on a module, under a target, and tells which phase begins."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import IRModule, ir
from tvm.ir.transform import Pass

from microkernels.base.errors import TvmHybridError
from microkernels.base.memory import without_full_collections
from microkernels.base.tvm_compat.relax import quick_arrays, separate_builders, separate_tags

from .dump_ir import DumpIR
from .failing_binding import compile_error
from .ir.decisions import DecisionLog
from .ir.graph import forget_block
from .ir.move_functions import copy_module, move_functions
from .ir.stages import announce
from .pipeline import Phase, phases
from .pipeline_options import PipelineOptions

STAGES = len(Phase) + 2  # behind the phases: LLVM's passes, then machine code

# Sessions compile in the threads that call them.
separate_builders()
separate_tags()
quick_arrays()


def passes_through(
    last: Phase, options: PipelineOptions, decisions: DecisionLog, meaning: bool = False
) -> list[Pass]:
    """The passes of every phase until the end of one; `meaning` as of `phases`."""
    order = list(Phase)
    reached = order[: order.index(last) + 1]
    table = phases(options, decisions, meaning)
    return [each for phase in reached for each in table[phase]]


@without_full_collections()
def run_passes(
    mod: IRModule, passes: Sequence[Pass | Phase], options: PipelineOptions, keep: bool = True
) -> IRModule:
    """The passes under the target, dumping the IR after each if asked to; phases are announced."""
    # Passes may take the functions out of their module.
    mod = copy_module(mod) if keep else move_functions(mod)
    instruments = [] if options.dump_ir is None else [DumpIR(options.dump_ir)]
    try:
        with ir.transform.PassContext(opt_level=3, instruments=instruments), options.target:
            for each in passes:  # a Sequential would keep the first module until the end
                if isinstance(each, Phase):
                    announce_phase(each, mod)
                else:
                    mod = _after(each, mod)
            return mod
    finally:
        forget_block()


def _after(each: Pass, mod: IRModule) -> IRModule:
    """The module after a pass.

    Raises
    ------
    CompileError
        TVM fails; the message names the pass and, if that can be found, the failing variable.
    """
    try:
        return each(mod)
    except (TvmHybridError, MemoryError, OSError):
        raise
    except Exception as error:  # Python and C++ errors of any kind
        raise compile_error(mod, each, error) from error


def announce_phase(phase: Phase, mod: IRModule) -> None:
    """A phase begins, on this module."""
    announce(list(Phase).index(phase) + 1, STAGES, phase.value, mod)


def announce_llvm(mod: IRModule) -> None:
    """LLVM's passes over the kernels of this module begin."""
    announce(STAGES - 1, STAGES, "kernels optimised by LLVM", mod)
