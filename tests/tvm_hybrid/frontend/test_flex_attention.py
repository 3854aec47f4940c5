"""FlexAttention: bodies, shared heads, precisions; without bodies it equals plain attention."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_hybrid
from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx

from .models import Declaration, random

BATCH, HEADS, QUERIES, KEYS, SIZE, WIDTH = 2, 4, 3, 5, 8, 6
# Products of up to 8 terms near 1 in float32, and one rounding to the result's type.
TOLERANCES = {"float16": 2**-9, "float32": 2**-18, "float64": 2**-45}


def body(name: str, op: str, constant: float, precision: int) -> onnx.GraphProto:
    """A body that applies one operator to its only input."""
    dtype = helper.tensor_dtype_to_np_dtype(precision)
    return helper.make_graph(
        [helper.make_node(op, ["value", "c"], ["changed"])],
        name,
        [helper.make_tensor_value_info("value", precision, ["B", "H", "L", "S"])],
        [helper.make_tensor_value_info("changed", precision, ["B", "H", "L", "S"])],
        [numpy_helper.from_array(np.array(constant, dtype), "c")],
    )


def model_of(node: onnx.NodeProto, declarations: list[Declaration]) -> onnx.ModelProto:
    """A model of one node; the last declaration is its output."""
    *inputs, output = (helper.make_tensor_value_info(*item) for item in declarations)
    opsets = [
        helper.make_opsetid("", onnx.defs.onnx_opset_version()),
        helper.make_opsetid("ai.onnx.preview", 1),
    ]
    graph = helper.make_graph([node], "graph", inputs, [output])
    return helper.make_model(graph, opset_imports=opsets, ir_version=onnx.IR_VERSION)


def declared(dtype: str, groups: int = HEADS) -> list[Declaration]:
    """Declarations of Q, K, V and Y."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return [
        ("q", code, (BATCH, HEADS, QUERIES, SIZE)),
        ("k", code, (BATCH, groups, KEYS, SIZE)),
        ("v", code, (BATCH, groups, KEYS, WIDTH)),
        ("y", code, (BATCH, HEADS, QUERIES, WIDTH)),
    ]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_bodies(dtype: str) -> None:
    precision = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    node = helper.make_node(
        "FlexAttention",
        ["q", "k", "v"],
        ["y"],
        domain="ai.onnx.preview",
        scale=0.5,
        score_mod=body("score", "Max", -0.25, precision),
        prob_mod=body("prob", "Mul", 0.75, precision),
    )
    declarations = declared(dtype, 2)
    feeds = {
        name: random(*shape, seed=seed).astype(dtype)
        for seed, (name, _, shape) in enumerate(declarations[:3])
    }
    q, k, v = (array.astype(np.float64) for array in feeds.values())
    k, v = (np.repeat(array, HEADS // 2, axis=1) for array in (k, v))
    scores = np.maximum(q @ k.swapaxes(2, 3) * 0.5, -0.25)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights *= 0.75 / weights.sum(-1, keepdims=True)
    session = tvm_hybrid.InferenceSession(model_of(node, declarations), num_threads=1, records=[])
    (got,) = session.run(None, feeds)
    assert got.dtype == dtype
    bound = TOLERANCES[dtype]
    np.testing.assert_allclose(got.astype(np.float64), weights @ v, rtol=bound, atol=4 * bound)


def test_without_bodies_it_is_attention() -> None:
    """Without bodies the kernel is that of the standard's Attention."""
    kernels = []
    for op, domain in (("FlexAttention", "ai.onnx.preview"), ("Attention", "")):
        node = helper.make_node(op, ["q", "k", "v"], ["y"], domain=domain)
        model = model_of(node, declared("float32"))
        report = tvm_hybrid.InferenceSession(model, num_threads=1, records=[]).explain()
        kernels.append([item.kernel for item in report.taken])
    assert kernels[0] == kernels[1]


@pytest.mark.parametrize(
    ("groups", "attributes", "words"),
    [
        (3, {}, "4 heads of Q do not share 3 of K"),
        (4, {"softmax_precision": TensorProto.INT32}, "softmax_precision of int32"),
    ],
)
def test_what_is_refused(groups: int, attributes: dict[str, int], words: str) -> None:
    node = helper.make_node(
        "FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", **attributes
    )
    with pytest.raises(ModelError, match=words):
        import_onnx(model_of(node, declared("float32", groups)))
