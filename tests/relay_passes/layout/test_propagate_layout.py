"""Channels last inside the network, as few bytes reordered as possible, and equal values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.graph import static_tensor
from relay_passes.layout.channel_layouts import Form
from relay_passes.layout.compose_reorders import describe_reorder
from relay_passes.layout.minimum_cut import FIRST, LAST
from relay_passes.layout.propagate_layout import propagate_layout
from tests.relay_passes.graphs import constant, module, run

op = relax.op
F = "float32"
X = ((1, 8, 6, 5), F)
LAST_2D = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
QUICKLY = tvm.target.Target({"kind": "llvm", "opt-level": 0})
Body = Callable[..., Any]


def kernel(*shape: int, seed: int = 0) -> relax.Expr:
    """A weight scaled so that products are about as large as their input."""
    array = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return relax.const(array.astype(np.float32))


def transposed(weight: relax.Expr) -> relax.Expr:
    """OIHW -> HWIO"""
    return relax.const(np.ascontiguousarray(weight.value.numpy().transpose(2, 3, 1, 0)))


def to_last(x: relax.Expr) -> relax.Expr:
    return op.permute_dims(x, [0, 2, 3, 1])


def to_first(x: relax.Expr) -> relax.Expr:
    return op.permute_dims(x, [0, 3, 1, 2])


def bind(x: relax.Expr) -> relax.Expr:
    """A variable for an expression of the module under construction."""
    return x if isinstance(x, relax.Var) else relax.BlockBuilder.current().emit(x)


def conv(x: relax.Expr, channels: int = 8, seed: int = 0) -> relax.Expr:
    """A 3x3 convolution that keeps the size."""
    bound = bind(x)
    weight = kernel(channels, int(bound.ty.shape.values[1]), 3, 3, seed=seed)
    return bind(op.nn.conv2d(bound, weight, padding=1))


def reorders(mod: IRModule) -> list[str]:
    """The reorders of main, in order."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [text for text in map(describe_reorder, values) if text]


def moved(mod: IRModule) -> list[int]:
    """Bytes that each reorder moves."""
    return [int(text.split(": ")[1].split()[0]) for text in reorders(mod)]


def same_values(before: IRModule, after: IRModule, tolerance: float = 0.0) -> None:
    """Both modules agree within `tolerance`, relative to the largest value."""
    rng = np.random.default_rng(0)
    arrays = []
    for parameter in before["main"].params:
        tensor = static_tensor(parameter)
        assert tensor is not None
        values = rng.standard_normal(tensor.shape)
        arrays.append((values * (1 if "float" in tensor.dtype else 50)).astype(tensor.dtype))
    results = (run(mod, arrays, QUICKLY) for mod in (before, after))
    for wanted, result in zip(*results, strict=True):
        assert result.dtype == wanted.dtype
        scale = np.abs(wanted).max() if "float" in str(wanted.dtype) else 0
        np.testing.assert_allclose(result, wanted, rtol=0, atol=tolerance * scale)


def check(body: Body, after: Body, *inputs: tuple[tuple[int, ...], str]) -> None:
    assert_structural_equal(propagate_layout()(module(body, *inputs)), module(after, *inputs))


def test_from_border_to_border() -> None:
    weight, bias = kernel(4, 8, 3, 3), constant(1, 4, 1, 1)
    short = relax.const(bias.value.numpy().reshape(4))

    def before(x: relax.Expr) -> relax.Expr:
        return op.nn.max_pool2d(op.nn.relu(op.add(op.nn.conv2d(x, weight), bias)), (2, 2))

    def after(x: relax.Expr) -> relax.Expr:
        y = op.add(op.nn.conv2d(to_last(x), transposed(weight), **LAST_2D), short)
        return to_first(op.nn.max_pool2d(op.nn.relu(y), (2, 2), layout="NHWC"))

    check(before, after, X)


def test_nothing_to_do_without_a_convolution() -> None:
    mod = module(lambda x: op.nn.relu(op.nn.max_pool2d(x, (2, 2))), X)
    assert_structural_equal(propagate_layout()(mod), mod)


