"""BatchNormalization with inputs of different types, and in training mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from tvm_hybrid.errors import UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import compare, f32, make_model, random

pytestmark = pytest.mark.turns

F16, F32, F64 = np.float16, np.float32, np.float64
# Sums of 40 values near 1 and a few later roundings; float16 is rounded once, at the end.
FLOAT_ERROR, HALF_ERROR = 1e-5, 2.0**-10


def statistics(*dtypes: Any) -> dict[str, np.ndarray]:
    """gamma, beta, mean and variance of three channels, in the given types."""
    values = [random(3, seed=seed) for seed in range(3)] + [np.array([0.5, 1, 2], F32)]
    names = ("gamma", "beta", "mean", "variance")
    return {n: v.astype(t) for n, v, t in zip(names, values, dtypes, strict=True)}


def normalizing(
    data: Any, given: dict[str, np.ndarray], outputs: str = "y", **attributes: Any
) -> ModelProto:
    """One node on [2, 3, 4, 5]; `given` are constants."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(data))
    running = helper.np_dtype_to_tensor_dtype(given["mean"].dtype)
    node = helper.make_node("BatchNormalization", ["x", *given], list(outputs), **attributes)
    results = [("y", code, (2, 3, 4, 5)), *((name, running, (3,)) for name in outputs[1:])]
    return make_model([node], [("x", code, (2, 3, 4, 5))], results, given, opset=15)


@pytest.mark.parametrize(
    ("data", "scale", "running"), [(F16, F32, F32), (F16, F16, F32), (F16, F32, F16)]
)
def test_every_input_may_have_its_type(data: Any, scale: Any, running: Any) -> None:
    given = statistics(scale, scale, running, running)
    x = random(2, 3, 4, 5).astype(data)
    wide = [value.astype(F64).reshape(-1, 1, 1) for value in given.values()]
    gamma, beta, mean, variance = wide
    wanted = ((x - mean) / np.sqrt(variance + 1e-5) * gamma + beta).astype(data)
    compare(normalizing(data, given), {"x": x}, [wanted], rtol=HALF_ERROR, atol=HALF_ERROR)


@pytest.mark.parametrize("outputs", ["y", "ymv"])
def test_training_normalizes_by_the_batch(outputs: str) -> None:
    """The result and the running variance use the population variance."""
    given = statistics(F32, F32, F32, F32)
    feeds = {"x": random(2, 3, 4, 5) * F32(3) + F32(1)}
    model = normalizing(F32, given, outputs, training_mode=1, momentum=0.7, epsilon=0.01)
    x = feeds["x"].astype(F64)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    gamma, beta = (given[name].reshape(-1, 1, 1) for name in ("gamma", "beta"))
    centred = x - mean.reshape(-1, 1, 1)
    y = centred / np.sqrt(variance.reshape(-1, 1, 1) + 0.01) * gamma + beta
    running = [
        given[name] * 0.7 + new * 0.3 for name, new in (("mean", mean), ("variance", variance))
    ]
    wanted = [value.astype(F32) for value in [y, *running]][: len(outputs)]
    compare(model, feeds, wanted, rtol=FLOAT_ERROR, atol=FLOAT_ERROR)


def test_training_in_float16_computes_in_float32() -> None:
    """float16 cannot hold the sum of 40 values of 3000."""
    given = statistics(F16, F16, F32, F32)
    x = (random(2, 3, 4, 5) + F32(3000)).astype(F16)
    model = normalizing(F16, given, "ymv", training_mode=1)
    wide = x.astype(F64)
    mean, variance = wide.mean((0, 2, 3)), wide.var((0, 2, 3))
    gamma, beta = (given[name].astype(F64).reshape(-1, 1, 1) for name in ("gamma", "beta"))
    centred = wide - mean.reshape(-1, 1, 1)
    y = centred / np.sqrt(variance.reshape(-1, 1, 1) + 1e-5) * gamma + beta
    running = [given["mean"] * 0.9 + mean * 0.1, given["variance"] * 0.9 + variance * 0.1]
    wanted = [y.astype(F16), *(value.astype(F32) for value in running)]
    # A float32 mean of 3000 is off by 2**-12; deviations of the values are about 1.
    compare(model, {"x": x}, wanted, rtol=HALF_ERROR, atol=2 * HALF_ERROR)


def test_the_training_mode_of_old_opsets_is_refused() -> None:
    given = statistics(F32, F32, F32, F32)
    node = helper.make_node("BatchNormalization", ["x", *given], ["y", "m", "v", "a", "b"])
    model = make_model([node], [f32("x", 1, 3, 2)], [f32("m", 3)], given, opset=9)
    with pytest.raises(UnsupportedOperatorError, match="training mode of an old opset"):
        import_onnx(model)
