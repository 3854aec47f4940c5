"""The regions on which tuning is judged: products, attentions, chains and convolutions.

Shapes are published ones: projections of BERT-base (arXiv 1810.04805) and of smaller encoders, an
MLP and an attention of arXiv 2301.01333 table 1, the layers C1 to C12 of arXiv 1805.08166 table 1.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from relay_passes.collect_regions import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from ..frontend.model_input import import_model
from .layer_models import FLOAT32, INT8, RESNET18, OnnxGraph, layer_model

MATMULS = {"small": (32, 384, 384), "large": (256, 768, 1024)}
"""Rows, inputs and outputs of products with bias."""

MLP = (128, 13, 512, 256, 128)
ATTENTION = (1, 128, 768, 8)
"""Batch, positions, width, heads."""

QUANTIZED_LAYERS = ("C1", "C6", "C8")
"""Of ResNet-18: an image, a 3x3 and a pointwise convolution."""


def public_names() -> list[str]:
    """The names of the regions."""
    return [name for name, _, _ in _models()]


def public_regions(options: PipelineOptions, names: Sequence[str] = ()) -> dict[str, Region]:
    """The regions by name, formed as the compiler forms them for a target and some threads.

    Parameters
    ----------
    options : PipelineOptions
        The target and the number of threads; the precision follows from the name.
    names : sequence of str
        Which; none: all.
    """
    found = {}
    for name, precision, model in _models():
        if names and name not in names:
            continue
        mod = import_model(model(), None).mod
        regions = collect_regions(mod, dataclasses.replace(options, precision=precision))
        found[name] = max(regions, key=lambda region: template_for(region.op).flops(region))
    return found


def _models() -> Iterator[tuple[str, str, Callable[[], onnx.ModelProto]]]:
    """(name of the region, precision, what makes its model)."""
    for size, (m, k, n) in MATMULS.items():
        for dtype in ("f32", "bf16", "int8"):
            precision = "bf16" if dtype == "bf16" else "auto"
            yield f"matmul_{dtype}_{size}", precision, partial(_mlp, (m, k, n), dtype == "int8")
    for dtype in ("f32", "int8"):
        yield f"mlp_{dtype}", "auto", partial(_mlp, MLP, dtype == "int8")
    yield "attention_f32", "auto", _attention
    yield "attention_bf16", "bf16", _attention
    for layer in RESNET18:
        yield f"resnet18_{layer.name.lower()}_f32", "auto", partial(layer_model, layer, FLOAT32)
    for layer in RESNET18:
        if layer.name in QUANTIZED_LAYERS:
            yield f"resnet18_{layer.name.lower()}_int8", "auto", partial(layer_model, layer, INT8)


def _mlp(sizes: tuple[int, ...], quantized: bool) -> onnx.ModelProto:
    """Products with bias and ReLU; int8 ones quantise what they store."""
    graph, rng = OnnxGraph(), np.random.default_rng(0)
    rows, *widths = sizes
    value = "x"
    for inner, outer in itertools.pairwise(widths):
        scale = np.float32((2 / inner) ** 0.5)
        if quantized:
            numbers = graph.constant(rng.integers(-127, 128, (inner, outer), np.int8))
            scales = np.full(outer, 0.01, np.float32)
            weight = graph.dequantize(numbers, scales, np.zeros(outer, np.int8), axis=1)
            value = graph.dequantize(value, np.float32(0.02), np.uint8(0))
        else:
            weight = graph.constant(rng.standard_normal((inner, outer), np.float32) * scale)
        bias = graph.constant(rng.standard_normal(outer, np.float32))
        value = graph.node("Add", graph.node("MatMul", value, weight), bias)
        value = graph.node("Relu", value)
        if quantized:
            steps = graph.constant(np.float32(0.05 * inner**0.5)), graph.constant(np.uint8(0))
            value = graph.node("QuantizeLinear", value, *steps)
    graph.node("Identity", value, output="y")
    element = TensorProto.UINT8 if quantized else TensorProto.FLOAT
    return graph.model(
        "mlp",
        [helper.make_tensor_value_info("x", element, (rows, widths[0]))],
        helper.make_tensor_value_info("y", element, (rows, widths[-1])),
    )


def _attention() -> onnx.ModelProto:
    """softmax(q k / sqrt(d) + mask) v of heads, from and to [batch, positions, width]."""
    graph = OnnxGraph()
    batch, positions, width, heads = ATTENTION
    parts = graph.constant(np.array([batch, positions, heads, width // heads]))

    def heads_of(name: str, order: list[int]) -> str:
        return graph.node("Transpose", graph.node("Reshape", name, parts), perm=order)

    scores = graph.node("MatMul", heads_of("q", [0, 2, 1, 3]), heads_of("k", [0, 2, 3, 1]))
    scores = graph.node("Div", scores, graph.constant(np.float32((width // heads) ** 0.5)))
    weights = graph.node("Softmax", graph.node("Add", scores, "mask"), axis=-1)
    result = graph.node("MatMul", weights, heads_of("v", [0, 2, 1, 3]))
    result = graph.node("Transpose", result, perm=[0, 2, 1, 3])
    shape = (batch, positions, width)
    graph.node("Reshape", result, graph.constant(np.array(shape)), output="y")
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkv"]
    mask = (batch, 1, 1, positions)
    return graph.model(
        "attention",
        [*given, helper.make_tensor_value_info("mask", TensorProto.FLOAT, mask)],
        helper.make_tensor_value_info("y", TensorProto.FLOAT, shape),
    )
