"""The table of contents of the compiler: every pass, in the order in which they run."""

from __future__ import annotations

from enum import Enum

from tvm import relax
from tvm.ir.transform import Pass

from tir_schedules.product.matmul import multiplies_half

from .bfloat16.bf16_precision import bf16_precision, bits_entry, raise_casts
from .bfloat16.narrow_products import half_products, narrow_products
from .bfloat16.widening import HALF, widen_bf16, widen_f16
from .canonicalize import activations, functions, indices
from .canonicalize.attention import decompose_attention, sink_scale
from .canonicalize.concatenations import merge_stacks, sink_concat
from .canonicalize.constants import evaluate_constants, fold_empty, fold_weights
from .canonicalize.convolutions import elementwise_flat, fold_padding, line_conv, pointwise_conv
from .canonicalize.decompose_conv_transpose import decompose_conv_transpose
from .canonicalize.normalizations import decompose_batch_norm, decompose_group_norm, recognize_norms
from .canonicalize.products import (
    drop_zero_biases,
    fold_factors,
    fold_input_factors,
    plain_products,
)
from .canonicalize.softmax import recognize_softmax, safe_softmax
from .canonicalize.views import compose_views, drop_views, sink_permutes
from .ir.decisions import DecisionLog
from .ir.rewrite import unread
from .ir.rules import Rule, rules
from .ir.tidy import tidy, to_dataflow
from .layout.compose_reorders import compose_reorders, note_reorders
from .layout.fold_channel_shuffle import fold_channel_shuffle
from .layout.propagate_layout import propagate_layout
from .legalize import axes, numbers, schedule_generic, shapes
from .lift.lift_programs import lift_programs
from .lower.in_place import concat_in_place, grow_caches, update_rows
from .lower.kernel_pipelines import mark_takers_of_bits
from .lower.kernel_sharing import rename_kernels, share_kernels
from .lower.lower_regions import lower_regions, select_configs
from .lower.merge_side_by_side import merge_side_by_side
from .lower.weights import fold_constants, pack_dynamic_weights, prepack
from .pipeline_options import PipelineOptions
from .quantize.integer_mean import integer_mean, integer_pool
from .quantize.integer_product import integer_products, narrow_conv_weights
from .quantize.move_quantization import fold_dequantize, lift_quantize, open_tuples, sink_dequantize
from .quantize.requantize import requantize
from .quantize.row_scales import row_scales, stock_dynamic_quantize, weight_only_matmul
from .regions.match_anchors import scale_weight
from .regions.merge_attention import merge_attention
from .regions.merge_chains import merge_chains, merge_depthwise
from .regions.merge_projections import merge_projections
from .regions.partition import partition, quantization_ranges
from .regions.select_winograd import select_winograd
from .vm import checks, entries, memory


class Phase(Enum):
    """The phases, in order."""

    CLEAN_UP = "operators in canonical form"
    LOWER_PRECISION = "products of 8-bit integers and of bfloat16"
    FORM_REGIONS = "anchors with their fused operators, and merged regions"
    CONFIGURE_REGIONS = "configurations and packed weights; regions are still Relax"
    BUILD_KERNELS = "a kernel for every region"
    BUILD_LEFTOVERS = "kernels for operators without a template"
    SHARE_KERNELS = "kernels shared if they differ only in numbers"
    LOWER_TO_VM = "TVM's lowering, with memory planned"


PLAIN = (
    *(decompose_attention, fold_empty, plain_products),
    *(indices.plain_indices, activations.merge_clips),
)
"""Rules that write operators in one form, before types are chosen."""

SIMPLE = (fold_weights, drop_views, compose_views, open_tuples)
"""Rules in every group, to keep the graph simple once the types of products are chosen."""

RECOGNIZED = (
    *(*SIMPLE, evaluate_constants, plain_products),
    *(indices.slice_takes, indices.slice_flips, merge_stacks, fold_padding, drop_zero_biases),
    *(decompose_batch_norm, decompose_group_norm, activations.decompose_prelu),
    *(recognize_norms, recognize_softmax, activations.recognize_gelu, activations.recognize_elu),
    indices.recognize_one_hot,
)
"""Rules that recognise operators which exporters write out, and products that float16 casts hid."""

FOLDED = (*SIMPLE, fold_factors, fold_input_factors, integer_pool)
"""Rules that fold constants into products, once norms and activations are recognised."""

PIXELS = (*SIMPLE, pointwise_conv, line_conv, elementwise_flat)
"""Rules that write convolutions of one tap as matrix products, and those along one axis as
convolutions of lines, once layouts are chosen."""

MOVED = (
    *(*SIMPLE, activations.recognize_activations, safe_softmax),
    *(sink_concat, sink_permutes, sink_scale),
)
"""Rules that move operators past others, once layouts are chosen."""

QUANTIZED = (*SIMPLE, stock_dynamic_quantize, sink_dequantize, lift_quantize)
"""Rules that move dequantisations down to products and quantisations up to kernels. Products of
integers come later: a weight that is not folded yet would count as dynamic."""

