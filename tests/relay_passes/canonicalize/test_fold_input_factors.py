"""Constants per channel before a product go into its weight and one term."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from relay_passes.canonicalize.products import fold_input_factors
from tests.relay_passes.graphs import constant, module, run
from tests.relay_passes.quantized import assert_becomes, assert_stays, operators

from .test_fold_factors import number, values

op = relax.op
X = ((2, 4, 6, 7), "float32")
Body = Callable[[relax.Expr], relax.Expr]


def test_a_term_and_a_factor() -> None:
    w, s, t = values(5, 4, 3, 3), values(4, 1, 1, seed=1), values(4, 1, 1, seed=2)

    def before(x: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(op.add(number(t), op.multiply(x, number(s))), number(w))

    def after(x: relax.Expr) -> relax.Expr:
        term = (w * t).sum((1, 2, 3)).reshape(5, 1, 1)
        return op.add(op.nn.conv2d(x, number(w * s)), number(term))

    assert_becomes(module(before, X), fold_input_factors(), module(after, X))


def test_a_matrix() -> None:
    w, s, t, b = values(7, 3), values(7, seed=1), values(7, seed=2), values(3, seed=3)

    def before(x: relax.Expr) -> relax.Expr:
        scaled = op.multiply(op.add(x, number(t)), number(s))
        return op.add(op.matmul(scaled, number(w)), number(b))

    def after(x: relax.Expr) -> relax.Expr:
        product = op.matmul(x, number(w * s[:, None]))
        return op.add(op.add(product, number(((t * s)[:, None] * w).sum(0))), number(b))

    assert_becomes(module(before, X), fold_input_factors(), module(after, X))


def test_padding_and_a_product_without_a_term_take_factors_alone() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        factor = op.divide(op.subtract(x, constant(7, seed=2)), number(np.array(2)))
        images = op.multiply(op.add(x, constant(4, 1, 1)), number(np.array(4)))
        return [
            op.matmul(factor, number(values(7, 3))),
            op.nn.conv2d(images, number(values(5, 4, 3, 3)), padding=1),
        ]

    def after(x: relax.Expr) -> list[relax.Expr]:
        return [
            op.matmul(op.subtract(x, constant(7, seed=2)), number(values(7, 3) / 2)),
            op.nn.conv2d(op.add(x, constant(4, 1, 1)), number(values(5, 4, 3, 3) * 4), padding=1),
        ]

    assert_becomes(module(before, X), fold_input_factors(), module(after, X))


@pytest.mark.parametrize(
    ("product", "given", "shape"),
    [
        (lambda x: op.nn.conv2d(x, constant(6, 2, 3, 3), groups=2), (2, 4, 6, 7), (4, 1, 1)),
        (lambda x: op.nn.conv1d(x, constant(5, 6, 3)), (2, 6, 7), (6, 1)),
        (lambda x: op.nn.conv2d(x, constant(3, 3, 7, 5), data_layout="NHWC",
                                kernel_layout="HWIO"), (2, 4, 6, 7), (7,)),
    ],
    ids=["groups", "one axis", "channels last"],
)  # fmt: skip
def test_every_convolution(product: Body, given: tuple[int, ...], shape: tuple[int, ...]) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return product(op.add(op.multiply(x, constant(*shape, seed=1)), constant(*shape, seed=2)))

    mod = module(body, (given, "float32"))
    folded = fold_input_factors()(mod)
    x = np.random.default_rng(0).standard_normal(given).astype(np.float32)
    (wanted,), (result,) = run(mod, [x]), run(folded, [x])
    # At most 63 terms of a few units, each rounded once more.
    np.testing.assert_allclose(result, wanted, atol=2e-4)
    assert operators(folded)["multiply"] == 0


def read_twice(x: relax.Expr) -> relax.Expr:
    scaled = op.multiply(x, constant(4, 1, 1))
    return op.add(op.nn.conv2d(scaled, constant(4, 4, 1, 1)), scaled)


def shared_weight(x: relax.Expr) -> relax.Expr:
    w = constant(7, 7)
    return op.add(op.matmul(op.multiply(x, constant(7)), w), op.matmul(x, w))


@pytest.mark.parametrize(
    "body",
    [
        read_twice,
        shared_weight,
        lambda x: op.matmul(op.multiply(x, constant(6, 1)), constant(7, 3)),
        lambda x: op.matmul(op.multiply(op.multiply(x, op.tanh(x)), constant(7)), constant(7, 3)),
        lambda x: op.nn.conv2d_transpose(op.multiply(x, constant(4, 1, 1)), constant(4, 5, 3, 3)),
        lambda x: op.matmul(op.divide(constant(7), x), constant(7, 3)),
    ],
    ids=["read twice", "shared weight", "rows", "gated", "transposed", "a quotient by x"],
)
def test_what_stays(body: Body) -> None:
    assert_stays(module(body, X), fold_input_factors())
