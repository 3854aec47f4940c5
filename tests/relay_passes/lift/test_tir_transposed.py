"""Transposed convolutions that TVM has legalised."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_hybrid
from microkernels.registry import microkernel_named
from tests.relay_passes.graphs import Body, constant, module, run

from .test_lift_programs import STAGES, legalized, lifted, names, randoms

pytestmark = pytest.mark.turns

op = relax.op
F = "float32"


@pytest.mark.sampled
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("strides", "padding", "further", "taps"),
    [
        ((2, 2), (1, 1), (1, 1), 3),
        ((2, 2), (0, 0), (0, 0), 2),
        ((2, 1), (1, 0), (1, 0), 3),
        ((3, 2), (0, 1), (2, 1), 4),
    ],
)
def test_they_come_back(
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    further: tuple[int, ...],
    taps: int,
    stage: str,
) -> None:
    weight = constant(4, 6, taps, taps)

    def body(x: relax.Expr) -> relax.Expr:
        y = op.nn.conv2d_transpose(
            x, weight, strides=strides, padding=padding, output_padding=further
        )
        return op.nn.relu(y)

    x = (2, 4, 7, 9), F
    plain = module(body, x)
    found, (decision,) = lifted(legalized(plain, stage))
    assert names(found) == ["nn.conv2d_transpose", "nn.relu"]
    assert decision.reason == "a transposed convolution"
    arrays = randoms(x)
    np.testing.assert_array_equal(run(found, arrays)[0], run(plain, arrays)[0])


def test_one_of_stride_1_is_an_ordinary_one() -> None:
    weight = constant(4, 6, 3, 3)
    x = (1, 4, 7, 9), F
    plain = module(lambda x: op.nn.conv2d_transpose(x, weight, padding=(1, 1)), x)
    found, _ = lifted(legalized(plain))
    assert names(found) == ["nn.pad", "nn.conv2d"]
    arrays = randoms(x)
    np.testing.assert_allclose(run(found, arrays)[0], run(plain, arrays)[0], 1e-4, 1e-4)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("rank", [1, 2])
def test_groups_and_other_ranks(rank: int, groups: int) -> None:
    weight = constant(4, 3, *(3,) * rank)
    operator = (op.nn.conv1d_transpose, op.nn.conv2d_transpose)[rank - 1]
    x = (2, 4, 7, 5)[: 2 + rank], F
    plain = module(lambda x: operator(x, weight, (2,) * rank, (1,) * rank, groups=groups), x)
    found, (decision,) = lifted(legalized(plain))
    assert names(found) == [f"nn.conv{rank}d_transpose"] and decision.taken
    assert int(found["main"].body.blocks[0].bindings[-1].value.attrs.groups) == groups
    arrays = randoms(x)
    np.testing.assert_array_equal(run(found, arrays)[0], run(plain, arrays)[0])


def test_three_axes() -> None:
    weight = constant(2, 3, 2, 3, 2)
    x = (1, 2, 3, 4, 3), F
    plain = module(lambda x: op.nn.conv3d_transpose(x, weight, (2, 2, 1), (0, 1, 0)), x)
    found, _ = lifted(legalized(plain))
    assert names(found) == ["nn.conv3d_transpose"]
    arrays = randoms(x)
    np.testing.assert_array_equal(run(found, arrays)[0], run(plain, arrays)[0])


TAPS = np.random.default_rng(1).integers(-128, 128, (8, 4, 4, 4), dtype="int8")


def of_bytes(groups: int, taps: int, zero_point: int) -> Body:
    """A transposed convolution of 8-bit integers widened before it."""

    def body(x: relax.Expr) -> relax.Expr:
        wide = op.astype(x, "int32")
        wide = op.subtract(wide, relax.const(zero_point)) if zero_point else wide
        weight = op.astype(relax.const(np.ascontiguousarray(TAPS[..., :taps, :taps])), "int32")
        padding = (1, 1) if taps > 2 else (0, 0)
        return op.nn.conv2d_transpose(wide, weight, (2, 2), padding, groups=groups)

    return body


@pytest.mark.sampled
@pytest.mark.parametrize("route", ["ordinary", "legalised"])
@pytest.mark.parametrize("data", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("groups", "taps", "zero_point", "template"),
    [(1, 4, 0, "conv2d"), (1, 3, 7, "conv2d"), (1, 2, 3, "matmul"), (4, 4, 5, "conv2d")],
)
def test_bytes_are_exact(
    groups: int, taps: int, zero_point: int, template: str, data: str, route: str
) -> None:
    x = (2, 8, 5, 7), data
    plain = module(of_bytes(groups, taps, zero_point), x)
    given = plain if route == "ordinary" else legalized(plain)
    executable = tvm_hybrid.compile(given, num_threads=1)
    kernels = [each for each in executable.explain() if each.op == template]
    assert kernels and all(microkernel_named(k.kernel).b_dtype == "int8" for k in kernels)
    arrays = randoms(x)
    expected = run(plain, arrays)[0]
    np.testing.assert_array_equal(executable.run(*arrays)[0].numpy(), expected)


@pytest.mark.parametrize("taps", [2, 3])
def test_weights_of_uint8_are_exact(taps: int) -> None:
    weight = relax.const(np.random.default_rng(1).integers(0, 256, (8, 4, taps, taps), "uint8"))

    def body(x: relax.Expr) -> relax.Expr:
        shifted = op.subtract(op.astype(weight, "int32"), relax.const(9))
        return op.nn.conv2d_transpose(op.astype(x, "int32"), shifted, (2, 2))

    x = (1, 8, 5, 7), "uint8"
    plain = module(body, x)
    arrays = randoms(x)
    expected = run(plain, arrays)[0]
    for given in (plain, legalized(plain)):
        found = tvm_hybrid.compile(given, num_threads=1).run(*arrays)[0].numpy()
        np.testing.assert_array_equal(found, expected)


def test_more_than_bytes_stay() -> None:
    weight = relax.const(np.full((4, 3, 2, 2), 300, "int32"))

    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.conv2d_transpose(op.astype(x, "int32"), weight, strides=(2, 2))

    found, (decision,) = lifted(legalized(module(body, ((1, 4, 5, 5), "uint8"))))
    assert "nn.conv2d_transpose" not in names(found) and not decision.taken
