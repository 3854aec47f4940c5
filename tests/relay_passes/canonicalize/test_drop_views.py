"""Views that change nothing vanish, also around a softmax."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.views import drop_views
from tests.relay_passes.graphs import module

Body = Callable[[relax.Expr], relax.Expr]
op = relax.op


def around(shape: tuple[int, ...], flat: tuple[int, ...], operator: Body) -> Body:
    return lambda x: op.reshape(operator(op.reshape(x, flat)), shape)


@pytest.mark.parametrize(
    ("shape", "flat", "axis"),
    [
        ((1, 8, 4, 5), (32, 5), -1),
        ((2, 6, 1, 1), (2, 6), 1),
        ((2, 6), (1, 2, 6), -1),
        ((2, 1, 6, 1), (2, 6), 2),
    ],
)
@pytest.mark.parametrize("operator", [op.nn.softmax, op.nn.log_softmax])
def test_a_softmax_of_old_models(
    shape: tuple[int, ...], flat: tuple[int, ...], axis: int, operator: Callable[..., relax.Expr]
) -> None:
    before = module(around(shape, flat, operator), (shape, "float32"))
    after = module(lambda x: operator(x, axis=axis), (shape, "float32"))
    assert_structural_equal(drop_views()(before), after)


@pytest.mark.parametrize(
    "body",
    [
        around((2, 3, 4), (2, 12), op.nn.softmax),  # over two axes at once
        around((2, 3, 4), (6, 4), lambda y: op.nn.softmax(y, axis=0)),
        lambda x: op.reshape(op.nn.softmax(op.reshape(x, (6, 4))), (4, 6)),
        around((2, 3, 4), (6, 4), op.nn.relu),
    ],
)
def test_another_softmax_stays(body: Body) -> None:
    mod = module(body, ((2, 3, 4), "float32"))
    assert_structural_equal(drop_views()(mod), mod)


@pytest.mark.parametrize("reduce", [op.mean, op.sum, op.max, op.min])
def test_axes_that_a_reduction_keeps_to_be_dropped(reduce: Callable[..., relax.Expr]) -> None:
    x = ((2, 3, 4, 5), "float32")
    before = module(lambda x: op.reshape(reduce(x, [2, -1], keepdims=True), (2, 3)), x)
    assert_structural_equal(drop_views()(before), module(lambda x: reduce(x, [2, 3]), x))


def _read_twice(x: relax.Expr) -> list[relax.Expr]:
    kept = op.mean(x, [2, 3], keepdims=True)
    return [op.subtract(x, kept), op.reshape(kept, (2, 3))]


@pytest.mark.parametrize(
    "body",
    [
        _read_twice,
        lambda x: op.reshape(op.mean(x, [2, 3], keepdims=True), (6,)),
        lambda x: op.reshape(op.mean(x, [2, 3], keepdims=True), (2, 3, 1)),
    ],
    ids=["read twice", "fewer axes", "one axis left"],
)
def test_axes_of_a_reduction_that_stay(body: Body) -> None:
    mod = module(body, ((2, 3, 4, 5), "float32"))
    assert_structural_equal(drop_views()(mod), mod)


def test_views_of_views() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        first = op.squeeze(op.reshape(x, (1, 6, 4)), [0])
        return [
            op.nn.relu(first),
            op.reshape(op.expand_dims(x, 0), (2, 3, 4)),
            op.reshape(x, (2, 3, 4)),
        ]

    mod = drop_views()(module(before, ((2, 3, 4), "float32")))
    text = mod.script()
    assert text.count("R.reshape") == 1 and "R.squeeze" not in text and "expand_dims" not in text


def test_a_broadcast_to_the_same_shape() -> None:
    before = module(lambda x: op.exp(op.broadcast_to(x, (2, 3))), ((2, 3), "float32"))
    after = module(op.exp, ((2, 3), "float32"))
    assert_structural_equal(drop_views()(before), after)
    wide = module(lambda x: op.exp(op.broadcast_to(x, (2, 3))), ((1, 3), "float32"))
    assert_structural_equal(drop_views()(wide), wide)
