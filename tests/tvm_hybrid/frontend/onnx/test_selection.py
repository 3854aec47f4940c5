"""NonZero and Compress: the number of elements is known only at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.compare import (
    BFLOAT16,
    Feeds,
    same,
    same_as_onnx_runtime,
    session_of,
)
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tvm_hybrid.runtime.tensors import OutputInfo


def nonzero(shape: tuple[int, ...], dtype: Any) -> OnnxBuilder:
    model = OnnxBuilder()
    found = model.node("NonZero", model.input("x", shape, dtype))
    model.output(found, (len(shape), "found"), np.int64)
    return model


def flags(shape: tuple[int, ...], dtype: Any) -> list[Feeds]:
    """Conditions with some, no and all elements set."""
    some = np.random.default_rng(0).integers(0, 2, shape)
    arrays = (some, np.zeros(shape), np.ones(shape))
    return [{"x": array.astype(dtype)} for array in arrays]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(5,), (2, 0), (2, 3, 4)])
def test_nonzero(shape: tuple[int, ...], dtype: Any) -> None:
    same_as_onnx_runtime(nonzero(shape, dtype), flags(shape, dtype))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float64, np.int8, np.uint16])
def test_nonzero_of_types_that_onnx_runtime_lacks(dtype: Any) -> None:
    pairs = [(feeds, [np.stack(np.nonzero(feeds["x"]))]) for feeds in flags((3, 4), dtype)]
    same(nonzero((3, 4), dtype), pairs)


def test_nonzero_of_special_numbers() -> None:
    x = np.array([0.0, -0.0, np.nan, np.inf, 1e-45], np.float32)
    same(nonzero((5,), np.float32), [({"x": x}, [np.array([[2, 3, 4]])])])


def test_nonzero_of_a_scalar() -> None:
    """A scalar has no coordinates, as the specification says; ONNX Runtime gives it one."""
    pairs = [
        ({"x": np.array(value, np.float32)}, [np.empty((0, count), np.int64)])
        for value, count in ((2, 1), (0, 0))
    ]
    same(nonzero((), np.float32), pairs)


@pytest.mark.parametrize(
    ("shape", "count", "attributes"),
    [
        ((2, 3), 6, {}),
        ((2, 3), 4, {}),
        ((4, 3), 4, {"axis": 0}),
        ((2, 5, 3), 5, {"axis": 1}),
        ((2, 3, 4), 3, {"axis": -1}),
        ((0, 3), 3, {"axis": 1}),
    ],
)
def test_compress(shape: tuple[int, ...], count: int, attributes: dict[str, int]) -> None:
    """Conditions as long as the axis, and shorter ones."""
    model = OnnxBuilder()
    x, condition = model.input("x", shape), model.input("condition", (count,), np.bool_)
    chosen = model.node("Compress", x, condition, **attributes)
    model.output(chosen, ["n"] * (len(shape) if attributes else 1))
    rng = np.random.default_rng(0)
    x_value = rng.standard_normal(shape).astype(np.float32)
    conditions = [rng.integers(0, 2, count) > 0, np.zeros(count, bool), np.ones(count, bool)]
    same_as_onnx_runtime(model, [{"x": x_value, "condition": each} for each in conditions])


def test_compress_of_bfloat16_through_both_entries() -> None:
    model = OnnxBuilder(opset=28)
    x, condition = model.input("x", (4, 2), BFLOAT16), model.input("condition", (4,), np.bool_)
    model.output(model.node("Compress", x, condition, axis=0), ("n", 2), BFLOAT16)
    x_value = np.arange(8).reshape(4, 2).astype(BFLOAT16)
    keep = np.array([True, False, True, False])
    session = same(model, [({"x": x_value, "condition": keep}, [x_value[keep]])])
    (result,) = session.executable.run(x_value, keep)
    assert tuple(result.shape) == (2, 2)


def test_how_a_dynamic_output_is_described() -> None:
    model = nonzero((2, 3), np.float32)
    model.output(model.node("Transpose", "NonZero0"), (None, 2), np.int64)
    session = session_of(model)
    assert [each.shape for each in session.get_outputs()] == [[2, "found"], [None, 2]]
    first, second = session.executable.outputs
    assert first == OutputInfo("NonZero0", (2, "found"), "int64")
    assert str(second) == "Transpose1: int64[?, 2]"
    assert first.static_shape is None and first.nbytes is None


def test_an_exported_library(tmp_path: Path) -> None:
    """The library runs on TVM's C++ runtime alone."""
    executable = session_of(nonzero((2, 3), np.float32)).executable
    path = executable.export(tmp_path / "nonzero.so")
    loaded = tvm_hybrid.load(path)
    assert loaded.outputs == executable.outputs
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    expected = np.stack(np.nonzero(x))
    np.testing.assert_array_equal(loaded.run(x)[0].numpy(), expected)
    done = run_on_runtime_alone(path, x, tmp_path)
    assert done.stdout.split() == ["[]", "False"], done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)


def test_a_fallback_in_the_same_library(tmp_path: Path) -> None:
    """Both programs contain TVM functions that compute sizes."""
    model = nonzero((2, 3), np.float32).model()
    executable = tvm_hybrid.compile(model, num_threads=1, records=[], fallback="scalar")
    loaded = tvm_hybrid.load(executable.export(tmp_path / "nonzero.so"))
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    np.testing.assert_array_equal(loaded.run(x)[0].numpy(), np.stack(np.nonzero(x)))


def test_a_profile() -> None:
    profile = session_of(nonzero((2, 3), np.float32)).executable.profile(repeat=1)
    assert any("places" in row.function for row in profile.rows)
