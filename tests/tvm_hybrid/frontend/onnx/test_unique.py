"""Unique: elements and slices, sorted or in order of occurrence, with every set of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.compare import BFLOAT16, Feeds, same, same_as_onnx_runtime
from tvm_hybrid.frontend.onnx.onnx_import import import_onnx


def unique(shape: tuple[int, ...], dtype: Any, outputs: int = 4, **attributes: Any) -> OnnxBuilder:
    opset = 28 if dtype is BFLOAT16 else 17
    model = OnnxBuilder(opset)
    names = model.nodes("Unique", outputs, model.input("x", shape, dtype), **attributes)
    for place, name in enumerate([names] if isinstance(names, str) else names):
        rank = len(shape) if place == 0 and "axis" in attributes else 1
        model.output(name, ["n"] * rank if place == 0 else ("m",), np.int64 if place else dtype)
    return model


def few_values(shape: tuple[int, ...], dtype: Any) -> list[Feeds]:
    """A few distinct values, and a constant array."""
    rng = np.random.default_rng(0)
    return [{"x": rng.integers(0, top, shape).astype(dtype)} for top in (4, 1)]


@pytest.mark.sampled
@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [((3, 5), {}), ((6, 2), {"axis": 0}), ((2, 6, 2), {"axis": 1}), ((2, 7), {"axis": -1})],
)
def test_unique(shape: tuple[int, ...], attributes: dict[str, int], in_order: int) -> None:
    model = unique(shape, np.float32, sorted=in_order, **attributes)
    same_as_onnx_runtime(model, few_values(shape, np.float32))


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_fewer_outputs(outputs: int) -> None:
    model = unique((9,), np.int64, outputs)
    same_as_onnx_runtime(model, few_values((9,), np.int64))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.bool_, np.float16, BFLOAT16, np.float64])
def test_types(dtype: Any) -> None:
    x = few_values((3, 4), dtype)[0]["x"]
    arrays = np.unique(x.astype(np.float64), True, True, True)
    values, firsts, inverse, counts = (np.ravel(each) for each in arrays)
    expected = [values.astype(dtype), firsts, inverse, counts]
    same(unique((3, 4), dtype), [({"x": x}, expected)])


def test_special_numbers() -> None:
    """NaN equals NaN and sorts last; of the two zeros the first in the input is kept."""
    x = np.array([np.nan, -0.0, np.inf, 0.0, -np.inf, np.nan, 2], np.float32)
    expected = [
        np.array([-np.inf, -0.0, 2, np.inf, np.nan], np.float32),
        np.array([4, 1, 6, 2, 0]),
        np.array([4, 1, 3, 1, 0, 4, 2]),
        np.array([1, 2, 1, 1, 2]),
    ]
    session = same(unique((7,), np.float32), [({"x": x}, expected)])
    assert np.signbit(session.run(None, {"x": x})[0][1])


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("in_order", [0, 1])
def test_many_elements(dtype: Any, in_order: int) -> None:
    """Elements that use all digits; some digits are equal in all elements."""
    rng = np.random.default_rng(1)
    bits = 8 * np.dtype(dtype).itemsize
    few = rng.integers(0, 2**64 - 1, 500, np.uint64) >> np.uint64(64 - bits)
    x = few.astype(f"u{bits // 8}").view(dtype)[rng.integers(0, 500, 3000)]
    x = np.nan_to_num(x) if np.dtype(dtype).kind == "f" else x
    values, firsts, inverse, counts = np.unique(x, True, True, True)
    if not in_order:
        by_place = np.argsort(firsts)
        inverse = np.argsort(by_place)[inverse]
        values, firsts, counts = (each[by_place] for each in (values, firsts, counts))
    model = unique((3000,), dtype, sorted=in_order)
    same(model, [({"x": x}, [values, firsts, inverse, counts])])


@pytest.mark.parametrize(("shape", "by_comparisons"), [((300,), False), ((300, 2), True)])
def test_elements_are_sorted_by_digits(shape: tuple[int, ...], by_comparisons: bool) -> None:
    """Merge sort has a loop over run widths; radix sort has a table of counts."""
    axis = {"axis": 0} if by_comparisons else {}
    model = unique(shape, np.int64, 4, **axis)
    text = import_onnx(model.model(), keep_dynamic=True).mod.script()
    assert ("T.While" in text or "while " in text) == by_comparisons
    assert ("T.int64(2048)" in text) != by_comparisons
