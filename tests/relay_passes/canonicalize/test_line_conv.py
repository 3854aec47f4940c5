"""Convolutions along one axis become convolutions of lines; others stay as they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.convolutions import elementwise_flat, line_conv
from relay_passes.ir.rules import rules
from relay_passes.lower.lower_regions import select_configs
from relay_passes.lower.weights import prepack
from relay_passes.lower_module import compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import (
    GENERIC,
    MACHINE,
    constant,
    module,
    operators,
    partitioned,
    regions,
    run,
)

op = relax.op
F = "float32"


LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
LINES = rules("lines", [line_conv, elementwise_flat])


def lines(x: relax.Expr, weight: np.ndarray, stride: int) -> relax.Expr:
    """The convolution of lines [N, L, C] by a weight [taps, C, OC]."""
    layouts = {"data_layout": "NWC", "kernel_layout": "WIO", "out_layout": "NWC"}
    return op.nn.conv1d(x, relax.const(weight), strides=[stride], **layouts)


@pytest.mark.parametrize("axis", [1, 2])
def test_conv2d_along_one_axis(axis: int) -> None:
    extents, end = [2, 1, 1, 4], [2, 1, 1, 7]
    extents[axis], end[axis] = 12, 5
    kernel, strides = ([3, 1], [2, 5]) if axis == 1 else ([1, 3], [5, 2])
    weight, bias = constant(*kernel, 4, 7), constant(7, seed=1)
    array = weight.value.numpy().reshape(3, 4, 7)

    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.add(op.nn.conv2d(x, weight, strides=strides, **LAST), bias))

    def wanted(x: relax.Expr) -> relax.Expr:
        flat = lines(op.reshape(x, (2, 12, 4)), array, 2)
        return op.reshape(op.nn.relu(op.add(flat, bias)), end)

    x = (tuple(extents), F)
    assert_structural_equal(LINES(module(body, x)), module(wanted, x))


def test_lines_of_lines_stay_lines() -> None:
    first, second = constant(3, 1, 4, 5), constant(3, 1, 5, 6)
    taps = [each.value.numpy().reshape(3, *each.value.shape[2:]) for each in (first, second)]

    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(op.nn.conv2d(x, first, **LAST), second, **LAST)

    def wanted(x: relax.Expr) -> relax.Expr:
        flat = lines(lines(op.reshape(x, (2, 12, 4)), taps[0], 1), taps[1], 1)
        return op.reshape(flat, (2, 8, 1, 6))

    x = ((2, 12, 1, 4), F)
    assert_structural_equal(LINES(module(body, x)), module(wanted, x))


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        pytest.param((1, 12, 2, 4), (3, 1, 4, 7), {}, id="two axes"),
        pytest.param((1, 12, 12, 4), (3, 3, 4, 7), {}, id="square"),
        pytest.param((1, 1, 1, 4), (1, 1, 4, 7), {}, id="one position"),
        pytest.param((1, 12, 1, 4), (1, 1, 4, 7), {}, id="one tap"),
        pytest.param((1, 12, 1, 4), (3, 1, 4, 7), {"padding": [1, 0, 1, 0]}, id="padding"),
        pytest.param((1, 12, 1, 4), (3, 1, 4, 7), {"dilation": [2, 1]}, id="dilation"),
        pytest.param((1, 12, 1, 4), (3, 1, 2, 8), {"groups": 2}, id="groups"),
    ],
)
def test_what_the_template_does_not_build_stays(
    x: tuple[int, ...], w: tuple[int, ...], options: dict
) -> None:
    mod = module(lambda data: op.nn.conv2d(data, constant(*w), **LAST, **options), (x, F))
    assert_structural_equal(LINES(mod), mod)


def test_other_weights_and_layouts_stay() -> None:
    x, w = ((1, 12, 1, 4), F), ((3, 1, 4, 7), F)
    given = module(lambda x, w: op.nn.conv2d(x, w, **LAST), x, w)
    assert_structural_equal(LINES(given), given)
    half = relax.const(np.ones((3, 1, 4, 7), np.float16))
    other = module(lambda x: op.nn.conv2d(x, half, **LAST), ((1, 12, 1, 4), "float16"))
    assert_structural_equal(LINES(other), other)
    first = module(lambda x: op.nn.conv2d(x, constant(7, 4, 3, 1)), ((1, 4, 12, 1), F))
    assert_structural_equal(LINES(first), first)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_rewritten_graph_computes_the_same(stride: int) -> None:
    weight = constant(5, 1, 4, 7)
    mod = module(lambda x: op.nn.conv2d(x, weight, strides=[stride, 1], **LAST), ((2, 17, 1, 4), F))
    x = np.random.default_rng(0).standard_normal((2, 17, 1, 4)).astype(F)
    (wanted,) = run(mod, [x])
    (result,) = run(LINES(mod), [x])
    # both are sums of K = 20 products in some order: 2 K eps times the sum of magnitudes (< 60)
    assert np.abs(result - wanted).max() <= 2 * 20 * np.finfo(np.float32).eps * 60


def test_it_becomes_a_region_with_its_epilogue() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        y = op.nn.conv1d(
            x, constant(5, 4, 20), data_layout="NWC", kernel_layout="WIO", out_layout="NWC"
        )
        return op.nn.relu(op.add(y, constant(20)))

    mod, _ = partitioned(module(body, ((2, 12, 4), F)))
    (region,) = regions(mod)
    assert region.op == "matmul"
    assert region.attrs == {"window": 5, "stride": 1}
    assert operators(region) == ["add", "relu"]
    assert region.output.shape == (2, 8, 20)


def test_a_packed_weight_keeps_its_meaning() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.conv1d(
            x, constant(5, 4, 20), data_layout="NWC", kernel_layout="WIO", out_layout="NWC"
        )

    plain = module(body, ((2, 12, 4), F))
    packed = prepack(MACHINE.isa)(select_configs(MACHINE, None)(partitioned(plain)[0]))
    x = np.random.default_rng(0).standard_normal((2, 12, 4)).astype(F)
    # Unpacking only moves values, so both run the same scalar program.
    np.testing.assert_array_equal(run(packed, [x])[0], run(plain, [x])[0])


@pytest.mark.parametrize("options", [{"padding": [1, 1]}, {"dilation": 2}, {"groups": 2}], ids=str)
def test_windows_that_do_not_lie_in_memory_are_a_convolution(options: dict) -> None:
    layout = {"data_layout": "NWC", "kernel_layout": "WIO", "out_layout": "NWC"}
    channels = 2 if "groups" in options else 4
    mod, decisions = partitioned(
        module(
            lambda x: op.nn.conv1d(x, constant(3, channels, 20), **layout, **options),
            ((1, 12, 4), F),
        )
    )
    assert [region.op for region in regions(mod)] == ["conv1d"]
    assert not decisions


@pytest.mark.sampled
@pytest.mark.parametrize(("batch", "stride"), list(itertools.product((1, 2), (1, 2))))
def test_the_whole_pipeline_from_channels_first(batch: int, stride: int) -> None:
    """A channels-last input is transposed for the convolution, then reduced over positions."""
    weight, bias = constant(21, 6, 5, 1), constant(21, 1, seed=1)

    def body(x: relax.Expr) -> relax.Expr:
        transposed = op.permute_dims(op.expand_dims(x, 3), [0, 2, 1, 3])
        y = op.squeeze(op.nn.conv2d(transposed, weight, strides=[stride, 1]), [3])
        return op.max(op.nn.relu(op.add(y, bias)), axis=[2])

    mod = module(body, ((batch, 16, 6), F))
    x = np.random.default_rng(0).standard_normal((batch, 16, 6)).astype(F)
    compiled = compile_module(mod, PipelineOptions(GENERIC))
    taken = [d for d in compiled.decisions if d.taken]
    assert [d.op for d in taken] == ["matmul + add + relu"]
    assert not any("transpose" in d.op for d in compiled.decisions)
    result = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    (wanted,) = run(mod, [x])
    # sums of K = 30 products in different orders: 2 K eps times the sum of magnitudes (< 100)
    bound = 2 * 30 * np.finfo(np.float32).eps * 100
    assert np.abs(result.numpy() - wanted).max() <= bound
