"""Two routes to the compiler that TVM's users know: partitioning, and a named pipeline."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext
from tvm.target import Target

from microkernels.base.errors import CompileError
from microkernels.base.tvm_compat.relax import WELL_FORMED_CHECK
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.moving_operators import has_weights
from relay_passes.lower.native_code import with_native_code
from relay_passes.lower_module import DumpIR, partition_module, passes_through
from relay_passes.pipeline import Phase
from relay_passes.pipeline_options import PipelineOptions

from ..options import CompileOptions, RouteKeywords, check_options, chosen_options
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

    `RunCodegen` compiles the functions.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax module.
    params : mapping, optional
        Parameter name of `main` -> value; these become constants, so that weights can be packed.
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one.
    decisions : list of Decision, optional
        Gets what was decided for every node, as `Executable.explain` shows it:
        `tvm_hybrid.explain.explanation.Explanation(decisions).print()`.
    check_cpu : bool
        Whether entries of the module first call a check that raises an error where the CPU lacks
        what the code needs. They are impure then; `RunCodegen` brings the check along.
    transform_params : bool
        Whether weights that are parameters, those behind the first `num_input` of a function, are
        packed by a function of their own, as `relax.transform.LiftTransformParams` makes it:
        `main_transform_params` takes a tuple of the weights, which are parameters (a single one
        that is a tuple: a tuple of it), and `main` takes what it returns behind its inputs.
        Otherwise products and convolutions pack such weights at every call.
    **options
        Of the fields of `CompileOptions`: `machine`, `precision`, `fusion`, `fast_math`, `records`,
        `num_threads`, `strict`, `dump_ir`.

    Returns
    -------
    tvm.IRModule
        The module with one function for each region. Its attribute "tvm_hybrid.manifest" is what is
        known about it, as JSON.

    Raises
    ------
    CompileError
        If there is no such precision, level of fusion or of fast_math; if `strict` or `decisions`
        is something else than it has to be; if `strict` and an operator stays without a template;
        if `transform_params` and no function has the attribute `num_input`.
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
    passes = replace(passes, open_weights=transform_params)
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
    """What `relax.get_pipeline("tvm_hybrid", **options)` is.

    It compiles for the target in whose scope it runs, as `tvm.compile(mod, target,
    relax_pipeline=...)` has it; without one for this machine.

    Parameters
    ----------
    decisions : list of Decision, optional
        As for `partition_for_tvm_hybrid`; each run of the pipeline adds its own.
    check_cpu : bool
        As for `partition_for_tvm_hybrid`; the check is a module that the executable imports. TVM
        does not find functions of such modules under `relax.build(..., exec_mode="compiled")`.
    native : bool
        Whether kernels become machine code here, as modules that the executable imports. Otherwise
        they stay TIR, which can be read and saved, and `tvm.compile` runs its `tir_pipeline` over
        them; that of attention with open sizes takes minutes.
    **options
        As for `partition_for_tvm_hybrid`.

    Returns
    -------
    tvm.ir.transform.Pass
        The module that it returns is one of calls of kernels, which are in its attribute
        "external_mods", or if not `native` among its functions. It has the attribute of
        `partition_for_tvm_hybrid`.

    Raises
    ------
    TvmHybridError
        As `partition_for_tvm_hybrid`: of options at once, of the target when the pipeline runs.
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
        if named is None:  # or TVM would compile the kernels for any x86-64 CPU
            own = passes.target.with_host(passes.target)
            lowered = tvm.tirx.transform.BindTarget(own)(lowered)
        if native:
            lowered = with_native_code(lowered, passes.target, passes.threads)
        if check_cpu:
            lowered = with_guard(lowered, guard_for(passes, log))
        return with_manifest(lowered, passes, log)

    return pipeline


def pipeline_of(options: Mapping[str, Any]) -> ir.transform.Pass:
    """The pipeline of options by name.

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
    """The options without a target, which may follow later, and where decisions go."""
    chosen = chosen_options(None, options, RouteKeywords)
    decisions = [] if decisions is None else decisions
    if not isinstance(decisions, list):
        raise CompileError(
            f"decisions is a list that gets the decisions, not a {type(decisions).__name__}",
            argument="decisions",
        )
    check_options(chosen)
    return chosen, decisions


def _lowered(mod: IRModule, options: PipelineOptions, decisions: DecisionLog) -> IRModule:
    """The module after all passes, which run in the caller's context.

    TVM's check for well-formed modules sees what comes and what goes, and none in between: calls of
    our functions have packed weights before the functions do.
    """
    every = ir.transform.Sequential(passes_through(Phase.LOWER_TO_VM, options, decisions))
    outer = PassContext.current()
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
