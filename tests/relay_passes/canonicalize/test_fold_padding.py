"""Padding before convolutions and pools goes into their own padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from relay_passes.canonicalize.convolutions import fold_padding
from tests.relay_passes.graphs import constant, module
from tests.relay_passes.quantized import assert_becomes, assert_stays

op = relax.op
X = ((2, 4, 6, 7), "float32")
Body = Callable[[relax.Expr], relax.Expr]
WIDTHS = [0, 0, 0, 0, 0, 1, 2, 1]
FOLDED = (0, 2, 1, 1)


def padded(x: relax.Expr, value: float = 0.0) -> relax.Expr:
    return op.nn.pad(x, WIDTHS, "constant", value)


def maximum(x: relax.Expr, padding: tuple[int, ...] = (0, 0, 0, 0), size: int = 3) -> relax.Expr:
    return op.nn.max_pool2d(x, (size, size), padding=padding)


def average(
    x: relax.Expr, padding: tuple[int, ...] = (0, 0, 0, 0), counts: bool = False
) -> relax.Expr:
    return op.nn.avg_pool2d(x, (3, 3), padding=padding, count_include_pad=counts)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            lambda x: op.nn.conv2d(padded(x), constant(5, 4, 3, 3), padding=1),
            lambda x: op.nn.conv2d(x, constant(5, 4, 3, 3), padding=(1, 3, 2, 2)),
        ),
        (
            lambda x: op.nn.conv1d(
                op.nn.pad(op.reshape(x, (8, 6, 7)), [0, 0, 0, 0, 2, 1]), constant(5, 6, 3)
            ),
            lambda x: op.nn.conv1d(op.reshape(x, (8, 6, 7)), constant(5, 6, 3), padding=(2, 1)),
        ),
        (
            lambda x: op.nn.conv2d(
                op.nn.pad(x, [0, 0, 1, 0, 0, 2, 0, 0]),
                constant(3, 3, 7, 5),
                data_layout="NHWC",
                kernel_layout="HWIO",
            ),
            lambda x: op.nn.conv2d(
                x,
                constant(3, 3, 7, 5),
                padding=(1, 0, 0, 2),
                data_layout="NHWC",
                kernel_layout="HWIO",
            ),
        ),
        (lambda x: maximum(padded(op.nn.relu(x))), lambda x: maximum(op.nn.relu(x), FOLDED)),
        (lambda x: maximum(padded(op.clip(x, 0, 6))), lambda x: maximum(op.clip(x, 0, 6), FOLDED)),
        (lambda x: maximum(padded(x, -np.inf)), lambda x: maximum(x, FOLDED)),
        (lambda x: average(padded(x)), lambda x: average(x, FOLDED, True)),
    ],
    ids=["conv2d", "conv1d", "channels last", "relu", "clip", "minus infinity", "average"],
)
def test_folds(before: Body, after: Body) -> None:
    assert_becomes(module(before, X), fold_padding(), module(after, X))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.nn.conv2d(padded(x, 1.0), constant(5, 4, 3, 3)),
        lambda x: op.nn.conv2d(op.nn.pad(x, WIDTHS, "reflect"), constant(5, 4, 3, 3)),
        lambda x: op.nn.conv2d(op.nn.pad(x, [0, 0, 0, 1, 0, 0, 0, 0]), constant(5, 5, 3, 3)),
        lambda x: op.nn.conv2d_transpose(padded(x), constant(4, 5, 3, 3)),
        lambda x: maximum(padded(x)),
        lambda x: maximum(padded(op.clip(x, -1, 6))),
        lambda x: maximum(padded(op.nn.relu(x)), size=2),
        lambda x: average(padded(x, 1.0)),
        lambda x: average(padded(x), (1, 1, 1, 1)),
        lambda x: average(op.nn.pad(x, [0, 0, 0, 0, 0, 1, 0, 1]), (1, 1, 1, 1)),
    ],
    ids=[
        *("ones", "reflect", "channels", "transposed", "negative", "negative clip"),
        *("a window of padding", "average of ones", "an average of padding"),
        "padding that does not count",
    ],
)
def test_what_stays(body: Body) -> None:
    assert_stays(module(body, X), fold_padding())
