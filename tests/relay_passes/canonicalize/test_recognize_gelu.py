"""gelu, gelu_tanh and silu are recognised in every spelling; look-alikes are not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.activations import recognize_gelu
from tests.relay_passes.graphs import module, run

SHAPE = (3, 5)
X = (SHAPE, "float32")
Formula = Callable[[relax.Expr], relax.Expr]
add, multiply, divide = relax.op.add, relax.op.multiply, relax.op.divide


def c(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def power(x: relax.Expr, exponent: float) -> relax.Expr:
    return relax.op.power(x, c(exponent))


def cdf(x: relax.Expr) -> relax.Expr:
    return add(relax.op.erf(divide(x, c(math.sqrt(2)))), c(1.0))


def cubic(x: relax.Expr) -> relax.Expr:
    inner = add(x, multiply(c(0.044715), power(x, 3.0)))
    return relax.op.tanh(multiply(c(math.sqrt(2 / math.pi)), inner))


def ones() -> relax.Expr:
    return relax.const(np.ones(SHAPE, "float32"))


GELU: dict[str, Formula] = {
    "half last": lambda x: multiply(multiply(x, cdf(x)), c(0.5)),
    "half first": lambda x: multiply(multiply(c(0.5), x), cdf(x)),
    "half inside": lambda x: multiply(multiply(cdf(x), c(0.5)), x),
    "half by division": lambda x: divide(multiply(x, cdf(x)), c(2.0)),
    "reciprocal root": lambda x: multiply(
        x, multiply(c(0.5), add(c(1.0), relax.op.erf(multiply(c(math.sqrt(0.5)), x))))
    ),
    "spread out": lambda x: add(
        multiply(x, c(0.5)), multiply(multiply(x, c(0.5)), relax.op.erf(divide(x, c(math.sqrt(2)))))
    ),
    "ones of full shape": lambda x: multiply(
        multiply(x, add(ones(), relax.op.erf(divide(x, c(math.sqrt(2)))))), c(0.5)
    ),
}
GELU_TANH: dict[str, Formula] = {
    "power": lambda x: multiply(multiply(c(0.5), x), add(c(1.0), cubic(x))),
    "products": lambda x: multiply(
        x,
        multiply(
            c(0.5),
            add(
                ones(),
                relax.op.tanh(
                    multiply(
                        c(0.79788458), add(x, multiply(x, multiply(x, multiply(c(0.044714998), x))))
                    )
                ),
            ),
        ),
    ),
    "factored": lambda x: multiply(
        multiply(
            add(
                c(1.0),
                relax.op.tanh(
                    multiply(
                        multiply(x, c(0.7978845608)),
                        add(c(1.0), multiply(multiply(x, c(0.044715)), x)),
                    )
                ),
            ),
            x,
        ),
        c(0.5),
    ),
}
SILU: dict[str, Formula] = {
    "x first": lambda x: multiply(x, relax.op.sigmoid(x)),
    "x last": lambda x: multiply(relax.op.sigmoid(x), x),
}
CASES = [
    *(pytest.param(f, relax.op.nn.gelu, id=f"gelu, {name}") for name, f in GELU.items()),
    *(pytest.param(f, relax.op.nn.gelu_tanh, id=f"tanh, {name}") for name, f in GELU_TANH.items()),
    *(pytest.param(f, relax.op.nn.silu, id=f"silu, {name}") for name, f in SILU.items()),
]


@pytest.mark.parametrize(("formula", "operator"), CASES)
def test_every_spelling_becomes_the_operator(formula: Formula, operator: Formula) -> None:
    assert_structural_equal(recognize_gelu()(module(formula, X)), module(operator, X))


@pytest.mark.parametrize(("formula", "operator"), CASES[:1] + CASES[len(GELU) : len(GELU) + 1])
def test_x_may_be_a_sum_and_the_result_be_used_further(formula: Formula, operator: Formula) -> None:
    def surrounded(inner: Formula) -> IRModule:
        return module(lambda x, y: relax.op.add(inner(relax.op.add(x, y)), y), X, X)

    assert_structural_equal(recognize_gelu()(surrounded(formula)), surrounded(operator))


def test_an_intermediate_used_elsewhere_stays() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        gate = relax.op.sigmoid(x)
        return [multiply(x, gate), gate]

    def after(x: relax.Expr) -> list[relax.Expr]:
        return [relax.op.nn.silu(x), relax.op.sigmoid(x)]

    mod = recognize_gelu()(module(before, X))
    x = np.linspace(-3, 3, 15, dtype=np.float32).reshape(SHAPE)
    for result, wanted in zip(run(mod, [x]), run(module(after, X), [x]), strict=True):
        assert (result == wanted).all()
    assert "R.nn.silu" in mod.script()


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: multiply(multiply(x, cdf(x)), c(0.51)),
        lambda x: multiply(multiply(x, add(relax.op.erf(x), c(1.0))), c(0.5)),
        lambda x: multiply(
            multiply(x, add(relax.op.erf(divide(x, c(math.sqrt(2)))), c(1.1))), c(0.5)
        ),
        lambda x: multiply(multiply(relax.op.abs(x), cdf(x)), c(0.5)),
        lambda x: multiply(x, relax.op.sigmoid(multiply(c(1.702), x))),
        lambda x: add(x, relax.op.sigmoid(x)),
        lambda x: multiply(
            multiply(c(0.5), x),
            add(c(1.0), relax.op.tanh(multiply(c(0.8), add(x, multiply(c(0.05), power(x, 3.0)))))),
        ),
    ],
)
def test_a_similar_formula_stays(formula: Formula) -> None:
    mod = module(formula, X)
    assert_structural_equal(recognize_gelu()(mod), mod)


def test_another_type_or_a_wider_result_stays() -> None:
    half = module(lambda x: multiply(x, relax.op.sigmoid(x)), (SHAPE, "float16"))
    assert_structural_equal(recognize_gelu()(half), half)

    def widened(x: relax.Expr) -> relax.Expr:
        ones_of_more = relax.const(np.ones((4, 3, 5), "float32"))
        erf = relax.op.erf(divide(x, c(math.sqrt(2))))
        return multiply(multiply(x, add(ones_of_more, erf)), c(0.5))

    mod = module(widened, X)
    assert_structural_equal(recognize_gelu()(mod), mod)
