"""Values that depend on constants alone are computed at compile time."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.constants import evaluate_constants
from relay_passes.ir.constants import array_of, constants_of
from tests.relay_passes.graphs import constant, module, run
from tests.relay_passes.quantized import operators

op = relax.op
X = ((3, 4), "float32")


def without_dead_code(mod: IRModule) -> IRModule:
    return relax.transform.DeadCodeElimination()(mod)


def positions() -> relax.Expr:
    """j - i for four keys j and three queries i."""
    keys = op.expand_dims(op.arange(0, 4, 1, "int64"), [0])
    return op.subtract(keys, op.expand_dims(op.arange(0, 3, 1, "int64"), [1]))


def causal() -> relax.Expr:
    """A causal mask as torch.export writes it."""
    seen = op.less_equal(positions(), relax.const(0, "int64"))
    seen = op.logical_and(seen, op.full((3, 4), relax.const(True, "bool"), "bool"))
    return op.where(seen, relax.const(np.float32(0)), relax.const(np.float32(-np.inf)))


def triangle() -> relax.Expr:
    """The mask of `causal` from a triangle of ones."""
    hidden = op.equal(op.tril(op.ones((3, 4), "float32")), relax.const(np.float32(0)))
    return op.where(hidden, relax.const(np.float32(-np.inf)), relax.const(np.float32(0)))


@pytest.mark.parametrize("mask", [causal, triangle])
def test_a_mask_becomes_a_constant(mask: Callable[[], relax.Expr]) -> None:
    before = module(lambda x: op.add(x, mask()), X)
    wanted = np.where(np.tri(3, 4, dtype=bool), 0, -np.inf).astype(np.float32)
    after = module(lambda x: op.add(x, relax.const(wanted)), X)
    assert_structural_equal(evaluate_constants()(before), after)


def test_a_tensor_without_dimensions_keeps_its_shape() -> None:
    before = module(lambda x: op.multiply(x, op.ones((), "float32")), X)
    after = module(lambda x: op.multiply(x, relax.const(np.float32(1))), X)
    assert_structural_equal(evaluate_constants()(before), after)


def test_pieces_of_a_constant() -> None:
    """The gates' slices of a bias, as the first step of a recurrent layer reads them."""
    bias = constant(3, 9)

    def gates(x: relax.Expr) -> relax.Expr:
        pieces = op.split(bias, [2, 6], axis=-1)
        return op.add(x, relax.TupleGetItem(pieces, 1))

    result = evaluate_constants()(module(gates, ((3, 4), "float32")))
    after = module(
        lambda x: op.add(x, relax.const(array_of(bias.value)[:, 2:6].copy())), ((3, 4), "float32")
    )
    assert_structural_equal(without_dead_code(result), after)


def test_rows_of_a_table() -> None:
    table = constant(5, 4)
    rows = op.take(table, op.arange(1, 4, 1, "int32"), axis=0, mode="clip")
    result = evaluate_constants()(module(lambda x: op.add(x, rows), X))
    (found,) = constants_of(result)
    np.testing.assert_array_equal(array_of(found.value), array_of(table.value)[1:4])


@pytest.mark.parametrize(
    "term",
    [
        lambda: op.zeros((3, 4), "float32"),
        lambda: op.broadcast_to(relax.const(np.float32(2)), (3, 4)),
        lambda: op.reshape(op.full((4, 3), relax.const(np.float32(2))), (3, 4)),
        lambda: op.exp(constant(3, 4)),
        lambda: op.take(constant(5, 4), relax.const(np.array([1, 5, 2])), axis=0),
    ],
    ids=["zeros", "a number", "a number in another shape", "no arithmetic of IEEE", "outside"],
)
def test_what_stays(term: Callable[[], relax.Expr]) -> None:
    mod = module(lambda x: op.add(x, term()), X)
    assert_structural_equal(evaluate_constants()(mod), mod)


def test_integers_of_eight_bits_stay_weights() -> None:
    weight = relax.const(np.arange(12, dtype=np.int8).reshape(3, 4))
    mod = module(lambda x: op.add(x, op.astype(op.add(weight, weight), "float32")), X)
    assert_structural_equal(evaluate_constants()(mod), mod)


