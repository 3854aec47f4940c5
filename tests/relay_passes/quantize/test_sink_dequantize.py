"""Dequantisation moves down past operators that only move elements, and past no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import ir, relax

from relay_passes.ir.graph import op_name
from relay_passes.ir.rules import rules
from relay_passes.quantize import move_quantization
from relay_passes.quantize.move_quantization import open_tuples
from tests.relay_passes.graphs import module
from tests.relay_passes.quantized import (
    assert_becomes,
    assert_same_bits,
    assert_stays,
    constant,
    dequantize,
)

op = relax.op


def sink_dequantize() -> ir.transform.Pass:
    """The rule, with the one that opens tuples: parts of a split are a tuple in between."""
    return rules("sunk", [move_quantization.sink_dequantize, open_tuples])


SHAPE = (2, 4, 3)
Q = (SHAPE, "uint8")
INDICES = relax.const(np.array([[2, 0], [1, 1]]))
SCALES, ZEROS = [0.1, 0.2, 0.7, 0.3], [3, 0, 200, 255]
Move = Callable[[relax.Expr], relax.Expr]

MOVES: dict[str, Move] = {
    "reshape": lambda x: op.reshape(x, (8, 3)),
    "permute_dims": lambda x: op.permute_dims(x, [2, 0, 1]),
    "permute_dims reversed": lambda x: op.permute_dims(x),
    "squeeze": lambda x: op.squeeze(op.expand_dims(x, [0, 2]), [0]),
    "flatten": op.flatten,
    "broadcast_to": lambda x: op.broadcast_to(x, (5, 2, 4, 3)),
    "strided_slice": lambda x: op.strided_slice(x, [0, 2], [1, 0], [2, 3], [1, 2]),
    "take": lambda x: op.take(x, INDICES, axis=2, mode="clip"),
    "take in front": lambda x: op.take(x, INDICES, axis=0, mode="clip"),
    "flip": lambda x: op.flip(x, 2),
    "repeat": lambda x: op.repeat(x, 2, 0),
    "tile": lambda x: op.tile(x, [2, 1, 2]),
    "two": lambda x: op.permute_dims(op.reshape(x, (2, 4, 3, 1)), [0, 3, 2, 1]),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", MOVES)
def test_one_scale_for_all(name: str) -> None:
    before = module(lambda q: op.exp(MOVES[name](dequantize(q, 0.3, 7))), Q)
    after = module(lambda q: op.exp(dequantize(MOVES[name](q), 0.3, 7)), Q)
    assert_becomes(before, sink_dequantize(), after)
    assert_same_bits(before, after)


# The axis of the result that was axis 1 of [2, 4, 3]; None if there is none.
AXES = {
    "reshape": None,
    "permute_dims": 2,
    "permute_dims reversed": 1,
    "squeeze": 2,
    "flatten": None,
    "broadcast_to": 2,
    "strided_slice": 1,
    "take": 1,
    "take in front": 2,
    "flip": 1,
    "repeat": 1,
    "tile": 1,
    "two": 3,
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", MOVES)
def test_a_scale_for_each_index_of_an_axis(name: str) -> None:
    before = module(lambda q: MOVES[name](dequantize(q, SCALES, ZEROS, axis=1)), Q)
    after = sink_dequantize()(before)
    axis = AXES[name]
    if axis is None:
        assert_stays(before, sink_dequantize())
    else:
        expected = module(lambda q: dequantize(MOVES[name](q), SCALES, ZEROS, axis=axis), Q)
        assert_becomes(before, sink_dequantize(), expected)
        assert_same_bits(before, after)


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda x: op.strided_slice(x, [1], [0], [2]), id="slice"),
        pytest.param(lambda x: op.take(x, INDICES, axis=1, mode="clip"), id="take"),
        pytest.param(lambda x: op.flip(x, 1), id="flip"),
        pytest.param(lambda x: op.repeat(x, 2, 1), id="repeat"),
        pytest.param(lambda x: op.tile(x, [1, 2, 1]), id="tile"),
        pytest.param(lambda x: op.concat([x, x], 1), id="concat"),
        pytest.param(lambda x: op.split(x, 2, 1)[0], id="split"),
        pytest.param(lambda x: op.reshape(x, (2, 2, 2, 3)), id="reshape that splits it"),
    ],
)
def test_what_acts_on_the_quantised_axis_stops_it(move: Move) -> None:
    before = module(lambda q: move(dequantize(q, SCALES, ZEROS, axis=1)), Q)
    assert_stays(before, sink_dequantize())


@pytest.mark.parametrize(
    "stop",
    [op.nn.relu, op.negative, lambda x: op.max(x, [1]), lambda x: op.take(x, INDICES, 1, "nan")],
    ids=["relu", "negative", "max", "take that makes NaN"],
)
def test_what_changes_values_stops_it(stop: Move) -> None:
    before = module(lambda q: stop(dequantize(q, 0.3, 7)), Q)
    assert_stays(before, sink_dequantize())


def test_parts_of_a_concat_with_the_same_scale() -> None:
    def body(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.concat([dequantize(a, 0.3, 7), dequantize(b, 0.3, 7)], 1)

    before = module(body, Q, ((2, 1, 3), "uint8"))
    after = module(lambda a, b: dequantize(op.concat([a, b], 1), 0.3, 7), Q, ((2, 1, 3), "uint8"))
    assert_becomes(before, sink_dequantize(), after)
    assert_same_bits(before, after)


@pytest.mark.parametrize(
    ("scale", "zero", "dtype"), [(0.2, 7, "uint8"), (0.3, 8, "uint8"), (0.3, 7, "int8")]
)
def test_parts_of_a_concat_that_differ_stay(scale: float, zero: int, dtype: str) -> None:
    def body(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.concat([dequantize(a, 0.3, 7), dequantize(b, scale, zero, dtype)], 0)

    before = module(body, Q, (SHAPE, dtype))
    assert_stays(before, sink_dequantize())


def test_a_concat_with_a_float_part_stays() -> None:
    before = module(lambda q, x: op.concat([dequantize(q, 0.3, 7), x], 0), Q, (SHAPE, "float32"))
    assert_stays(before, sink_dequantize())


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_parts_of_a_split(axis: int | None) -> None:
    scale, zero = (0.3, 7) if axis is None else ([0.1, 0.2, 0.3, 0.4][: SHAPE[axis]], 5)
    along = -1 if axis is None else axis

    def before(q: relax.Expr) -> list[relax.Expr]:
        parts = op.split(dequantize(q, scale, zero, axis=along), [1], 2)
        return [op.exp(parts[0]), op.permute_dims(parts[1], [1, 0, 2])]

    def after(q: relax.Expr) -> list[relax.Expr]:
        parts = op.split(q, [1], 2)
        other = -1 if axis is None else 1 - axis
        builder = relax.BlockBuilder.current()
        first, second = builder.emit(parts[0]), builder.emit(parts[1])
        return [
            op.exp(dequantize(first, scale, zero, axis=along)),
            dequantize(op.permute_dims(second, [1, 0, 2]), scale, zero, axis=other),
        ]

    assert_becomes(module(before, Q), sink_dequantize(), module(after, Q))
    assert_same_bits(module(before, Q), module(after, Q))


def pool(x: relax.Expr, **options: object) -> relax.Expr:
    return op.nn.max_pool2d(x, **{"pool_size": (3, 2), "strides": (2, 2), **options})


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("axis", [None, 1])
def test_the_largest_of_a_window(dtype: str, axis: int | None) -> None:
    """A maximum sinks; padding is the lowest number of either type."""
    image = ((2, 3, 7, 6), dtype)
    scale, zero = (0.3, -1 if dtype == "int8" else 9) if axis is None else ([0.1, 0.2, 0.3], 4)
    padded = {"padding": (1, 1, 2, 0)}
    along = -1 if axis is None else axis
    before = module(lambda q: pool(dequantize(q, scale, zero, dtype, along), **padded), image)
    after = module(lambda q: dequantize(pool(q, **padded), scale, zero, dtype, along), image)
    assert_becomes(before, sink_dequantize(), after)
    assert_same_bits(before, after)


@pytest.mark.parametrize(
    ("scale", "options"),
    [
        (-0.3, {}),
        ([0.1] * 6 + [0.2], {}),
        (0.3, {"ceil_mode": True}),
        (0.3, {"padding": (1, 1, 1, 1), "dilation": (2, 2)}),
        (0.3, {"padding": (0, 0, 0, 2)}),
    ],
    ids=["negative scale", "pooled axis", "past the edge", "with holes", "of padding alone"],
)
def test_windows_that_stop_it(scale: float | list[float], options: dict[str, object]) -> None:
    before = module(
        lambda q: pool(dequantize(q, scale, 3, axis=2), **options), ((2, 3, 7, 6), "uint8")
    )
    assert_stays(before, sink_dequantize())


IMAGE = ((1, 4, 5, 3), "int8")
PADS = [0, 0, 1, 2, 0, 1, 0, 0]


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_padding_adds_zero_points(mode: str) -> None:
    before = module(lambda q: op.nn.pad(dequantize(q, 0.3, -7, "int8"), PADS, mode), IMAGE)
    value = -7 if mode == "constant" else 0
    after = module(lambda q: dequantize(op.nn.pad(q, PADS, mode, value), 0.3, -7, "int8"), IMAGE)
    assert_becomes(before, sink_dequantize(), after)
    assert_same_bits(before, after)


def test_padding_that_stays() -> None:
    """Padding with another number, and padding of a tensor with different zero points."""
    ones = module(lambda q: op.nn.pad(dequantize(q, 0.3, -7, "int8"), PADS, "constant", 1.0), IMAGE)
    axis = module(
        lambda q: op.nn.pad(dequantize(q, [1, 2, 3], [1, 2, 3], "int8", 3), PADS, "constant"), IMAGE
    )
    for mod in (ones, axis):
        assert_stays(mod, sink_dequantize())


def resize(x: relax.Expr, method: str = "nearest_neighbor", **options: str) -> relax.Expr:
    return op.image.resize2d(x, (8, 10), layout="NHWC", method=method, **options)


@pytest.mark.parametrize("axis", [None, 3])
def test_copies_of_the_nearest_pixel(axis: int | None) -> None:
    scale, zero, along = (0.3, -7, -1) if axis is None else ([0.1, 0.2, 0.7], [1, 2, 3], axis)
    before = module(lambda q: resize(dequantize(q, scale, zero, "int8", along)), IMAGE)
    after = module(lambda q: dequantize(resize(q), scale, zero, "int8", along), IMAGE)
    assert_becomes(before, sink_dequantize(), after)
    assert_same_bits(before, after)


@pytest.mark.parametrize(
    "options",
    [{"method": "linear"}, {"coordinate_transformation_mode": "tf_crop_and_resize"}],
    ids=str,
)
def test_pixels_that_are_computed_stay(options: dict[str, str]) -> None:
    mod = module(lambda q: resize(dequantize(q, 0.3, -7, "int8"), **options), IMAGE)
    assert_stays(mod, sink_dequantize())


def test_every_use_gets_its_own() -> None:
    def before(q: relax.Expr) -> list[relax.Expr]:
        x = dequantize(q, 0.3, 7)
        return [op.exp(x), op.matmul(x, op.permute_dims(x, [0, 2, 1]))]

    def after(q: relax.Expr) -> list[relax.Expr]:
        x = dequantize(q, 0.3, 7)
        return [op.exp(x), op.matmul(x, dequantize(op.permute_dims(q, [0, 2, 1]), 0.3, 7))]

    assert_becomes(module(before, Q), sink_dequantize(), module(after, Q))


def test_scales_of_run_time_sink_too() -> None:
    def before(q: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        return op.permute_dims(op.dequantize(q, s, z, axis=-1), [2, 0, 1])

    def after(q: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        return op.dequantize(op.permute_dims(q, [2, 0, 1]), s, z, axis=-1)

    parameters = (Q, ((), "float32"), ((), "uint8"))
    assert_becomes(module(before, *parameters), sink_dequantize(), module(after, *parameters))
    assert_same_bits(module(before, *parameters), module(after, *parameters))


def test_a_table_is_read_in_8_bits() -> None:
    table = constant(np.arange(40).reshape(10, 4), "int8")
    before = module(
        lambda i: op.take(dequantize(table, 0.3, 7, "int8"), i, axis=0, mode="clip"),
        ((5,), "int64"),
    )
    after = sink_dequantize()(before)
    values = [binding.value for binding in after["main"].body.blocks[0].bindings]
    assert [op_name(value) for value in values] == ["relax.take", "relax.dequantize"]
    assert str(values[0].ty.dtype) == "int8"
