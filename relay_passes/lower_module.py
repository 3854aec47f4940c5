"""Runs the passes of the pipeline on a module: to kernels, or to regions for tuning."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tvm import IRModule, ir, relax
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import Pass, PassInfo

from microkernels.base.errors import CompileError, OutputError, TvmHybridError, as_raised
from microkernels.base.files import require_room, why_not_written
from microkernels.base.memory import without_full_collections
from microkernels.base.tvm_compat import patches
from microkernels.base.tvm_compat.relax import set_type
from microkernels.base.tvm_compat.tir import quick_expressions
from tir_schedules.core.region import Region
from tir_schedules.tensorize.arrangement import ArrangementProblem

from .ir.decisions import DecisionLog
from .ir.entries import MAIN
from .ir.functions import region_counts, with_body
from .ir.graph import bindings_of, forget_block
from .ir.rewrite import copy_module, is_relax, move_functions
from .ir.stages import announce
from .layout.search_space import LayoutProblem
from .lower.codegen import annotate_codegen, note_partition
from .lower.native_code import compile_native, with_weights
from .pipeline import Phase, phases
from .pipeline_options import PipelineOptions


def lower_module(
    mod: IRModule, options: PipelineOptions, decisions: DecisionLog | None = None
) -> IRModule:
    """Lowers a module to calls of TIR kernels, not shared and not compiled."""
    log = [] if decisions is None else decisions
    return run_passes(mod, passes_through(Phase.BUILD_LEFTOVERS, options, log), options)


def lower_shared(
    mod: IRModule, options: PipelineOptions, decisions: DecisionLog, keep: bool = True
) -> IRModule:
    """Lowers a module to the calls of kernels that `compile_module` compiles; `keep` as there."""
    table = phases(options, decisions)
    steps: list[Pass | Phase] = []
    for phase in list(Phase)[: list(Phase).index(Phase.LOWER_TO_VM)]:
        steps += [phase, *table[phase]]
    return run_passes(mod, steps, options, keep)


def partition_module(mod: IRModule, options: PipelineOptions, decisions: DecisionLog) -> IRModule:
    """The module with its regions as functions for TVM's RunCodegen, still ordinary Relax.

    Weights are packed and configurations chosen; RunCodegen only has to compile each function.
    """
    passes = passes_through(Phase.CONFIGURE_REGIONS, options, decisions, meaning=True)
    annotate = annotate_codegen(options.target, options.threads)
    parts = run_passes(mod, [*passes, annotate], options)
    note_partition(parts, options.machine, decisions)
    return parts


@dataclass(frozen=True)
class CompiledModule:
    """A compiled module with its lowered IR and decisions.

    Attributes
    ----------
    native : tvm.relax.VMExecutable
        Imports the machine code, without large weights; it cannot run.
    mod : IRModule
        The lowered module: calls of TIR kernels.
    code : IRModule
        The module from which the virtual machine's code is made, with all weights.
    decisions : list of Decision
        The decisions that `explain` shows.
    """

    native: Any
    mod: IRModule
    code: IRModule
    decisions: DecisionLog = field(default_factory=list)

    @functools.cached_property
    def executable(self) -> Any:
        """The relax.VMExecutable that runs; making it takes 1.2 ns per byte of weights."""
        return with_weights(self.native, self.code)


@without_full_collections()
def compile_module(mod: IRModule, options: PipelineOptions, keep: bool = True) -> CompiledModule:
    """Runs every phase on a Relax module and compiles the result.

    Parameters
    ----------
    mod : IRModule
        Not changed if `keep`. Otherwise it has no functions afterwards, and each of its weights is
        freed once it has been packed.
    """
    decisions: DecisionLog = []
    lowered = lower_shared(mod, options, decisions, keep)
    announce_phase(Phase.LOWER_TO_VM, lowered)
    with options.target:
        calling = ir.transform.Sequential(phases(options, [])[Phase.LOWER_TO_VM])(lowered)
    announce(STAGES - 1, STAGES, "kernels optimised by LLVM", calling)
    native, code = compile_native(calling, options.target, options.threads, options.kernels)
    return CompiledModule(native, lowered, code, decisions)


STAGES = len(Phase) + 2  # after the phases: LLVM's passes, then machine code

# Sessions compile in the threads that call them.
patches.separate_builders()
patches.separate_tags()
patches.quick_arrays()
patches.quick_objects()
quick_expressions()
patches.order_symbols()


def passes_through(
    last: Phase, options: PipelineOptions, decisions: DecisionLog, meaning: bool = False
) -> list[Pass]:
    """The passes of every phase up to and including one; `meaning` as in `phases`."""
    order = list(Phase)
    reached = order[: order.index(last) + 1]
    table = phases(options, decisions, meaning)
    return [each for phase in reached for each in table[phase]]


@without_full_collections()
def run_passes(
    mod: IRModule, passes: Sequence[Pass | Phase], options: PipelineOptions, keep: bool = True
) -> IRModule:
    """Runs passes under the target, announces phases, and dumps the IR if asked to."""
    # Passes may move the functions out of their module.
    mod = copy_module(mod) if keep else move_functions(mod)
    instruments = [] if options.dump_ir is None else [DumpIR(options.dump_ir)]
    try:
        with ir.transform.PassContext(opt_level=3, instruments=instruments), options.target:
            for each in passes:  # a Sequential would keep the first module alive until the end
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
        If TVM fails; the message names the pass and, if it can be found, the failing variable.
    """
    try:
        return each(mod)
    except TvmHybridError as error:
        raise as_raised(error) from None
    except (MemoryError, OSError):
        raise
    except Exception as error:  # Python and C++ errors of any kind
        found = failing_binding(mod, each, error)
        place = "" if found is None else f" at {found}"
        text = f"pass {each.info.name} fails{place}: {first_line(error)}"
        raise CompileError(text) from error