def test_the_values_are_those_of_the_operators() -> None:
    rng = np.random.default_rng(0)
    a, b = constant(3, 4, seed=1), constant(4, seed=2)

    def body(x: relax.Expr) -> relax.Expr:
        chosen = op.where(op.greater(a, b), op.multiply(a, b), op.subtract(op.negative(a), b))
        return op.add(x, op.add(chosen, op.triu(a, 1)))

    before = module(body, X)
    after = evaluate_constants()(before)
    assert "where" not in after.script()
    x = rng.standard_normal(X[0]).astype(np.float32)
    np.testing.assert_array_equal(run(after, [x])[0], run(before, [x])[0])


def test_a_product_with_zeros() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        state = op.reshape(op.zeros((1, 2, 4), "float32"), (2, 4))
        return op.add(x, op.add(op.matmul(state, constant(4, 3)), bias))

    bias = constant(3)
    wanted = np.broadcast_to(array_of(bias.value), (2, 3))
    after = module(lambda x: op.add(x, relax.const(wanted)), ((2, 3), "float32"))
    found = evaluate_constants()(module(before, ((2, 3), "float32")))
    assert_structural_equal(found, after)


@pytest.mark.parametrize("name", ["table", "state"])
def test_bfloat16_without_arithmetic(name: str) -> None:
    bf16 = ml_dtypes.bfloat16
    numbers = array_of(constant(4, 3).value).astype(bf16)
    weight = relax.const(numbers, "bfloat16")

    def before(x: relax.Expr) -> relax.Expr:
        if name == "table":
            rows = op.take(weight, op.arange(1, 3, 1, "int32"), axis=0, mode="clip")
            return op.add(x, op.astype(rows, "float32"))
        state = op.reshape(op.full((1, 2, 4), relax.const(0, "bfloat16"), "bfloat16"), (2, 4))
        sums = op.add(op.matmul(state, weight, out_dtype="float32"), relax.const(np.float32(1)))
        return op.add(x, op.multiply(sums, constant(2, 3)))

    wanted = numbers[1:3].astype(np.float32) if name == "table" else array_of(constant(2, 3).value)
    x = ((2, 3), "float32")
    after = module(lambda x: op.add(x, relax.const(wanted)), x)
    assert_structural_equal(evaluate_constants()(module(before, x)), after)


def test_sums_of_bfloat16_stay() -> None:
    one = relax.const(np.ones((2, 3), ml_dtypes.bfloat16), "bfloat16")
    mod = module(lambda x: op.add(x, op.add(one, one)), ((2, 3), "bfloat16"))
    assert_structural_equal(evaluate_constants()(mod), mod)


def test_zeros_times_infinity_stay() -> None:
    weight = relax.const(np.full((4, 3), np.inf, np.float32))
    mod = module(
        lambda x: op.add(x, op.matmul(op.zeros((2, 4), "float32"), weight)), ((2, 3), "float32")
    )
    assert_structural_equal(evaluate_constants()(mod), mod)


def test_a_state_of_float16_that_is_cast() -> None:
    """The zero state before the first step of a recurrent layer, as torch.export writes it."""

    def before(x: relax.Expr) -> relax.Expr:
        zeros = op.full((1, 2, 3), relax.const(0.0, "float16"), "float16")
        state = op.squeeze(op.strided_slice(zeros, [0], [0], [1], [1]), [0])
        product = op.matmul(op.astype(state, "float32"), constant(3, 4))
        return op.add(x, op.add(product, constant(4)))

    result = without_dead_code(evaluate_constants()(module(before, ((2, 4), "float32"))))
    assert operators(result)["matmul"] == 0 and operators(result)["add"] == 1


def test_numbers_of_float16_are_cast_and_moved_but_not_added() -> None:
    half = np.arange(6, dtype=np.float16).reshape(2, 3)
    w = relax.const(half)

    def before(x: relax.Expr) -> relax.Expr:
        return op.add(x, op.astype(op.permute_dims(w), "float32"))

    after = module(lambda x: op.add(x, relax.const(half.T.astype(np.float32))), ((3, 2), "float32"))
    result = without_dead_code(evaluate_constants()(module(before, ((3, 2), "float32"))))
    assert_structural_equal(result, after)
    sums = module(lambda x: op.add(x, op.add(w, w)), ((2, 3), "float16"))
    assert_structural_equal(evaluate_constants()(sums), sums)
