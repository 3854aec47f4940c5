"""Quantisation moves up past operators that only move elements, and past no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import IRModule, ir, relax
from tvm.ir import assert_structural_equal

from relay_passes.ir.graph import op_name
from relay_passes.ir.rules import rules
from relay_passes.quantize import move_quantization
from relay_passes.quantize.move_quantization import open_tuples, sink_dequantize
from tests.relay_passes.graphs import module
from tests.relay_passes.quantized import (
    assert_becomes,
    assert_same_bits,
    assert_stays,
    dequantize,
    operators,
    quantize,
)

op = relax.op
F = "float32"
SHAPE = (2, 4, 3)
X = (SHAPE, F)
Move = Callable[[relax.Expr], relax.Expr]


def lift_quantize() -> ir.transform.Pass:
    """The rule, with the one that opens tuples: parts of a split are a tuple in between."""
    return rules("lifted", [move_quantization.lift_quantize, open_tuples])


def turn(x: relax.Expr) -> relax.Expr:
    return op.permute_dims(x, [2, 0, 1])


# The operator, and the axis of its result that was axis 1 of its argument.
MOVES: dict[str, tuple[Move, int]] = {
    "reshape": (lambda x: op.reshape(x, (2, 4, 1, 3)), 1),
    "permute_dims": (turn, 2),
    "expand_dims": (lambda x: op.expand_dims(x, 0), 2),
    "broadcast_to": (lambda x: op.broadcast_to(x, (5, 2, 4, 3)), 2),
    "two": (lambda x: turn(op.reshape(x, (2, 4, 3))), 2),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("per_axis", [False, True])
def test_moves(name: str, per_axis: bool) -> None:
    move, axis = MOVES[name]
    scale, zero = ([0.1, 0.2, 0.7, 0.3], [3, 0, 200, 255]) if per_axis else (0.3, 7)
    at, source = (axis, 1) if per_axis else (-1, -1)
    before = module(lambda x: quantize(move(op.exp(x)), scale, zero, axis=at), X)
    after = module(lambda x: move(quantize(op.exp(x), scale, zero, axis=source)), X)
    assert_becomes(before, lift_quantize(), after)
    assert_same_bits(before, after)


IMAGES: dict[str, Move] = {
    "pool": lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"),
    "copies": lambda x: op.image.resize2d(x, (12, 7), layout="NHWC", method="nearest_neighbor"),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("per_axis", [False, True])
def test_pools_and_copies_of_pixels(name: str, per_axis: bool) -> None:
    scale, zero = ([0.1, 0.2, 0.7], [3, 0, 200]) if per_axis else (0.3, 7)
    axis, move = 3 if per_axis else -1, IMAGES[name]
    image = ((1, 6, 7, 3), F)
    before = module(lambda x: quantize(move(op.exp(x)), scale, zero, axis=axis), image)
    after = module(lambda x: move(quantize(op.exp(x), scale, zero, axis=axis)), image)
    assert_becomes(before, lift_quantize(), after)
    assert_same_bits(before, after)


def test_a_resize_that_leaves_pixels_out_stops_it() -> None:
    def smaller(x: relax.Expr) -> relax.Expr:
        return op.image.resize2d(op.exp(x), (3, 7), layout="NHWC", method="nearest_neighbor")

    assert_stays(module(lambda x: quantize(smaller(x), 0.3, 7), ((1, 6, 7, 3), F)), lift_quantize())


@pytest.mark.parametrize(
    ("move", "axis"),
    [
        pytest.param(lambda x: op.reshape(x, (8, 3)), 0, id="joined"),
        pytest.param(lambda x: op.broadcast_to(op.reshape(x, (24, 1)), (24, 8)), 1, id="broadcast"),
    ],
)
def test_an_axis_that_is_not_there_above_stops_it(move: Move, axis: int) -> None:
    before = module(lambda x: quantize(move(op.exp(x)), np.arange(1, 9) / 9, 3, axis=axis), X)
    after = lift_quantize()(before)
    assert operators(after)["quantize"] == 1
    assert quantized_shape(after) == quantized_shape(before)


def quantized_shape(mod: IRModule) -> list[int]:
    """The shape of the tensor that main quantises, without extents of 1."""
    values = [binding.value for binding in mod["main"].body.blocks[0].bindings]
    (call,) = [value for value in values if op_name(value) == "relax.quantize"]
    return [int(extent) for extent in call.ty.shape if int(extent) != 1]


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(lambda x: op.strided_slice(x, [0], [0], [1]), id="leaves elements out"),
        pytest.param(op.negative, id="computes"),
        pytest.param(op.nn.relu, id="relu above a zero point in the middle"),
    ],
)
def test_what_stops_it(stop: Move) -> None:
    before = module(lambda x: quantize(stop(x), 0.3, 7), X)
    assert_stays(before, lift_quantize())


def test_a_concat_along_the_scales_stops_it() -> None:
    """Quantisation stays below, although each part would have its own scales."""
    scales, zeros = np.arange(1, 9) / 9, np.arange(8)

    def body(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return quantize(op.concat([op.exp(x), op.exp(y)], 1), scales, zeros, axis=1)

    assert_stays(module(body, X, X), lift_quantize())


def test_a_maximum_that_adds_a_dimension_is_no_clip() -> None:
    zeros = relax.const(np.zeros((1, 1, 1, 1), np.float32))
    mod = module(lambda x: quantize(op.maximum(op.exp(x), zeros), 0.3, 0), X)
    assert_stays(mod, lift_quantize())


def test_a_permutation_that_is_needed_in_f32_stays() -> None:
    before = module(lambda x: [quantize(turn(x), 0.3, 7), op.exp(turn(x))], X)
    assert_stays(before, lift_quantize())


def test_a_reshape_that_is_needed_in_f32_does_not_hinder() -> None:
    def flat(x: relax.Expr) -> relax.Expr:
        return op.reshape(x, (8, 3))

    before = module(lambda x: [op.exp(flat(x)), quantize(flat(x), 0.3, 7)], X)
    after = module(lambda x: [op.exp(flat(x)), flat(quantize(x, 0.3, 7))], X)
    assert_becomes(before, lift_quantize(), after)


def test_two_quantisations_of_one_permutation() -> None:
    before = module(lambda x: [quantize(turn(x), 0.3, 7), quantize(turn(x), 0.2, 7)], X)
    after = module(lambda x: [turn(quantize(x, 0.3, 7)), turn(quantize(x, 0.2, 7))], X)
    assert_becomes(before, lift_quantize(), after)


def test_scales_of_run_time_stay() -> None:
    def body(x: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        return op.quantize(turn(x), s, z, axis=-1, out_dtype="uint8")

    before = module(body, X, ((), F), ((), "uint8"))
    assert_stays(before, lift_quantize())


def test_parts_of_a_concat() -> None:
    def before(x: relax.Expr, q: relax.Expr) -> relax.Expr:
        return quantize(op.concat([turn(x), dequantize(q, 0.3, 7)], 1), 0.3, 7)

    def after(x: relax.Expr, q: relax.Expr) -> relax.Expr:
        return op.concat([turn(quantize(x, 0.3, 7)), q], 1)

    shapes = (X, ((3, 5, 4), "uint8"))
    assert_becomes(module(before, *shapes), lift_quantize(), module(after, *shapes))
    assert_same_bits(module(before, *shapes), module(after, *shapes))


def test_a_split_into_parts_quantised_alike() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        parts = op.split(op.exp(x), 2, 1)
        return [quantize(parts[0], 0.3, 7), turn(quantize(parts[1], 0.3, 7))]

    def after(x: relax.Expr) -> list[relax.Expr]:
        parts = op.split(quantize(op.exp(x), 0.3, 7), 2, 1)
        return [parts[0], turn(parts[1])]

    assert_becomes(module(before, X), lift_quantize(), module(after, X))
    assert_same_bits(module(before, X), module(after, X))


def test_a_split_into_parts_quantised_otherwise_stays() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        parts = op.split(x, 2, 1)
        return [quantize(parts[0], 0.3, 7), quantize(parts[1], 0.2, 7)]

    assert_stays(module(before, X), lift_quantize())


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("per_axis", [False, True])
def test_meets_a_dequantisation(dtype: str, per_axis: bool) -> None:
    """All 256 integers come back, for scales over the whole range that the rule accepts."""
    axis = 1
    scale = [3e-30, 0.1, 1 / 3, 7e29] if per_axis else 0.017
    shape = ((64, 4), dtype)

    def before(q: relax.Expr) -> relax.Expr:
        return op.flip(quantize(dequantize(q, scale, 5, dtype, axis), scale, 5, dtype, axis), 0)

    after = module(lambda q: op.flip(q, 0), shape)
    assert_becomes(module(before, shape), lift_quantize(), after)
    assert_same_bits(module(before, shape), after)


@pytest.mark.parametrize(
    ("scale", "zero", "dtype"), [(0.2, 7, "uint8"), (0.3, 8, "uint8"), (0.3, 7, "int8")]
)
def test_another_quantisation_stays(scale: float, zero: int, dtype: str) -> None:
    before = module(lambda q: quantize(dequantize(q, 0.3, 7), scale, zero, dtype), (SHAPE, "uint8"))
    assert_stays(before, lift_quantize())


def test_a_head_of_attention() -> None:
    """Quantisation passes a permutation and a reshape, and cancels a dequantisation."""

    def before(q: relax.Expr) -> relax.Expr:
        heads = op.permute_dims(dequantize(q, 0.3, 7), [0, 2, 1])
        return quantize(op.reshape(heads, (6, 4)), 0.3, 7)

    mod = lift_quantize()(sink_dequantize()(module(before, (SHAPE, "uint8"))))
    after = module(lambda q: op.reshape(op.permute_dims(q, [0, 2, 1]), (6, 4)), (SHAPE, "uint8"))
    assert_structural_equal(mod, after)


CLIPS: dict[str, tuple[Move, float, int, str]] = {
    "relu": (op.nn.relu, 0.3, 0, "uint8"),
    "relu int8": (op.nn.relu, 0.3, -128, "int8"),
    "relu6": (lambda x: op.clip(x, 0, 6), 6 / 255, 0, "uint8"),
    "clip beyond": (lambda x: op.clip(x, -2, 3), 1 / 255, 100, "uint8"),
    "maximum": (lambda x: op.maximum(relax.const(np.float32(0)), x), 0.3, 0, "uint8"),
    "minimum": (lambda x: op.minimum(x, relax.const(np.float32(9))), 0.03, 0, "uint8"),
}


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_that_saturation_does(name: str) -> None:
    clip, scale, zero, dtype = CLIPS[name]
    before = module(lambda x: quantize(turn(clip(x)), scale, zero, dtype), X)
    after = module(lambda x: turn(quantize(x, scale, zero, dtype)), X)
    assert_becomes(before, lift_quantize(), after)
    assert_same_bits(before, after)


@pytest.mark.parametrize(
    ("clip", "scale", "zero", "dtype"),
    [
        (op.nn.relu, 0.3, 1, "uint8"),
        (op.nn.relu, 0.3, -127, "int8"),
        (lambda x: op.clip(x, 0, 6), 6 / 254, 0, "uint8"),
        (lambda x: op.clip(x, 0.2, 6), 6 / 255, 0, "uint8"),
        (op.nn.relu, [0.3, 0.2, 0.1], [0, 0, 1], "uint8"),
    ],
)
def test_a_clip_that_saturation_does_not_do(
    clip: Move, scale: float, zero: int, dtype: str
) -> None:
    before = module(lambda x: quantize(clip(x), scale, zero, dtype), X)
    assert_stays(before, lift_quantize())


def test_a_clip_with_other_uses_stays() -> None:
    before = module(lambda x: [quantize(op.nn.relu(x), 0.3, 0), op.exp(op.nn.relu(x))], X)
    assert_stays(before, lift_quantize())


def random_move(
    rng: np.random.Generator, x: relax.Expr, shape: list[int]
) -> tuple[relax.Expr, list[int]]:
    """An operator that moves elements, and the shape of its result."""
    kind = rng.integers(5)
    if kind == 0:
        order = [int(axis) for axis in rng.permutation(len(shape))]
        return op.permute_dims(x, order), [shape[axis] for axis in order]
    if kind == 1:
        axis = int(rng.integers(len(shape) + 1))
        return op.expand_dims(x, axis), [*shape[:axis], 1, *shape[axis:]]
    if kind == 2 and len(shape) > 2:
        axis = int(rng.integers(len(shape) - 1))
        joined = [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]
        return op.reshape(x, joined), joined
    if kind == 3:
        axis = int(rng.integers(len(shape)))
        return op.flip(x, axis), shape
    return op.nn.relu(x), shape


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_keep_their_values(seed: int) -> None:
    """Quantised along every axis in turn, with moves and quantisations in random order."""
    rng = np.random.default_rng(seed)

    def body(x: relax.Expr) -> list[relax.Expr]:
        values: list[tuple[relax.Expr, list[int]]] = [(x, [2, 5, 3])]
        for step in range(9):
            y, shape = values[-1 - int(rng.integers(2)) % len(values)]
            if step % 3 == 0:
                axis = int(rng.integers(len(shape)))
                size = shape[axis] if rng.integers(2) else 1
                scale = rng.uniform(0.01, 0.1, size)
                zero = rng.integers(0, 200, size)
                q = quantize(y, scale, zero, axis=axis)
                y = dequantize(q, scale, zero, axis=axis)
            values.append(random_move(rng, y, shape))
        return [values[-1][0], values[-2][0]]

    before = module(body, ((2, 5, 3), F))
    after = lift_quantize()(sink_dequantize()(before))
    assert_same_bits(before, after)
