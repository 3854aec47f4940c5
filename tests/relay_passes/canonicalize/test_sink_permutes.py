"""Permutations move down only where that saves work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.views import compose_views, drop_views, sink_permutes
from relay_passes.ir.rules import rules
from tests.relay_passes.graphs import constant, module, run

op = relax.op
F = "float32"
SHAPE = (2, 5, 3)
X = (SHAPE, F)
Body = Callable[..., relax.Expr]
SINK = rules("sink", [sink_permutes, compose_views, drop_views])  # where permutations cancel


def turn(x: relax.Expr) -> relax.Expr:
    return op.permute_dims(x, [0, 2, 1])


def permutations(mod: IRModule) -> int:
    return mod.script().count("R.permute_dims")


def same_values(before: IRModule, after: IRModule, count: int = 1) -> None:
    """Elementwise operators give the same bits wherever they run."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([int(e) for e in p.ty.shape]).astype(str(p.ty.dtype))
        for p in before["main"].params
    ]
    assert len(arrays) == count
    for wanted, result in zip(run(before, arrays), run(after, arrays), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_through_elementwise_operators_into_a_reduction() -> None:
    bias = constant(3, 1)
    transposed_bias = relax.const(bias.value.numpy().reshape(3))
    before = module(lambda x: op.max(op.nn.relu(op.add(turn(x), bias)), axis=[2]), X)
    after = module(lambda x: op.max(op.nn.relu(op.add(x, transposed_bias)), axis=[1]), X)
    assert_structural_equal(SINK(before), after)


def test_keepdims_leaves_a_reshape() -> None:
    before = module(lambda x: op.max(turn(x), axis=[2], keepdims=True), X)
    after = module(lambda x: op.reshape(op.max(x, axis=[1], keepdims=True), (2, 3, 1)), X)
    assert_structural_equal(SINK(before), after)


@pytest.mark.sampled
@pytest.mark.parametrize("axis", [0, 1, 2, -1, [0, 2], None], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_the_axes_of_a_reduction(axis: int | list[int] | None, keepdims: bool) -> None:
    before = module(lambda x: op.max(op.abs(turn(x)), axis=axis, keepdims=keepdims), X)
    after = SINK(before)
    assert permutations(after) <= 1
    same_values(before, after)


def test_inverse_permutations_meet() -> None:
    before = module(lambda x: turn(op.multiply(op.nn.relu(turn(x)), relax.const(2.0))), X)
    after = module(lambda x: op.multiply(op.nn.relu(x), relax.const(2.0)), X)
    assert_structural_equal(SINK(before), after)


def test_extents_of_one_come_and_go() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        image = op.permute_dims(op.expand_dims(x, 3), [0, 2, 1, 3])
        return turn(op.squeeze(op.nn.relu(image), [3]))

    mod = SINK(module(before, X))
    assert permutations(mod) == 0
    same_values(module(before, X), mod)


def test_a_chain_that_branches_and_joins() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        y = turn(x)
        return turn(op.add(op.tanh(y), op.multiply(y, constant(2, 3, 5))))

    mod = SINK(module(before, X))
    assert permutations(mod) == 0
    same_values(module(before, X), mod)


def test_two_inputs_transposed_alike_become_one_permutation() -> None:
    before = module(lambda x, y: op.add(turn(x), turn(y)), X, X)
    after = module(lambda x, y: turn(op.add(x, y)), X, X)
    assert_structural_equal(SINK(before), after)


def test_an_operand_of_one_channel_vector_is_reshaped() -> None:
    before = module(lambda x, y: op.max(op.add(turn(x), y), axis=[2]), X, ((3, 1), F))
    after = SINK(before)
    assert permutations(after) == 0
    same_values(before, after, 2)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            lambda x: [op.nn.softmax(turn(x)), op.nn.relu(turn(x))], id="needed in both orders"
        ),
        pytest.param(lambda x: op.nn.softmax(turn(x)), id="softmax"),
        pytest.param(lambda x: op.add(turn(x), constant(4, 2, 3, 5)), id="more axes"),
        pytest.param(
            lambda x: op.add(
                op.permute_dims(op.sum(x, [2], keepdims=True), [1, 0, 2]), constant(5, 2, 9)
            ),
            id="a larger result",
        ),
        pytest.param(lambda x: op.reshape(turn(x), (6, 5)), id="a real reshape"),
        pytest.param(lambda x: op.nn.relu(op.expand_dims(x, 0)), id="nothing moves"),
        pytest.param(
            lambda x: op.nn.relu(turn(op.matmul(x, turn(x)))), id="in the store of batch_matmul"
        ),
    ],
)
def test_what_does_not_pay_stays(body: Body) -> None:
    mod = relax.transform.DeadCodeElimination()(module(body, X))
    assert_structural_equal(SINK(mod), mod)


