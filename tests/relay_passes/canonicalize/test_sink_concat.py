"""Elementwise operators move from a concatenation to its parts."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.concatenations import sink_concat
from tests.relay_passes.graphs import Body, constant, module, operators, partitioned, regions

op = relax.op
F = "float32"
A, B = ((1, 7, 7, 16), F), ((1, 7, 7, 24), F)


def values(expr: relax.Expr) -> np.ndarray:
    return expr.value.numpy()


def emit(expr: relax.Expr) -> relax.Expr:
    """Binds an expression, so that the test decides the order of bindings."""
    return relax.BlockBuilder.current().emit(expr)


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
        a = emit(op.exp(a))
        first = emit(op.multiply(relax.const(values(scale)[:16]), a))
        second = emit(op.multiply(relax.const(values(scale)[16:]), b))
        return op.concat([emit(op.nn.relu(first)), emit(op.nn.relu(second))], 3)

    assert_sunk(before, after, A, B)


@pytest.mark.parametrize("shape", [(), (1,), (7, 1), (1, 7, 7, 1)], ids=str)
def test_constants_along_other_axes_are_not(shape: tuple[int, ...]) -> None:
    shift = constant(*shape)

    def before(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.add(op.concat([op.exp(a), op.exp(b)], 3), shift)

    def after(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        a, b = emit(op.exp(a)), emit(op.exp(b))
        return op.concat([emit(op.add(a, shift)), emit(op.add(b, shift))], 3)

    assert_sunk(before, after, A, B)


def test_it_waits_for_all_operators() -> None:
    def before(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        joint = op.concat([op.exp(a), op.exp(b)], 1)
        return op.sum(op.clip(op.multiply(joint, joint), 0, 6), [2])

    def after(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        a, b = emit(op.exp(a)), emit(op.exp(b))
        a, b = emit(op.multiply(a, a)), emit(op.multiply(b, b))
        a, b = emit(op.clip(a, 0, 6)), emit(op.clip(b, 0, 6))
        return op.sum(op.concat([a, b], 1), [2])

    square = ((1, 7, 7), F)

    def shared(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        joint = emit(op.concat([emit(op.exp(a)), emit(op.exp(b))], 1))
        return op.sum(op.clip(emit(op.multiply(joint, joint)), 0, 6), [2])

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
        joint = emit(op.concat([emit(op.exp(a)), emit(op.exp(b))], -1))
        return [op.nn.relu(joint), op.max(joint, [1])]

    def parts_needed(a: relax.Expr, b: relax.Expr) -> list[relax.Expr]:
        a, b = emit(op.exp(a)), emit(op.exp(b))
        return [op.nn.relu(emit(op.concat([a, b], -1))), op.max(b, [1])]

    def of_another(a: relax.Expr, b: relax.Expr, c: relax.Expr) -> relax.Expr:
        return op.add(emit(op.concat([emit(op.exp(a)), emit(op.exp(b))], -1)), c)

    def converted(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.astype(emit(op.concat([emit(op.exp(a)), emit(op.exp(b))], -1)), "bfloat16")

    assert_stays(needed, A, B)
    assert_stays(parts_needed, A, B)
    assert_stays(of_another, A, B, ((1, 7, 7, 40), F))
    assert_stays(converted, A, B)


def test_parts_of_open_rows() -> None:
    """Operators sink past parts with dynamic rows if the columns of each part are static."""
    n, k = tirx.Var("n", "int64"), tirx.Var("k", "int64")

    def before(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.concat([op.exp(a), op.exp(b)], -1))

    def after(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        a, b = emit(op.exp(a)), emit(op.exp(b))
        return op.concat([emit(op.nn.relu(a)), emit(op.nn.relu(b))], 1)

    assert_sunk(before, after, ((n, 16), F), ((n, 24), F))
    assert_stays(before, ((n, k), F), ((n, 24), F))
