"""Squeezes, flattening and expanded dimensions become reshapes."""

from __future__ import annotations

from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.ir.graph import is_call
from relay_passes.legalize.shapes import plain_views
from tests.relay_passes.graphs import module

op = relax.op


def test_they_become_reshapes() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        return [op.squeeze(x, [0]), op.expand_dims(x, 1), op.flatten(x), op.reshape(x, (3, 2))]

    def after(x: relax.Expr) -> list[relax.Expr]:
        return [op.reshape(x, shape) for shape in ((2, 3), (1, 1, 2, 3), (6,), (3, 2))]

    x = ((1, 2, 3), "float32")
    assert_structural_equal(plain_views()(module(before, x)), module(after, x))


def test_a_permutation_that_moves_nothing_is_left_out_in_front_of_a_reshape() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        return op.reshape(op.permute_dims(x, (0, 2, 1, 3)), (6, 4))

    (value,) = _reads_of_input(plain_views()(module(before, ((2, 1, 3, 4), "float32"))))
    assert list(value.ty.shape.values) == [6, 4]


def test_one_that_moves_elements_stays() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        return op.reshape(op.permute_dims(x, (0, 2, 1, 3)), (6, 4))

    mod = module(before, ((1, 2, 3, 4), "float32"))
    assert_structural_equal(plain_views()(mod), mod)


def _reads_of_input(mod: IRModule) -> list[relax.Expr]:
    """Reshapes that read the input."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    (x,) = mod["main"].params
    return [
        value for value in values if is_call(value, "relax.reshape") and value.args[0].same_as(x)
    ]
