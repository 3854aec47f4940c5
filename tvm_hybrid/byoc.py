"""Two entries to the compiler that TVM's users know: partitioning, and a named pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import IRModule, ir, relax
from tvm.target import Target

from microkernels.errors import CompileError
from relay_passes.pipeline import (
    Phase,
    PipelineOptions,
    check_fusion,
    check_precision,
    partition_module,
    passes_through,
)
from relay_passes.regions.open_weights import has_weights
from relay_passes.regions.select_winograd import check_fast_math

from .targets import MachineLike, TargetLike, resolve_target
from .threads import default_threads
from .tuning.lookup.layout_lookup import with_records
from .tuning.lookup.record_lookup import lookup_of


def partition_for_tvm_hybrid(
    mod: IRModule,
    params: Mapping[str, Any] | None = None,
    *,
    target: TargetLike = None,
    machine: MachineLike = None,
    precision: str = "auto",
    fusion: str = "coarse",
    fast_math: str = "default",
    transform_params: bool = False,
) -> IRModule:
    """Groups the operators that we take into functions, as the first step of compiling them.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax module.
    params : mapping, optional
        Parameter name of `main` -> value; these become constants, so that weights can be packed.
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one.
    machine : path-like, optional
        As for `tvm_hybrid.compile`.
    precision, fusion, fast_math : str
        As for `tvm_hybrid.compile`. Tuning records are applied as if none were named.
    transform_params : bool
        Whether weights that are parameters, those behind the first `num_input` of a function, are
        packed by a function of their own, as `relax.transform.LiftTransformParams` makes it:
        `main_transform_params` takes a tuple of the weights, and `main` takes what it returns
        behind its inputs. Otherwise products with such weights pack them at every call.

    Returns
    -------
    tvm.IRModule
        The module with one function for each region.

    Raises
    ------
    CompileError
        If there is no such precision, level of fusion or of fast_math, or `transform_params` is set
        and no function has the attribute `num_input`.
    TargetError
        If the target or the description of its machine makes no sense.
    """
    check_precision(precision)
    check_fusion(fusion)
    check_fast_math(fast_math)
    if transform_params and not any(map(has_weights, mod.functions.values())):
        raise CompileError(
            "transform_params: no function has the attribute 'num_input', which says how many of "
            "its first parameters are inputs; the others are weights. Set it by "
            "mod['main'].with_attr('num_input', 1), or export by nn.Module.export_tvm"
        )
    if params:
        mod = relax.transform.BindParams("main", dict(params))(mod)
    options = PipelineOptions(
        resolve_target(target, machine),
        default_threads(),
        precision=precision,
        fusion=fusion,
        fast_math=fast_math,
        open_weights=transform_params,
    )
    partitioned = partition_module(mod, with_records(options, lookup_of(None)), [])
    return relax.transform.LiftTransformParams()(partitioned) if transform_params else partitioned


def build_pipeline() -> ir.transform.Pass:
    """What `tvm.compile(mod, target, relax_pipeline="tvm_hybrid")` runs."""

    @ir.transform.module_pass(opt_level=0, name="tvm_hybrid")
    def pipeline(mod: IRModule, _context: ir.transform.PassContext) -> IRModule:
        plain = PipelineOptions(resolve_target(Target.current(True)), default_threads())
        options = with_records(plain, lookup_of(None))
        return ir.transform.Sequential(passes_through(Phase.LOWER_TO_VM, options, []))(mod)

    return pipeline
