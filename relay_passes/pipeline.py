"""The table of contents of the compiler: every pass, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from tvm import IRModule, ir, relax
from tvm.ir.transform import Pass
from tvm.target import Target

from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.product.half_product import multiplies_half
from tir_schedules.tensorize.arrangement_problem import ArrangementProblem, ChooseArrangement

from .bfloat16.bf16_precision import bf16_precision
from .bfloat16.half_products import half_products
from .bfloat16.narrow_products import narrow_products
from .bfloat16.raise_bf16_casts import raise_bf16_casts, raise_f16_casts
from .bfloat16.uint16_entry import bits_entry
from .bfloat16.widen_bf16 import widen_bf16, widen_f16
from .canonicalize.checks_first import checks_first
from .canonicalize.clip_indices import clip_indices
from .canonicalize.common_values import common_values
from .canonicalize.compose_views import compose_views
from .canonicalize.conv1d_channels_last import conv1d_channels_last
from .canonicalize.decompose_attention import decompose_attention
from .canonicalize.decompose_batch_norm import decompose_batch_norm
from .canonicalize.decompose_conv_transpose import decompose_conv_transpose
from .canonicalize.decompose_group_norm import decompose_group_norm
from .canonicalize.decompose_prelu import decompose_prelu
from .canonicalize.drop_views import drop_views
from .canonicalize.drop_zero_biases import drop_zero_biases
from .canonicalize.evaluate_constants import evaluate_constants
from .canonicalize.fold_empty import fold_empty
from .canonicalize.fold_factors import fold_factors
from .canonicalize.fold_input_factors import fold_input_factors
from .canonicalize.fold_padding import fold_padding
from .canonicalize.fold_weights import fold_weights
from .canonicalize.inline_functions import inline_functions
from .canonicalize.isolate_casts import isolate_casts
from .canonicalize.merge_clips import merge_clips
from .canonicalize.merge_stacks import merge_stacks
from .canonicalize.outline_branches import outline_branches
from .canonicalize.plain_indices import plain_indices
from .canonicalize.plain_products import plain_products
from .canonicalize.pointwise_conv import pointwise_conv
from .canonicalize.recognize_activations import activations, recognize_activations
from .canonicalize.recognize_elu import recognize_elu
from .canonicalize.recognize_gelu import recognize_gelu
from .canonicalize.recognize_norms import recognize_norms
from .canonicalize.recognize_one_hot import recognize_one_hot
from .canonicalize.recognize_softmax import recognize_softmax
from .canonicalize.safe_softmax import safe_softmax
from .canonicalize.sink_concat import sink_concat
from .canonicalize.sink_permutes import sink_permutes
from .canonicalize.sink_scale import sink_scale
from .canonicalize.slice_flips import slice_flips
from .canonicalize.slice_takes import slice_takes
from .check_option import check_option
from .decisions import DecisionLog
from .dump_ir import DumpIR
from .full_collections import without_full_collections
from .ir.graph import forget_block
from .ir.move_functions import copy_module, move_functions
from .ir.tidy import tidy, to_dataflow
from .layout.fold_channel_shuffle import fold_channel_shuffle
from .layout.note_reorders import note_reorders
from .layout.propagate_layout import propagate_layout
from .layout.search_space import ChooseLabels, LayoutProblem
from .lift.lift_programs import lift_programs
from .lower.accept_bits import mark_takers
from .lower.allocate_empty import allocate_empty
from .lower.bfloat16_remainders import bfloat16_remainders
from .lower.check_divisors import check_divisors
from .lower.concat_in_place import concat_in_place
from .lower.drop_checks import drop_checks
from .lower.fold_constants import fold_constants
from .lower.grow_caches import grow_caches
from .lower.into_entry import into_entry
from .lower.legalize_operators import legalize_operators
from .lower.lower_regions import lower_regions
from .lower.merge_side_by_side import merge_side_by_side
from .lower.native_code import compile_native
from .lower.pack_open_weights import pack_open_weights
from .lower.partition_decisions import note_partition
from .lower.plain_views import plain_views
from .lower.prepack import prepack
from .lower.reduction_identities import reduction_identities
from .lower.rename_kernels import rename_kernels
from .lower.run_codegen import annotate_codegen
from .lower.scalars_in_shapes import scalars_in_shapes
from .lower.schedule_generic import schedule_leftovers
from .lower.select_configs import Lookup, select_configs
from .lower.share_kernels import share_kernels
from .lower.share_objects import share_objects
from .lower.share_storage import share_storage
from .lower.size_classes import size_classes
from .lower.update_rows import update_rows
from .lower.views_of_sums import views_of_sums
from .lower.weights_entry import weights_entry
from .quantize.fold_dequantize import fold_dequantize
from .quantize.integer_conv import integer_conv
from .quantize.integer_matmul import integer_matmul
from .quantize.integer_mean import integer_mean
from .quantize.lift_quantize import lift_quantize
from .quantize.narrow_conv_weights import narrow_conv_weights
from .quantize.requantize import requantize
from .quantize.row_scales import row_scales
from .quantize.sink_dequantize import sink_dequantize
from .quantize.stock_dynamic_quantize import stock_dynamic_quantize
from .quantize.weight_only_matmul import weight_only_matmul
from .regions.merge_attention import merge_attention
from .regions.merge_chains import merge_chains
from .regions.merge_depthwise import merge_depthwise
from .regions.merge_projections import merge_projections
from .regions.partition import partition, region_counts
from .regions.quantization_ranges import quantization_ranges
from .regions.scale_weight import scale_weight
from .regions.select_winograd import select_winograd
from .stages import announce
from .tvm_compat import separate_builders, separate_tags

PRECISIONS = ("auto", "f32", "bf16")
FUSION_LEVELS = ("coarse", "fine", "none")

# Sessions compile in the threads that call them.
separate_builders()
separate_tags()


@dataclass(frozen=True)
class PipelineOptions:
    """What the passes need to know.

    Attributes
    ----------
    target : tvm.target.Target
        An llvm target.
    threads : int
        Threads that one parallel region may use; 1 builds serial kernels.
    lookup : callable or None
        (region, machine) -> (config, where it comes from), or None where no record fits.
    strict : bool
        Whether a matmul, convolution or normalisation that no template takes is an error.
    dump_ir : Path or None
        Folder that receives the IR after every pass.
    precision : str
        One of PRECISIONS: in which type products are computed. "auto": as the model says.
    fusion : str
        One of FUSION_LEVELS. "coarse": everything; "fine": an anchor with the elementwise operators
        around it, but no regions merged; "none": every anchor alone.
    suffix : str
        What the names of all kernels end with.
    fast_math : str
        One of `select_winograd.FAST_MATH_LEVELS`: which results may round otherwise, to be faster.
    layouts : callable or None
        A block's layout problem -> the labels of its operators, or None where there are none that
        are better than those that move the fewest bytes.
    arrange : callable or None
        A contraction of a program without operators -> how it is arranged, or None where there is
        nothing better than the estimate.
    open_weights : bool
        Whether parameters behind the first `num_input` of a function are weights that are known
        before a run: those of products are packed by operators on them alone, as weights of
        convolutions always are, and convolutions by them may use Winograd's algorithm.
    entry_checks : bool
        Whether functions check their inputs as those of TVM's own pipeline do, with its errors,
        even where kernels refuse the same arguments.
    """

    target: Target
    threads: int = 1
    lookup: Lookup | None = None
    strict: bool = False
    dump_ir: Path | None = None
    precision: str = "auto"
    fusion: str = "coarse"
    suffix: str = ""
    fast_math: str = "default"
    layouts: ChooseLabels | None = None
    arrange: ChooseArrangement | None = None
    open_weights: bool = False
    entry_checks: bool = False

    @property
    def machine(self) -> Machine:
        """The machine that kernels are built for."""
        return Machine.from_target(self.target, self.threads)


@dataclass(frozen=True)
class CompiledModule:
    """A compiled module with its lowered IR and what was decided on the way.

    Attributes
    ----------
    executable : tvm.relax.VMExecutable
        With the machine code that it imports.
    mod : IRModule
        Calls of TIR kernels.
    code : IRModule
        What the virtual machine's code was made of.
    decisions : list of Decision
        What `explain` shows.
    """

    executable: Any
    mod: IRModule
    code: IRModule
    decisions: DecisionLog = field(default_factory=list)


def check_precision(precision: str) -> None:
    """Refuses, by CompileError, what is not in PRECISIONS."""
    check_option("precision", precision, PRECISIONS)


def check_fusion(fusion: str) -> None:
    """Refuses, by CompileError, what is not in FUSION_LEVELS."""
    check_option("fusion level", fusion, FUSION_LEVELS)


class Phase(Enum):
    """The phases, in order."""

    CLEAN_UP = "one way to write everything"
    LOWER_PRECISION = "products of 8-bit integers and of bfloat16"
    FORM_REGIONS = "anchors with what is fused with them, and regions of regions"
    CONFIGURE_REGIONS = "configurations and packed weights; regions are still Relax"
    BUILD_KERNELS = "a kernel for every region"
    BUILD_LEFTOVERS = "kernels for everything that no template took"
    SHARE_KERNELS = "one kernel for those that differ in numbers only"
    LOWER_TO_VM = "TVM's own lowering, with memory planned"


_STAGES = len(Phase) + 1  # the last makes machine code


def phases(
    options: PipelineOptions, decisions: DecisionLog, meaning: bool = False
) -> dict[Phase, list[Pass]]:
    """Every pass by phase, in the order in which they run.

    If `meaning`, region functions mean what they did when their weights are packed.
    """
    machine = options.machine
    fuse, coarse = options.fusion != "none", options.fusion == "coarse"
    bf16, narrow = options.precision == "bf16", options.precision != "f32"
    products = "bfloat16" if narrow else "float32"
    convolutions = "bfloat16" if narrow and machine.isa.multiplies_bf16 else "float32"
    return {
        Phase.CLEAN_UP: [
            inline_functions(),
            outline_branches(),
            checks_first(),
            to_dataflow(),
            tidy(),
            lift_programs(machine.isa.f32_lanes, decisions, options.arrange),
            isolate_casts(),
            decompose_attention(),
            fold_empty(),
            plain_products(),
            *only_if(narrow, narrow_products()),
            *only_if(multiplies_half(machine), narrow_products("float16")),
            widen_bf16(products, convolutions),
            evaluate_constants(),
            merge_clips(),
            recognize_norms(),
            recognize_gelu(),
            widen_f16(activations, half_products(machine, decisions)),
            plain_products(),
            fold_weights(),
            drop_zero_biases(),
            plain_indices(),
            clip_indices(),
            evaluate_constants(),
            slice_takes(),
            slice_flips(),
            merge_stacks(),
            drop_views(),
            compose_views(),
            decompose_batch_norm(),
            decompose_group_norm(),
            merge_clips(),
            recognize_elu(),
            fold_factors(),
            fold_padding(),
            recognize_norms(),
            recognize_softmax(),
            recognize_gelu(),
            fold_input_factors(),
            fold_factors(),
            recognize_activations(),
            decompose_prelu(),
            recognize_one_hot(),
            decompose_conv_transpose(),
            conv1d_channels_last(),
            integer_mean(),
            propagate_layout(options.layouts, decisions),
            fold_channel_shuffle(),
            pointwise_conv(),
            sink_concat(),
            safe_softmax(),
            sink_scale(),
            sink_permutes(),
            common_values(),
            tidy(),
        ],
        Phase.LOWER_PRECISION: [
            stock_dynamic_quantize(),
            sink_dequantize(),
            lift_quantize(),
            fold_weights(),
            integer_mean(any_layout=False),
            integer_conv(decisions),
            narrow_conv_weights(),
            integer_matmul(decisions),
            row_scales(decisions),
            fold_dequantize(),
            weight_only_matmul(),
            *only_if(bf16, bf16_precision(machine.isa.multiplies_bf16)),
            raise_bf16_casts(),
            *only_if(multiplies_half(machine), raise_f16_casts()),
            common_values(),
            tidy(),
            *only_if(coarse, merge_projections(options.machine, decisions)),
            quantization_ranges(fuse),
        ],
        Phase.FORM_REGIONS: [
            *only_if(fuse, scale_weight(options.threads)),
            partition(machine.isa, decisions, options.strict, fuse, options.open_weights, bf16),
            requantize(),
            *only_if(coarse, merge_attention(machine.isa)),
            *only_if(coarse, merge_depthwise(machine)),
            *only_if(coarse, merge_chains(machine)),
            select_winograd(machine, options.fast_math, options.open_weights),
            note_reorders(decisions),
        ],
        Phase.CONFIGURE_REGIONS: [
            select_configs(machine, options.lookup),
            pack_open_weights(machine.isa),
            prepack(machine.isa, meaning),
        ],
        Phase.BUILD_KERNELS: [
            *only_if(coarse, grow_caches(machine, decisions)),
            update_rows(options.threads, decisions),
            lower_regions(machine, decisions),
            *only_if(coarse, merge_side_by_side(machine, decisions)),
            *only_if(coarse, concat_in_place(machine, decisions)),
        ],
        Phase.BUILD_LEFTOVERS: [
            bits_entry(),
            plain_views(),
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            legalize_operators(),
            reduction_identities(),
            bfloat16_remainders(),
            relax.transform.AnnotateTIROpPattern(),
            fold_constants(),
            relax.transform.FuseOps(),
            scalars_in_shapes(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
            views_of_sums(),
            relax.transform.RewriteDataflowReshape(),
            relax.transform.DeadCodeElimination(),
            schedule_leftovers(machine, decisions),
        ],
        Phase.SHARE_KERNELS: [
            share_kernels(decisions),
            into_entry(),
            mark_takers(),
            *only_if(options.suffix != "", rename_kernels(options.suffix, decisions)),
        ],
        Phase.LOWER_TO_VM: [
            weights_entry(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            allocate_empty(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            share_storage(),
            size_classes(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            check_divisors(),
            *only_if(options.suffix != "", rename_kernels(options.suffix, decisions)),
            drop_checks(of_inputs=not options.entry_checks),
            share_objects(),
            relax.transform.AttachGlobalSymbol(),
        ],
    }


def only_if(condition: bool, each: Pass) -> list[Pass]:
    """A pass that some options leave out."""
    return [each] if condition else []


def passes_through(
    last: Phase, options: PipelineOptions, decisions: DecisionLog, meaning: bool = False
) -> list[Pass]:
    """The passes of every phase until the end of one; `meaning` as of `phases`."""
    order = list(Phase)
    reached = order[: order.index(last) + 1]
    table = phases(options, decisions, meaning)
    return [each for phase in reached for each in table[phase]]


def partition_module(mod: IRModule, options: PipelineOptions, decisions: DecisionLog) -> IRModule:
    """The module with its regions as functions for TVM's RunCodegen, still ordinary Relax.

    Weights are packed and configurations chosen; what is left is to compile each function.
    """
    passes = passes_through(Phase.CONFIGURE_REGIONS, options, decisions, meaning=True)
    annotate = annotate_codegen(options.target, options.threads)
    parts = _run(mod, [*passes, annotate], options)
    note_partition(parts, options.machine, decisions)
    return parts


def collect_regions(mod: IRModule, options: PipelineOptions) -> list[Region]:
    """The different regions of a module, in order of their functions' names."""
    return [region for region, _ in count_regions(mod, options)]


