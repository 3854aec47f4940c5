"""Convolutions along one axis get channels last; the others stay as they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.convolutions import conv1d_channels_last
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


def channels_last(x: relax.Expr, weight: np.ndarray, stride: int) -> relax.Expr:
    """The convolution as the pass writes it; x is [N, C, L], the weight [OC, C, taps]."""
    result = op.nn.conv1d(
        op.permute_dims(x, [0, 2, 1]),
        relax.const(np.ascontiguousarray(weight.transpose(2, 1, 0))),
        strides=[stride],
        data_layout="NWC",
        kernel_layout="WIO",
        out_layout="NWC",
    )
    return op.permute_dims(result, [0, 2, 1])


@pytest.mark.parametrize("axis", [2, 3])
def test_conv2d_along_one_axis(axis: int) -> None:
    extents = [1, 1]
    extents[axis - 2] = 12
    kernel, strides = ([3, 1], [2, 5]) if axis == 2 else ([1, 3], [5, 2])
    weight = constant(7, 4, *kernel)
    array = weight.value.numpy().reshape(7, 4, 3)
    end = [2, 7, 1, 1]
    end[axis] = 5

    before = module(lambda x: op.nn.conv2d(x, weight, strides=strides), ((2, 4, *extents), F))
    after = module(
        lambda x: op.reshape(channels_last(op.reshape(x, (2, 4, 12)), array, 2), end),
        ((2, 4, *extents), F),
    )
    assert_structural_equal(conv1d_channels_last()(before), after)


def test_conv1d() -> None:
    weight = constant(7, 4, 3)
    before = module(lambda x: op.nn.conv1d(x, weight, strides=3), ((2, 4, 12), F))
    after = module(lambda x: channels_last(x, weight.value.numpy(), 3), ((2, 4, 12), F))
    assert_structural_equal(conv1d_channels_last()(before), after)


def test_one_channel_is_reshaped_only() -> None:
    weight = constant(7, 1, 3)
    mod = conv1d_channels_last()(module(lambda x: op.nn.conv1d(x, weight), ((2, 1, 12), F)))
    assert mod.script().count("R.permute_dims") == 1  # of the result
    assert 'data_layout="NWC"' in mod.script()


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        pytest.param((1, 4, 12, 2), (7, 4, 3, 1), {}, id="two axes"),
        pytest.param((1, 4, 12, 12), (7, 4, 3, 3), {}, id="square"),
        pytest.param((1, 4, 1, 1), (7, 4, 1, 1), {}, id="one position"),
        pytest.param((1, 4, 12, 1), (7, 4, 3, 1), {"padding": [1, 0, 1, 0]}, id="padding"),
        pytest.param((1, 4, 12, 1), (7, 4, 3, 1), {"dilation": [2, 1]}, id="dilation"),
        pytest.param((1, 4, 12, 1), (8, 2, 3, 1), {"groups": 2}, id="groups"),
    ],
)
def test_what_the_template_does_not_build_stays(
    x: tuple[int, ...], w: tuple[int, ...], options: dict
) -> None:
    mod = module(lambda data: op.nn.conv2d(data, constant(*w), **options), (x, F))
    assert_structural_equal(conv1d_channels_last()(mod), mod)


def test_a_weight_that_is_an_input_or_of_another_type_stays() -> None:
    given = module(lambda x, w: op.nn.conv1d(x, w), ((1, 4, 12), F), ((7, 4, 3), F))
    assert_structural_equal(conv1d_channels_last()(given), given)
    half = relax.const(np.ones((7, 4, 3), np.float16))
    other = module(lambda x: op.nn.conv1d(x, half), ((1, 4, 12), "float16"))
    assert_structural_equal(conv1d_channels_last()(other), other)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_rewritten_graph_computes_the_same(stride: int) -> None:
    weight = constant(7, 4, 5, 1)
    mod = module(lambda x: op.nn.conv2d(x, weight, strides=[stride, 1]), ((2, 4, 17, 1), F))
    x = np.random.default_rng(0).standard_normal((2, 4, 17, 1)).astype(F)
    (wanted,) = run(mod, [x])
    (result,) = run(conv1d_channels_last()(mod), [x])
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
    # Unpacking only moves values, so that both run the same scalar program.
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
    """Channels last comes in, is transposed for the convolution, is reduced over positions."""
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
