"""Range with limits that are computed at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.chosen_rows import Build, compare
from tests.tvm_hybrid.frontend.onnx.compare import Feeds, same_as_onnx_runtime, session_of
from tvm_hybrid.errors import FeedError

NUMBERS = 65  # more than the largest input that a session compiles per value


def ranges(dtype: Any) -> OnnxBuilder:
    """Start, limit and delta are the first elements of an input."""
    model = OnnxBuilder()
    numbers = model.input("numbers", (NUMBERS,), dtype)
    limits = [model.node("Gather", numbers, model.constant(np.array(i))) for i in range(3)]
    model.output(model.node("Range", *limits), ("n",), dtype)
    return model


def feeds_of(values: tuple[float, ...], dtype: Any) -> Feeds:
    return {"numbers": np.array([*values, *[0] * (NUMBERS - len(values))], dtype)}


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_numbers_that_are_exact(dtype: Any) -> None:
    cases: list[tuple[float, ...]] = [(0, 5, 1), (1, 9, 3), (9, 1, -3), (3, 3, 1), (4, 1, 1)]
    if np.issubdtype(dtype, np.floating):
        cases += [(0.5, 2, 0.25), (1, -1, -0.5), (0, 1, 0.75)]
    same_as_onnx_runtime(ranges(dtype), [feeds_of(case, dtype) for case in cases])


def test_numbers_that_are_rounded() -> None:
    """Each element is rounded to float64, then to float32: at most 1 ulp, not one ulp per step."""
    (found,) = session_of(ranges(np.float32)).run(None, feeds_of((1, 50, 0.1), np.float32))
    delta = float(np.float32(0.1))
    exact = 1 + delta * np.arange(len(found))
    assert len(found) == int(np.ceil(49 / delta))
    np.testing.assert_array_equal(found, exact.astype(np.float32))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("dtype", "limits"),
    [
        (np.int64, (0, 3, 0)),
        (np.float32, (0, 3, 0)),
        (np.float32, (0, np.inf, 1)),
        (np.float32, (0, np.nan, 1)),
        (np.int64, (0, 2**62, 1)),
    ],
)
def test_lengths_that_are_not_finite(dtype: Any, limits: tuple[float, ...]) -> None:
    session = session_of(ranges(dtype))
    with pytest.raises(FeedError, match="size"):
        session.run(None, feeds_of(limits, dtype))


def test_a_length_that_follows_from_a_size() -> None:
    """The length is known to equal the number of rows."""

    def build(g: OnnxBuilder, one: str, _: str) -> str:
        zero, step = g.constant(np.array(0)), g.constant(np.array(1))
        rows = g.node("Gather", g.node("Shape", one), zero)
        return g.node("Add", g.node("Range", zero, rows, step), g.node("ArgMax", one, axis=1))

    outputs: list[tuple[Build, tuple[str, str], type]] = [(build, ("n", "m"), np.int64)]
    compare(outputs)
