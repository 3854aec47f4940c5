"""`compile`: compiles a model into an Executable."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from tvm import IRModule

from microkernels.base.errors import CompileError, ModelError, TvmHybridError
from microkernels.base.logs import logger
from microkernels.base.memory import return_what_compiling_took
from microkernels.isa import isa_named, target_isa
from microkernels.machines.description import describe
from microkernels.machines.machine import without_slow_dots
from relay_passes.ir.constants import constants_of
from relay_passes.ir.decisions import Decision, uses_half_tiles, uses_tiles
from relay_passes.lower.native_code import with_weights
from relay_passes.lower_module import compile_module, first_line
from relay_passes.pipeline_options import PipelineOptions

from . import options as choices
from .cache.kernel_cache import kernel_cache
from .executable.executable import Executable
from .explain.origins import decisions_with_origins, short, texts_in, with_origins
from .explain.program_facts import program_facts
from .frontend.model_input import ImportedModel, exported, import_model, is_module
from .library.manifest import Coverage, Manifest, package_versions, uses_in
from .runtime.places import PoolSetting
from .runtime.topology import host_topology
from .runtime.weights import Nodes, nodes_for, place_weights
from .targets.cpu_features import required_features, warn_if_featureless
from .targets.resolve import cpu_name

if TYPE_CHECKING:
    from typing_extensions import Unpack


def compile(
    model: Any,
    options: choices.CompileOptions | None = None,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    **keywords: Unpack[choices.CompileKeywords],
) -> Executable:
    """Compiles a model.

    Parameters
    ----------
    model : path-like, bytes, onnx.ModelProto, tvm.IRModule, torch ExportedProgram or nn.Module
        The model. A Relax module needs a function `main`, or a single public function.
    options : CompileOptions, optional
        How to compile it.
    example_inputs : tuple, list or mapping, optional
        For a torch module, which must be in evaluation mode: positional or keyword arguments for
        `torch.export`.
    dynamic_shapes : optional
        For a torch module: the argument of `torch.export.export` of this name. Its dimensions need
        sizes by `shapes`, or stay dynamic with `keep_dynamic`.
    **keywords
        Any field of `CompileOptions`, such as `target`, `shapes` and `num_threads`; overrides that
        of `options`.

    Returns
    -------
    Executable
        The compiled model.

    Raises
    ------
    ModelError, ShapeError, InputValueError, UnsupportedOperatorError
        If the model cannot be read, or lacks a shape or a value.
    TargetError
        If the target, its machine's description, threads, weights or spin are invalid, or the
        fallback is not below the target.
    RecordError
        If a record file cannot be read.
    CompileError
        If compilation fails, or there is no such precision, level of fusion or of fast_math.
    OutputError
        If the folder of `dump_ir` is not writable.
    """
    from .records.record_lookup import with_records

    options = choices.chosen_options(options, keywords, choices.CompileKeywords)
    choices.dump_folder(options)
    target = choices.target_of(options)
    second = choices.fallback_of(options, target)
    warn_if_featureless(target)
    if is_module(model):
        model = exported(model, example_inputs, dynamic_shapes)
    elif example_inputs is not None or dynamic_shapes is not None:
        raise ModelError(
            "example_inputs and dynamic_shapes are for torch modules, not for a "
            f"{type(model).__name__}"
        )
    if options.precision == "bf16":
        warn_if_slow(cpu_name(target), target_isa(target).name)
    setting = choices.setting_of(options, here=options.target is None)
    nodes = nodes_for(options.weights, setting, host_topology())
    kernels = kernel_cache() if options.cache else None
    passes = choices.passes_options(options, target, setting.count, choices.records_of(options))
    passes = replace(passes, kernels=kernels)
    imported = import_model(
        model, options.shapes, options.values, options.keep_dynamic, options.check_indices
    )
    if options.strict == "dynamic":
        passes = replace(passes, strict=any(info.static_shape is None for info in imported.inputs))
    fallback_program = None
    if second is not None:
        below = replace(
            passes,
            target=second,
            suffix=f"_{target_isa(second).name}",
            dump_ir=None if passes.dump_ir is None else passes.dump_ir / "fallback",
        )
        below = with_records(below, choices.records_of(options))
        fallback_program = _compiled(imported, below, setting, nodes)
    keep = isinstance(model, IRModule)  # the caller still owns it
    found = _compiled(imported, passes, setting, nodes, fallback_program, keep)
    del imported
    if kernels is not None:
        kernels.finish()
    return_what_compiling_took()
    return found


def _compiled(
    source: ImportedModel,
    options: PipelineOptions,
    setting: PoolSetting,
    nodes: Nodes,
    fallback: Executable | None = None,
    keep: bool = True,
) -> Executable:
    try:
        compiled = compile_module(source.mod, options, keep)
    except CompileError as error:
        origins = texts_in(str(error), source.nodes)
        if not origins:
            raise
        raise CompileError(*error.args, f" (from {short(origins)})") from error.__cause__
    except TvmHybridError:
        raise
    except Exception as error:
        raise CompileError(f"the model could not be compiled: {first_line(error)}") from error
    facts = program_facts(compiled.mod)
    graph = with_origins(facts.graph, facts.names, source.nodes)
    taken = sum(decision.taken for decision in compiled.decisions)
    uses = uses_tiles(compiled.decisions), uses_half_tiles(compiled.decisions)
    decisions = decisions_with_origins(compiled.decisions, graph, source.nodes)
    # In a library's manifest's form: lists instead of tuples in configurations.
    stored = msgspec.json.decode(msgspec.json.encode(decisions), type=tuple[Decision, ...])
    manifest = Manifest(
        versions=package_versions(),
        cpu=cpu_name(options.target),
        target=str(options.target),
        isa=target_isa(options.target).name,
        features=required_features(options.target, *uses),
        threads=options.threads,
        **options.code(),
        inputs=tuple(source.inputs),
        outputs=tuple(source.outputs),
        limits=dict(source.limits),
        values=tuple(source.values),
        shared_outputs=facts.shared_outputs,
        unaligned_inputs=facts.unaligned_inputs,
        bound_outputs=facts.bound_outputs,
        coverage=Coverage(taken, len(compiled.decisions)),
        decisions=stored,
        records=uses_in(options.lookup),
        fallback=None if fallback is None else fallback.manifest,
    )
    how = manifest.cpu, manifest.isa, manifest.threads, manifest.precision, manifest.fusion
    text = "%d of %d nodes taken for %s (%s), %d threads, precision %s, fusion %s"
    logger.info(text, taken, len(compiled.decisions), *how)
    native, code = compiled.native, compiled.code
    place_weights([constant.value for constant in constants_of(compiled.mod)], nodes)
    return Executable(
        manifest,
        lambda: with_weights(native, code).jit(),
        (native.mod, code),
        kernel=facts.kernel,
        graph=graph,
        fallback=fallback,
        setting=setting,
        declared=source.declared,
    )


@functools.cache
def warn_if_slow(cpu: str, isa: str) -> None:
    """Warns, once for each CPU and instruction set, if bf16 is not faster."""
    used = without_slow_dots(isa_named(isa), describe(cpu))
    if not used.multiplies_bf16:
        logger.warning(
            "precision 'bf16' will not be faster than 'f32': %s has no bf16 products, or slow "
            "ones, on %s; operands of products are widened to f32 first, and convolutions of f32 "
            "stay as they are",
            isa,
            cpu,
        )
