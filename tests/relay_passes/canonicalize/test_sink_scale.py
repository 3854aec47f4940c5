"""The scale of a query or a key moves after their product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from relay_passes.canonicalize.attention import sink_scale
from tests.relay_passes.graphs import constant, module, number, run
from tests.relay_passes.quantized import assert_becomes, assert_stays, operators

op = relax.op
HEADS = ((2, 3, 5, 8), "float32")
ROWS = ((2, 5, 24), "float32")
Body = Callable[..., relax.Expr]


def heads(x: relax.Expr) -> relax.Expr:
    """[2, 5, 24] -> [2, 3, 5, 8]."""
    return op.permute_dims(op.reshape(x, (2, 5, 3, 8)), [0, 2, 1, 3])


def transposed(x: relax.Expr) -> relax.Expr:
    """The transposed keys, as the product reads them."""
    return op.permute_dims(x, [0, 1, 3, 2])


def test_of_the_query() -> None:
    keys = ((2, 3, 8, 5), "float32")
    before = module(lambda q, k: op.matmul(heads(op.multiply(q, number(0.3))), k), ROWS, keys)
    after = module(lambda q, k: op.multiply(op.matmul(heads(q), k), number(0.3)), ROWS, keys)
    assert_becomes(before, sink_scale(), after)


def test_of_both_as_pytorch_exports_it() -> None:
    root = float(np.float32(8**-0.25))

    def before(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        return op.matmul(
            op.multiply(heads(q), number(root)), op.multiply(transposed(k), number(root))
        )

    def after(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        return op.multiply(op.matmul(heads(q), transposed(k)), number(root**2))

    assert_becomes(module(before, ROWS, HEADS), sink_scale(), module(after, ROWS, HEADS))


@pytest.mark.parametrize(
    ("scaled", "factor"),
    [
        (lambda x: op.divide(x, number(8.0)), 0.125),
        (lambda x: op.multiply(number(0.25), x), 0.25),
        (lambda x: op.multiply(op.divide(x, number(4.0)), number(3.0)), 0.75),
        (lambda x: op.multiply(x, relax.const(np.full((1, 1), 0.5, np.float32))), 0.5),
    ],
    ids=["divided", "number first", "two", "[[number]]"],
)
def test_forms(scaled: Body, factor: float) -> None:
    before = module(lambda q, k: op.matmul(scaled(q), transposed(k)), HEADS, HEADS)
    after = module(
        lambda q, k: op.multiply(op.matmul(q, transposed(k)), number(factor)), HEADS, HEADS
    )
    assert_becomes(before, sink_scale(), after)


def test_a_query_that_is_rounded_to_bfloat16() -> None:
    """Scales move past the casts: the product reads the query and the rounded key unscaled."""
    narrow = ((2, 3, 5, 8), "bfloat16")
    wide = ((2, 3, 8, 5), "float32")

    def before(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        q = op.astype(op.multiply(op.astype(q, "float32"), number(0.3)), "bfloat16")
        k = op.astype(op.multiply(k, number(0.5)), "bfloat16")
        return op.matmul(q, k, out_dtype="float32")

    def after(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        product = op.matmul(q, op.astype(k, "bfloat16"), out_dtype="float32")
        return op.multiply(product, number(float(np.float32(0.3)) * 0.5))

    assert_becomes(module(before, narrow, wide), sink_scale(), module(after, narrow, wide))


@pytest.mark.parametrize(
    "body",
    [
        lambda q, k: [op.matmul(s := op.multiply(q, number(0.3)), transposed(k)), op.exp(s)],
        lambda q, k: [s := op.multiply(q, number(0.3)), op.matmul(s, transposed(k))],
        lambda q, k: op.matmul(op.exp(op.multiply(q, number(0.3))), transposed(k)),
        lambda q, k: op.matmul(op.multiply(q, constant(8)), transposed(k)),
        lambda q, k: op.matmul(op.divide(number(0.3), q), transposed(k)),
        lambda q, k: op.matmul(op.multiply(q, number(0.0)), transposed(k)),
        lambda q, k: op.matmul(op.multiply(q, number(np.inf)), transposed(k)),
        lambda q, k: op.matmul(op.multiply(q, number(1e30)), transposed(k)),
        lambda q, k: op.matmul(op.multiply(q, number(0.3)), constant(8, 4)),
        lambda q, k: op.matmul(q, transposed(k)),
    ],
    ids=["used twice", "an output", "not linear", "a vector", "a reciprocal", "zero", "infinity",
         "too large", "times a weight", "no scale"],
)  # fmt: skip
def test_what_stays(body: Body) -> None:
    assert_stays(module(body, HEADS, HEADS), sink_scale())


def test_values() -> None:
    """Both forms round K + 3 times in all: |difference| <= 2 (K + 3) 2^-24 of the magnitudes."""
    size = 8
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 5, 24)).astype(np.float32)
    k = rng.standard_normal((2, 3, 5, 8)).astype(np.float32)

    def body(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        left = op.divide(heads(q), number(3.0))
        return op.matmul(left, op.multiply(transposed(k), number(0.7)))

    before = module(body, ROWS, HEADS)
    after = sink_scale()(before)
    assert operators(after) != operators(before)
    (wanted,), (got,) = run(before, [q, k]), run(after, [q, k])
    apart = np.swapaxes(q.reshape(2, 5, 3, 8), 1, 2)
    magnitude = np.abs(apart) @ np.abs(np.swapaxes(k, -1, -2)) * (0.7 / 3.0)
    assert (np.abs(got - wanted) <= 2 * (size + 3) * 2**-24 * magnitude).all()
