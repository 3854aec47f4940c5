"""Rows that see no key are set to zero after the product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from relay_passes.canonicalize.softmax import safe_softmax
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, constant, module, number, run
from tests.relay_passes.quantized import assert_becomes, assert_stays, operators

op = relax.op
Q, K, V = ((2, 3, 5, 8), "float32"), ((2, 3, 8, 7), "float32"), ((2, 3, 7, 8), "float32")
MASK, SEEN = ((2, 1, 5, 7), "float32"), ((2, 1, 5, 7), "bool")
Body = Callable[..., relax.Expr]


def scaled(q: relax.Expr, k: relax.Expr) -> relax.Expr:
    """Scores."""
    return op.multiply(op.matmul(q, k), number(0.3))


def safe(scores: relax.Expr) -> relax.Expr:
    """Softmax without NaN."""
    weights = op.nn.softmax(scores, -1)
    return op.where(op.isnan(weights), number(0.0), weights)


def some_key(mask: relax.Expr) -> relax.Expr:
    """Whether a query sees a key."""
    seen = op.where(op.greater(mask, number(-np.inf)), number(1.0), number(0.0))
    return op.greater(op.max(seen, -1, keepdims=True), number(0.0))


def by_scores(scores: relax.Expr) -> relax.Expr:
    """Softmax without NaN as torch.export writes it."""
    weights = op.nn.softmax(scores, -1)
    seen = op.astype(op.logical_not(op.equal(scores, number(-np.inf))), "int8")
    some = op.astype(op.max(seen, [-1], keepdims=True), "bool")
    return op.where(op.logical_not(some), op.full_like(weights, number(0.0)), weights)


@pytest.mark.parametrize("form", [safe, by_scores])
def test_a_mask(form: Callable[[relax.Expr], relax.Expr]) -> None:
    def before(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
        return op.matmul(form(op.add(scaled(q, k), mask)), v)

    def after(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
        product = op.matmul(op.nn.softmax(op.add(scaled(q, k), mask), -1), v)
        return op.where(some_key(mask), product, number(0.0))

    result = safe_softmax()(module(before, Q, K, V, MASK))
    assert operators(result) == operators(module(after, Q, K, V, MASK))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape, dtype in (Q, K, V, MASK)]
    arrays[3][0, 0, 1] = -np.inf
    arrays[3][1, 0, 2:, 3] = -np.inf
    wanted = run(module(before, Q, K, V, MASK), arrays)[0]
    assert not np.isnan(wanted).any() and not wanted[0, :, 1].any()
    for mod in (result, module(after, Q, K, V, MASK)):
        np.testing.assert_array_equal(run(mod, arrays)[0], wanted)


def test_scores_without_a_mask_are_tested() -> None:
    before = module(lambda q, k, v: op.matmul(by_scores(scaled(q, k)), v), Q, K, V)
    after = module(lambda q, k, v: op.matmul(op.nn.softmax(scaled(q, k), -1), v), Q, K, V)
    assert_becomes(before, safe_softmax(), after)


@pytest.mark.parametrize("rows", [(5, 7), (1, 1, 1, 7)], ids=str)
def test_a_constant_mask_that_hides_no_query(rows: tuple[int, ...]) -> None:
    hidden = np.zeros(rows, np.float32)
    hidden[..., 3] = -np.inf
    mask = relax.const(hidden)
    before = module(lambda q, k, v: op.matmul(safe(op.add(scaled(q, k), mask)), v), Q, K, V)
    after = module(
        lambda q, k, v: op.matmul(op.nn.softmax(op.add(scaled(q, k), mask), -1), v), Q, K, V
    )
    assert_becomes(before, safe_softmax(), after)


def test_as_pytorch_exports_it_it_is_one_region() -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr, seen: relax.Expr) -> relax.Expr:
        root = number(0.5)
        scores = op.matmul(op.multiply(q, root), op.multiply(k, root))
        hidden = op.where(seen, number(0.0), number(-np.inf))
        return op.matmul(safe(op.add(scores, hidden)), v)

    found = collect_regions(module(body, Q, K, V, SEEN), PipelineOptions(TARGET))
    assert [region.op for region in found] == ["attention"]


@pytest.mark.parametrize(
    "body",
    [
        lambda q, k, v, m: op.matmul(safe(scaled(q, k)), v),
        lambda q, k, v, m: [w := safe(op.add(scaled(q, k), m)), op.matmul(w, v)],
        lambda q, k, v, m: [w := by_scores(op.add(scaled(q, k), m)), op.matmul(w, v)],
        lambda q, k, v, m: op.matmul(by_scores(op.add(op.exp(scaled(q, k)), m)), v),
        lambda q, k, v, m: op.matmul(safe(op.add(op.exp(scaled(q, k)), m)), v),
        lambda q, k, v, m: op.matmul(safe(op.add(scaled(q, k), constant(5, 1))), v),
        lambda q, k, v, m: op.matmul(op.nn.softmax(op.add(scaled(q, k), m), -1), v),
    ],
    ids=[
        "no mask",
        "needed elsewhere",
        "tested scores, needed elsewhere",
        "tested scores, not linear",
        "not linear",
        "a mask of queries",
        "not safe",
    ],
)
def test_what_stays(body: Body) -> None:
    assert_stays(module(body, Q, K, V, MASK), safe_softmax())
