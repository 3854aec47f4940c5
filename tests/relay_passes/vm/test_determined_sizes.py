"""Sizes that a few integers of the inputs determine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax, tirx

from relay_passes.vm.entries import DeterminedSizes

op = relax.op
Count = Callable[[relax.BlockBuilder, relax.Var, relax.Var], relax.Expr]
N = tirx.Var("n", "int64")


def function(count: Count, dtype: str = "int64") -> tuple[relax.Function, tirx.Var]:
    """x: float32[n, 4], asked: int64[1] -> zeros with `count` rows; and that number of rows."""
    x = relax.Var("x", relax.TensorType((N, 4), "float32"))
    asked = relax.Var("asked", relax.TensorType((1,), dtype))
    builder, found = relax.BlockBuilder(), tirx.Var("found", "int64")
    with builder.function("main", [x, asked]):
        builder.emit(op.nn.relu(x))
        shape = builder.emit(op.tensor_to_shape(builder.emit(count(builder, x, asked))))
        builder.match_cast(shape, relax.ShapeType([found]))
        builder.emit_func_output(builder.emit(op.zeros(relax.ShapeExpr([found]), "float32")))
    return builder.get()["main"], found


def of_sizes(builder: relax.BlockBuilder, _x: relax.Var, asked: relax.Var) -> relax.Expr:
    rows = builder.emit(op.shape_to_tensor(builder.emit(relax.ShapeExpr([N]))))
    return op.maximum(asked, rows)


def of_a_range(builder: relax.BlockBuilder, _x: relax.Var, asked: relax.Var) -> relax.Expr:
    """Computes the size from a tensor with one element per row."""
    return op.add(asked, op.max(builder.emit(op.arange(0, N)), axis=0, keepdims=True))


def of_numbers(builder: relax.BlockBuilder, x: relax.Var, _asked: relax.Var) -> relax.Expr:
    sums = builder.emit(op.sum(x, axis=[0, 1]))
    return builder.emit(op.reshape(builder.emit(op.astype(sums, "int64")), (1,)))


def test_integers_and_other_sizes_determine_a_size() -> None:
    main, found = function(of_sizes)
    sizes = DeterminedSizes(main)
    assert sizes.are_determined([found, N])
    bindings = list(main.body.blocks[0].bindings)
    assert sizes.bindings([found]) == bindings[1:-1]  # without the unneeded relu and the result
    assert sizes.bindings([N]) == []


@pytest.mark.parametrize("count", [of_numbers, of_a_range])
def test_a_size_that_needs_large_tensors_is_not_determined(count: Count) -> None:
    main, found = function(count)
    sizes = DeterminedSizes(main)
    assert not sizes.are_determined([found])
    assert not sizes.are_determined([N, found])
    assert sizes.bindings([found]) == []


def test_a_size_of_another_function_is_not_determined() -> None:
    main, _ = function(of_sizes)
    assert not DeterminedSizes(main).are_determined([tirx.Var("other", "int64")])
