"""Rules run until none applies, in any order, and only where something changed."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.ir.graph import is_call, op_name
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import Rule, RuleGraph, rule, rules
from tests.relay_passes.graphs import module

op = relax.op
X = ((4, 8), "float32")


def operators(mod: IRModule) -> list[str]:
    """What main calls, in order."""
    bindings = [each for block in mod["main"].body.blocks for each in block.bindings]
    return [op_name(each.value).rpartition(".")[2] for each in bindings]


@rule("relax.negative")
def double_negation(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """-(-x) is x."""
    inner = graph.definition(call.args[0])
    return inner.args[0] if is_call(inner, "relax.negative") else None


@rule("relax.subtract")
def difference(_graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """a - b is a + -b."""
    return op.add(call.args[0], block.emit(op.negative(call.args[1])))


@rule("relax.nn.relu")
def clipped(_graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    return op.maximum(call.args[0], relax.const(0.0))


@pytest.mark.parametrize("group", [*permutations([double_negation, difference, clipped])])
def test_the_order_of_rules_does_not_matter(group: list[Rule]) -> None:
    before = module(lambda x: op.exp(op.subtract(op.nn.relu(x), op.negative(op.negative(x)))), X)
    found = rules("all", group)(before)
    after = module(lambda x: op.exp(op.add(op.maximum(x, relax.const(0.0)), op.negative(x))), X)
    assert_structural_equal(found, after)


def test_a_rule_alone_is_a_pass() -> None:
    before = module(lambda x: op.tanh(op.subtract(x, x)), X)
    assert operators(difference()(before)) == ["negative", "add", "tanh"]
    unchanged = module(op.tanh, X)
    assert difference()(unchanged).same_as(unchanged)


def test_new_values_are_named_after_the_old_one() -> None:
    found = difference()(module(lambda x: op.tanh(op.subtract(x, x)), X))
    names = [str(binding.var.name) for binding in found["main"].body.blocks[0].bindings]
    assert names[0] == names[1]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_outputs_that_are_other_values(count: int) -> None:
    """An output may become another value, also an input; it stays an output."""

    def body(x: relax.Expr) -> relax.Expr:
        value = op.exp(x) if count > 3 else x
        for _ in range(count):
            value = op.negative(value)
        return value

    found = double_negation()(module(body, X))
    left = (["exp"] if count > 3 else []) + ["negative"] * (count % 2)
    assert operators(found) == left


def test_what_nothing_needs_vanishes_at_once() -> None:
    """When the second user of exp is removed, the first one is its only user at once."""

    @rule("relax.tanh")
    def alone(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
        return None if graph.only_user(call.args[0]) is None else op.sigmoid(call.args[0])

    @rule("relax.multiply")
    def nothing(_graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
        return call.args[0]

    def body(x: relax.Expr) -> relax.Expr:
        value = relax.BlockBuilder.current().emit(op.exp(x))
        return op.multiply(op.tanh(value), op.cos(value))

    found = rules("both", [alone, nothing])(module(body, X))
    assert operators(found) == ["exp", "sigmoid"]


def test_a_rule_may_change_what_is_computed_of_its_root() -> None:
    @rule("relax.erf")
    def whole(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
        user = graph.only_user(block.var)
        if user is None:
            return None
        block.at(graph.bindings[user].var)
        return op.nn.gelu(call.args[0])

    found = whole()(module(lambda x: op.cos(op.exp(op.erf(x))), X))
    assert operators(found) == ["gelu", "cos"]


def test_a_rule_may_change_further_values() -> None:
    """sin(-x) becomes -sin(x), and cos(-x) becomes cos(x)."""

    @rule("relax.negative")
    def sink(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
        users = [graph.bindings[user] for user in graph.users_of(block.var)]
        if {op_name(each.value) for each in users} != {"relax.sin", "relax.cos"}:
            return None
        for each in users:
            if is_call(each.value, "relax.sin"):
                block.bind(each.var, op.negative(block.emit(op.sin(block.var))))
        return call.args[0]

    def given(x: relax.Expr) -> list[relax.Expr]:
        value = relax.BlockBuilder.current().emit(op.negative(op.exp(x)))
        return [op.sin(value), op.tanh(op.cos(value))]

    def wanted(x: relax.Expr) -> list[relax.Expr]:
        value = relax.BlockBuilder.current().emit(op.exp(x))
        return [op.negative(op.sin(value)), op.tanh(op.cos(value))]

    assert_structural_equal(sink()(module(given, X)), module(wanted, X))


def test_only_what_changed_is_tried_again() -> None:
    """Every cosine is tried once; the negation that follows a change is tried twice."""
    tried: Counter[str] = Counter()

    @rule("relax.cos", "relax.negative")
    def watched(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
        graph.definition(call.args[0])
        tried[str(call.op.name)] += 1
        return None

    def body(x: relax.Expr) -> list[relax.Expr]:
        chain = x
        for _ in range(20):
            chain = op.cos(chain)
        return [chain, op.negative(op.nn.relu(x))]

    rules("both", [watched, clipped])(module(body, X))
    assert tried == {"relax.cos": 20, "relax.negative": 2}


def test_rules_that_undo_each_other_end(caplog: pytest.LogCaptureFixture) -> None:
    @rule("relax.sin")
    def forth(_graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
        return op.cos(call.args[0])

    @rule("relax.cos")
    def back(_graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
        return op.sin(call.args[0])

    assert len(operators(rules("endless", [forth, back])(module(op.sin, X)))) == 1
    assert "rules undo each other" in caplog.text


def test_a_rule_is_tried_again_when_a_constant_loses_a_reader() -> None:
    weight = relax.const([1.0] * 8, "float32")

    @rule("relax.add")
    def owned(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
        return op.negative(call.args[0]) if graph.readers(call.args[1]) == 1 else None

    @rule("relax.multiply")
    def fewer(_graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
        return op.exp(call.args[0])

    mod = module(lambda x: op.multiply(op.add(x, weight), weight), X)
    assert operators(owned()(mod)) == ["add", "multiply"]
    assert operators(rules("both", [owned, fewer])(mod)) == ["negative", "exp"]


def test_a_rule_is_tried_again_when_a_fact_is_noted() -> None:
    @rule("relax.exp")
    def told(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
        return op.sigmoid(call.args[0]) if graph.known(call.args[0]) else None

    @rule("relax.tanh")
    def tells(graph: RuleGraph, block: Bindings, _call: relax.Call) -> relax.Expr | None:
        graph.note(block.var, True)
        return None

    mod = module(lambda x: op.exp(op.tanh(x)), X)
    assert operators(rules("both", [told, tells])(mod)) == ["tanh", "sigmoid"]