def test_a_residual_needs_no_reorder_and_elementwise_operators_stay_beside_convolutions() -> None:
    weight = kernel(8, 8, 3, 3)

    def before(x: relax.Expr) -> relax.Expr:
        y = op.nn.relu(op.nn.conv2d(x, weight, padding=1))
        return op.tanh(op.add(op.nn.conv2d(y, weight, padding=1), y))

    def after(x: relax.Expr) -> relax.Expr:
        attrs = {**LAST_2D, "padding": 1}
        y = op.nn.relu(op.nn.conv2d(to_last(x), transposed(weight), **attrs))
        return to_first(op.tanh(op.add(op.nn.conv2d(y, transposed(weight), **attrs), y)))

    check(before, after, X)


def test_squeeze_and_excite_is_reordered_nowhere() -> None:
    down, up = kernel(2, 8, 1, 1), kernel(8, 2, 1, 1)

    def before(x: relax.Expr) -> relax.Expr:
        y = conv(x)
        squeezed = op.nn.relu(op.nn.conv2d(op.mean(y, [2, 3], True), down))
        return op.mean(op.multiply(y, op.sigmoid(op.nn.conv2d(squeezed, up))), [2, 3])

    after = propagate_layout()(module(before, X))
    assert reorders(after) == ["reorder NCHW -> NHWC of x0: 960 bytes"]
    assert "R.reshape" not in after.script()


def test_one_reorder_for_several_readers() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        y = bind(op.nn.relu(conv(x)))
        return [op.reshape(y, (1, 240)), op.reshape(op.exp(y), (1, 240)), conv(y, 4), conv(y, 5)]

    after = propagate_layout()(module(before, X))
    names = [text.split(" of ")[0] for text in reorders(after)]
    assert names.count("reorder NCHW -> NHWC") == 1  # of the input
    assert names.count("reorder NHWC -> NCHW") == 3  # y and two outputs


def test_bytes_are_moved_where_they_are_fewest() -> None:
    """The reorder moves 8-bit integers, or the smaller tensor after a pool."""
    scale, zero = relax.const(np.float32(0.1)), relax.const(np.uint8(128), "uint8")

    def quantized(x: relax.Expr) -> relax.Expr:
        integers = op.quantize(x, scale, zero, out_dtype="uint8")
        return op.mean(conv(op.dequantize(integers, scale, zero)), [2, 3])

    assert moved(propagate_layout()(module(quantized, X))) == [240]
    pooled = module(lambda x: op.mean(conv(op.nn.max_pool2d(x, (2, 2), (2, 2))), [2, 3]), X)
    assert moved(propagate_layout()(pooled)) == [8 * 3 * 2 * 4]


def test_channels_last_borders_need_no_reorder() -> None:
    weight = kernel(4, 8, 3, 3)
    check(
        lambda x: to_last(op.nn.relu(op.nn.conv2d(to_first(x), weight))),
        lambda x: op.nn.relu(op.nn.conv2d(x, transposed(weight), **LAST_2D)),
        ((1, 6, 5, 8), F),
    )


def test_an_imported_channels_last_convolution_gets_the_kernel_layout_of_templates() -> None:
    weight = kernel(4, 3, 3, 8)
    ohwi = relax.const(np.ascontiguousarray(weight.value.numpy().transpose(1, 2, 3, 0)))
    attrs = {"data_layout": "NHWC", "out_layout": "NHWC"}
    check(
        lambda x: op.nn.conv2d(x, weight, kernel_layout="OHWI", **attrs),
        lambda x: op.nn.conv2d(x, ohwi, kernel_layout="HWIO", **attrs),
        ((1, 6, 5, 8), F),
    )


def test_one_channel_or_one_pixel_is_reshaped() -> None:
    one = propagate_layout()(module(lambda x: conv(x), ((1, 1, 6, 5), F)))
    assert "R.permute_dims(x0" not in one.script()
    pixel = propagate_layout()(module(lambda x: conv(op.mean(x, [2, 3], True)), X))
    assert reorders(pixel) == []


