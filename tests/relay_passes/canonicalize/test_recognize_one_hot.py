"""One-hot products become look-ups; operators after a look-up go into its table."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.indices import recognize_one_hot
from tests.relay_passes.graphs import compiled, constant, module

CLASSES, COLUMNS = 7, 3
IDS = np.array([[0, 6, 3, 3, -1, 7, 2**31 - 1, -(2**31), 5, 1]], np.int32)
op = relax.op


def one_hot(ids: relax.Expr, first: int = 0) -> relax.Expr:
    classes = relax.const(np.arange(first, first + CLASSES, dtype=np.int32).reshape(1, 1, -1))
    return op.astype(op.equal(op.reshape(ids, (1, 10, 1)), classes), "float32")


def test_product_bias_and_activation_become_one_look_up() -> None:
    weight, bias = constant(CLASSES, COLUMNS), constant(1, 1, COLUMNS, seed=1)
    other = constant(CLASSES, COLUMNS, seed=2)

    def body(ids: relax.Expr) -> list[relax.Expr]:
        product = op.matmul(one_hot(ids), weight)
        shifted = op.add(product, bias)
        return [
            op.nn.gelu_tanh(shifted),
            op.multiply(relax.const(2.0), op.matmul(one_hot(ids), other)),
        ]

    before = module(body, (IDS.shape, "int32"))
    after = recognize_one_hot()(before)
    text = after.script()
    assert text.count("R.take") == 2 and "R.matmul" not in text and "gelu" not in text
    for wanted, got in zip(compiled(before)(IDS), compiled(after)(IDS), strict=True):
        # A product, a sum and 20 roundings of gelu_tanh on values of at most 4.
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_operators_move_to_a_table_that_is_no_larger() -> None:
    def looked_up(table: np.ndarray) -> relax.Expr:
        return op.take(relax.const(table), relax.const(IDS.clip(0, 6)[0]), axis=0, mode="clip")

    table = np.random.default_rng(0).standard_normal((CLASSES, COLUMNS)).astype(np.float32)

    def body(x: relax.Expr) -> relax.Expr:
        return op.add(op.nn.relu(op.multiply(looked_up(table), relax.const(0.5))), x)

    def after(x: relax.Expr) -> relax.Expr:
        return op.add(looked_up(np.maximum(table * np.float32(0.5), 0)), x)

    x = ((10, COLUMNS), "float32")
    assert_structural_equal(recognize_one_hot()(module(body, x)), module(after, x))
    large = np.zeros((50, COLUMNS), np.float32)
    mod = module(lambda x: op.add(op.nn.relu(looked_up(large)), x), x)
    assert_structural_equal(recognize_one_hot()(mod), mod)


@pytest.mark.parametrize("first", [1, 0])
def test_other_comparisons_stay(first: int) -> None:
    weight = constant(CLASSES, COLUMNS)

    def body(ids: relax.Expr) -> list[relax.Expr]:
        rows = one_hot(ids, first)
        return [op.matmul(rows if first else op.add(rows, rows), weight)]

    mod = module(body, (IDS.shape, "int32"))
    assert_structural_equal(recognize_one_hot()(mod), mod)