def test_another_value_in_the_old_order_stays() -> None:
    mod = module(lambda x, y: op.add(turn(x), y), X, ((2, 3, 5), F))
    assert_structural_equal(SINK(mod), mod)


def test_it_is_done_after_one_run() -> None:
    once = SINK(module(lambda x: op.exp(op.add(turn(x), constant(3, 1))), X))
    assert permutations(once) == 1
    assert_structural_equal(SINK(once), once)


def random_operator(
    rng: np.random.Generator, y: relax.Expr, shape: list[int]
) -> tuple[relax.Expr, list[int]]:
    """An operator on y, and its result's shape."""
    kind = rng.integers(6)
    if kind == 0:
        order = [int(axis) for axis in rng.permutation(len(shape))]
        return op.permute_dims(y, order), [shape[axis] for axis in order]
    if kind == 1 and len(shape) < 5:
        axis = int(rng.integers(len(shape) + 1))
        return op.expand_dims(y, axis), [*shape[:axis], 1, *shape[axis:]]
    if kind == 2 and 1 in shape:
        axis = shape.index(1)
        return op.squeeze(y, [axis]), [*shape[:axis], *shape[axis + 1 :]]
    if kind == 3 and len(shape) > 2:
        axis, keepdims = int(rng.integers(len(shape))), bool(rng.integers(2))
        return op.max(y, [axis], keepdims), [*shape[:axis], *[1] * keepdims, *shape[axis + 1 :]]
    if kind == 4:
        extents = [extent if rng.integers(2) else 1 for extent in shape]
        return op.subtract(constant(*extents[int(rng.integers(len(shape))) :]), y), shape
    return op.nn.relu(y), shape


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_keep_their_values_and_gain_no_permutation(seed: int) -> None:
    """Random graphs of permutations, unit axes, elementwise operators and reductions."""
    rng = np.random.default_rng(seed)

    def body(x: relax.Expr) -> list[relax.Expr]:
        values: list[tuple[relax.Expr, list[int]]] = [(x, [2, 5, 1, 3])]
        for _ in range(9):
            recent = values[-3:]
            values.append(random_operator(rng, *recent[rng.integers(len(recent))]))
        return [values[-1][0], values[-3][0]]

    before = module(body, ((2, 5, 1, 3), F))
    after = SINK(before)
    assert permutations(after) <= permutations(before)
    same_values(before, after)


def test_a_widening_cast_is_a_floor() -> None:
    """A permutation moves the 8-bit tensor, not the 32 bits it is widened to before a product."""
    weight = relax.const(np.arange(10, dtype=np.int8).reshape(5, 2))

    def product(x: relax.Expr) -> relax.Expr:
        wide = op.subtract(op.astype(turn(x), "int32"), relax.const(3, "int32"))
        return op.matmul(wide, op.astype(weight, "int32"), out_dtype="int32")

    before = module(product, (SHAPE, "uint8"))
    assert_structural_equal(SINK(before), before)
