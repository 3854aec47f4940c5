"""Elementwise operators move from a concatenation to its parts."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.concatenations import sink_concat
from tests.relay_passes.graphs import Body, bind, constant, module, operators, partitioned, regions

op = relax.op
F = "float32"
A, B = ((1, 7, 7, 16), F), ((1, 7, 7, 24), F)


def values(expr: relax.Expr) -> np.ndarray:
    return expr.value.numpy()


def assert_sunk(before: Body, after: Body, *inputs: tuple[tuple[int, ...], str]) -> None:
    assert_structural_equal(sink_concat()(module(before, *inputs)), module(after, *inputs))


def assert_stays(body: Body, *inputs: tuple[tuple[int, ...], str]) -> None:
    mod = module(body, *inputs)
    assert_structural_equal(sink_concat()(mod), mod)


def test_constants_are_split() -> None:
    scale = constant(40)

    def before(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.multiply(scale, op.concat([op.exp(a), b], -1)))

    def after(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        a = bind(op.exp(a))
        first = bind(op.multiply(relax.const(values(scale)[:16]), a))
        second = bind(op.multiply(relax.const(values(scale)[16:]), b))
        return op.concat([bind(op.nn.relu(first)), bind(op.nn.relu(second))], 3)

    assert_sunk(before, after, A, B)


@pytest.mark.parametrize("shape", [(), (1,), (7, 1), (1, 7, 7, 1)], ids=str)
def test_constants_along_other_axes_are_not(shape: tuple[int, ...]) -> None:
    shift = constant(*shape)

    def before(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.add(op.concat([op.exp(a), op.exp(b)], 3), shift)

    def after(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        a, b = bind(op.exp(a)), bind(op.exp(b))
        return op.concat([bind(op.add(a, shift)), bind(op.add(b, shift))], 3)

    assert_sunk(before, after, A, B)


def test_it_waits_for_all_operators() -> None:
    def before(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        joint = op.concat([op.exp(a), op.exp(b)], 1)
        return op.sum(op.clip(op.multiply(joint, joint), 0, 6), [2])

    def after(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        a, b = bind(op.exp(a)), bind(op.exp(b))
        a, b = bind(op.multiply(a, a)), bind(op.multiply(b, b))
        a, b = bind(op.clip(a, 0, 6)), bind(op.clip(b, 0, 6))
        return op.sum(op.concat([a, b], 1), [2])

    square = ((1, 7, 7), F)

    def shared(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        joint = bind(op.concat([bind(op.exp(a)), bind(op.exp(b))], 1))
        return op.sum(op.clip(bind(op.multiply(joint, joint)), 0, 6), [2])

    assert_sunk(shared, after, square, square)
    assert sink_concat()(module(before, square, square)).script().count("R.clip") == 2


def test_the_operators_become_part_of_regions() -> None:
    def body(a: relax.Expr) -> relax.Expr:
        parts = [op.matmul(a, constant(16, n, seed=n)) for n in (8, 24)]
        return op.nn.relu(op.concat(parts, -1))

    mod, _ = partitioned(sink_concat()(module(body, A)))
    assert [operators(region) for region in regions(mod)] == [["relu"], ["relu"]]


def test_what_stays() -> None:
    def needed(a: relax.Expr, b: relax.Expr) -> list[relax.Expr]:
        joint = bind(op.concat([bind(op.exp(a)), bind(op.exp(b))], -1))
        return [op.nn.relu(joint), op.max(joint, [1])]

    def parts_needed(a: relax.Expr, b: relax.Expr) -> list[relax.Expr]:
        a, b = bind(op.exp(a)), bind(op.exp(b))
        return [op.nn.relu(bind(op.concat([a, b], -1))), op.max(b, [1])]

    def of_another(a: relax.Expr, b: relax.Expr, c: relax.Expr) -> relax.Expr:
        return op.add(bind(op.concat([bind(op.exp(a)), bind(op.exp(b))], -1)), c)

    def converted(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.astype(bind(op.concat([bind(op.exp(a)), bind(op.exp(b))], -1)), "bfloat16")

    assert_stays(needed, A, B)
    assert_stays(parts_needed, A, B)
    assert_stays(of_another, A, B, ((1, 7, 7, 40), F))
    assert_stays(converted, A, B)


def test_parts_of_dynamic_rows() -> None:
    """Operators sink past parts with dynamic rows if the columns of each part are static."""
    n, k = tirx.Var("n", "int64"), tirx.Var("k", "int64")

    def before(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.concat([op.exp(a), op.exp(b)], -1))

    def after(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        a, b = bind(op.exp(a)), bind(op.exp(b))
        return op.concat([bind(op.nn.relu(a)), bind(op.nn.relu(b))], 1)

    assert_sunk(before, after, ((n, 16), F), ((n, 24), F))
    assert_stays(before, ((n, k), F), ((n, 24), F))