def test_a_quantized_weight_is_transposed_behind_its_dequantisation() -> None:
    rng = np.random.default_rng(0)
    integers = rng.integers(-99, 99, (4, 8, 3, 3), dtype=np.int8)
    scale, zero = relax.const(rng.random(4, np.float32)), relax.const(0, "int8")
    bias, zeros = relax.const(rng.integers(-9, 9, 4, dtype=np.int32)), relax.const(0, "int32")

    def before(x: relax.Expr) -> relax.Expr:
        y = op.nn.conv2d(x, op.dequantize(relax.const(integers), scale, zero, axis=0))
        return op.add(y, op.reshape(op.dequantize(bias, scale, zeros, axis=0), (1, 4, 1, 1)))

    def after(x: relax.Expr) -> relax.Expr:
        last = relax.const(np.ascontiguousarray(integers.transpose(2, 3, 1, 0)))
        lv = to_last(x)
        y = op.nn.conv2d(lv, op.dequantize(last, scale, zero, axis=3), **LAST_2D)
        return to_first(op.add(y, op.dequantize(bias, scale, zeros, axis=0)))

    check(before, after, X)


def test_an_opaque_operator_reads_what_was_imported() -> None:
    mod = module(lambda x: op.mean(conv(op.flip(conv(x), 2)), [2, 3]), X)
    assert len(moved(propagate_layout()(mod))) == 1  # flip runs in either layout
    opaque = module(lambda x: op.mean(conv(op.repeat(conv(x), 2, 1)), [2, 3]), X)
    assert moved(propagate_layout()(opaque)) == [960, 960, 1920]


def test_the_place_of_the_largest_of_all_is_that_in_the_imported_layout() -> None:
    mod = module(lambda x: [op.argmax(y := conv(x)), op.mean(y, [2, 3])], X)
    assert moved(propagate_layout()(mod)) == [960, 960]
    one_axis = module(lambda x: [op.argmax(y := conv(x), 1), op.mean(y, [2, 3])], X)
    assert moved(propagate_layout()(one_axis)) == [960]  # of the input


def test_an_operand_with_channels_on_another_axis_is_read_as_imported() -> None:
    def body(x: relax.Expr, line: relax.Expr) -> relax.Expr:
        y = conv(x)
        lines = bind(op.nn.conv1d(line, kernel(6, 6, 3), padding=1))  # of 6 channels each
        return op.mean(op.add(y, lines), [2, 3])

    before = module(body, X, ((8, 6, 5), F))
    same_values(before, propagate_layout()(before), 1e-5)


def test_spatial_axes_are_merged_in_place() -> None:
    def tokens(x: relax.Expr) -> relax.Expr:
        return op.nn.softmax(op.permute_dims(op.reshape(conv(x), (1, 8, 30)), [0, 2, 1]))

    assert len(reorders(propagate_layout()(module(tokens, X)))) == 1
    flat = module(lambda x: op.reshape(conv(x), (1, 240)), X)
    assert len(reorders(propagate_layout()(flat))) == 2  # mixes channels with pixels


