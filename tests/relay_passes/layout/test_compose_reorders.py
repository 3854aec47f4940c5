"""Permutations with reshapes between them become one that moves every element alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.layout.compose_reorders import compose_reorders
from tests.relay_passes.graphs import Body, bind, module, run

op = relax.op
F = "float32"
QUICKLY = tvm.target.Target({"kind": "llvm", "opt-level": 0})
N = tirx.Var("n", "int64")
Step = tuple[str, tuple[int, ...]]


def check(before: Body, after: Body, shape: tuple[Any, ...]) -> None:
    assert_structural_equal(
        compose_reorders()(module(before, (shape, F))), module(after, (shape, F))
    )


def test_patches_of_any_number_of_images() -> None:
    """The patches of a MobileViT, [n * patch, pixel, channel], from channels last."""

    def before(x: relax.Expr) -> relax.Expr:
        x = bind(op.reshape(bind(op.permute_dims(x, [0, 3, 1, 2])), (N * 1024, 2, 16, 2)))
        x = bind(op.reshape(bind(op.permute_dims(x, [0, 2, 1, 3])), (N, 64, 256, 4)))
        return op.permute_dims(x, [0, 3, 2, 1])

    def after(x: relax.Expr) -> relax.Expr:
        x = bind(op.permute_dims(bind(op.reshape(x, (N, 16, 2, 16, 2, 64))), [0, 2, 4, 1, 3, 5]))
        return op.reshape(x, (N, 4, 256, 64))

    check(before, after, (N, 32, 32, 64))


def test_directions_side_by_side_and_batch_first() -> None:
    """The end of a bidirectional recurrent layer, batch first, with dynamic length and batch."""
    length = tirx.Var("length", "int64")

    def before(x: relax.Expr) -> relax.Expr:
        x = bind(op.reshape(bind(op.permute_dims(x, [0, 2, 1, 3])), (length, N, 10)))
        return op.permute_dims(x, [1, 0, 2])

    def after(x: relax.Expr) -> relax.Expr:
        x = bind(op.permute_dims(bind(op.reshape(x, (length * 2, N, 5))), [1, 0, 2]))
        return op.reshape(x, (N, length, 10))

    check(before, after, (length, 2, N, 5))


def test_there_and_back_is_a_reshape() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        x = bind(op.reshape(bind(op.permute_dims(x, [1, 0, 2])), (3, N * 4)))
        x = bind(op.reshape(x, (3, N, 4)))
        return op.exp(bind(op.permute_dims(x, [1, 0, 2])))

    check(before, lambda x: op.exp(bind(op.reshape(x, (N, 3, 4)))), (N, 3, 4))


def read_halfway(x: relax.Expr) -> list[relax.Expr]:
    x = bind(op.permute_dims(x, [1, 0, 2]))
    return [op.permute_dims(bind(op.reshape(x, (3, N, 2, 2))), [1, 0, 3, 2]), op.exp(x)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda x: op.permute_dims(x, [2, 0, 1]), id="one permutation"),
        pytest.param(
            lambda x: op.permute_dims(
                bind(op.reshape(bind(op.permute_dims(x, [0, 2, 1])), (6, 2 * N))), [1, 0]
            ),
            id="a dynamic size is cut",
        ),
        pytest.param(read_halfway, id="read halfway"),
    ],
)
def test_it_stays(body: Body) -> None:
    mod = module(body, ((N, 3, 4), F))
    assert_structural_equal(compose_reorders()(mod), mod)


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Step]]:
    """A shape, then permutations and reshapes in turn."""
    first = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=4)))
    shape, steps = first, []
    for _ in range(draw(st.integers(2, 3))):
        order = tuple(draw(st.permutations(range(len(shape)))))
        shape = tuple(shape[axis] for axis in order)
        steps.append(("permute", order))
        left, reshaped = math.prod(shape), []
        while left > 1 and len(reshaped) < 4:
            reshaped.append(draw(st.sampled_from([d for d in range(1, left + 1) if not left % d])))
            left //= reshaped[-1]
        shape = (*reshaped, left)
        steps.append(("reshape", shape))
    order = tuple(draw(st.permutations(range(len(shape)))))
    return first, [*steps, ("permute", order)]


def count(mod: IRModule) -> int:
    return mod.script().count("R.permute_dims")


@settings(max_examples=40, deadline=None)
@given(chains())
def test_random_chains_keep_their_values(chain: tuple[tuple[int, ...], list[Step]]) -> None:
    shape, steps = chain

    def body(x: relax.Expr) -> relax.Expr:
        x = bind(op.abs(x))
        for kind, numbers in steps:
            x = bind(op.permute_dims(x, numbers) if kind == "permute" else op.reshape(x, numbers))
        return op.abs(x)

    before = module(body, (shape, F))
    after = compose_reorders()(before)
    assert count(after) <= count(before)
    x = np.arange(math.prod(shape), dtype=F).reshape(shape)
    wanted, found = run(before, [x], QUICKLY)[0], run(after, [x], QUICKLY)[0]
    np.testing.assert_array_equal(found, wanted)
