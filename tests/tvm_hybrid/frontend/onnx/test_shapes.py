"""Operators that make and read shapes with a data-dependent size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.chosen_rows import (
    ALL,
    ONE,
    SOME,
    Build,
    compare,
    count,
    feeds_of,
    model_of,
)
from tests.tvm_hybrid.frontend.onnx.compare import session_of
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError


def reshaped(*shape: int) -> Build:
    return lambda g, one, _: g.node("Reshape", one, g.constant(shape, np.int64))


def with_shape(op: str, *parts: Any) -> Build:
    """Applies an operator to a shape of numbers, "rows" of a value, and a "count" from data."""

    def build(g: OnnxBuilder, one: str, _: str) -> str:
        names = {
            "rows": lambda: g.node("Slice", g.node("Shape", one), g.constant([0]), g.constant([1])),
            "count": lambda: count(g),
        }
        vectors = [names[part]() if isinstance(part, str) else g.constant([part]) for part in parts]
        shape = g.node("Concat", *vectors, axis=0)
        return g.node(op, *([] if op == "ConstantOfShape" else [one]), shape)

    return build


def test_shapes() -> None:
    compare(
        [
            (lambda g, one, _: g.node("Shape", one), (2,), np.int64),
            (lambda g, one, _: g.node("Size", one), (), np.int64),
            (lambda g, one, other: g.node("Shape", g.node("Concat", one, other, axis=0)), (2,),
             np.int64),
        ]
    )  # fmt: skip


def test_reshape() -> None:
    compare(
        [
            (reshaped(-1), ("n",), np.float32),
            (reshaped(2, -1), (2, "n"), np.float32),
            (reshaped(0, 2, 2), ("n", 2, 2), np.float32),
            (lambda g, one, _: g.node("Flatten", one, axis=0), (1, "n"), np.float32),
            (lambda g, one, _: g.node("Unsqueeze", one, g.constant([0, -1])), (1, "n", 4, 1),
             np.float32),
            (lambda g, one, _: g.node("Squeeze", g.node("Unsqueeze", one, g.constant([1])),
                                      g.constant([-2])), ("n", 4), np.float32),
        ]
    )  # fmt: skip


def test_reshape_to_a_shape_that_is_computed() -> None:
    """ONNX Runtime copies the size for 0, and refuses -1 beside 0."""
    compare(
        [
            (with_shape("Reshape", "rows", 2, -1), ("n", 2, "m"), np.float32),
            (with_shape("Reshape", 2, "rows", 2), (2, "n", 2), np.float32),
            (with_shape("Reshape", "count", 2, -1), ("n", 2, "m"), np.float32),
        ],
        [SOME, ALL, ONE],
    )


def test_a_reshape_that_follows_from_sizes_fits_other_operands() -> None:
    """[n, 4] reshaped to the shape of [n, 4] is known to have n rows."""

    def build(g: OnnxBuilder, one: str, _: str) -> str:
        return g.node("Add", g.node("Reshape", g.node("Transpose", one), g.node("Shape", one)), one)

    compare([(build, ("n", 4), np.float32)], [SOME, ALL, ONE])


def test_expand_tile_and_constants() -> None:
    compare(
        [
            (lambda g, one, _: g.node("Expand", one, g.constant([3, 1, 4])), (3, "n", 4),
             np.float32),
            (lambda g, one, _: g.node("Expand", g.constant([[1.0, 2, 3, 4]], np.float32),
                                      g.node("Shape", one)), ("n", 4), np.float32),
            (lambda g, one, _: g.node("Tile", one, g.constant([2, 3])), ("n", 12), np.float32),
            (lambda g, one, _: g.node("Tile", one, g.constant([1, 5])), ("n", 20), np.float32),
            (lambda g, one, _: g.node("Tile", one, g.constant([4, 0])), (None, 0), np.float32),
            (with_shape("Tile", "count", 1), ("n", 4), np.float32),
            (with_shape("ConstantOfShape", "rows", 2), ("n", 2), np.float32),
            (with_shape("ConstantOfShape", "count"), ("n",), np.float32),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("build", [reshaped(3, -1), with_shape("Reshape", "count", 3)])
def test_a_number_of_elements_that_does_not_fit(build: Build) -> None:
    session = session_of(model_of([(build, ("n", "m"), np.float32)]))
    with pytest.raises(FeedError, match="reshape"):
        session.run(None, feeds_of(ONE))


def test_axes_that_are_computed_are_refused() -> None:
    def build(g: OnnxBuilder, one: str, _: str) -> str:
        return g.node("Unsqueeze", one, count(g))

    with pytest.raises(UnsupportedOperatorError, match="axes must be constant"):
        session_of(model_of([(build, ("n", 4, 1), np.float32)]))
