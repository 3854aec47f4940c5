"""`compile`: a model in, an Executable out."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tvm import IRModule

from microkernels.errors import CompileError, ModelError, TvmHybridError
from microkernels.isa import isa_named, target_isa
from microkernels.machines.description import describe
from microkernels.machines.machine import without_slow_dots
from relay_passes.compile_module import CompiledModule, compile_module
from relay_passes.decisions import Decision, uses_half_tiles, uses_tiles
from relay_passes.dump_ir import require_folder
from relay_passes.failing_binding import first_line
from relay_passes.freed_memory import return_what_compiling_took
from relay_passes.ir.constants import constants_of
from relay_passes.lower.native_code import with_weights
from relay_passes.pipeline_options import PipelineOptions, check_fusion, check_precision
from relay_passes.regions.select_winograd import check_fast_math

from ._autoload import register
from .affinity.pool_setting import PoolSetting
from .affinity.topology import host_topology
from .affinity.weights import Nodes, nodes_for, place_weights
from .bound_outputs import bound_outputs
from .cpu_features import required_features
from .executable import Executable
from .fallback import fallback_target
from .featureless import warn_if_featureless
from .input_alignment import unaligned_inputs
from .kernel_cache import kernel_cache
from .logs import logger
from .manifest import Coverage, Manifest, package_versions
from .model_input import SourceModel, import_model
from .model_nodes import texts_in
from .node_origins import decisions_with_origins, with_origins
from .origin_text import short
from .output_sharing import shared_outputs
from .program_graph import ProgramGraph, named_graph
from .pytorch.modules import exported, is_module
from .record_use import uses_in
from .single_kernel import single_kernel
from .targets import MachineLike, TargetLike, cpu_name, resolve_target, threads_of
from .threads import ThreadsLike, resolve_setting

PathLike = str | os.PathLike[str]
Records = PathLike | Sequence[PathLike] | None


def compile(
    model: Any,
    *,
    target: TargetLike = None,
    machine: MachineLike = None,
    shapes: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    precision: str = "auto",
    fusion: str = "coarse",
    fast_math: str = "default",
    records: Records = None,
    num_threads: int | None = None,
    threads: ThreadsLike = None,
    weights: str | None = None,
    spin: str | None = None,
    strict: bool | str = False,
    dump_ir: PathLike | None = None,
    fallback: TargetLike = None,
    keep_open: bool = False,
    check_indices: bool = False,
    cache: bool = True,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
) -> Executable:
    """Compiles a model.

    Parameters
    ----------
    model : path-like, bytes, onnx.ModelProto, tvm.IRModule, torch ExportedProgram or nn.Module
        What to compile. A Relax module has a function `main`, or a single public one.
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one. See `tvm_hybrid.targets.resolve_target`.
    machine : path-like, optional
        A file that describes the target's CPU for the estimates that choose kernels, in place of
        the description that comes along; such as `tvm-hybrid calibrate` writes. It says nothing of
        the fallback.
    shapes : mapping, optional
        Input name -> shape, or symbolic dimension -> size.
    values : mapping, optional
        Input name of an ONNX model -> its value, an array or a list. The program is made for these
        values and does not take these inputs; `run` accepts them by name and checks them. Values
        must be given for parameters of operators, such as axes and shapes, that are inputs.
    precision : {"auto", "f32", "bf16"}
        Type of the operands of matrix products. "auto": as the model says. "f32": also those of a
        bfloat16 model, whose inputs, outputs and weights keep their type. "bf16": the operands of
        f32 products are rounded to bfloat16, their sums and everything else stay f32; what is
        quantised to integers stays so. Any CPU can run it, but only one with fast instructions
        for it faster: with AMX, or such as Zen 4.
    fusion : {"coarse", "fine", "none"}
        What may become one kernel. "coarse": several products too, as in attention and perceptrons;
        "fine": an operator of ours with the elementwise ones around it; "none": that operator
        alone. The lower levels are there to compare with.
    fast_math : {"off", "default", "on"}
        Where 3x3 convolutions of f32 may use Winograd's algorithm, whose results round otherwise.
        "default": where the largest error to expect is within 5e-5 of the results' root mean
        square; "on": wherever it is faster; "off": nowhere.
    records : path-like or sequence of path-like, optional
        Tuning records to apply, in this order: these files', or for None those that
        `TVM_HYBRID_RECORDS` names; then those that this package brings for the CPU. A region that
        none of them knows gets the configuration of a region like it, if that promises a gain
        (`tvm_hybrid.tuning.lookup.nearest_record`). An empty list, or TVM_HYBRID_RECORDS=none: no
        records. `Manifest.records` says which were used.
    num_threads : int or None
        Threads of one run; None for the `num-cores` of a target that states them, then
        `TVM_NUM_THREADS`, or else all cores. 1 builds serial kernels. Without a target at most four
        for each CPU that this process may use; where a target is named, more may be built for, and
        only running or loading it here is refused.
    threads : int, str, sequence of int or None
        Where threads run here: "socket:0" or "node:0", by the numbers of Linux; CPUs as "0-3,8" or
        as numbers; "all". One thread runs on each core of the place, or `num_threads` of them, and
        each worker is bound to its CPU; the calling thread does a share as well and is never bound.
        None, or a number, which is another way to give `num_threads`: nothing is bound. It is of
        this process: an exported library has the number of threads, and `load` takes the place.
    weights : {"first-touch", "interleave", "replicate"} or None
        On which memory nodes weights lie here. "first-touch": where the thread ran that compiled
        them. "interleave": they go in turns to the nodes of `threads`. "replicate": the same, in
        one socket; a session bound to another one has weights of its own. None: "replicate" for
        threads of one socket, else "first-touch". Does nothing where there is one node.
    spin : {"run", "always", "never"} or None
        For how long threads wait awake here. "run": for moments inside a run; between runs they
        sleep. "always": workers stay awake as long as the executable lives, each on a CPU, for the
        shortest time of the next run. "never": they sleep at once. None: what TVM_HYBRID_SPIN says,
        else "run". It is of this process, as `threads`.
    strict : bool or "open"
        Whether an operator that should have a template but gets none is an error. "open": in a
        program with open sizes alone.
    dump_ir : path-like, optional
        Folder that receives the IR after every pass; that of the fallback goes to a folder in it.
    fallback : str, mapping or tvm.target.Target, optional
        A second, lower CPU to compile for as well: a target, or the name of an instruction set
        such as "avx512_vnni", which stands for `target` without what is above it. It runs where the
        code for `target` cannot: the CPU lacks a feature, or Linux denies AMX tiles. Executable and
        exported library hold both programs, with packed weights for each; constants that both read
        alike are exported once.
    keep_open : bool
        Dimensions of inputs that `shapes` gives no sizes stay open, and one program runs all sizes.
        An ONNX model's keep their names, or are named by input and axis; `shapes` of all makes code
        for just these. Otherwise a dimension without a size is an error.
    check_indices : bool
        Of an ONNX model: whether an index out of range, of Gather, GatherElements, GatherND and the
        scattering operators, is an error when the program runs. It names the node and the range;
        `InferenceSession` raises a FeedError. Without it such an index is clipped: the nearest
        element is taken. The check reads all indices once more; without it nothing is checked.
    cache : bool
        Whether kernels that were compiled before are taken from a folder of the user's cache, and
        new ones are kept there. The environment variable TVM_HYBRID_CACHE=0 turns it off for all.
    example_inputs : tuple, list or mapping, optional
        Of a torch module, which must be in evaluation mode: the arguments that `torch.export` calls
        it with, or those by name.
    dynamic_shapes : optional
        Of a torch module: what `torch.export.export` takes by this name. Its dimensions have to
        get sizes by `shapes`, or stay open with `keep_open`.

    Returns
    -------
    Executable
        The compiled model.

    Raises
    ------
    ModelError, ShapeError, InputValueError, UnsupportedOperatorError
        If the model cannot be read, or lacks a shape or a value.
    TargetError
        If the target, the description of its machine, threads, weights or spin make no sense, or
        the fallback is not below the target.
    RecordError
        If a record file cannot be read.
    CompileError
        If compilation fails, or there is no such precision, level of fusion or of fast_math.
    OutputError
        If `dump_ir` cannot be written to.
    """
    from .tuning.lookup.layout_lookup import with_records
    from .tuning.lookup.record_lookup import lookup_of

    register()
    check_precision(precision)
    check_fusion(fusion)
    check_fast_math(fast_math)
    if dump_ir is not None:
        require_folder(Path(dump_ir))
    resolved = resolve_target(target, machine)
    second = None if fallback is None else fallback_target(resolved, fallback)
    warn_if_featureless(resolved)
    model = _plain_model(model, example_inputs, dynamic_shapes)
    if precision == "bf16":
        warn_if_slow(cpu_name(resolved), target_isa(resolved).name)
    num_threads = threads_of(target, num_threads, threads)
    setting = resolve_setting(threads, num_threads, here=target is None, spin=spin)
    nodes = nodes_for(weights, setting, host_topology())
    kernels = kernel_cache() if cache else None
    options = PipelineOptions(
        target=resolved,
        threads=setting.count,
        strict=strict is True,
        dump_ir=None if dump_ir is None else Path(dump_ir),
        precision=precision,
        fusion=fusion,
        fast_math=fast_math,
        kernels=kernels,
    )
    options = with_records(options, lookup_of(records))
    imported = import_model(model, shapes, values, keep_open, check_indices)
    if strict == "open":
        options = replace(
            options, strict=any(info.static_shape is None for info in imported.inputs)
        )
    fallback_program = None
    if second is not None:
        below = replace(
            options,
            target=second,
            suffix=f"_{target_isa(second).name}",
            dump_ir=None if options.dump_ir is None else options.dump_ir / "fallback",
        )
        below = with_records(below, lookup_of(records))
        fallback_program = _compiled(imported, below, setting, nodes)
    keep = isinstance(model, IRModule)  # the caller's
    found = _compiled(imported, options, setting, nodes, fallback_program, keep)
    del imported
    if kernels is not None:
        kernels.finish()
    return_what_compiling_took()
    return found


def _plain_model(model: Any, example_inputs: Any, dynamic_shapes: Any) -> Any:
    """The model; of a torch module, the program that is exported from it."""
    if is_module(model):
        return exported(model, example_inputs, dynamic_shapes)
    if example_inputs is not None or dynamic_shapes is not None:
        raise ModelError(
            "example_inputs and dynamic_shapes are for torch modules, not for a "
            f"{type(model).__name__}"
        )
    return model


def _compiled(
    source: SourceModel,
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
    graph, names = named_graph(compiled.mod)
    graph = with_origins(graph, names, source.nodes)
    manifest = _manifest(compiled, graph, options, source, fallback)
    coverage = manifest.coverage
    logger.info(
        "%d of %d nodes taken for %s (%s), %d threads, precision %s, fusion %s",
        coverage.taken,
        coverage.nodes,
        manifest.cpu,
        manifest.isa,
        manifest.threads,
        manifest.precision,
        manifest.fusion,
    )
    native, code = compiled.native, compiled.code
    place_weights([constant.value for constant in constants_of(compiled.mod)], nodes)
    return Executable(
        manifest,
        lambda: with_weights(native, code).jit(),
        (native.mod, code),
        kernel=single_kernel(compiled.mod),
        graph=graph,
        fallback=fallback,
        setting=setting,
        declared=source.declared,
    )


@functools.cache
def warn_if_slow(cpu: str, isa: str) -> None:
    """Says, once for each CPU and instruction set, where bf16 gains no speed."""
    used = without_slow_dots(isa_named(isa), describe(cpu))
    if not used.multiplies_bf16:
        logger.warning(
            "precision 'bf16' will not be faster than 'f32': %s has no bf16 products, or slow "
            "ones, on %s; operands of products are widened to f32 first, and convolutions of f32 "
            "stay as they are",
            isa,
            cpu,
        )


def _manifest(
    compiled: CompiledModule,
    graph: ProgramGraph,
    options: PipelineOptions,
    source: SourceModel,
    fallback: Executable | None,
) -> Manifest:
    taken = sum(decision.taken for decision in compiled.decisions)
    uses = uses_tiles(compiled.decisions), uses_half_tiles(compiled.decisions)
    return Manifest(
        versions=package_versions(),
        cpu=cpu_name(options.target),
        target=str(options.target),
        isa=target_isa(options.target).name,
        features=required_features(options.target, *uses),
        threads=options.threads,
        precision=options.precision,
        fusion=options.fusion,
        fast_math=options.fast_math,
        inputs=source.inputs,
        outputs=source.outputs,
        limits=dict(source.limits),
        values=source.values,
        shared_outputs=shared_outputs(compiled.mod),
        unaligned_inputs=unaligned_inputs(compiled.mod),
        bound_outputs=bound_outputs(compiled.mod),
        coverage=Coverage(taken, len(compiled.decisions)),
        decisions=_as_stored(decisions_with_origins(compiled.decisions, graph, source.nodes)),
        records=uses_in(options.lookup),
        fallback=None if fallback is None else fallback.manifest,
    )


def _as_stored(decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """Decisions as a library's manifest has them, with lists for the tuples of configurations."""
    return msgspec.json.decode(msgspec.json.encode(decisions), type=tuple[Decision, ...])
