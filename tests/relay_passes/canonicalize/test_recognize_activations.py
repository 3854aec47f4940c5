"""Hard-swish and hard-sigmoid are recognised in every spelling; look-alikes are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.activations import formulas, recognize_activations
from relay_passes.ir.graph import DataflowGraph, op_name
from tests.relay_passes.graphs import compiled, module

SHAPE = (4, 50)
X = (SHAPE, "float32")
Formula = Callable[[relax.Expr], relax.Expr]
op = relax.op
add, multiply, divide = op.add, op.multiply, op.divide


def c(value: float, *shape: int) -> relax.Expr:
    return relax.const(np.full(shape, value, "float32"))


def clip(x: relax.Expr, low: float, high: float) -> relax.Expr:
    return op.clip(x, relax.prim_value(low), relax.prim_value(high))


def relu6(x: relax.Expr) -> relax.Expr:
    return clip(add(x, c(3.0)), 0.0, 6.0)


FUSED = {"multiply": 2, "add": 1, "clip": 1}  # of hard-swish
SHIFTED = {"multiply": 2, "add": 2, "clip": 1}


def swish(x: np.ndarray) -> np.ndarray:
    return x * np.clip(x / 6 + 0.5, 0, 1)


CASES = [
    ("divided last", lambda x: divide(multiply(x, relu6(x)), c(6.0)), FUSED, swish),
    ("divided first", lambda x: multiply(divide(relu6(x), c(6.0, 1)), x), FUSED, swish),
    ("by a factor", lambda x: multiply(multiply(c(1 / 6), x), relu6(x)), FUSED, swish),
    ("as hard-sigmoid", lambda x: multiply(clip(add(multiply(c(1 / 6), x), c(0.5)), 0.0, 1.0),
                                           multiply(x, c(2.0))), FUSED, lambda x: 2 * swish(x)),
    ("minimum of maximum", lambda x: divide(multiply(
        x, op.minimum(c(6.0), op.maximum(add(c(3.0), x), c(0.0)))), c(6.0)), FUSED, swish),
    ("maximum of minimum", lambda x: divide(multiply(
        x, op.maximum(c(0.0), op.minimum(add(c(3.0), x), c(6.0)))), c(6.0)), FUSED, swish),
    ("with a scale and a shift", lambda x: add(multiply(c(0.25), divide(
        multiply(x, relu6(x)), c(6.0))), c(-0.5)), SHIFTED, lambda x: 0.25 * swish(x) - 0.5),
    ("with a negative scale", lambda x: op.subtract(c(1.5), divide(multiply(
        x, relu6(x)), c(2.0))), SHIFTED, lambda x: 1.5 - 3 * swish(x)),
    ("hard-sigmoid", lambda x: divide(relu6(x), c(6.0)), {"multiply": 1, "add": 1, "clip": 1},
     lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    ("shifted hard-sigmoid", lambda x: add(divide(clip(op.subtract(c(3.0), x), 0.0, 6.0),
                                                  c(6.0)), c(1.0)),
     {"multiply": 1, "add": 1, "clip": 1}, lambda x: np.clip(0.5 - x / 6, 0, 1) + 1),
]  # fmt: skip


def operators(mod: IRModule) -> dict[str, int]:
    """How often each operator is called."""
    found: dict[str, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            name = str(expr.op.name).removeprefix("relax.")
            found[name] = found.get(name, 0) + 1

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def test_every_spelling_becomes_one_clip_and_keeps_its_values() -> None:
    mod = recognize_activations()(module(lambda x: [case[1](x) for case in CASES], X))
    x = np.linspace(-5, 5, 200, dtype=np.float32).reshape(SHAPE)
    for (name, _, _, meaning), got in zip(CASES, compiled(mod)(x), strict=True):
        wanted = meaning(x.astype(np.float64))
        # Five roundings of values of at most 6 times |x| = 5 before the division: 5 * 30 * 2^-24.
        np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("formula", "count"), [pytest.param(*case[1:3], id=case[0]) for case in CASES]
)
def test_every_spelling_becomes_few_operators(formula: Formula, count: dict[str, int]) -> None:
    once = recognize_activations()(module(formula, X))
    assert operators(once) == count
    assert_structural_equal(recognize_activations()(once), once)


def test_x_may_be_a_sum_with_a_bias() -> None:
    bias = relax.const(np.arange(50, dtype="float32"))

    def body(x: relax.Expr) -> relax.Expr:
        y = add(x, bias)
        return divide(multiply(y, relu6(y)), c(6.0))

    mod = recognize_activations()(module(body, X))
    assert operators(mod) == {"multiply": 2, "add": 2, "clip": 1}


def test_a_value_used_elsewhere_stays() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        swished = divide(multiply(x, relu6(x)), c(6.0))
        return [swished, multiply(swished, op.mean(swished, axis=1, keepdims=True))]

    mod = recognize_activations()(module(body, X))
    assert operators(mod) == {"multiply": 3, "add": 1, "clip": 1, "mean": 1}


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: multiply(clip(x, 0.0, 6.0), c(0.5)),  # nothing to save
        lambda x: multiply(op.abs(x), relu6(x)),
        lambda x: multiply(multiply(x, x), relu6(x)),
        lambda x: multiply(x, op.maximum(op.maximum(x, c(0.0)), c(1.0))),
        lambda x: op.quantize(divide(multiply(x, relu6(x)), c(6.0)), c(0.1), relax.const(3, "int8"),
                              axis=-1, out_dtype="int8"),
    ],
    ids=["relu6", "abs", "square", "maxima", "quantised"],
)  # fmt: skip
def test_a_similar_formula_stays(formula: Formula) -> None:
    mod = module(formula, X)
    assert_structural_equal(recognize_activations()(mod), mod)


def test_an_activation_of_integers_stays() -> None:
    def body(q: relax.Expr) -> relax.Expr:
        x = op.dequantize(q, c(0.1), relax.const(3, "int8"), axis=-1)
        return divide(multiply(x, relu6(x)), c(6.0))

    mod = module(body, (SHAPE, "int8"))
    assert_structural_equal(recognize_activations()(mod), mod)


def test_another_type_or_a_wider_result_stays() -> None:
    def half(x: relax.Expr) -> relax.Expr:
        three, six = relax.const(3.0, "float16"), relax.const(6.0, "float16")
        return divide(multiply(x, clip(add(x, three), 0.0, 6.0)), six)

    mod = module(half, (SHAPE, "float16"))
    assert_structural_equal(recognize_activations()(mod), mod)
    wide = module(lambda x: multiply(divide(relu6(x), c(6.0, 3, 1, 1)), x), X)
    counts = operators(recognize_activations()(wide))
    assert counts == operators(wide)


@pytest.mark.parametrize("factor", [-3e38, np.inf, 1e-30])
def test_numbers_that_overflow_together_stay_apart(factor: float) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        scaled = multiply(c(factor), x)
        return multiply(scaled, clip(add(multiply(scaled, c(1 / 6)), c(0.5)), 0.0, 1.0))

    before = module(body, X)
    assert_structural_equal(recognize_activations()(before), before)


def test_what_values_are_activations_of() -> None:
    mod = module(lambda x: op.negative(divide(multiply(x, relu6(x)), c(6.0))), X)
    graph = DataflowGraph(mod["main"].body.blocks[0])
    found = {op_name(graph.definition(var)): sources for var, sources in formulas(graph).items()}
    (x,) = mod["main"].params
    assert found.keys() == {"relax.clip", "relax.multiply", "relax.divide", "relax.negative"}
    assert all(x in sources for sources in found.values())
