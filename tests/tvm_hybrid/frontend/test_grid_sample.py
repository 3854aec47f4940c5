"""GridSample of all pairs of types compared with ONNX Runtime's in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tvm_hybrid.errors import UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import make_model, onnxruntime_run, random
from .test_values import declared, one, run


@pytest.mark.sampled
@pytest.mark.parametrize(
    "dtypes",
    [
        ("float16", "float16"),
        ("float32", "float64"),
        ("float64", "float32"),
        ("float16", "float32"),
    ],
)
def test_types(dtypes: tuple[str, str]) -> None:
    x = random(2, 3, 5, 6).astype(dtypes[0])
    grid = np.random.default_rng(1).uniform(-1.3, 1.3, (2, 4, 7, 2)).astype(dtypes[1])
    modes = ("linear", "cubic")
    nodes = [helper.make_node("GridSample", ["x", "g"], [mode], mode=mode) for mode in modes]
    results = []
    for feeds in ({"x": x, "g": grid}, {"x": x.astype(np.float64), "g": grid.astype(np.float64)}):
        y = np.zeros((2, 3, 4, 7), feeds["x"].dtype)
        inputs = [declared(name, array) for name, array in feeds.items()]
        model = make_model(nodes, inputs, [declared(mode, y) for mode in modes], opset=20)
        ours = feeds["x"] is x
        results.append(run(model, feeds) if ours else onnxruntime_run(model, feeds))
    # Four roundings of a coordinate up to 8, times slopes up to four times the largest element
    # along two axes; and, in float16, the rounding of the result.
    error = 0.0 if "float64" in dtypes else 4 * 8 * 2.0**-24 * 2 * 4 * float(np.abs(x).max())
    unit = float(np.finfo(dtypes[0]).eps) / 2
    for got, wanted in zip(*results, strict=True):
        assert got.dtype == dtypes[0]
        exact = np.abs(wanted)
        assert np.all(np.abs(got.astype(np.float64) - wanted) <= error + 1e-12 + unit * exact)


def test_integers_are_picked_but_not_mixed() -> None:
    feeds = {"x": np.arange(12, dtype=np.int32).reshape(1, 1, 3, 4), "g": random(1, 2, 3, 2)}
    (got,) = run(one_of(feeds, "nearest"), feeds)
    assert got.dtype == np.int32 and np.isin(got, feeds["x"]).all()
    with pytest.raises(UnsupportedOperatorError, match="int32 is not interpolated"):
        import_onnx(one_of(feeds, "linear"))


def one_of(feeds: dict[str, np.ndarray], mode: str) -> onnx.ModelProto:
    model = one("GridSample", feeds, opset=20, mode=mode)
    y = np.zeros((1, 1, 2, 3), np.int32)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(*declared("y", y)))
    return model
