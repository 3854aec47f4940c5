"""What `explain` says about BERT-base for AMX: products on tiles, or why not. Nothing is run.

One of its twelve layers, which are alike, and the pooler, a product of one row.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_hybrid
from relay_passes.ir.decisions import Decision

from . import transformers
from .quantized_models import dynamic, static

SIZES = transformers.Sizes(batch=1, tokens=128, width=768, heads=12, inner=3072, layers=1)
FORMS = ("qdq", "dynamic", "bf16")


@functools.cache
def float_model() -> onnx.ModelProto:
    """ids and mask -> the pooler's result for the first token."""
    model = transformers.bert(SIZES)
    graph = model.graph
    weight = np.random.default_rng(1).normal(0, SIZES.width**-0.5, (SIZES.width,) * 2)
    graph.initializer.extend(
        [
            numpy_helper.from_array(weight.astype(np.float32), "pooler"),
            numpy_helper.from_array(np.array(0), "first_token"),
        ]
    )
    graph.node.extend(
        [
            helper.make_node("Gather", [graph.output[0].name, "first_token"], ["cls"], axis=1),
            helper.make_node("MatMul", ["cls", "pooler"], ["pooled"]),
            helper.make_node("Tanh", ["pooled"], ["result"]),
        ]
    )
    del graph.output[:]
    shape = (SIZES.batch, SIZES.width)
    graph.output.append(helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, shape))
    return model


def products(form: str, target: str) -> list[Decision]:
    """Decisions about matrix products, in the model's order."""
    model, precision = float_model(), "auto"
    if form == "qdq":
        model = static(model, [transformers.feeds(model, 0)])
    elif form == "dynamic":
        model = dynamic(model)
    else:
        precision = "bf16"
    executable = tvm_hybrid.compile(model, target=target, precision=precision, num_threads=2)
    explanation = executable.explain()
    assert not any("matmul" in decision.op for decision in explanation.left)
    return [decision for decision in explanation.taken if "matmul" in decision.op]


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
def test_what_is_large_is_on_tiles_and_the_rest_says_why(form: str) -> None:
    kernel = "amx_bf16" if form == "bf16" else "amx_u8"
    *layer, pooler = products(form, "tvm_hybrid/sapphirerapids")
    assert "amx" not in pooler.kernel
    assert "1 row fills 6% of AMX tiles" in pooler.on_vectors
    attentions = [decision for decision in layer if decision.op.startswith("attention")]
    assert len(attentions) == 1
    for decision in layer:
        if decision in attentions and form == "dynamic":  # products of two activations stay f32
            assert "amx" not in decision.kernel
            assert decision.on_vectors.endswith("not float32")
        else:
            assert decision.kernel.startswith(kernel) and not decision.on_vectors, decision
            assert "vnni" not in decision.kernel and "avx512_bf16" not in decision.kernel
    weighted = sum(len(re.findall(r"\bmatmul\(", each.workload)) for each in layer)
    assert weighted == (6 if form == "qdq" else 4)  # else q, k and v become one product


@pytest.mark.slow
def test_graniterapids_chooses_alike() -> None:
    """Estimates for the pooler, one row: 12.4 us on vectors, 11.8 and 11.0 on tiles."""
    found = [
        products("bf16", f"tvm_hybrid/{cpu}")[:-1] for cpu in ("sapphirerapids", "graniterapids")
    ]
    # Whether the products form one chain or two is an estimate, too.
    members = [re.split(r" \(|, |\)", ", ".join(each.op for each in layer)) for layer in found]
    assert "matmul + add + gelu + cast" in members[0]
    joined = [[each for each in names if each and "mlp_chain" not in each] for names in members]
    assert joined[0] == joined[1]
    assert {each.kernel for each in found[0]} == {each.kernel for each in found[1]}