def layout_problems(mod: IRModule, options: PipelineOptions) -> list[LayoutProblem]:
    """What can be chosen about the layouts of each block of a module that has a choice; for tuning.

    The labels of `options.layouts`, if given, are ignored.
    """
    found: list[LayoutProblem] = []
    # `append` returns None, so every block keeps the labels of its cheapest cut.
    asked = replace(options, layouts=found.append)
    _run(mod, passes_through(Phase.CLEAN_UP, asked, []), options)
    return found


def arrangement_problems(mod: IRModule, options: PipelineOptions) -> list[ArrangementProblem]:
    """The contractions in a module's programs without operators, also those without a choice.

    What `options.arrange` says is ignored.
    """
    found: list[ArrangementProblem] = []
    # `append` returns None, so every contraction is arranged as the estimate says.
    asked = replace(options, arrange=found.append)
    _run(mod, passes_through(Phase.CLEAN_UP, asked, []), options)
    return found


def lower_module(
    mod: IRModule, options: PipelineOptions, decisions: DecisionLog | None = None
) -> IRModule:
    """The module as calls of TIR kernels, each with its own numbers, none of them compiled."""
    log = [] if decisions is None else decisions
    return _run(mod, passes_through(Phase.BUILD_LEFTOVERS, options, log), options)


