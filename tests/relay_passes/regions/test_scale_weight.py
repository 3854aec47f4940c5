"""Factors of activations become factors of a weight's rows, which the product's kernel applies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from relay_passes.regions.match_anchors import scale_weight
from tests.relay_passes.graphs import constant, module, operators, partitioned, regions, run
from tests.relay_passes.quantized import assert_becomes, assert_stays
from tests.relay_passes.region_checks import kernel_outputs

op = relax.op
IMAGE, FACTORS = ((1, 4, 9, 20), "float32"), ((1, 1, 1, 20), "float32")
Body = Callable[..., relax.Expr]


def weight(columns: int = 12) -> relax.Expr:
    """A weight [20, columns]."""
    return constant(20, columns)


def scaled_here(x: relax.Expr, s: relax.Expr) -> relax.Expr:
    """The product as the pass writes it, with the scaled weight."""
    return op.matmul(x, op.multiply(op.reshape(s, (20, 1)), weight()))


@pytest.mark.parametrize("factors", [(1, 1, 1, 20), (1, 20), (20,)], ids=str)
@pytest.mark.parametrize("first", [False, True], ids=["x * s", "s * x"])
def test_of_every_form(factors: tuple[int, ...], first: bool) -> None:
    def before(x: relax.Expr, s: relax.Expr) -> relax.Expr:
        return op.matmul(op.multiply(s, x) if first else op.multiply(x, s), weight())

    given = (IMAGE, (factors, "float32"))
    assert_becomes(module(before, *given), scale_weight(1), module(scaled_here, *given))


def shared(x: relax.Expr, s: relax.Expr) -> list[relax.Expr]:
    y = op.multiply(x, s)
    return [op.matmul(y, weight()), op.nn.relu(y)]


LEFT: dict[str, tuple[Body, tuple[int, ...], tuple[int, ...]]] = {
    "needed elsewhere": (shared, (1, 4, 9, 20), (1, 1, 1, 20)),
    "an activation between": (
        lambda x, s: op.matmul(op.nn.relu(op.multiply(x, s)), weight()),
        (1, 4, 9, 20),
        (1, 1, 1, 20),
    ),
    "as many columns as rows": (
        lambda x, s: op.matmul(op.multiply(x, s), weight(36)),
        (1, 4, 9, 20),
        (1, 1, 1, 20),
    ),
    "factors of samples": (
        lambda x, s: op.matmul(op.multiply(x, s), weight()),
        (2, 4, 9, 20),
        (2, 1, 1, 20),
    ),
    "factors of rows": (
        lambda x, s: op.matmul(op.multiply(x, s), weight()),
        (1, 4, 9, 20),
        (1, 4, 9, 1),
    ),
    "a number": (lambda x, s: op.matmul(op.multiply(x, s), weight()), (1, 4, 9, 20), (1, 1, 1, 1)),
    "constant factors": (
        lambda x, s: op.add(op.matmul(op.multiply(x, constant(20)), weight()), s),
        (1, 4, 9, 20),
        (1, 1, 1, 12),
    ),
    "activations that are repeated": (
        lambda x, s: op.matmul(op.multiply(x, s), weight()),
        (1, 1, 9, 20),
        (1, 4, 9, 20),
    ),
    "no constant weight": (
        lambda x, s: op.matmul(op.multiply(x, s), op.permute_dims(x, [0, 1, 3, 2])),
        (1, 4, 9, 20),
        (1, 1, 1, 20),
    ),
    "no columns at all": (
        lambda x, s: op.matmul(op.multiply(x, s), constant(0, 12)),
        (1, 4, 9, 0),
        (1, 1, 1, 0),
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_it_leaves(name: str) -> None:
    body, x, s = LEFT[name]
    assert_stays(module(body, (x, "float32"), (s, "float32")), scale_weight(1))


def test_threads_have_to_have_more_rows_than_columns() -> None:
    def before(x: relax.Expr, s: relax.Expr) -> relax.Expr:
        return op.matmul(op.multiply(x, s), weight())

    mod = module(before, IMAGE, FACTORS)  # 36 rows, 12 columns
    assert_becomes(mod, scale_weight(2), module(scaled_here, IMAGE, FACTORS))
    assert_stays(mod, scale_weight(3))


def test_half_precision_stays() -> None:
    def before(x: relax.Expr, s: relax.Expr) -> relax.Expr:
        y = op.astype(op.multiply(x, s), "bfloat16")
        return op.matmul(y, op.astype(weight(), "bfloat16"), out_dtype="float32")

    assert_stays(module(before, IMAGE, FACTORS), scale_weight(1))


def test_becomes_a_region_with_its_epilogue() -> None:
    def body(x: relax.Expr, s: relax.Expr) -> relax.Expr:
        y = op.add(op.matmul(op.multiply(x, s), weight()), constant(12, seed=1))
        return op.nn.relu(y)

    mod, decisions = partitioned(scale_weight(1)(module(body, IMAGE, FACTORS)))
    (region,) = regions(mod)
    assert (region.op, operators(region), decisions) == ("matmul", ["add", "relu"], [])
    assert region.attrs == {"weight_scale": "input"}
    assert [tensor.shape for tensor in region.inputs] == [(1, 4, 9, 20), (20, 12), (1, 1, 1, 20)]


def test_other_scaled_operands_are_no_scaled_weight() -> None:
    stacked = constant(2, 2, 12)  # [2, 1] scales both matrices' rows alike

    def body(x: relax.Expr, s: relax.Expr) -> relax.Expr:
        return op.matmul(x, op.multiply(op.reshape(s, (2, 1)), stacked))

    mod, _ = partitioned(module(body, ((2, 9, 2), "float32"), ((2,), "float32")))
    assert [region.op for region in regions(mod)] == ["batch_matmul"]


def test_results() -> None:
    """A block and a possible chain of two layers have the results of TVM alone."""

    def body(x: relax.Expr, s: relax.Expr) -> list[relax.Expr]:
        y = op.nn.relu(op.matmul(op.multiply(x, s), weight()))
        z = op.add(op.matmul(y, constant(12, 24, seed=1)), constant(24, seed=2))
        return [z, op.mean(s)]

    mod = module(body, IMAGE, FACTORS)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape, _ in (IMAGE, FACTORS)]
    made = kernel_outputs(mod, arrays)
    magnitudes = np.abs(arrays[0] * arrays[1]) @ np.abs(weight().value.numpy())
    magnitudes = magnitudes @ np.abs(constant(12, 24, seed=1).value.numpy())
    # Either way 20 products and 12 of what they give, each term rounded 3 times more at most, and
    # one addition.
    bound = 2 * (20 + 12 + 4) * 2.0**-24 * (magnitudes + np.abs(constant(24, seed=2).value.numpy()))
    assert (np.abs(made[0] - run(mod, arrays)[0]) <= bound).all()
