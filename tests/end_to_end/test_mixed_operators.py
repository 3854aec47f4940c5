"""Elementwise operators of mixed types behind a product compile at every fusion level.

Numbers are small integers, so that every result is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tvm_hybrid
from relay_passes.pipeline_options import FUSION_LEVELS
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

pytestmark = pytest.mark.turns

RNG = np.random.default_rng(0)
ROWS, DEPTH, COLUMNS = 5, 8, 6
X = RNG.integers(-3, 4, (ROWS, DEPTH)).astype(np.float32)
WEIGHT = RNG.integers(-2, 3, (DEPTH, COLUMNS)).astype(np.float32)
ROW = np.arange(COLUMNS, dtype=np.float32)
CHOICE = RNG.random((ROWS, COLUMNS)) < 0.5
SLOPE = RNG.integers(-2, 3, (ROWS, COLUMNS)).astype(np.float32)
Case = Callable[[OnnxBuilder, str], "tuple[str, type]"]


def constant_condition(shape: tuple[int, ...], value: bool) -> Case:
    def build(model: OnnxBuilder, y: str) -> tuple[str, type]:
        condition = model.constant(np.full(shape, value))
        return model.node("Where", condition, y, model.constant(ROW)), np.float32

    return build


def chosen_squares(model: OnnxBuilder, y: str) -> tuple[str, type]:
    square = model.node("Pow", y, model.constant(np.float32(2)))
    chosen = model.node("Where", model.constant(CHOICE), square, model.constant(ROW))
    slopes = model.node("Where", model.constant(~CHOICE), y, model.constant(SLOPE))
    return model.node("PRelu", model.node("Mul", chosen, slopes), model.constant(ROW)), np.float32


def through(dtype: type, op: str) -> Case:
    """Casts to a type and applies an operator with a constant of that type."""

    def build(model: OnnxBuilder, y: str) -> tuple[str, type]:
        kind = np.dtype(dtype)
        code = {"f": {2: 10, 8: 11}, "i": {1: 3, 4: 6, 8: 7}, "u": {1: 2}}[kind.kind][kind.itemsize]
        value = model.node("Cast", model.node("Abs", y), to=code)
        two = model.constant(np.array(2, dtype))
        if op == "Where":
            greater = model.node("Greater", y, model.constant(np.float32(1)))
            value = model.node("Where", greater, value, two)
        else:
            value = model.node(op, value, two)
        return value, np.bool_ if op in ("Equal", "Less") else dtype

    return build


def conditions(op: str) -> Case:
    def build(model: OnnxBuilder, y: str) -> tuple[str, type]:
        greater = model.node("Greater", y, model.constant(ROW))
        value = model.node(op, greater, model.constant(np.array([True])))
        return model.node("Where", value, y, model.constant(ROW)), np.float32

    return build


CASES = {
    **{
        f"where {value} of {shape}": constant_condition(shape, value)
        for shape in ((), (1,), (1, 1))
        for value in (False, True)
    },
    "chosen squares": chosen_squares,
    **{
        f"{op} {dtype.__name__}": through(dtype, op)
        for dtype in (np.int64, np.int32, np.uint8, np.float16, np.float64)
        for op in ("Add", "Equal", "Where")
    },
    **{f"{op} of conditions": conditions(op) for op in ("And", "Xor", "Equal")},
}


@pytest.mark.parametrize("fusion", FUSION_LEVELS)
def test_every_level_compiles_them(fusion: str) -> None:
    """All operators in one model, which compiles faster than one model each."""
    model = OnnxBuilder()
    x = model.input("x", X.shape)
    for number, build in enumerate(CASES.values()):
        weight = WEIGHT + number % 3
        value, dtype = build(model, model.node("MatMul", x, model.constant(weight)))
        model.output(value, (ROWS, COLUMNS), dtype)
    proto = model.model()
    expected = literal_session(proto).run(None, {"x": X})
    session = tvm_hybrid.InferenceSession(
        proto.SerializeToString(), fusion=fusion, num_threads=1, records=[]
    )
    for name, wanted, result in zip(CASES, expected, session.run(None, {"x": X}), strict=True):
        assert result.dtype == wanted.dtype, name
        np.testing.assert_array_equal(result, wanted, err_msg=name)


@pytest.mark.parametrize("count", [3, 24])
def test_conditions_that_are_used_twice(count: int) -> None:
    """A generic kernel keeps conditions that are used twice in a vector, stored as bytes."""
    x = RNG.integers(0, 2, count).astype(np.float16)
    choice, other = RNG.random((2, count)) < 0.5
    model = OnnxBuilder()
    given = model.input("choice", (count,), np.bool_)
    chosen = model.node("Where", given, model.input("x", (count,), np.float16), model.constant(-x))
    there = model.node("Cast", chosen, to=9)
    either = model.node("Or", there, model.constant(other))
    model.output(model.node("Xor", either, there), (count,), np.bool_)
    session = tvm_hybrid.InferenceSession(model.model(), num_threads=1, records=[])
    result = session.run(None, {"choice": choice, "x": x})[0]
    np.testing.assert_array_equal(result, ((x != 0) | other) ^ (x != 0))
