"""The order of rules in a group does not matter; every rule applies to a graph here."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tvm import IRModule, ir, relax
from tvm.ir import assert_structural_equal

from microkernels.machines.description import shipped_path
from relay_passes import pipeline
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import Rule, rules
from relay_passes.pipeline import Phase, phases
from relay_passes.pipeline_options import PipelineOptions
from tests.fuzz.generate import generate
from tests.relay_passes.graphs import constant, module
from tools.compile_times.corpus import build
from tvm_hybrid.frontend.model_input import import_model
from tvm_hybrid.targets.resolve import resolve_target

ORDERS = 3
VNNI, BF16, HALF = "icelake-server", "sapphirerapids", "graniterapids"
op, F = relax.op, "float32"
LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}

# Model of the corpus: the CPU that it is compiled for, and rules that apply to it.
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "minilm": (VNNI, ("recognize_gelu",)),
    "minilm_qdq_dynamic": (
        VNNI,
        ("integer_products", "lift_quantize", "sink_dequantize", "common_values"),
    ),
    "t5_decoder": (VNNI, ("recognize_norms",)),
    "squeezenet": (BF16, ("pointwise_conv", "bf16_precision", "raise_bfloat16_casts")),
    "shufflenet": (VNNI, ("fold_factors", "sink_concat")),
    "gru_31": (VNNI, ()),
    "text_detection": (VNNI, ("recognize_activations",)),
    "salient_f16": (HALF, ()),
    "segformer": (VNNI, ("drop_views", "compose_views")),
    "mobilevit": (BF16, ()),
    "voice_activity": (VNNI, ()),
    "resnet50": (VNNI, ()),
}
# Kind and seed of a random graph, with CPU and rules. If a motif changes, other seeds may be
# needed: `test_every_rule_of_every_group_applies_above` wants each rule to apply somewhere.
RANDOM: dict[tuple[str, int], tuple[str, tuple[str, ...]]] = {
    ("attention", 0): (VNNI, ("sink_scale",)),
    ("attention", 5): (HALF, ("safe_softmax",)),
    ("attention", 13): (BF16, ("evaluate_constants", "open_tuples")),
    ("convolution", 9): (VNNI, ("fold_input_factors", "sink_permutes")),
    ("layout", 2): (HALF, ("slice_takes",)),
    ("layout", 30): (VNNI, ("fold_padding",)),
    ("product", 6): (VNNI, ("decompose_prelu", "fold_weights")),
    ("quantized", 5): (HALF, ("narrow_conv_weights",)),
    ("quantized", 8): (HALF, ("weight_only_matmul",)),
    ("quantized", 12): (VNNI, ("integer_mean",)),
    ("recurrent", 0): (VNNI, ("fold_empty",)),
    ("recurrent", 36): (VNNI, ("merge_stacks",)),
    ("recurrent", 56): (HALF, ("raise_float16_casts",)),
}


def attention(q: relax.Expr) -> relax.Expr:
    return op.nn.attention(q, op.abs(q), op.exp(q))


def repeated_operand(x: relax.Expr) -> relax.Expr:
    return op.matmul(x, op.broadcast_to(constant(8, 4), (2, 3, 8, 4)))


def embedding(table: relax.Expr, tokens: relax.Expr) -> relax.Expr:
    return op.take(table, op.reshape(op.astype(tokens, "int32"), (6,)), axis=0, mode="fast")


def clips(x: relax.Expr) -> relax.Expr:
    return op.clip(op.clip(x, 0, 6), -1, 3)


def row_of_flipped(x: relax.Expr) -> relax.Expr:
    return op.strided_slice(op.flip(x, 1), [1], [1], [2])


def zero_bias(x: relax.Expr) -> relax.Expr:
    product = op.matmul(x, constant(8, 4))
    return op.add(product, relax.const(np.zeros(4, np.float32)))


def batch_norm(x: relax.Expr) -> relax.Expr:
    numbers = [constant(4, seed=seed) for seed in range(3)]
    spread = relax.const(np.full(4, 2, np.float32))
    return op.nn.batch_norm(x, *numbers, spread, axis=1, training=False)[0]


def group_norm(x: relax.Expr) -> relax.Expr:
    return op.nn.group_norm(x, constant(4), constant(4, seed=1), 2, 1, [2, 3])


def softmax(x: relax.Expr) -> relax.Expr:
    powers = op.exp(op.subtract(x, op.max(x, [2], keepdims=True)))
    return op.divide(powers, op.sum(powers, [2], keepdims=True))


def elu(x: relax.Expr) -> relax.Expr:
    below = op.nn.relu(op.subtract(relax.const(1.0), op.exp(x)))
    return op.add(op.multiply(relax.const(-0.5), below), op.nn.relu(x))


def one_hot(tokens: relax.Expr) -> relax.Expr:
    classes = relax.const(np.arange(7, dtype=np.int32).reshape(1, 1, -1))
    hot = op.astype(op.equal(op.reshape(tokens, (2, 3, 1)), classes), F)
    return op.nn.gelu_tanh(op.add(op.matmul(hot, constant(7, 4)), constant(1, 1, 4)))


def line(x: relax.Expr) -> relax.Expr:
    conv = op.nn.conv2d(x, constant(3, 1, 5, 8), **LAST)
    return op.nn.relu(op.add(conv, constant(8)))


def dequantized(x: relax.Expr, dtype: str = "uint8") -> relax.Expr:
    return op.dequantize(x, relax.const(np.float32(0.5)), relax.const(3, dtype))


def pool_of_bytes(x: relax.Expr) -> relax.Expr:
    return op.nn.avg_pool2d(dequantized(x), (2, 2))


def bias_of_integers(x: relax.Expr) -> relax.Expr:
    return op.add(x, dequantized(relax.const(np.arange(5, dtype=np.int32)), "int32"))


def scale_for_every_row(q: relax.Expr, scale: relax.Expr) -> relax.Expr:
    weight = relax.const(np.random.default_rng(0).integers(-9, 9, (5, 4), np.int8))
    return op.matmul(op.multiply(op.astype(q, F), scale), dequantized(weight, "int8"))


def stock_quantization(x: relax.Expr) -> list[relax.Expr]:
    emit, zero = relax.BlockBuilder.current().emit, relax.const(0.0)
    high = emit(op.maximum(zero, emit(op.max(x))))
    low = emit(op.minimum(zero, emit(op.min(x))))
    scale = emit(op.divide(emit(op.subtract(high, low)), relax.const(255.0)))
    clipped = op.clip(emit(op.subtract(zero, emit(op.divide(low, scale)))), 0, 255)
    zero_point = emit(op.astype(emit(op.round(emit(clipped))), "uint8"))
    return [op.quantize(x, scale, zero_point, axis=0, out_dtype="uint8"), scale, zero_point]


# Graphs for rules that need idioms our ONNX front end never writes, and their inputs.
IDIOMS: dict[str, tuple[Any, tuple[tuple[tuple[int, ...], str], ...]]] = {
    "decompose_attention": (attention, (((2, 8, 4, 16), F),)),
    "plain_products": (repeated_operand, (((2, 3, 5, 8), F),)),
    "plain_indices": (embedding, (((10, 4), F), ((2, 3), "int64"))),
    "merge_clips": (clips, (((2, 8), F),)),
    "slice_flips": (row_of_flipped, (((2, 3, 8), F),)),
    "drop_zero_biases": (zero_bias, (((2, 3, 8), F),)),
    "decompose_batch_norm": (batch_norm, (((2, 4, 5, 5), F),)),
    "decompose_group_norm": (group_norm, (((2, 4, 5, 5), F),)),
    "recognize_softmax": (softmax, (((2, 3, 8), F),)),
    "recognize_elu": (elu, (((2, 8), F),)),
    "recognize_one_hot": (one_hot, (((2, 3), "int32"),)),
    "line_conv": (line, (((1, 9, 1, 5), F),)),
    "elementwise_flat": (line, (((1, 9, 1, 5), F),)),
    "integer_pool": (pool_of_bytes, (((1, 4, 6, 6), "uint8"),)),
    "fold_dequantize": (bias_of_integers, (((2, 5), F),)),
    "row_scales": (scale_for_every_row, (((3, 5), "int8"), ((3, 1), F))),
    "stock_dynamic_quantize": (stock_quantization, (((3, 5), F),)),
}


class Groups:
    """The passes of the pipeline before regions, with rules that record when they apply."""

    def __init__(self, cpu: str) -> None:
        self.rules: dict[str, list[Rule]] = {}
        self.applied: set[str] = set()
        self.target = resolve_target(cpu, shipped_path(cpu))
        precision = "bf16" if cpu == BF16 else "auto"
        options = PipelineOptions(target=self.target, threads=1, precision=precision)
        with patch.object(pipeline, "rules", self._pass):
            table = phases(options, [])
        self.passes = [*table[Phase.CLEAN_UP], *table[Phase.LOWER_PRECISION]]

    def _pass(self, name: str, group: Iterable[Rule]) -> ir.transform.Pass:
        self.rules[name] = [*map(self._noting, group)]
        return rules(name, self.rules[name])

    def _noting(self, each: Rule) -> Rule:
        def rewrite(graph: Any, block: Bindings, value: Any) -> relax.Expr | None:
            found = each.rewrite(graph, block, value)
            self.applied |= {each.name} if found is not None else set()
            return found

        return replace(each, rewrite=rewrite)

    def check(self, mod: IRModule) -> None:
        """Every group gives equal modules in every order of its rules."""
        with ir.transform.PassContext(opt_level=3), self.target:
            for each in self.passes:
                name = str(each.info.name).removeprefix("tvm_hybrid.")
                after = each(mod)
                group = self.rules.get(name, [])
                for seed in range(ORDERS) if group else ():
                    shuffled = random.Random(seed).sample(group, len(group))
                    assert_structural_equal(rules(name, shuffled)(mod), after)
                mod = after


@pytest.mark.parametrize("name", MODELS)
def test_models_in_any_order(name: str) -> None:
    made, dynamic = build(name), name.endswith("_dynamic")
    cpu, applied = MODELS[name]
    groups = Groups(cpu)
    groups.check(import_model(made.proto, None, made.values if dynamic else None, dynamic).mod)
    assert groups.applied.issuperset(applied)


@pytest.mark.parametrize(("kind", "seed"), RANDOM)
def test_random_graphs_in_any_order(kind: str, seed: int) -> None:
    cpu, applied = RANDOM[kind, seed]
    groups = Groups(cpu)
    groups.check(import_model(generate(kind, seed).model, None, None, False).mod)
    assert groups.applied.issuperset(applied)


@pytest.mark.parametrize("name", IDIOMS)
def test_idioms_in_any_order(name: str) -> None:
    body, inputs = IDIOMS[name]
    groups = Groups(VNNI)
    groups.check(module(body, *inputs))
    assert name in groups.applied


def test_every_rule_of_every_group_applies_above() -> None:
    tried = {name for _, applied in (*MODELS.values(), *RANDOM.values()) for name in applied}
    every = {each.name for cpu in (VNNI, BF16, HALF) for each in chain_of(Groups(cpu))}
    assert tried | IDIOMS.keys() == every


def chain_of(groups: Groups) -> list[Rule]:
    return [each for group in groups.rules.values() for each in group]


def test_one_rule_is_in_two_groups() -> None:
    """plain_products runs before bfloat16 types are chosen, and after those of float16."""
    groups = Groups(BF16)
    every = Counter(each.name for each in chain_of(groups))
    simple = {each.name for each in pipeline.SIMPLE}
    assert {every[name] for name in simple} == {len(groups.rules) - 1}
    twice = [name for name, count in every.items() if count > 1 and name not in simple]
    assert twice == ["plain_products"]