def everything(x: relax.Expr) -> list[relax.Expr]:
    """Operators that run in either layout, between a convolution and a sum over pixels."""
    gamma, beta, mean = (constant(8, seed=seed) for seed in range(3))
    variance = relax.const(np.abs(constant(8, seed=4).value.numpy()))
    scale = relax.const(np.linspace(0.02, 0.05, 8, dtype=np.float32))
    zero = relax.const(np.full(8, 3, np.int8))
    row = op.mean(x, [0, 1, 2])  # [W]
    y = conv(x, seed=1)
    parts = bind(op.split(y, [2, 5], 1))
    middle = [
        op.where(op.greater(y, constant(8, 1, 1)), y, op.negative(x)),
        op.add(op.multiply(y, row), op.reshape(op.mean(y, [0, 2, 3]), (8, 1, 1))),
        op.nn.prelu(y, gamma, 1),
        op.clip(op.nn.leakyrelu(y, 0.1), -1, 1),
        op.nn.max_pool2d(y, (3, 2), (2, 1), (1, 0, 1, 1), ceil_mode=True),
        op.nn.avg_pool2d(y, (3, 3), (1, 1), (1, 1, 1, 1), count_include_pad=False),
        op.nn.adaptive_avg_pool2d(y, (3, 1)),
        op.image.resize2d(y, (12, 10), method="nearest_neighbor", rounding_method="floor"),
        op.nn.batch_norm(y, gamma, beta, mean, variance, 1, training=False)[0],
        op.nn.group_norm(y, gamma, beta, 2, 1, [2, 3]),
        op.nn.instance_norm(y, gamma, beta, 1, [2, 3]),
        op.concat([y, constant(1, 3, 6, 5), x], 1),
        op.concat([parts[2], parts[0]], 1),
        op.nn.pad(y, (0, 0, 0, 0, 1, 2, 0, 1), "constant", 0.5),
        op.strided_slice(y, [1, 3], [1, 0], [8, 5], [1, 2]),
        op.dequantize(op.quantize(y, scale, zero, 1), scale, zero, 1),
        op.nn.softmax(y, 1),
        op.nn.log_softmax(y, 3),
        op.broadcast_to(op.max(y, [2, 3], True), (2, 8, 6, 5)),
        op.permute_dims(y, [0, 1, 3, 2]),
        op.reshape(op.permute_dims(op.reshape(y, (1, 2, 4, 6, 5)), [0, 2, 1, 3, 4]), (1, 8, 6, 5)),
        op.cumsum(y, 2),
        op.flip(y, 3),
        op.nn.conv2d(y, kernel(8, 1, 3, 3), groups=8, strides=(2, 1), padding=(0, 1, 1, 1)),
        op.nn.conv2d(y, kernel(16, 2, 2, 3), groups=4, dilation=(2, 1)),
    ]
    heads = [
        op.astype(op.argmax(y, 1), F),
        op.mean(y, [1]),
        op.sum(y),
        op.min(y, [2]),
        op.std(y, [1, 3], True),
        op.squeeze(op.mean(y, [2, 3], True), [2, 3]),
    ]
    return [*(weighted_sum(z, seed) for seed, z in enumerate(middle)), *heads]


def weighted_sum(x: relax.Expr, seed: int) -> relax.Expr:
    """A sum in which every pixel has its own weight, so that its place counts."""
    bound = bind(x)
    weights = constant(*map(int, bound.ty.shape.values), seed=seed)
    return op.sum(op.multiply(bound, weights), [2, 3])


def test_every_operator_in_either_layout() -> None:
    """Sums of at most 300 numbers of about 1 are added in another order: 300 * 2**-24 relative to
    the sum of magnitudes, which is below 2e-5."""
    before = module(everything, X)
    after = propagate_layout()(before)
    assert len(moved(after)) <= 5
    assert 'layout="NCHW"' not in after.script()
    same_values(before, after, 2e-5)


def depth_to_space(x: relax.Expr, channels: int) -> relax.Expr:
    """[N, 4 * C, H, W] -> [N, C, 2 * H, 2 * W]"""
    parts = bind(op.reshape(x, (1, 2, 2, channels, 6, 5)))
    return bind(op.reshape(op.permute_dims(parts, [0, 3, 4, 1, 5, 2]), (1, channels, 12, 10)))


def test_depth_to_space_is_one_permutation() -> None:
    """One permutation between convolutions; at the end it also makes channels first."""

    def body(x: relax.Expr) -> list[relax.Expr]:
        y = conv(x, 16)
        return [op.mean(conv(depth_to_space(y, 4)), [2, 3]), depth_to_space(conv(y, 12), 3)]

    before = module(body, X)
    after = propagate_layout()(before)
    assert len(moved(after)) == 3  # with that of the input
    assert 'layout="NCHW"' not in after.script()
    same_values(before, after, 1e-5)


