"""Layout problems: stable names and keys, labels on request, equal values under all labels."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tvm import IRModule, relax

from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.rules import rules
from relay_passes.layout.minimum_cut import FIRST, LAST
from relay_passes.layout.propagate_layout import propagate_layout
from relay_passes.layout.search_space import LayoutChoice, LayoutProblem
from relay_passes.pipeline import PIXELS
from tests.relay_passes.graphs import constant, module

from .test_propagate_layout import X, bind, conv, kernel, moved, random_operator, same_values

op = relax.op


def problem_of(mod: IRModule) -> LayoutProblem:
    """The layout problem of the module's only block."""
    found: list[LayoutProblem] = []
    propagate_layout(found.append)(mod)
    (problem,) = found
    return problem


def with_labels(
    mod: IRModule, labels: dict[str, int], decisions: DecisionLog | None = None
) -> IRModule:
    """The module in the layouts that `labels` choose, 1x1 convolutions written as products."""
    choice = LayoutChoice(labels, "the test")
    return rules("pixels", PIXELS)(propagate_layout(lambda _: choice, decisions)(mod))


def pooled(channels: int = 8) -> IRModule:
    """A convolution, a pool, two 1x1 convolutions with elementwise operators, a sum."""

    def body(x: relax.Expr) -> relax.Expr:
        y = bind(op.nn.max_pool2d(conv(x, channels), (3, 3), padding=1))
        y = bind(
            op.nn.relu(op.add(op.nn.conv2d(y, kernel(6, channels, 1, 1)), constant(1, 6, 1, 1)))
        )
        y = bind(op.multiply(op.nn.conv2d(y, kernel(4, 6, 1, 1)), constant(1, 1, 6, 5)))
        return op.add(y, op.strided_slice(x, [1], [0], [4]))

    return module(body, X)


def test_what_leads_and_what_it_meets() -> None:
    problem = problem_of(pooled())
    leading = {each.name: each for each in problem.operators if each.leads}
    pool, first, second = leading
    assert [name.split()[1] for name in leading] == ["max_pool2d", "conv2d", "conv2d"]
    assert first.endswith(" 1x6x6x5")
    assert leading[first].neighbours == (pool, second)
    assert leading[pool].neighbours == (first,)  # the first convolution has no choice
    followers = [each.name.split()[1] for each in problem.operators if not each.leads]
    assert followers == ["add", "relu", "multiply", "strided_slice", "add"]
    assert problem.default[first] == LAST


def test_keys_tell_shapes_and_operators_apart_but_no_weights() -> None:
    assert problem_of(pooled()).key == problem_of(pooled()).key
    assert problem_of(pooled()).key != problem_of(pooled(16)).key
    keys = {
        problem_of(module(lambda x, seed=seed: op.nn.relu(conv(x, seed=seed)), X)).key
        for seed in (1, 2)
    }
    assert len(keys) == 1


def test_what_is_elementwise_follows_what_leads() -> None:
    problem = problem_of(pooled())
    _, first, second = (each.name for each in problem.operators if each.leads)
    labels = problem.cheapest({first: FIRST, second: FIRST})
    assert labels is not None
    assert {label for name, label in labels.items() if "pool" not in name} == {FIRST}
    assert problem.cheapest({}) == problem.default
    assert problem.cheapest(labels) == labels  # a round trip


def test_convolutions_of_one_tap_run_channels_first_as_products() -> None:
    """1x1 convolutions become products with their elementwise operators, without a reorder; sums
    of at most 9 * 8 numbers of about 1 round differently by less than 1e-5."""
    mod = pooled()
    problem = problem_of(mod)
    pool, first, second = (each.name for each in problem.operators if each.leads)
    labels = problem.cheapest({pool: FIRST, first: FIRST, second: FIRST})
    assert labels is not None
    decisions: DecisionLog = []
    after = with_labels(mod, labels, decisions)
    names = [str(each.value.op.name) for each in after["main"].body.blocks[0].bindings]
    assert names.count("relax.matmul") == 2
    flat = names[names.index("relax.matmul") : len(names) - names[::-1].index("relax.matmul")]
    assert flat == ["relax.matmul", "relax.add", "relax.nn.relu", "relax.matmul"]
    assert moved(after) == [960, 960]  # around the first convolution
    same_values(mod, after, 1e-5)
    (decision,) = decisions
    assert (decision.op, decision.source) == ("layouts", "the test")
    assert first in decision.reason


def test_a_product_reads_through_the_permutation_before_it() -> None:
    mod = module(lambda x: op.nn.conv2d(conv(x), kernel(2, 8, 1, 1)), X)
    problem = problem_of(mod)
    (name,) = problem.default
    after = with_labels(mod, {name: FIRST})
    values = [each.value for each in after["main"].body.blocks[0].bindings]
    names = [str(value.op.name) for value in values]
    assert names[-4:] == [
        f"relax.{each}" for each in ("reshape", "permute_dims", "matmul", "reshape")
    ]
    same_values(mod, after, 1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_values_are_the_same_under_random_labels(seed: int) -> None:
    """Sums of at most 72 numbers of about 1: see test_propagate_layout."""
    rng = np.random.default_rng(seed)

    def body(x: relax.Expr) -> list[relax.Expr]:
        values = [x]
        for _ in range(5):
            values.append(bind(random_operator(rng, values[-4:])))
            values.append(bind(op.nn.conv2d(values[-1], kernel(8, 8, 1, 1))))
        return [values[-1], values[-2], op.mean(values[-3], [2, 3])]

    mod = module(body, X)
    problem = problem_of(mod)
    labels = None
    while labels is None:
        wanted = {each.name: int(rng.integers(2)) for each in problem.operators}
        legal = {name: label for name, label in wanted.items() if label in _allowed(problem, name)}
        labels = problem.cheapest(legal)
    assert all(labels[name] == label for name, label in legal.items())
    assert problem.differences(labels)
    same_values(mod, with_labels(mod, labels), 1e-5)


def _allowed(problem: LayoutProblem, name: str) -> list[int]:
    labels = dict(problem.default)
    return [
        label for label in (FIRST, LAST) if not _illegal(problem, {**labels, name: label}, name)
    ]


def _illegal(problem: LayoutProblem, labels: dict[str, int], name: str) -> bool:
    return (problem.refusal(labels) or "").startswith(f"{name} cannot")


def test_labels_that_do_not_fit_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    mod = pooled()
    problem = problem_of(mod)
    assert problem.refusal(problem.default) is None
    assert "other operators" in str(problem.refusal({"9 conv2d": FIRST}))
    name = problem.operators[0].name
    assert "channels 7" in str(problem.refusal({**problem.default, name: 7}))
    with caplog.at_level(logging.WARNING, "tvm_hybrid"):
        after = with_labels(mod, {"9 conv2d": FIRST})
    assert "the test: these layouts are not used" in caplog.text
    assert after.script() == rules("pixels", PIXELS)(propagate_layout()(mod)).script()


def test_a_block_without_a_choice_asks_nobody() -> None:
    asked: list[LayoutProblem] = []
    propagate_layout(asked.append)(
        module(lambda x: op.matmul(x, constant(8, 4)), ((3, 8), "float32"))
    )
    assert asked == []
