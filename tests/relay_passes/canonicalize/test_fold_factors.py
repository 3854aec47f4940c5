"""Constants per channel after a product go into its weight and one term."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from relay_passes.canonicalize.products import fold_factors
from tests.relay_passes.graphs import constant, module, run
from tests.relay_passes.quantized import assert_becomes, assert_stays, operators

op = relax.op
X = ((2, 4, 6, 7), "float32")
Product = Callable[..., relax.Expr]


def number(array: np.ndarray) -> relax.Expr:
    """A f32 constant."""
    return relax.const(array.astype(np.float32))


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Values of `constant` rounded to eighths: their sums and products are exact in float32."""
    return np.round(constant(*shape, seed=seed).value.numpy() * 8) / 8


def test_a_factor_between_two_terms() -> None:
    w, b, s, t = values(5, 4, 3, 3), *(values(5, 1, 1, seed=seed) for seed in (1, 2, 3))

    def before(x: relax.Expr) -> relax.Expr:
        lv = op.add(op.nn.conv2d(x, number(w)), number(b))
        return op.add(number(t), op.multiply(lv, number(s)))

    def after(x: relax.Expr) -> relax.Expr:
        return op.add(op.nn.conv2d(x, number(w * s[..., None])), number(b * s + t))

    assert_becomes(module(before, X), fold_factors(), module(after, X))


def test_a_matrix() -> None:
    w, b, s = values(7, 3), values(3, seed=1), values(3, seed=2)

    def before(x: relax.Expr) -> relax.Expr:
        return op.multiply(op.add(number(b), op.matmul(x, number(w))), number(s))

    def after(x: relax.Expr) -> relax.Expr:
        return op.add(op.matmul(x, number(w * s)), number(b * s))

    assert_becomes(module(before, X), fold_factors(), module(after, X))


def test_a_weight_that_leaves_float16_stays() -> None:
    """A factor is not folded where the scaled float16 weight overflows float16."""

    def scaled(factor: float, dtype: str) -> Callable[[relax.Expr], relax.Expr]:
        w = relax.const(np.full((7, 3), 300, dtype))
        return lambda x: op.multiply(op.matmul(x, w), relax.const(np.dtype(dtype).type(factor)))

    for factor, dtype, stays in [(300, "float16", True), (200, "float16", False)]:
        mod = module(scaled(factor, dtype), (X[0], dtype))
        assert ("multiply" in operators(fold_factors()(mod))) == stays
    mod = module(scaled(300, "float32"), X)
    assert "multiply" not in operators(fold_factors()(mod))


def test_a_number_alone() -> None:
    w = values(7, 3)
    before = module(lambda x: op.divide(op.matmul(x, number(w)), number(np.array(4))), X)
    after = module(lambda x: op.matmul(x, number(w / 4)), X)
    assert_becomes(before, fold_factors(), after)


@pytest.mark.parametrize(
    ("product", "shape"),
    [
        (lambda x: op.nn.conv2d(x, constant(6, 2, 3, 3), groups=2, padding=1), (6, 1, 1)),
        (lambda x: op.nn.conv2d_transpose(x, constant(4, 6, 3, 3), strides=2), (6, 1, 1)),
        (lambda x: op.nn.conv2d_transpose(x, constant(4, 3, 3, 3), groups=2), (6, 1, 1)),
        (lambda x: op.nn.conv1d(op.reshape(x, (8, 6, 7)), constant(5, 6, 3)), (5, 1)),
        (
            lambda x: op.nn.conv2d(
                x, constant(3, 3, 7, 5), data_layout="NHWC", kernel_layout="HWIO"
            ),
            (5,),
        ),
    ],
    ids=["groups", "transposed", "transposed groups", "one axis", "channels last"],
)
def test_every_convolution(product: Product, shape: tuple[int, ...]) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        scaled = op.multiply(product(x), constant(*shape, seed=1))
        return op.subtract(constant(*shape, seed=2), scaled)

    before = module(body, X)
    after = fold_factors()(before)
    assert operators(before)["multiply"] == 1
    assert operators(after)["multiply"] == 0
    x = np.random.default_rng(0).standard_normal(X[0]).astype(np.float32)
    # At most 80 terms of at most 20 units, each rounded once more.
    np.testing.assert_allclose(run(after, [x])[0], run(before, [x])[0], atol=1e-4)


SHARED = constant(7, 7)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.add(op.matmul(x, constant(7, 3)), constant(3, seed=1)),
        lambda x: [y := op.matmul(x, constant(7, 3)), op.multiply(y, constant(3, seed=1))],
        lambda x: op.multiply(op.matmul(x, constant(7, 3)), constant(6, 1, seed=1)),
        lambda x: op.multiply(op.matmul(x, constant(7, 1)), constant(3, seed=1)),
        lambda x: op.multiply(op.matmul(op.matmul(x, SHARED), SHARED), constant(7, seed=1)),
        lambda x: op.multiply(op.matmul(x, constant(7, 3)), relax.const(np.float32(1e-30))),
    ],
    ids=["a term alone", "needed elsewhere", "rows", "wider", "a shared weight", "no room"],
)
def test_what_stays(body: Callable[[relax.Expr], relax.Expr]) -> None:
    assert_stays(module(body, X), fold_factors())