def test_a_shuffle_of_dynamic_images_is_one_permutation() -> None:
    """A channel shuffle, channels last, for any number of images of any height."""
    n, h = tirx.Var("n", "int64"), tirx.Var("h", "int64")
    weight, depth = kernel(8, 4, 1, 1), kernel(8, 1, 3, 3)

    def before(x: relax.Expr) -> relax.Expr:
        y = bind(op.nn.conv2d(x, weight))
        parts = bind(op.permute_dims(bind(op.reshape(y, (n, 2, 4, h, 5))), [0, 2, 1, 3, 4]))
        return op.nn.conv2d(bind(op.reshape(parts, (n, 8, h, 5))), depth, groups=8, padding=1)

    def after(x: relax.Expr) -> relax.Expr:
        y = bind(op.nn.conv2d(to_last(x), transposed(weight), **LAST_2D))
        parts = bind(op.permute_dims(bind(op.reshape(y, (n, h, 5, 2, 4))), [0, 1, 2, 4, 3]))
        y = bind(op.reshape(parts, (n, h, 5, 8)))
        return to_first(op.nn.conv2d(y, transposed(depth), **LAST_2D, groups=8, padding=1))

    check(before, after, ((n, 4, h, 5), "float32"))


@pytest.mark.parametrize("rank", [1, 3])
def test_one_and_three_axes(rank: int) -> None:
    extents, letters = (6, 5, 4)[:rank], "DHW"[-rank:]
    weight, narrow = kernel(6, 4, *(3,) * rank), kernel(6, 3, *(1,) * rank)
    convolve = getattr(op.nn, f"conv{rank}d")

    def before(x: relax.Expr) -> relax.Expr:
        y = op.nn.relu(convolve(x, weight, strides=2, padding=1))
        return convolve(y, narrow, groups=2) if rank == 1 else convolve(y, kernel(2, 6, 1, 1, 1))

    mod = module(before, ((2, 4, *extents), F))
    after = propagate_layout()(mod)
    assert after.script().count(f'data_layout="N{letters}C"') == 2
    assert len(moved(after)) == 2
    same_values(mod, after, 1e-5)


def random_operator(rng: np.random.Generator, values: list[relax.Expr]) -> relax.Expr:
    """An operator on some of the values, all of shape [1, 8, 6, 5]."""
    x, y = (values[int(i)] for i in rng.integers(len(values), size=2))
    return [
        lambda: op.add(x, y),
        lambda: op.multiply(x, op.sigmoid(op.mean(y, [2, 3], True))),
        lambda: conv(op.nn.relu(x), seed=int(rng.integers(9))),
        lambda: op.nn.max_pool2d(x, (3, 3), padding=1),
        lambda: op.reshape(op.nn.softmax(op.reshape(x, (4, 60))), (1, 8, 6, 5)),
        lambda: op.nn.softmax(x, int(rng.integers(4))),
        lambda: op.concat([op.split(x, 2, 1)[1], op.split(y, 2, 1)[0]], 1),
        lambda: op.subtract(x, constant(8, 1, 1)),
        lambda: to_first(op.tanh(to_last(x))),
    ][int(rng.integers(9))]()


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
def test_random_graphs_keep_their_values(seed: int) -> None:
    """Reorders move no more bytes than if every convolution reordered its input and output."""
    rng = np.random.default_rng(seed)

    def body(*inputs: relax.Expr) -> list[relax.Expr]:
        values = list(inputs)
        for _ in range(12):
            values.append(bind(random_operator(rng, values[-4:])))
        return [conv(values[-1]), values[-2], op.mean(values[-3], [2, 3])]

    before = module(body, X, X)
    after = propagate_layout()(before)
    convolutions = after.script().count("R.nn.conv2d")
    assert sum(moved(after)) <= 2 * convolutions * 960 + sum(moved(before))
    same_values(before, after, 1e-5)


def split_image(items: tuple[int, ...]) -> Callable[[relax.Expr], list[relax.Expr]]:
    """Convolutions of a split image; the last axis of the second item becomes its channels."""

    def body(x: relax.Expr) -> list[relax.Expr]:
        parts = bind(op.split(conv(x), 2, 1))
        images = [bind(parts[0]), bind(to_first(parts[1]))]
        return [op.mean(conv(images[i], seed=i + 1), [2, 3]) for i in items]

    return body


