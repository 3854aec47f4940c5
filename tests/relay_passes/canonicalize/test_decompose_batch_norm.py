"""Batch normalisation for inference becomes a factor and a term."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.normalizations import decompose_batch_norm
from tests.relay_passes.graphs import constant, module, run
from tests.relay_passes.quantized import operators

op = relax.op
X = ((2, 3, 4, 5), "float32")
EPSILON = 1e-3


def statistics() -> list[relax.Expr]:
    """gamma, beta, mean and variance of three channels."""
    arrays = [constant(3, seed=seed).value.numpy() for seed in range(4)]
    return [relax.const(array) for array in (*arrays[:3], np.abs(arrays[3]))]


def normal(x: relax.Expr, *parameters: relax.Expr, **attributes: object) -> relax.Expr:
    """A batch normalisation over axis 1."""
    return op.nn.batch_norm(x, *parameters, 1, EPSILON, training=False, **attributes)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_of_constants(scale: bool, center: bool) -> None:
    parameters = statistics()
    gamma, beta, mean, variance = (each.value.numpy().astype(np.float64) for each in parameters)
    factor = (gamma if scale else 1) / np.sqrt(variance + EPSILON)
    term = (beta if center else 0) - mean * factor
    a, b = (relax.const(each.astype(np.float32).reshape(3, 1, 1)) for each in (factor, term))
    before = module(lambda x: normal(x, *parameters, scale=scale, center=center)[0], X)
    after = module(lambda x: op.add(op.multiply(x, a), b), X)
    assert_structural_equal(decompose_batch_norm()(before), after)


def test_of_statistics_that_are_known_at_run_time() -> None:
    vector = ((3,), "float32")
    before = module(lambda x, *p: normal(x, *p)[0], X, *[vector] * 4)
    after = decompose_batch_norm()(before)
    assert "batch_norm" not in operators(after)
    arrays = [np.random.default_rng(0).standard_normal(X[0]).astype(np.float32)]
    arrays += [each.value.numpy() for each in statistics()]
    # A handful of roundings of numbers of at most a few units.
    np.testing.assert_allclose(run(after, arrays)[0], run(before, arrays)[0], atol=2e-5)


def test_running_statistics_stay_those_that_were_given() -> None:
    vector = ((3,), "float32")
    before = module(lambda x, *p: normal(x, *p)[1], X, *[vector] * 4)
    result = decompose_batch_norm()(before)
    assert not operators(result)


def test_in_training_it_stays() -> None:
    parameters = statistics()
    mod = module(lambda x: op.nn.batch_norm(x, *parameters, 1, EPSILON, training=True)[0], X)
    assert_structural_equal(decompose_batch_norm()(mod), mod)
