"""R.nn.attention becomes plain operators with the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.bfloat16.widening import widen_f16
from relay_passes.canonicalize.attention import decompose_attention
from relay_passes.ir.graph import op_name
from relay_passes.lower_module import passes_through
from relay_passes.pipeline import Phase
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, module, number, run
from tests.relay_passes.quantized import operators, tidy

op = relax.op
Q, KV = ((2, 5, 3, 8), "float32"), ((2, 5, 3, 8), "float32")


def decomposed(mod: IRModule) -> IRModule:
    """The module after the pass."""
    return decompose_attention()(mod)


def test_scale_mask_and_layout() -> None:
    def before(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return op.nn.attention(q, k, v, causal_mask="TopLeft")

    def after(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        scores = op.matmul(op.permute_dims(q, [0, 2, 1, 3]), op.permute_dims(k, [0, 2, 3, 1]))
        scores = op.multiply(scores, number(8**-0.5))
        hidden = op.triu(op.broadcast_to(number(-np.inf), (5, 5)), 1)
        weights = op.nn.softmax(op.add(scores, hidden), -1)
        mixed = op.matmul(weights, op.permute_dims(v, [0, 2, 1, 3]))
        return op.permute_dims(mixed, [0, 2, 1, 3])

    found = tidy(decomposed(module(before, Q, KV, KV)))
    assert_structural_equal(found, tidy(module(after, Q, KV, KV)))
    assert_structural_equal(tidy(decomposed(found)), found)


def attention(arrays: list[np.ndarray], scale: float | None, seen: np.ndarray | None) -> np.ndarray:
    """softmax(q k^T * scale + bias) v in float64, [batch, length, heads, size] throughout."""
    q, k, v = (np.swapaxes(array.astype(np.float64), 1, 2) for array in arrays[:3])
    times = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, times, 1), np.repeat(v, times, 1)
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores + (arrays[3] if len(arrays) > 3 else 0.0)
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.swapaxes(weights / weights.sum(-1, keepdims=True) @ v, 1, 2)


CASES: list[tuple[dict[str, Any], int, int, tuple[int, ...] | None]] = [
    ({}, 7, 3, None),
    ({"scale": 0.3}, 7, 1, (2, 1, 1, 7)),
    ({"causal_mask": "TopLeft"}, 7, 3, (1, 3, 5, 7)),
    ({"causal_mask": "BottomRight", "scale": 1.0}, 7, 3, None),
    ({"causal_mask": "BottomRight"}, 3, 3, None),
    ({"causal_mask": "TopLeft", "window_size": 2}, 5, 3, None),
]


def test_values() -> None:
    """Sums of 8 products of numbers near 1, each rounded by 6e-8; one module runs all cases."""
    shapes: list[tuple[int, ...]] = []
    for _, keys, groups, bias in CASES:
        shapes += [(2, 5, 3, 8), (2, keys, groups, 8), (2, keys, groups, 6)]
        shapes += [bias] if bias else []

    def body(*inputs: relax.Expr) -> list[relax.Expr]:
        rest = list(inputs)
        results = []
        for options, _, _, bias in CASES:
            taken, rest = rest[: 4 if bias else 3], rest[4 if bias else 3 :]
            results.append(op.nn.attention(*taken, **options))
        return results

    mod = decomposed(module(body, *((shape, "float32") for shape in shapes)))
    assert operators(mod)["nn.attention"] == operators(mod)["nn.attention_bias"] == 0
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    results = run(mod, arrays)
    for (options, keys, _, bias), got in zip(CASES, results, strict=True):
        taken, arrays = arrays[: 4 if bias else 3], arrays[4 if bias else 3 :]
        mask, seen = options.get("causal_mask"), None
        if mask:
            offset = abs(5 - keys) if mask == "BottomRight" else 0
            seen = np.tril(np.ones((5, keys), bool), offset)
            seen &= np.triu(np.ones((5, keys), bool), 1 - options.get("window_size", 99))
        wanted = attention(taken, options.get("scale"), seen)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)


def test_operands_of_bfloat16_have_wide_scores() -> None:
    narrow = ((1, 5, 2, 8), "bfloat16")
    mod = decomposed(module(lambda *x: op.nn.attention(*x, scale=0.3), narrow, narrow, narrow))
    text = mod["main"].script()
    assert text.count('out_dtype="float32"') == 2 and operators(mod)["astype"] == 2
    assert str(mod["main"].ret_ty.dtype) == "bfloat16"


@pytest.mark.parametrize("bias", [False, True])
def test_attention_of_float16_has_no_casts(bias: bool) -> None:
    half = ((1, 5, 2, 8), "float16")
    inputs = [half, half, half, *([((1, 1, 5, 5), "float16")] if bias else [])]
    call = op.nn.attention_bias if bias else op.nn.attention
    mod = decomposed(module(lambda *x: call(*x, causal_mask="TopLeft", scale=0.5), *inputs))
    assert operators(mod)["matmul"] == 2 and operators(mod)["astype"] == 0
    assert str(mod["main"].ret_ty.dtype) == "float16"
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float16) for shape, _ in inputs]
    wanted = attention(arrays, 0.5, np.tril(np.ones((5, 5), bool)))
    # One rounding: `widen_f16` leaves the last cast alone.
    (found,) = run(widen_f16()(mod), arrays)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2.0**-10, atol=1e-6)


def test_a_bias_of_float32_is_not_rounded_to_float16() -> None:
    half, bias = ((1, 5, 2, 8), "float16"), ((1, 1, 5, 5), "float32")
    mod = decomposed(module(op.nn.attention, half, half, half, bias))
    assert mod["main"].script().count('out_dtype="float32"') == 2
    assert operators(mod)["astype"] == 2  # the weights, and the result


def test_a_bias_in_bfloat16_is_widened() -> None:
    narrow = ((1, 5, 2, 8), "bfloat16")
    bias = ((1, 1, 5, 5), "bfloat16")
    mod = decomposed(module(op.nn.attention, narrow, narrow, narrow, bias))
    assert operators(mod)["astype"] == 3


@pytest.mark.parametrize(
    ("options", "queries"),
    [({"window_size": 2}, 5), ({"window_size": 2, "causal_mask": "BottomRight"}, 4)],
    ids=["window without mask", "window of unequal lengths"],
)
def test_what_tvm_does_not_define_stays(options: dict[str, Any], queries: int) -> None:
    q = ((2, queries, 3, 8), "float32")
    mod = module(lambda *x: op.nn.attention(*x, **options), q, KV, KV)
    assert_structural_equal(decomposed(mod), mod)


def test_symbolic_lengths_stay() -> None:
    x = relax.Var("x", relax.TensorType((2, tirx.Var("n", "int64"), 3, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.nn.attention(x, x, x))
        builder.emit_func_output(result)
    mod = builder.get()
    assert_structural_equal(decomposed(mod), mod)


def test_permutations_of_pytorch_cancel() -> None:
    """scaled_dot_product_attention of [B, H, S, D], as TVM's importer writes it."""

    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        transposed = [op.permute_dims(x, [0, 2, 1, 3]) for x in (q, k, v)]
        return op.permute_dims(op.nn.attention(*transposed), [0, 2, 1, 3])

    mod = module(body, *[((2, 3, 5, 8), "float32")] * 3)
    for each in passes_through(Phase.CLEAN_UP, PipelineOptions(TARGET), []):
        mod = each(mod)
    # Only keys are still transposed; their product reads them in place.
    assert operators(mod)["permute_dims"] == 1 and operators(mod)["matmul"] == 2


def test_bfloat16_through_the_pass_that_widens() -> None:
    """Scores and softmax are float32, the operands of both products bfloat16."""
    narrow = ((1, 5, 2, 8), "bfloat16")
    mod = module(op.nn.attention, narrow, narrow, narrow)
    for each in passes_through(Phase.CLEAN_UP, PipelineOptions(TARGET), []):
        mod = each(mod)
    found: dict[str, set[tuple[str, str]]] = {}
    for binding in mod["main"].body.blocks[0].bindings:
        call = binding.value
        types = (str(call.args[0].ty.dtype), str(call.ty.dtype))
        found.setdefault(op_name(call), set()).add(types)
    assert found["relax.matmul"] == {("bfloat16", "float32")}
    assert found["relax.nn.softmax"] == {("float32", "float32")}
