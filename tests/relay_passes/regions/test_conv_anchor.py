"""Which regions convolutions become: templates, operands read in place, fallbacks with reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.relay_passes.graphs import constant, module, operators, partitioned, regions
from tir_schedules.core.region import Region

op = relax.op
F = "float32"
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}


def conv(x: relax.Expr, weight: relax.Expr, **options: Any) -> relax.Expr:
    return op.nn.conv2d(x, weight, **NHWC, **options)


def only_region(body: Any, *inputs: tuple[tuple[int, ...], str]) -> Region:
    mod, decisions = partitioned(module(body, *inputs))
    (region,) = regions(mod)
    assert not decisions
    return region


def test_attributes_and_epilogue() -> None:
    region = only_region(
        lambda x: op.nn.relu(
            op.add(
                conv(x, constant(3, 2, 4, 20), strides=[2, 1], padding=[1, 0, 2, 1], groups=2),
                constant(20),
            )
        ),
        ((2, 9, 7, 8), F),
    )
    assert region.op == "conv2d"
    assert region.attrs == {
        "strides": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 1), "groups": 2
    }  # fmt: skip
    assert operators(region) == ["add", "relu"]
    assert region.output.shape == (2, 5, 7, 20)


@pytest.mark.parametrize(
    ("weight", "groups", "template"),
    [
        ((3, 3, 1, 8), 8, "depthwise_conv2d"),
        ((3, 3, 1, 16), 8, "conv2d"),  # two results per channel
        ((2, 40, 1, 8), 8, "conv2d"),  # too wide for the columns that the template buffers
        ((3, 3, 4, 8), 2, "conv2d"),
        ((3, 3, 8, 1), 1, "conv2d"),
    ],
)
def test_templates(weight: tuple[int, ...], groups: int, template: str) -> None:
    region = only_region(
        lambda x: conv(x, constant(*weight), padding=[20] * 4, groups=groups), ((1, 9, 9, 8), F)
    )
    assert region.op == template


def test_axes() -> None:
    one = only_region(
        lambda x: op.nn.conv1d(
            x, constant(3, 4, 8), padding=[1, 1], data_layout="NWC", kernel_layout="WIO"
        ),
        ((1, 9, 4), F),
    )
    three = only_region(
        lambda x: op.nn.conv3d(
            x, constant(3, 3, 3, 4, 8), data_layout="NDHWC", kernel_layout="DHWIO"
        ),
        ((1, 5, 5, 5, 4), F),
    )
    assert (one.op, three.op) == ("conv1d", "conv3d")


def integers(zero: int | None, weight_zero: int | None = None) -> Any:
    def body(x: relax.Expr) -> relax.Expr:
        data = op.astype(x, "int32")
        if zero is not None:
            data = op.subtract(data, relax.const(zero, "int32"))
        values = np.arange(3 * 3 * 4 * 8, dtype="int8").reshape(3, 3, 4, 8)
        weight = op.astype(relax.const(values), "int32")
        if weight_zero is not None:
            weight = op.subtract(weight, relax.const(weight_zero, "int32"))
        return conv(data, weight, out_dtype="int32")

    return body


@pytest.mark.parametrize("zero", [None, 7])
def test_integers(zero: int | None) -> None:
    region = only_region(integers(zero), ((1, 9, 9, 4), "uint8"))
    assert region.op == "conv2d"
    assert [tensor.dtype for tensor in region.inputs] == ["uint8", "int8"]
    assert region.attrs.get("a_zero_point") == zero


def test_what_is_left_has_a_reason() -> None:
    """An unsigned weight that is an input, channels first, and a zero point of the weight."""
    for body, inputs, reason in [
        (
            lambda x, w: conv(x, w, out_dtype="int32"),
            (((1, 9, 9, 4), "uint8"), ((3, 3, 4, 8), "uint8")),
            "constant",
        ),
        (lambda x: op.nn.conv2d(x, constant(8, 4, 3, 3)), (((1, 4, 9, 9), F),), "NCHW"),
        (integers(1, 3), (((1, 9, 9, 4), "uint8"),), "zero point"),
    ]:
        mod, decisions = partitioned(module(body, *inputs))
        assert not regions(mod)
        (left,) = decisions
        assert not left.taken and reason in left.reason