@pytest.mark.parametrize("items", [(1,), (0, 1), (1, 0)])
def test_items_of_a_tuple_with_channels_on_another_axis(items: tuple[int, ...]) -> None:
    """A tuple cannot be reordered: the split runs as imported if an item needs that layout."""
    before = module(split_image(items), ((1, 8, 6, 6), F))
    after = propagate_layout()(before)
    assert "axis=1)" in next(line for line in after.script().splitlines() if "R.split" in line)
    assert after.script().count('data_layout="NHWC"') == 1 + len(items)
    same_values(before, after, 1e-5)


def random_turn(rng: np.random.Generator, values: list[relax.Expr]) -> relax.Expr:
    """An operator on some of the values, all of shape [1, 6, 6, 6]: axes change their roles."""
    x, y = (values[int(i)] for i in rng.integers(len(values), size=2))
    axis = int(rng.integers(1, 4))

    def cut(value: relax.Expr, *places: int) -> list[relax.Expr]:
        parts = bind(op.split(value, places, axis))
        return [parts[i] for i in range(len(places) + 1)]

    return [
        lambda: conv(op.nn.relu(x), 6, seed=int(rng.integers(9))),
        lambda: to_first(x),
        lambda: to_last(x),
        lambda: op.concat(cut(x, 2, 4)[::-1], axis),
        lambda: cut(bind(op.concat([x, constant(1, 6, 6, 6), y], axis)), 6, 12)[2],
        lambda: op.concat([cut(x, 4)[1], cut(y, 4)[0]], axis),
    ][int(rng.integers(6))]()


def random_turns(seed: int, count: int = 10) -> IRModule:
    """A graph of operators from `random_turn`."""
    rng = np.random.default_rng(seed)

    def body(x: relax.Expr) -> list[relax.Expr]:
        values = [conv(x, 6)]
        for _ in range(count):
            values.append(bind(random_turn(rng, values[-4:])))
        return [conv(values[-1], 6), values[-2]]

    return module(body, ((1, 6, 6, 6), F))


def test_every_graph_has_layouts_that_fit() -> None:
    """Every variable has the type of its value; two of the graphs also run."""
    for seed in range(40):
        before = random_turns(seed)
        after = propagate_layout()(before)
        for binding in after["main"].body.blocks[0].bindings:
            value = relax.BlockBuilder().normalize(binding.value)
            assert_structural_equal(value.ty, binding.var.ty)
        if seed < 2:
            same_values(before, after, 1e-5)


def test_forms() -> None:
    form = Form((1, 8, 6, 5), "uint8", 1)
    assert form.bytes == 240
    assert form.order(FIRST) == (0, 1, 2, 3)
    assert form.stored(LAST) == (1, 6, 5, 8)
    imported_last = Form((1, 6, 5, 8), F, 3)
    assert imported_last.imported == LAST
    assert imported_last.stored(FIRST) == (1, 8, 6, 5)
    assert imported_last.between(FIRST, LAST) == (0, 2, 3, 1)
    assert not Form((1, 8, 1, 1), F, 1).moves
    assert {Form((3, 8), F).order(label) for label in (FIRST, LAST)} == {(0, 1)}


LARGE = ((1, 8, 16, 16), F)


def one_tap(x: relax.Expr, channels: int = 4) -> relax.Expr:
    bound = bind(x)
    return bind(op.nn.conv2d(bound, kernel(channels, int(bound.ty.shape.values[1]), 1, 1)))


@pytest.mark.parametrize(
    ("body", "x", "moved"),
    [
        (lambda x: one_tap(x), LARGE, 0),
        (lambda x: op.nn.relu(one_tap(x, 16)), LARGE, 0),
        (lambda x: one_tap(x), X, 2),  # few pixels
        (lambda x: one_tap(conv(x)), LARGE, 2),  # x is channels last
        (lambda x: conv(one_tap(x)), LARGE, 2),  # the result is
    ],
    ids=["alone", "relu", "few pixels", "behind", "before"],
)
def test_one_tap_runs_channels_first_between_tensors_that_are(
    body: Body, x: tuple[tuple[int, ...], str], moved: int
) -> None:
    mod = module(body, x)
    assert len(reorders(propagate_layout()(mod))) == moved
    assert len(reorders(propagate_layout(planes=False)(mod))) == 2
