"""Two routes to the compiler that TVM's users know: BYOC partitioning and a named pipeline."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from microkernels.base.errors import CompileError
from microkernels.base.tvm_compat.relax import WELL_FORMED_CHECK
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.functions import KERNEL, is_foreign_kernel
from relay_passes.ir.moving_operators import has_weights
from relay_passes.ir.rewrite import is_kernel, map_functions
from relay_passes.lower.native_code import with_native_code
from relay_passes.lower_module import DumpIR, partition_module, passes_through
from relay_passes.pipeline import Phase
from relay_passes.pipeline_options import PipelineOptions

from ..options import CompileOptions, RouteKeywords, check_options, chosen_options
from ..targets.build_check import with_needs_by_name
from ..targets.cpu_guard import with_announced_guard, with_guard
from ..targets.resolve import TargetLike
from .tensorized import guard_for, route_passes, with_manifest

if TYPE_CHECKING:
    from typing_extensions import Unpack


def partition_for_tvm_hybrid(
    mod: IRModule,
    params: Mapping[str, Any] | None = None,
    *,
    target: TargetLike = None,
    decisions: DecisionLog | None = None,
    check_cpu: bool = True,
    transform_params: bool = False,
    **options: Unpack[RouteKeywords],
) -> IRModule:
    """Groups the operators that we take into functions, as the first step of compiling them.

    `RunCodegen` then compiles these functions.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax module.
    params : mapping, optional
        Parameter name of `main` -> value. They become constants, so that weights can be packed.
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one.
    decisions : list of Decision, optional
        Gets the decision for each node, as `Executable.explain` shows it:
        `tvm_hybrid.explain.explanation.Explanation(decisions).print()`.
    check_cpu : bool
        Whether entries of the module first call a check that raises an error if the CPU lacks what
        the code needs. Such entries are impure; `RunCodegen` adds the code of the check.
    transform_params : bool
        Whether weights that are parameters (those after the first `num_input` of a function) are
        packed by a function `main_transform_params`, as `relax.transform.LiftTransformParams` makes
        it. It takes a tuple of the weights; a single weight that is itself a tuple becomes a tuple
        in a tuple. `main` takes its result after the inputs. If False, products and convolutions
        pack such weights at every call.
    **options
        Fields of `CompileOptions`: `machine`, `precision`, `fusion`, `fast_math`, `records`,
        `num_threads`, `strict`, `dump_ir`.

    Returns
    -------
    tvm.IRModule
        The module with one function for each region. Its attribute "tvm_hybrid.manifest" is a
        `RouteManifest` as JSON.

    Raises
    ------
    CompileError
        If there is no such precision, fusion or fast_math; if `strict` or `decisions` has a wrong
        type; if `strict` and an operator gets no template; if `transform_params` and no function
        has the attribute `num_input`.
    TargetError
        If the target, the description of its machine or the number of threads makes no sense.
    RecordError
        If a record file cannot be read.
    OutputError
        If `dump_ir` cannot be written to.
    """
    chosen, decided = _checked(options, decisions)
    if transform_params and not any(map(has_weights, mod.functions.values())):
        raise CompileError(
            "transform_params: no function has the attribute 'num_input', which says how many of "
            "its first parameters are inputs; the others are weights. Set it by "
            "mod['main'].with_attr('num_input', 1), or export by nn.Module.export_tvm"
        )
    if params:
        mod = relax.transform.BindParams("main", dict(params))(mod)
    passes = route_passes(replace(chosen, target=target), mod)
    passes = replace(passes, dynamic_weights=transform_params)
    log: DecisionLog = []
    try:
        parts = partition_module(mod, passes, log)
    finally:
        decided.extend(log)
    if transform_params:
        parts = relax.transform.LiftTransformParams()(parts)
    if check_cpu:
        parts = with_announced_guard(parts, guard_for(passes, log))
    return with_manifest(parts, passes, log)


def build_pipeline(
    *,
    decisions: DecisionLog | None = None,
    check_cpu: bool = True,
    native: bool = True,
    **options: Unpack[RouteKeywords],
) -> ir.transform.Pass:
    """Builds the pass that `relax.get_pipeline("tvm_hybrid", **options)` returns.

    It compiles for the target in whose scope it runs, as in `tvm.compile(mod, target,
    relax_pipeline=...)`; without a target, for this machine.

    Parameters
    ----------
    decisions : list of Decision, optional
        As for `partition_for_tvm_hybrid`; each run of the pipeline adds its decisions.
    check_cpu : bool
        As for `partition_for_tvm_hybrid`. The check is a module that the executable imports. TVM
        does not find functions of such modules with `relax.build(..., exec_mode="compiled")`.
    native : bool
        Whether kernels become machine code in this pipeline, as modules that the executable
        imports. If False, they stay TIR, which can be read and saved, and `tvm.compile` runs its
        `tir_pipeline` over them; that takes minutes for attention with dynamic sizes.
    **options
        As for `partition_for_tvm_hybrid`.

    Returns
    -------
    tvm.ir.transform.Pass
        Its result is a module of kernel calls. The kernels are in the attribute "external_mods",
        or among the functions if not `native`. It has the attribute "tvm_hybrid.manifest" too.

    Raises
    ------
    TvmHybridError
        As `partition_for_tvm_hybrid`: for options at once, for the target when the pipeline runs.
    """
    chosen, decided = _checked(options, decisions)

    @ir.transform.module_pass(opt_level=0, name="tvm_hybrid")
    def pipeline(mod: IRModule, _context: PassContext) -> IRModule:
        named = Target.current(True)
        passes = route_passes(replace(chosen, target=named), mod)
        passes = replace(passes, entry_checks=True)
        log: DecisionLog = []
        try:
            lowered = _lowered(mod, passes, log)
        finally:
            decided.extend(log)
        if named is None:  # without a target TVM would compile the kernels for any x86-64 CPU
            own = passes.target.with_host(passes.target)
            lowered = tvm.tirx.transform.BindTarget(own)(lowered)
        if native:
            lowered = with_native_code(lowered, passes.target, passes.threads)
        else:
            lowered = _with_needs(lowered, passes.target)
        if check_cpu:
            lowered = with_guard(lowered, guard_for(passes, log))
        return with_manifest(lowered, passes, log)

    return pipeline


def pipeline_of(options: Mapping[str, Any]) -> ir.transform.Pass:
    """The pipeline with these options.

    Raises
    ------
    CompileError
        If there is no such option.
    TvmHybridError
        As `build_pipeline`.
    """
    own = [each for each in inspect.signature(build_pipeline).parameters if each != "options"]
    known = [*RouteKeywords.__annotations__, *own]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise CompileError(f"the pipeline tvm_hybrid has no option {name!r}; {hint}")
    return build_pipeline(**options)


def _checked(
    options: RouteKeywords, decisions: DecisionLog | None
) -> tuple[CompileOptions, DecisionLog]:
    """The options without a target, which may follow later, and the list for decisions."""
    chosen = chosen_options(None, options, RouteKeywords)
    decisions = [] if decisions is None else decisions
    if not isinstance(decisions, list):
        raise CompileError(
            f"decisions is a list that gets the decisions, not a {type(decisions).__name__}",
            argument="decisions",
        )
    check_options(chosen)
    return chosen, decisions


def _with_needs(mod: IRModule, target: Target) -> IRModule:
    """A lowered module whose kernels name the CPU features that they need."""

    def named(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        if is_foreign_kernel(kernel):
            return kernel
        return with_needs_by_name(kernel, target, str(kernel.attrs[KERNEL]))

    return map_functions(mod, is_kernel, named)


def _lowered(mod: IRModule, options: PipelineOptions, decisions: DecisionLog) -> IRModule:
    """Runs all passes in the caller's context, without TVM's well-formed check between them."""
    every = ir.transform.Sequential(passes_through(Phase.LOWER_TO_VM, options, decisions))
    outer = PassContext.current()
    # Between passes, calls of our functions have packed weights already while the functions do not,
    # so the check runs only before and after all passes.
    instruments = [each for each in outer.instruments or () if each.name != WELL_FORMED_CHECK]
    if options.dump_ir is not None:
        instruments = [DumpIR(options.dump_ir)]
    elif len(instruments) == len(outer.instruments or ()):
        return every(mod)
    with PassContext(
        opt_level=outer.opt_level,
        required_pass=list(outer.required_pass),
        disabled_pass=list(outer.disabled_pass),
        config=dict(outer.config),
        instruments=instruments,
    ):
        return every(mod)
