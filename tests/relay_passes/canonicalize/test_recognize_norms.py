"""Layer and RMS normalisation are recognised in every spelling; look-alikes are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.normalizations import recognize_norms
from tests.relay_passes.graphs import constant, module, run

SHAPE = (2, 3, 8)
X = (SHAPE, "float32")
EPSILON = 1e-6
Formula = Callable[..., relax.Expr]
op = relax.op


def c(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def gamma() -> relax.Expr:
    return constant(8, seed=1)


def beta() -> relax.Expr:
    return constant(8, seed=2)


def mean(x: relax.Expr, axis: list[int] | None = None) -> relax.Expr:
    return op.mean(x, axis=[-1] if axis is None else axis, keepdims=True)


def spread(squared: relax.Expr, epsilon: float = EPSILON) -> relax.Expr:
    return op.add(mean(squared), c(epsilon))


def by_power(x: relax.Expr) -> relax.Expr:
    return spread(op.power(x, c(2.0)))


def centered(x: relax.Expr) -> relax.Expr:
    return op.subtract(x, mean(x))


RMS: dict[str, Formula] = {
    "reciprocal of sqrt": lambda x: op.multiply(
        gamma(), op.multiply(x, op.divide(c(1.0), op.sqrt(by_power(x))))
    ),
    "division by sqrt": lambda x: op.multiply(op.divide(x, op.sqrt(by_power(x))), gamma()),
    "rsqrt of x * x": lambda x: op.multiply(
        op.multiply(x, gamma()), op.rsqrt(spread(op.multiply(x, x)))
    ),
    "division by a power": lambda x: op.multiply(
        op.divide(x, op.power(by_power(x), c(0.5))), gamma()
    ),
    "power": lambda x: op.multiply(
        op.multiply(x, op.power(spread(op.square(x)), c(-0.5))), gamma()
    ),
    "epsilon first": lambda x: op.multiply(
        op.divide(x, op.sqrt(op.add(c(EPSILON), mean(op.square(x))))), gamma()
    ),
    "weight of full rank": lambda x: op.multiply(
        op.divide(x, op.sqrt(by_power(x))), relax.const(gamma().value.numpy().reshape(1, 1, 8))
    ),
}
LAYER: dict[str, Formula] = {
    "division by sqrt": lambda x: op.add(
        op.multiply(op.divide(centered(x), op.sqrt(by_power(centered(x)))), gamma()), beta()
    ),
    "scale folded into the root": lambda x: op.add(
        beta(), op.multiply(op.multiply(op.rsqrt(by_power(centered(x))), gamma()), centered(x))
    ),
    "variance": lambda x: op.add(
        op.multiply(
            op.multiply(
                centered(x), op.rsqrt(op.add(op.variance(x, axis=[-1], keepdims=True), c(EPSILON)))
            ),
            gamma(),
        ),
        beta(),
    ),
}


def rms(x: relax.Expr, weight: relax.Expr | None = None) -> relax.Expr:
    return op.nn.rms_norm(x, gamma() if weight is None else weight, [-1], EPSILON)


def layer(x: relax.Expr) -> relax.Expr:
    return op.nn.layer_norm(x, gamma(), beta(), [-1], EPSILON)


def assert_becomes(before: IRModule, after: IRModule) -> None:
    assert_structural_equal(recognize_norms()(before), after)


@pytest.mark.parametrize("formula", RMS.values(), ids=RMS.keys())
def test_every_spelling_of_rms_norm(formula: Formula) -> None:
    got, wanted = recognize_norms()(module(formula, X)), module(rms, X)
    assert "R.nn.rms_norm" in got.script()
    assert_close_constants(got, wanted)


@pytest.mark.parametrize("formula", LAYER.values(), ids=LAYER.keys())
def test_every_spelling_of_layer_norm(formula: Formula) -> None:
    assert_close_constants(recognize_norms()(module(formula, X)), module(layer, X))


def assert_close_constants(got: IRModule, wanted: IRModule) -> None:
    """Structural equality; epsilon went through float32 once."""
    (got_call,), (wanted_call,) = (
        [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
        for mod in (got, wanted)
    )
    assert got_call.attrs.epsilon == np.float32(wanted_call.attrs.epsilon)
    assert list(got_call.attrs.axes) == list(wanted_call.attrs.axes)
    assert_structural_equal(got_call.op, wanted_call.op)
    for mine, theirs in zip(got_call.args[1:], wanted_call.args[1:], strict=True):
        assert_structural_equal(mine, theirs)


def test_missing_scale_and_shift_are_ones_and_zeros() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        return op.divide(centered(x), op.sqrt(spread(op.square(centered(x)), 0.5)))

    def after(x: relax.Expr) -> relax.Expr:
        ones, zeros = relax.const(np.ones(8, "float32")), relax.const(np.zeros(8, "float32"))
        return op.nn.layer_norm(x, ones, zeros, [-1], 0.5)

    assert_becomes(module(before, X), module(after, X))


def test_a_number_as_scale_is_spread_and_a_value_is_taken_as_it_is() -> None:
    def scaled(x: relax.Expr) -> relax.Expr:
        return op.multiply(op.divide(x, op.sqrt(spread(op.square(x), 0.5))), c(3.0))

    def threes(x: relax.Expr) -> relax.Expr:
        return op.nn.rms_norm(x, relax.const(np.full(8, 3, "float32")), [-1], 0.5)

    assert_becomes(module(scaled, X), module(threes, X))

    def weighted(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.multiply(op.divide(x, op.sqrt(spread(op.square(x), 0.5))), w)

    def taken(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.nn.rms_norm(x, w, [-1], 0.5)

    weight = ((8,), "float32")
    assert_becomes(module(weighted, X, weight), module(taken, X, weight))


def test_a_multiple_of_a_value_is_no_weight() -> None:
    """A factor that is a value, not a constant, stays a product after the normalisation."""

    def before(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        normal = op.multiply(x, op.rsqrt(spread(op.square(x), 0.5)))
        return op.multiply(normal, op.multiply(w, c(2.0)))

    def after(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        ones = relax.const(np.ones(8, "float32"))
        return op.multiply(op.nn.rms_norm(x, ones, [-1], 0.5), op.multiply(w, c(2.0)))

    weight = ((8,), "float32")
    assert_becomes(module(before, X, weight), module(after, X, weight))


def test_several_trailing_axes() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        apart = op.subtract(x, mean(x, [1, 2]))
        root = op.sqrt(op.add(mean(op.square(apart), [1, 2]), c(0.5)))
        return op.multiply(op.divide(apart, root), constant(3, 8))

    def after(x: relax.Expr) -> relax.Expr:
        zeros = relax.const(np.zeros((3, 8), "float32"))
        return op.nn.layer_norm(x, constant(3, 8), zeros, [-2, -1], 0.5)

    assert_becomes(module(before, X), module(after, X))


def test_a_residual_is_no_shift() -> None:
    def before(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        normal = op.divide(centered(x), op.sqrt(spread(op.square(centered(x)), 0.5)))
        return op.add(op.multiply(normal, gamma()), y)

    def after(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        zeros = relax.const(np.zeros(8, "float32"))
        return op.add(op.nn.layer_norm(x, gamma(), zeros, [-1], 0.5), y)

    assert_becomes(module(before, X, X), module(after, X, X))


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: op.divide(x, op.sqrt(op.add(mean(op.square(x), [1]), c(EPSILON)))),
        lambda x: op.divide(op.abs(x), op.sqrt(by_power(x))),
        lambda x: op.divide(x, by_power(x)),
        lambda x: op.multiply(x, op.sqrt(by_power(x))),
        lambda x: op.divide(x, op.sqrt(spread(op.power(x, c(3.0))))),
        lambda x: op.divide(x, op.sqrt(spread(op.square(x), -1.0))),
        lambda x: op.divide(x, op.sqrt(by_power(centered(x)))),
        lambda x: op.add(op.divide(x, op.sqrt(by_power(x))), beta()),
    ],
)
def test_a_similar_formula_stays(formula: Formula) -> None:
    mod = module(formula, X)
    got = recognize_norms()(mod)
    assert "layer_norm" not in got.script()
    if "rms_norm" in got.script():  # the last one: RMS normalisation, and a sum that stays
        assert "R.add" in got.script()
    else:
        assert_structural_equal(got, mod)


def test_values_stay_and_an_intermediate_used_elsewhere_too() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        apart = centered(x)
        variance = mean(op.square(apart))
        normal = op.divide(apart, op.sqrt(op.add(variance, c(1e-3))))
        return [op.add(op.multiply(normal, gamma()), beta()), variance]

    mod = module(before, X)
    recognized = recognize_norms()(mod)
    assert "R.nn.layer_norm" in recognized.script()
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    for result, wanted in zip(run(recognized, [x]), run(mod, [x]), strict=True):
        # Sums of 8 numbers of order 1 in another order, scaled by less than 4.
        assert np.abs(result - wanted).max() <= 4 * 8 * 8 * np.finfo(np.float32).eps