def lower_shared(
    mod: IRModule, options: PipelineOptions, decisions: DecisionLog, keep: bool = True
) -> IRModule:
    """The module as calls of the TIR kernels that `compile_module` compiles; `keep` as of that."""
    table = phases(options, decisions)
    steps: list[Pass | Phase] = []
    for phase in list(Phase)[: list(Phase).index(Phase.LOWER_TO_VM)]:
        steps += [phase, *table[phase]]
    return _run(mod, steps, options, keep)


def count_regions(
    mod: IRModule, options: PipelineOptions, strict: bool = False
) -> list[tuple[Region, int]]:
    """The different regions of a module and how often it calls each; for tuning.

    What no template takes is no region; a CompileError if `strict`.
    """
    asked = replace(options, strict=strict)
    return region_counts(_run(mod, passes_through(Phase.FORM_REGIONS, asked, []), options))


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
    _announce(Phase.LOWER_TO_VM, lowered)
    with options.target:
        calling = ir.transform.Sequential(phases(options, [])[Phase.LOWER_TO_VM])(lowered)
    announce(_STAGES, _STAGES, "machine code", calling)
    executable, code = compile_native(calling, options.target, options.threads)
    return CompiledModule(executable, lowered, code, decisions)


def _announce(phase: Phase, mod: IRModule) -> None:
    announce(list(Phase).index(phase) + 1, _STAGES, phase.value, mod)


@without_full_collections()
def _run(
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
                    _announce(each, mod)
                else:
                    mod = each(mod)
            return mod
    finally:
        forget_block()
