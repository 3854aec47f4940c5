"""The order of the passes: which products each precision gives."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from microkernels.base.errors import CompileError
from relay_passes.ir.dynamic_quantize import emit_dynamic_quantize
from relay_passes.lower_module import collect_regions, passes_through
from relay_passes.pipeline import Phase
from relay_passes.pipeline_options import (
    FAST_MATH_LEVELS,
    FUSION_LEVELS,
    PRECISIONS,
    CodeOptions,
    PipelineOptions,
)
from tests.relay_passes.graphs import constant, module, operators
from tests.relay_passes.quantized import dequantize, quantize
from tir_schedules.core.region import Region

op = relax.op
F, B, U8, I8 = "float32", "bfloat16", "uint8", "int8"
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "cooperlake"})
X = ((8, 64), F)
RNG = np.random.default_rng(0)
W8 = relax.const(RNG.integers(-128, 128, (64, 64)).astype(np.int8))


def found(precision: str, mod: tvm.IRModule) -> list[Region]:
    """The regions of a module, unmerged, in the order of their names."""
    return collect_regions(mod, PipelineOptions(TARGET, precision=precision, fusion="fine"))


def every_product(x: relax.Expr) -> list[relax.Expr]:
    """A static 8-bit product, a product with only its weight in 8 bits, a f32 product."""
    fake = dequantize(quantize(x, 0.05, 128), 0.05, 128)
    return [
        op.nn.relu(op.matmul(fake, dequantize(W8, 0.02, 0, I8))),
        op.matmul(op.tanh(x), dequantize(W8, 0.03, 0, I8)),
        op.matmul(op.exp(x), constant(64, 64)),
    ]


@pytest.mark.parametrize("precision", ["auto", "f32", "bf16"])
def test_what_becomes_of_every_product(precision: str) -> None:
    """Integer products and 8-bit weights are found before f32 products are rounded."""
    regions = found(precision, module(every_product, X))
    products = {(r.op, r.inputs[0].dtype, r.inputs[1].dtype) for r in regions if "matmul" in r.op}
    assert products == {
        ("matmul", F, I8),
        ("weight_only_matmul", F, I8),
        ("matmul", F, B if precision == "bf16" else F),
    }
    (integer,) = [r for r in regions if r.op == "matmul" and r.inputs[1].dtype == I8]
    assert integer.attrs["a_quantize"] == U8 and operators(integer)[-1] == "relu"


@pytest.mark.parametrize("precision", ["auto", "f32", "bf16"])
def test_a_bfloat16_model(precision: str) -> None:
    weight = op.astype(constant(64, 64), B)

    def layer(x: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.matmul(x, weight))

    (region,) = found(precision, module(layer, ((8, 64), B)))
    types = [tensor.dtype for tensor in (*region.inputs, region.output)]
    assert types == [B, F if precision == "f32" else B, B]


def test_attention_in_bf16_rounds_within_its_products() -> None:
    def attention(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        q, v = (op.permute_dims(x, (0, 2, 1, 3)) for x in (q, v))
        scores = op.multiply(op.matmul(q, op.permute_dims(k, (0, 2, 3, 1))), relax.const(0.25))
        return op.permute_dims(op.matmul(op.nn.softmax(scores), v), (0, 2, 1, 3))

    heads = ((1, 6, 2, 16), F)
    regions = found("bf16", module(attention, heads, heads, heads))
    assert sorted(r.op for r in regions) == ["batch_matmul", "batch_matmul", "softmax"]
    assert all(r.attrs["rounded"] == B for r in regions if r.op == "batch_matmul")


def test_a_quantised_chain_has_nothing_but_8_bit_tensors_between_its_products() -> None:
    """Dequantise, multiply, quantise, three times: each product requantises."""

    def body(x: relax.Expr) -> relax.Expr:
        q = quantize(x, 0.05, 128)
        for scale in (0.3, 0.2, 0.1):
            real = op.matmul(dequantize(q, 0.05, 128), dequantize(W8, 0.02, 0, I8))
            q = quantize(op.nn.relu(op.multiply(real, relax.const(scale))), 0.05, 128)
        return dequantize(q, 0.05, 128)

    regions = found("auto", module(body, X))
    assert all(region.op == "matmul" for region in regions)
    types = {(r.inputs[0].dtype, r.output.dtype) for r in regions}
    assert types == {(F, U8), (U8, U8), (U8, F)}


def test_dynamic_quantisation_for_one_product_is_one_region() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        q, scale, zero = emit_dynamic_quantize(relax.BlockBuilder.current(), x)
        real = op.dequantize(q, scale, zero)
        return op.nn.relu(op.matmul(real, dequantize(W8, 0.02, 0, I8)))

    (region,) = found("auto", module(body, X))
    assert region.attrs["a_scale"] == "dynamic" and operators(region)[-1] == "relu"


def test_a_softmax_is_quantised_before_the_product_with_the_values() -> None:
    def body(scores: relax.Expr, v: relax.Expr) -> relax.Expr:
        weights = dequantize(quantize(op.nn.softmax(scores), 1 / 255, 0), 1 / 255, 0)
        return op.matmul(weights, dequantize(v, 0.1, 121))

    regions = found("auto", module(body, ((2, 7, 16), F), ((2, 16, 9), U8)))
    softmax, product = sorted(regions, key=lambda region: region.op, reverse=True)
    assert (softmax.op, softmax.output.dtype) == ("softmax", U8)
    assert [tensor.dtype for tensor in product.inputs] == [U8, U8]


def test_the_order_of_the_passes() -> None:
    """Each pass reads what an earlier one writes."""
    names = [
        str(each.info.name).removeprefix("tvm_hybrid.")
        for each in passes_through(
            Phase.SHARE_KERNELS, PipelineOptions(TARGET, precision="bf16"), []
        )
    ]
    chain = [
        "lift_programs",  # first, so that all others see operators
        "plain",
        "widen_bf16",  # before weights are folded in their final type
        "widen_f16",
        "recognized",  # normalisations, before products take their shifts
        "folded",
        "propagate_layout",
        "moved",
        "quantized",
        "integers",
        "eight_bits",
        "bf16_precision",
        "raise_casts",
        "quantization_ranges",
        "partition",
        "select_configs",
        "prepack",
        "lower_regions",
        "LegalizeOps",  # by legalize_quantization, whose rounding is that of ONNX
        "fuse_operators",
        "schedule_generic",
    ]
    assert [name for name in names if name in chain] == chain


@pytest.mark.parametrize(
    ("option", "value", "words", "known"),
    [
        ("precision", "int4", "precision", PRECISIONS),
        ("fusion", "all", "fusion level", FUSION_LEVELS),
        ("fast_math", "fast", "fast_math level", FAST_MATH_LEVELS),
    ],
)
def test_options_of_the_code_are_words(
    option: str, value: str, words: str, known: tuple[str, ...]
) -> None:
    for each in known:
        assert CodeOptions(**{option: each}).code()[option] == each
    names = ", ".join(map(repr, known))
    wanted = f"unknown {words} {value!r}; the known ones are {names}"
    with pytest.raises(CompileError, match=f"^{wanted}$") as caught:
        CodeOptions(**{option: value})
    assert caught.value.argument == option
