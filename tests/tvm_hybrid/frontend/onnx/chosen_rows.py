"""Models that start with rows selected by conditions, so that later sizes depend on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.compare import Feeds, same_as_onnx_runtime

ROWS = 66  # more than the largest input that a session compiles per value
X = np.random.default_rng(0).integers(-3, 4, (ROWS, 4)).astype(np.float32)
SOME, ONE = np.random.default_rng(1).random(ROWS) < 0.4, np.arange(ROWS) == 4
NONE, ALL = np.zeros(ROWS, bool), np.ones(ROWS, bool)

# The builder, and the names of two values: the rows that each of two conditions selects.
Build = Callable[[OnnxBuilder, str, str], str]
Output = tuple[Build, Sequence[int | str], type]


def chosen_rows(model: OnnxBuilder) -> tuple[str, str]:
    """Rows of X, selected by one condition and by another."""
    x = model.input("x", X.shape)
    conditions = [model.input(name, (ROWS,), np.bool_) for name in ("first", "second")]
    one, other = (model.node("Compress", x, condition, axis=0) for condition in conditions)
    return one, other


def count(model: OnnxBuilder) -> str:
    """The number of rows that the first condition selects, as a computed vector."""
    return model.node("ReduceSum", model.node("Cast", "first", to=7), model.constant([0]))


def model_of(outputs: Sequence[Output]) -> OnnxBuilder:
    """A model with the given outputs."""
    model = OnnxBuilder()
    one, other = chosen_rows(model)
    for build, shape, dtype in outputs:
        model.output(build(model, one, other), shape, dtype)
    return model


def feeds_of(first: np.ndarray, second: np.ndarray | None = None) -> Feeds:
    """Values of all inputs; the second condition is the reversed first one unless given."""
    return {"x": X, "first": first, "second": first[::-1] if second is None else second}


def compare(
    outputs: Sequence[Output], conditions: Sequence[np.ndarray] = (SOME, NONE, ALL, ONE)
) -> None:
    """Asserts ONNX Runtime's bits; values are integers, so the order of sums does not matter."""
    same_as_onnx_runtime(model_of(outputs), map(feeds_of, conditions))
