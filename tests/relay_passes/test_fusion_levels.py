"""Levels of fusion decide what a region may hold; results do not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from tvm import relax

from relay_passes.ir.dynamic_quantize import emit_dynamic_quantize
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline import Phase, phases
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, constant, module, operators
from tests.relay_passes.quantized import dequantize, quantize
from tir_schedules.core.region import Region

op = relax.op
F, B, U8, I8 = "float32", "bfloat16", "uint8", "int8"
RNG = np.random.default_rng(0)
W8 = relax.const(RNG.integers(-128, 128, (32, 32)).astype(np.int8))
X = ((8, 32), F)
HEADS = ((1, 6, 2, 16), F)
Tensors = tuple[tuple[tuple[int, ...], str], ...]


def layer(x: relax.Expr) -> relax.Expr:
    return op.nn.gelu(op.add(op.matmul(x, constant(32, 32)), constant(32, seed=1)))


def static(x: relax.Expr) -> relax.Expr:
    fake = dequantize(quantize(x, 0.05, 128), 0.05, 128)
    return quantize(op.nn.relu(op.matmul(fake, dequantize(W8, 0.02, 0, I8))), 0.1, 3)


def dynamic(x: relax.Expr) -> relax.Expr:
    q, scale, zero = emit_dynamic_quantize(relax.BlockBuilder.current(), x)
    return op.matmul(op.dequantize(q, scale, zero), dequantize(W8, 0.02, 0, I8))


def weight_only(x: relax.Expr) -> relax.Expr:
    return op.nn.relu(op.matmul(x, dequantize(W8, 0.03, 0, I8)))


def narrow(x: relax.Expr) -> relax.Expr:
    return op.nn.relu(op.matmul(x, op.astype(constant(32, 32), B)))


def attention(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    q, v = (op.permute_dims(x, (0, 2, 1, 3)) for x in (q, v))
    scores = op.multiply(op.matmul(q, op.permute_dims(k, (0, 2, 3, 1))), relax.const(0.25))
    return op.permute_dims(op.matmul(op.nn.softmax(scores), v), (0, 2, 1, 3))


@dataclass(frozen=True)
class Case:
    """A model, and the regions that it has if every anchor stands alone.

    Attributes
    ----------
    atol : float
        Largest difference between levels; 0 if sums are exact.
    """

    body: Callable[..., relax.Expr]
    inputs: Tensors
    alone: list[str]
    precision: str = "auto"
    atol: float = 0.0


# f32 sums of 32 products below 64: each level is off by at most (32 + 2) * u * 64 (Higham,
# section 3.1), and an activation enlarges that by at most one half.
SUM = 3 * 34 * 64 * 2.0**-24
CASES = {
    "f32": Case(layer, (X,), ["matmul"], atol=SUM),
    "static": Case(static, (X,), ["elementwise quantize"] * 2 + ["matmul"]),
    "dynamic": Case(dynamic, (X,), ["elementwise quantize", "matmul", "quantization_range"]),
    "weight_only": Case(weight_only, (X,), ["weight_only_matmul"], atol=SUM),
    "bf16": Case(layer, (X,), ["elementwise cast", "matmul"], precision="bf16", atol=SUM),
    # One ulp of results below 64: the sums may lie on either side of a tie.
    "bf16 model": Case(narrow, (((8, 32), B),), ["elementwise cast", "matmul"], atol=64 * 2.0**-8),
    "attention": Case(attention, (HEADS,) * 3, ["batch_matmul"] * 2 + ["softmax"], atol=SUM),
}


def options(level: str, case: Case) -> PipelineOptions:
    return PipelineOptions(TARGET, precision=case.precision, fusion=level)


def name(region: Region) -> str:
    steps = [step for step in operators(region) if step != "item"]  # how an operand is read
    return " ".join([region.op, *steps])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_without_fusion_every_anchor_is_alone(case: Case) -> None:
    regions = collect_regions(module(case.body, *case.inputs), options("none", case))
    assert sorted(map(name, regions)) == case.alone
    read = {key for region in regions for key in region.attrs}
    assert not read & {"a_quantize", "a_scale", "out_axes"}
    assert not any(region.parts for region in regions)
    assert not any(region.operands for region in regions if region.op != "elementwise")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fine_fusion_grows_epilogues(case: Case) -> None:
    regions = collect_regions(module(case.body, *case.inputs), options("fine", case))
    assert sum(map(len, map(operators, regions))) > 0 or "out_axes" in regions[-1].attrs
    assert all(region.op != "elementwise" and not region.parts for region in regions)


def test_below_coarse_fusion_nothing_is_merged() -> None:
    for level in ("fine", "none"):
        passes = phases(PipelineOptions(TARGET, fusion=level), [])[Phase.FORM_REGIONS]
        names = [str(each.info.name) for each in passes]
        scaling = ["tvm_hybrid.scale_weight"] if level == "fine" else []
        assert names[: len(scaling) + 1] == [*scaling, "tvm_hybrid.partition"]
        assert not any(name.startswith("tvm_hybrid.merge") for name in names)
