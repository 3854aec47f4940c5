"""Products of one tensor for one attention become one product; others stay."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.dynamic_quantize import emit_dynamic_quantize
from relay_passes.regions.merge_projections import MERGE, merge_projections
from tests.relay_passes.graphs import Body, constant, module, partitioned, regions
from tests.relay_passes.quantized import (
    assert_same_bits,
    inputs,
    operators,
    outputs,
    quantize,
    tidy,
)
from tests.relay_passes.region_checks import assert_equal, kernel_outputs

op = relax.op
F, I32 = "float32", "int32"
S, HEADS, D = 5, 2, 4
WIDTH = HEADS * D
X = ((1, S, WIDTH), F)
RNG = np.random.default_rng(0)


def heads(x: relax.Expr, axes: tuple[int, ...] = (0, 2, 1, 3), length: int = S) -> relax.Expr:
    x = relax.BlockBuilder.current().emit(x)
    return op.permute_dims(op.reshape(x, (1, length, -1, D)), axes)


def attention(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    scores = op.multiply(op.matmul(heads(q), heads(k, (0, 2, 3, 1))), relax.const(0.5, F))
    return heads(op.matmul(op.nn.softmax(scores), heads(v)), (0, 2, 1, 3))


def biased(x: relax.Expr, seed: int) -> relax.Expr:
    return op.add(constant(WIDTH, seed=seed + 10), op.matmul(x, constant(WIDTH, WIDTH, seed=seed)))


def plain(x: relax.Expr) -> relax.Expr:
    return attention(*(biased(x, seed) for seed in range(3)))


def merged(mod: IRModule, threads: int = 1) -> tuple[IRModule, list[str]]:
    """The module after the pass, and the reasons of its decisions."""
    decisions: DecisionLog = []
    result = tidy(
        merge_projections(Machine("znver4", isa_named("avx512"), threads), decisions)(tidy(mod))
    )
    relax.analysis.well_formed(result)
    assert all(decision.op == MERGE and decision.taken for decision in decisions)
    return result, [decision.reason for decision in decisions]


def constant_products(mod: IRModule) -> int:
    """The number of products with constant weights."""
    return sum(region.op == "matmul" for region in regions(partitioned(mod)[0]))


def check_exact(body: Body, *shapes: tuple[tuple[int, ...], str]) -> IRModule:
    """One product remains, and its kernel computes what the single operators do, to the bit."""
    mod = module(body, *(shapes or (X,)))
    result, reasons = merged(mod)
    assert constant_products(result) == 1 and "are merged into" in reasons[0]
    assert_same_bits(mod, result)
    return result


def check_apart(body: Body, reason: str, *shapes: tuple[tuple[int, ...], str]) -> None:
    mod = module(body, *(shapes or (X,)))
    result, reasons = merged(mod)
    assert_structural_equal(result, tidy(mod))
    assert len(reasons) == 1 and reason in reasons[0] and "are not merged" in reasons[0]


def test_projections_with_biases() -> None:
    def after(x: relax.Expr) -> relax.Expr:
        weight = np.concatenate([w.value.numpy() for w in weights], axis=-1)
        bias = np.concatenate([b.value.numpy() for b in biases])
        qkv = op.add(relax.const(bias), op.matmul(x, relax.const(weight)))
        qkv = relax.BlockBuilder.current().emit(qkv)
        starts = range(0, 3 * WIDTH, WIDTH)
        return attention(*(op.strided_slice(qkv, [2], [at], [at + WIDTH]) for at in starts))

    weights = [constant(WIDTH, WIDTH, seed=seed) for seed in range(3)]
    biases = [constant(WIDTH, seed=seed + 10) for seed in range(3)]
    result, reasons = merged(module(plain, X))
    assert_structural_equal(result, tidy(module(after, X)))
    assert reasons == [
        "3 products of one tensor are merged into 8 + 8 + 8 columns: 0.7 us saved, 0.0 us lost"
    ]
    again, reasons = merged(result)
    assert_structural_equal(again, result)
    assert not reasons


def test_the_kernel_computes_the_same() -> None:
    mod = module(plain, X)
    arrays = inputs(mod)
    wanted = outputs(mod, arrays)[0]
    (made,) = kernel_outputs(merged(mod)[0], arrays)
    # f32 sums of at most 8 products, twice, in another order; values of a few units.
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def rotary(length: int) -> Body:
    """Attention with fewer heads of keys and values, and rotary embeddings of queries and keys."""

    def rotated(x: relax.Expr) -> relax.Expr:
        x = relax.BlockBuilder.current().emit(heads(x, length=length))
        low = op.strided_slice(x, [3], [0], [D // 2])
        high = op.strided_slice(x, [3], [D // 2], [D])
        rotated = op.concat([op.negative(high), low], axis=3)
        cos, sin = constant(length, D), constant(length, D, seed=1)
        return op.add(op.multiply(x, cos), op.multiply(rotated, sin))

    def body(x: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        widths = enumerate((WIDTH, D, D))
        q, k, v = (emit(op.matmul(x, constant(WIDTH, n, seed=seed))) for seed, n in widths)
        k = op.broadcast_to(rotated(k), (1, HEADS, length, D))
        v = op.broadcast_to(heads(v, length=length), (1, HEADS, length, D))
        scores = op.matmul(rotated(q), op.permute_dims(k, (0, 1, 3, 2)))
        return op.matmul(op.nn.softmax(scores), v)

    return body


def test_fewer_heads_of_keys_and_a_rotary_embedding() -> None:
    result, reasons = merged(module(rotary(S), X))
    assert constant_products(result) == 1
    assert len(reasons) == 1 and "are merged into 8 + 4 + 4 columns" in reasons[0]


@pytest.mark.parametrize(("threads", "stays"), [(1, True), (2, False)])
def test_long_slices_that_are_copied_have_to_be_worth_it(threads: int, stays: bool) -> None:
    """0.29 ns for each of 12 x 500 copied elements: more than two calls, less than two forks."""
    mod = module(rotary(500), ((1, 500, WIDTH), F))
    result, reasons = merged(mod, threads)
    assert constant_products(result) == (3 if stays else 1)
    assert ("are not merged: 1.7 us lost" in reasons[0]) == stays


def test_keys_and_values_of_another_tensor() -> None:
    def body(x: relax.Expr, memory: relax.Expr) -> relax.Expr:
        return attention(biased(x, 0), biased(memory, 1), biased(memory, 2))

    result, reasons = merged(module(body, X, X))
    assert constant_products(result) == 2 and operators(result)["strided_slice"] == 2
    assert len(reasons) == 1 and "2 products" in reasons[0] and "8 + 8 columns" in reasons[0]


def rounded(*flat: int) -> Body:
    """An attention in bfloat16 of a rounded tensor, which may be reshaped after the rounding."""
    bf16 = "bfloat16"

    def projection(x: relax.Expr, seed: int) -> relax.Expr:
        weight = constant(WIDTH, WIDTH, seed=seed).value.numpy().astype(ml_dtypes.bfloat16)
        narrow = op.astype(x, bf16)
        narrow = op.reshape(narrow, flat) if flat else narrow
        product = op.matmul(narrow, relax.const(weight, bf16), out_dtype=F)
        return op.astype(op.add(product, constant(WIDTH, seed=seed + 10)), bf16)

    def body(x: relax.Expr) -> relax.Expr:
        q, k, v = (projection(x, seed) for seed in range(3))
        scores = op.matmul(heads(q), heads(k, (0, 2, 3, 1)), out_dtype=F)
        return op.matmul(op.astype(op.nn.softmax(scores), bf16), heads(v), out_dtype=F)

    return body


def test_bfloat16_is_rounded_once() -> None:
    result, _ = merged(module(rounded(), X))
    product = next(region for region in regions(partitioned(result)[0]) if region.op == "matmul")
    assert (product.output.shape, product.output.dtype) == ((1, S, 3 * WIDTH), "bfloat16")
    assert product.inputs[0].dtype == F  # the kernel rounds: it is the only reader


def test_a_reshape_behind_the_rounding_is_worth_as_much() -> None:
    _, (straight,) = merged(module(rounded(), X))
    _, (reshaped,) = merged(module(rounded(S, WIDTH), X))
    assert reshaped == straight
    assert " 1.1 us saved" in straight  # 0.7 us are two calls, the rest a kernel that rounds


def dynamic(
    zeros: tuple[object, ...] = (None,) * 3, scales: tuple[object, ...] = (0.01, 0.02, 0.03)
) -> Body:
    """Queries, keys and values from a dynamically quantised tensor, as outputs."""

    def body(x: relax.Expr) -> relax.Expr:
        builder = relax.BlockBuilder.current()
        q, scale, zero = emit_dynamic_quantize(builder, x)
        left = builder.emit(op.subtract(op.astype(q, I32), op.astype(zero, I32)))

        def projection(w: np.ndarray, zero: object, factor: object) -> relax.Expr:
            right = op.astype(relax.const(w), I32)
            if zero is not None:
                right = op.subtract(right, relax.const(np.asarray(zero, np.int32)))
            product = op.astype(op.matmul(left, right, out_dtype=I32), F)
            return op.multiply(product, op.multiply(scale, relax.const(np.asarray(factor, F))))

        weights = RNG.integers(-128, 128, (3, WIDTH, WIDTH)).astype(np.int8)
        return attention(*map(projection, weights, zeros, scales))

    return body


VECTOR = np.linspace(0.01, 0.05, WIDTH)
ZEROS = np.arange(WIDTH) - 3


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("zeros", "scales"),
    [
        ((None,) * 3, (0.01, 0.02, 0.03)),
        ((None,) * 3, (0.01, VECTOR, 2 * VECTOR)),
        ((1, 1, 1), (0.01, 0.01, 0.01)),
        ((1, ZEROS, -4), (VECTOR, VECTOR, VECTOR)),
    ],
    ids=["numbers", "mixed scales", "equal", "zero points of columns"],
)
def test_dynamic_quantisation_is_left_to_the_kernel(
    zeros: tuple[object, ...], scales: tuple[object, ...]
) -> None:
    result = check_exact(dynamic(zeros, scales))
    product = next(region for region in regions(partitioned(result)[0]) if region.op == "matmul")
    assert product.attrs["a_scale"] == "dynamic" and product.inputs[0].dtype == F


def test_integers_are_those_of_the_single_products() -> None:
    """The slices hold the integers of the single products."""

    def body(x: relax.Expr) -> list[relax.Expr]:
        made = dynamic((1, ZEROS, -4), (0.01, VECTOR, 0.03))(x)
        return [made]

    mod = module(body, X)
    apart, together = tidy(mod), merged(mod)[0]
    arrays = inputs(mod)
    first, second = (kernel_outputs(each, arrays) for each in (apart, together))
    # The f32 attention computes equal results from equal numbers.
    assert_equal(second, first)


def test_an_unrelated_product_stays() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        return [plain(x), op.nn.relu(op.matmul(x, constant(WIDTH, 3, seed=7)))]

    result, reasons = merged(module(body, X))
    assert constant_products(result) == 2
    assert len(reasons) == 1 and "are merged into 8 + 8 + 8 columns" in reasons[0]


def test_a_gate_stays() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        gate, up = (op.matmul(x, constant(WIDTH, 6, seed=seed)) for seed in range(2))
        return op.matmul(op.multiply(op.nn.silu(gate), up), constant(6, WIDTH))

    check_apart(body, "not only an attention reads them")


def test_projections_needed_elsewhere_stay() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        q, k, v = (relax.BlockBuilder.current().emit(biased(x, seed)) for seed in range(3))
        return [attention(q, k, v), op.sum(k), op.sum(v)]

    check_apart(body, "not only an attention reads them")


def test_products_without_a_softmax_stay() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        q, k = (biased(x, seed) for seed in range(2))
        return op.matmul(heads(q), heads(k, (0, 2, 3, 1)))

    check_apart(body, "no attention multiplies them")


def test_projections_quantised_by_constants_stay() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        scales = (0.1, 0.2, 0.3)
        q, k, v = (quantize(biased(x, i), scale, 128) for i, scale in enumerate(scales))
        q, k, v = (op.subtract(op.astype(each, I32), relax.const(128, I32)) for each in (q, k, v))
        scores = op.astype(op.matmul(heads(q), heads(k, (0, 2, 3, 1)), out_dtype=I32), F)
        scores = op.multiply(scores, relax.const(1e-4, F))
        probabilities = op.astype(quantize(op.nn.softmax(scores), 1 / 255, 0), I32)
        return op.matmul(probabilities, heads(v), out_dtype=I32)

    check_apart(body, "quantised with different constants")


def test_weights_of_different_types_stay() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        q = op.astype(op.astype(x, "int8"), I32)
        weights = [
            RNG.integers(0, 100, (WIDTH, WIDTH)).astype(t) for t in ("int8", "uint8", "int8")
        ]
        made = [op.matmul(q, op.astype(relax.const(w), I32), out_dtype=I32) for w in weights]
        return attention(*(op.astype(each, F) for each in made))

    result, reasons = merged(module(body, X))
    assert constant_products(result) == 2
    assert len(reasons) == 1 and "2 products" in reasons[0] and "8 + 8 columns" in reasons[0]
