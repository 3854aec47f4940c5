"""Transposed convolutions that TVM has legalised."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.relay_passes.graphs import constant, module, run

from .test_lift_programs import STAGES, legalized, lifted, names, randoms

op = relax.op
F = "float32"


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


def test_groups_stay() -> None:
    weight = constant(4, 3, 2, 2)
    plain = module(
        lambda x: op.nn.conv2d_transpose(x, weight, strides=(2, 2), groups=2), ((1, 4, 5, 5), F)
    )
    found, (decision,) = lifted(legalized(plain))
    assert names(found) == ["call_tir"] and not decision.taken
