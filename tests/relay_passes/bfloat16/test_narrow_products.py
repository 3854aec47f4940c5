"""Products of operands widened from bfloat16 become products of bfloat16."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.relax import op

from relay_passes.bfloat16.narrow_products import narrow_products
from relay_passes.canonicalize.softmax import safe_softmax
from tests.relay_passes.graphs import Body, module, number, run
from tests.relay_passes.quantized import assert_becomes, assert_stays

Q, K = ((2, 5, 8), "bfloat16"), ((2, 7, 8), "bfloat16")
QKV = (Q, K, ((2, 7, 6), "bfloat16"))


def wide(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "float32")


def narrow(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "bfloat16")


def product(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return op.matmul(a, b, out_dtype="float32")


def weights(q: relax.Expr, k: relax.Expr) -> relax.Expr:
    """The weights of an attention as torch.export writes it."""
    scaled = op.multiply(wide(q), number(0.5))
    turned = op.permute_dims(op.divide(wide(k), number(4)), [0, 2, 1])
    return op.nn.softmax(op.matmul(scaled, turned))


def narrow_weights(q: relax.Expr, k: relax.Expr) -> relax.Expr:
    scores = product(q, op.permute_dims(k, [0, 2, 1]))
    return op.nn.softmax(op.multiply(scores, number(0.125)))


def test_an_attention() -> None:
    def before(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        mixed = op.matmul(weights(q, k), wide(v))
        return narrow(op.reshape(mixed, (10, 6)))

    def after(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        mixed = product(narrow(narrow_weights(q, k)), v)
        return narrow(op.reshape(mixed, (10, 6)))

    assert_becomes(module(before, *QKV), narrow_products()(), module(after, *QKV))


def test_scores_are_exact() -> None:
    def body(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        return op.matmul(wide(q), op.permute_dims(wide(k), [0, 2, 1]))

    rng = np.random.default_rng(0)
    x, y = (rng.integers(-8, 8, shape).astype(ml_dtypes.bfloat16) for shape, _ in (Q, K))
    mod = module(body, Q, K)
    (wanted,), (result,) = run(mod, [x, y]), run(narrow_products()()(mod), [x, y])
    np.testing.assert_array_equal(result, wanted)


def test_a_result_that_stays_wide_keeps_its_weights() -> None:
    def before(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return op.matmul(weights(q, k), wide(v))

    def after(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return op.matmul(narrow_weights(q, k), wide(v))

    assert_becomes(module(before, *QKV), narrow_products()(), module(after, *QKV))


@pytest.mark.parametrize(
    "body",
    [
        lambda q, k: op.matmul(wide(q), op.exp(op.permute_dims(wide(k), [0, 2, 1]))),
        lambda q, k: narrow(op.matmul(op.exp(wide(q)), op.permute_dims(wide(k), [0, 2, 1]))),
        lambda q, k: op.matmul(
            op.multiply(wide(q), number(1e30)), op.permute_dims(wide(k), [0, 2, 1])
        ),
    ],
    ids=["computed", "no softmax", "a huge factor"],
)
def test_what_stays(body: Body) -> None:
    assert_stays(module(body, Q, K), narrow_products()())


def test_a_guard_of_a_rounded_softmax() -> None:
    def before(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        scores = product(q, op.permute_dims(k, [0, 2, 1]))
        given, seen = op.nn.softmax(scores), op.logical_not(op.equal(scores, number(-np.inf)))
        some = op.astype(op.max(op.astype(seen, "int8"), -1, keepdims=True), "bool")
        safe = op.where(op.logical_not(some), op.full_like(given, number(0)), given)
        return product(narrow(safe), v)

    def after(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        scores = product(q, op.permute_dims(k, [0, 2, 1]))
        return product(narrow(op.nn.softmax(scores)), v)

    assert_becomes(module(before, *QKV), safe_softmax(), module(after, *QKV))


KERNEL = np.random.default_rng(3).standard_normal((6, 4, 3, 3)).astype(ml_dtypes.bfloat16)
IMAGE = ((1, 4, 5, 5), "bfloat16")


@pytest.mark.parametrize("folded", [True, False])
def test_a_convolution_of_what_was_widened(folded: bool) -> None:
    kernel = relax.const(KERNEL, "bfloat16")

    def before(x: relax.Expr) -> relax.Expr:
        weight = relax.const(KERNEL.astype(np.float32)) if folded else wide(kernel)
        return op.nn.conv2d(wide(x), weight, padding=1, out_dtype="float32")

    def after(x: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(x, kernel, padding=1, out_dtype="float32")

    assert_structural_equal(narrow_products()()(module(before, IMAGE)), module(after, IMAGE))


def test_a_convolution_with_a_weight_of_float32_stays() -> None:
    weight = relax.const(np.full((6, 4, 3, 3), 0.1, np.float32))
    mod = module(lambda x: op.nn.conv2d(wide(x), weight), IMAGE)
    assert_structural_equal(narrow_products()()(mod), mod)
