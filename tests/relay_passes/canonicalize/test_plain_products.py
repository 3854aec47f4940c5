"""Products read operands without the flattening or repeating that was done for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.products import plain_products
from relay_passes.canonicalize.views import drop_views
from tests.relay_passes.graphs import constant, module
from tests.relay_passes.quantized import assert_stays

op = relax.op
A, B = ((2, 4, 5, 6), "float32"), ((2, 4, 6, 7), "float32")


def test_flattened_batches() -> None:
    def flat(x: relax.Expr) -> relax.Expr:
        wide = op.broadcast_to(x, x.ty.shape)
        return op.reshape(wide, (8, *x.ty.shape.values[2:]))

    before = module(lambda a, b: op.reshape(op.matmul(flat(a), flat(b)), (2, 4, 5, 7)), A, B)
    after = module(op.matmul, A, B)
    assert_structural_equal(drop_views()(plain_products()(before)), after)


def test_grouped_heads_get_the_batches_of_the_queries() -> None:
    def heads(b: relax.Expr) -> relax.Expr:
        return op.broadcast_to(op.expand_dims(b, [2]), (2, 2, 2, 6, 7))

    def before(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        flat = op.matmul(op.reshape(a, (8, 5, 6)), op.reshape(heads(b), (8, 6, 7)))
        return op.reshape(flat, (2, 4, 5, 7))

    def after(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.matmul(a, op.reshape(heads(b), (2, 4, 6, 7)))

    inputs = A, ((2, 2, 6, 7), "float32")
    result = drop_views()(plain_products()(module(before, *inputs)))
    assert_structural_equal(result, module(after, *inputs))


@pytest.mark.parametrize("shape", [(1, 6, 7), (6, 7)], ids=str)
def test_a_repeated_operand(shape: tuple[int, ...]) -> None:
    w = constant(*shape)
    before = module(lambda a: op.matmul(a, op.broadcast_to(w, (2, 4, 6, 7))), A)
    assert_structural_equal(plain_products()(before), module(lambda a: op.matmul(a, w), A))


@pytest.mark.parametrize(
    "body",
    [
        lambda a, b: op.matmul(a, b),
        lambda a, b: op.matmul(op.reshape(a, (40, 6)), op.reshape(b, (6, 56))),
        lambda a, b: op.matmul(op.reshape(a, (4, 10, 6)), op.reshape(b, (4, 6, 14))),
        lambda a, b: op.matmul(op.broadcast_to(op.mean(a, [0]), (3, 4, 5, 6)), op.mean(b, [0])),
    ],
    ids=["plain", "matrices", "rows moved", "the result has these batches"],
)
def test_what_stays(body: Callable[..., relax.Expr]) -> None:
    assert_stays(module(body, A, B), plain_products())


def test_a_repeated_weight_that_is_cast() -> None:
    def before(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        wide = relax.op.astype(relax.op.broadcast_to(w, (3, 4, 5)), "float32")
        return relax.op.matmul(x, wide)

    def after(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.matmul(x, relax.op.astype(w, "float32"))

    types = (((3, 2, 4), "float32"), ((4, 5), "float16"))
    assert_structural_equal(plain_products()(module(before, *types)), module(after, *types))