EIGHT_BITS = (*SIMPLE, fold_dequantize, weight_only_matmul)
"""Rules for quantised constants that no integer product took: biases, weights of float products."""


def integers(decisions: DecisionLog) -> tuple[Rule, ...]:
    """Rules that compute products and means of quantised tensors in integers."""
    products = integer_products(decisions), row_scales(decisions)
    return (*SIMPLE, integer_mean, *products, narrow_conv_weights)


def phases(
    options: PipelineOptions, decisions: DecisionLog, meaning: bool = False
) -> dict[Phase, list[Pass]]:
    """Every pass by phase, in the order in which they run.

    If `meaning`, region functions unpack their weights and keep their meaning when weights are
    packed.
    """
    machine = options.machine
    fuse, coarse = options.fusion != "none", options.fusion == "coarse"
    bf16, narrow = options.precision == "bf16", options.precision != "f32"
    in_bf16 = machine.isa.multiplies_bf16
    products = "bfloat16" if narrow else "float32"
    convolutions = "bfloat16" if narrow and in_bf16 else "float32"
    return {
        Phase.CLEAN_UP: [
            functions.inline_functions(),
            functions.outline_branches(),
            functions.checks_first(),
            to_dataflow(),
            tidy(),
            lift_programs(machine.isa.f32_lanes, decisions, options.arrange),
            functions.isolate_casts(),
            rules("plain", PLAIN),
            *only_if(narrow, narrow_products()()),
            *only_if(multiplies_half(machine), narrow_products("float16")()),
            widen_bf16(products, convolutions),
            widen_f16(activations.formulas, half_products(machine, decisions)),
            indices.clip_indices(),
            rules("recognized", RECOGNIZED),
            rules("folded", FOLDED),
            decompose_conv_transpose(),
            propagate_layout(options.layouts, decisions, planes=not bf16),
            fold_channel_shuffle(),
            rules("pixels", PIXELS),
            rules("moved", MOVED),
        ],
        Phase.LOWER_PRECISION: [
            rules("quantized", QUANTIZED),
            rules("integers", integers(decisions)),
            rules("eight_bits", EIGHT_BITS),
            *only_if(bf16, rules("bf16_precision", [*SIMPLE, bf16_precision(in_bf16)])),
            rules("raise_casts", [*SIMPLE, raise_casts(), functions.common_values]),
            *only_if(
                multiplies_half(machine), rules("raise_half_casts", [*SIMPLE, raise_casts(HALF)])
            ),
            *only_if(coarse, merge_projections(options.machine, decisions)),
            quantization_ranges(fuse),
        ],
        Phase.FORM_REGIONS: [
            *only_if(fuse, scale_weight(options.threads)),
            partition(machine.isa, decisions, options.strict, fuse, options.dynamic_weights, bf16),
            requantize(),
            *only_if(coarse, merge_attention(machine.isa)),
            *only_if(coarse, merge_depthwise(machine)),
            *only_if(coarse, merge_chains(machine)),
            select_winograd(machine, options.fast_math, options.dynamic_weights),
            compose_reorders(),
            note_reorders(decisions),
        ],
        Phase.CONFIGURE_REGIONS: [
            select_configs(machine, options.lookup),
            pack_dynamic_weights(machine.isa),
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
            shapes.plain_views(),
            relax.backend.DispatchSampling(),
            schedule_generic.legalize_operators(),
            relax.backend.DispatchSortScan(),  # operators without a legalisation, such as topk
            axes.reduction_identities(),
            numbers.bfloat16_remainders(),
            relax.transform.AnnotateTIROpPattern(),
            fold_constants(),
            schedule_generic.store_constants(),
            schedule_generic.unmatched_sizes(),
            schedule_generic.fuse_operators(),
            schedule_generic.scalars_in_shapes(),
            unread(relax.transform.FuseTIR()),
            unread(relax.transform.DeadCodeElimination()),
            shapes.views_of_sums(),
            shapes.rewrite_reshapes(),
            unread(relax.transform.DeadCodeElimination()),
            schedule_generic.schedule_leftovers(machine, decisions),
        ],
        Phase.SHARE_KERNELS: [
            share_kernels(decisions),
            entries.into_entry(),
            mark_takers_of_bits(),
            *only_if(options.suffix != "", rename_kernels(options.suffix, decisions)),
        ],
        Phase.LOWER_TO_VM: [
            entries.weights_entry(),
            entries.release_entry(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            memory.allocate_empty(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            memory.share_storage(),
            memory.size_classes(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            checks.check_divisors(),
            *only_if(options.suffix != "", rename_kernels(options.suffix, decisions)),
            checks.drop_checks(of_inputs=not options.entry_checks),
            memory.share_objects(),
            relax.transform.AttachGlobalSymbol(),
        ],
    }


def only_if(condition: bool, each: Pass) -> list[Pass]:
    """A list of the pass, or an empty list if the condition is False."""
    return [each] if condition else []