def announce_phase(phase: Phase, mod: IRModule) -> None:
    """Announces that a phase begins on this module."""
    announce(list(Phase).index(phase) + 1, STAGES, phase.value, mod)


# Finds the binding of a module at which a pass fails, for messages.
#
# A failing pass of TVM names neither the function nor the operator. The pass is run again on main,
# cut after the first k bindings: the smallest k at which it fails with the same message gives the
# binding. Nothing is found if the failing pass has taken the module apart.


def failing_binding(mod: IRModule, failed: Pass, error: Exception) -> str | None:
    """The name of the variable bound where a pass fails; None if it cannot be found."""
    if MAIN not in mod or not is_relax(mod[MAIN]):
        return None
    main, function, functions = mod.get_global_var(MAIN), mod[MAIN], dict(mod.functions_items())
    bindings = bindings_of(function)

    def fails(count: int) -> bool:
        part = IRModule({**functions, main: _beginning(function, count)}, mod.attrs)
        try:
            failed(part)
        except Exception as other:  # any kind but ours, as for the first error
            ours = isinstance(other, TvmHybridError)
            return not ours and first_line(other) == first_line(error)
        return False

    if not bindings or not fails(len(bindings)):
        return None
    place = bisect.bisect_left(range(1, len(bindings) + 1), True, key=fails)
    return str(bindings[place].var.name)


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _beginning(function: relax.Function, count: int) -> relax.Function:
    """The function cut after `count` bindings; it returns the value that the last one binds."""
    blocks, last = [], None
    for block in function.body.blocks:
        kept = list(block.bindings[:count])
        count -= len(kept)
        if not kept:
            break
        last = kept[-1].var
        if isinstance(last, relax.DataflowVar):
            result = relax.Var("result", last.ty)
            kept.append(relax.VarBinding(result, last))
            last = result if not count else last
        blocks.append(type(block)(kept))
    assert last is not None
    body = relax.SeqExpr(blocks, last)
    set_type(body, last.ty)
    return with_body(function, body)


# Writes a module after every pass into a folder: 000_Normalize.py, 001_FoldConstant.py, ...
#
# If a file cannot be written, this raises an error; TVM's instrument of this name only warns.


def require_folder(folder: Path) -> None:
    """Creates a folder for dumps, and checks that it can be written to.

    Raises
    ------
    OutputError
        If the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_room(folder)
    except OSError as error:
        raise OutputError(why_not_written(folder, error, "the IR to")) from error


@pass_instrument
class DumpIR:
    """Writes a module after every pass into a folder.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.

    Raises
    ------
    OutputError
        If a file cannot be written; no partial file stays.
    """

    def __init__(self, folder: Path) -> None:
        require_folder(folder)
        self._folder = folder
        self._count = 0

    def run_after_pass(self, mod: IRModule, info: PassInfo) -> None:
        """Writes the module after a pass to a file."""
        name = re.sub(r'[<>:"/\\|?*]', "_", str(info.name))
        path = self._folder / f"{self._count:03d}_{name}.py"
        self._count += 1
        try:
            text = mod.script()
        except Exception as error:  # TVM cannot print some IR
            text = f"# TVM cannot print it: {error}\n"
        try:
            path.write_text(text, encoding="utf-8")
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise OutputError(why_not_written(path, error, "the IR to")) from error
            raise


def collect_regions(mod: IRModule, options: PipelineOptions) -> list[Region]:
    """The different regions of a module, in order of their functions' names."""
    return [region for region, _ in count_regions(mod, options)]


def count_regions(
    mod: IRModule, options: PipelineOptions, strict: bool = False
) -> list[tuple[Region, int]]:
    """The different regions of a module and how often it calls each; for tuning.

    An operator that no template takes is no region; with `strict` it raises a CompileError.
    """
    asked = replace(options, strict=strict)
    return region_counts(run_passes(mod, passes_through(Phase.FORM_REGIONS, asked, []), options))


def layout_problems(mod: IRModule, options: PipelineOptions) -> list[LayoutProblem]:
    """The layout problem of each block of a module that has a choice of layouts; for tuning.

    The labels of `options.layouts`, if given, are ignored.
    """
    found: list[LayoutProblem] = []
    # `append` returns None, so every block keeps the labels of its cheapest cut.
    asked = replace(options, layouts=found.append)
    run_passes(mod, passes_through(Phase.CLEAN_UP, asked, []), options)
    return found


def arrangement_problems(mod: IRModule, options: PipelineOptions) -> list[ArrangementProblem]:
    """The contractions in a module's TIR functions and einsums, including those without a choice.

    `options.arrange` is ignored.
    """
    found: list[ArrangementProblem] = []
    # `append` returns None, so every contraction keeps the estimated arrangement.
    asked = replace(options, arrange=found.append)
    run_passes(mod, passes_through(Phase.CLEAN_UP, asked, []), options)
    return found
