"""LayerNormalization: statistics, factors of any shape, all float types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import tvm_hybrid

from .models import f32, make_model, random

CODES = {
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "bfloat16": TensorProto.BFLOAT16,
}
# One rounding of the result, which is computed in at least 24 bits. The result is a sum of two
# terms of at most 16, each rounded a few times.
TOLERANCES = {"float16": 2**-11, "float32": 2**-21, "float64": 2**-50, "bfloat16": 2**-8}
EPSILON = float(np.float32(1e-3))  # an attribute of ONNX has 32 bits
# The axis, the factor's shape and the bias's.
FORMS = [
    (-1, (5,), (5,)),
    (1, (4, 5), (4, 5)),
    (-3, (3, 4, 5), None),
    (-2, (5,), (4, 1)),
    (2, (3, 1, 1), (1,)),
]


def normalized(
    x: NDArray[np.float64], axis: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The normalised value, its mean and its inverse deviation, after ONNX's specification."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + EPSILON)
    return (x - mean) * inverse, mean, inverse


@pytest.mark.sampled
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("dtype", CODES)
def test_forms(dtype: str, statistics: bool) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = (random(3, 4, 5) + np.float32(0.5)).astype(kind)
    nodes, outputs, constants, wanted = [], [], {}, []
    for number, (axis, scale, bias) in enumerate(FORMS):
        w, b = random(*scale, seed=number).astype(kind), random(*(bias or ()), seed=9).astype(kind)
        names = [f"w{number}", *([f"b{number}"] if bias is not None else [])]
        constants |= dict(zip(names, (w, b), strict=False))
        results = [f"{name}{number}" for name in ("y", *(("m", "s") if statistics else ()))]
        nodes.append(
            helper.make_node(
                "LayerNormalization", ["x", *names], results, axis=axis, epsilon=EPSILON
            )
        )
        outputs += [(results[0], CODES[dtype], None), *(f32(name) for name in results[1:])]
        y, mean, inverse = normalized(x.astype(np.float64), axis)
        y = y * w + (b.astype(np.float64) if bias is not None else 0)
        wanted += [y, mean, inverse] if statistics else [y]
    for index, (name, code, _) in enumerate(outputs):
        outputs[index] = (name, code, wanted[index].shape)
    model = make_model(nodes, [("x", CODES[dtype], x.shape)], outputs, constants)
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    for got, exact in zip(session.run(None, {"x": x}), wanted, strict=True):
        bound = TOLERANCES[dtype] if got.dtype == kind else TOLERANCES["float32"]
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=bound, atol=32 * bound)


def test_statistics_leave_the_kernel_as_it_is() -> None:
    """The normalisation's region does not change if statistics are outputs, too."""
    anchors = []
    for names in (["y"], ["y", "m", "s"]):
        node = helper.make_node("LayerNormalization", ["x", "w", "b"], names)
        outputs = [f32("y", 8, 32), f32("m", 8, 1), f32("s", 8, 1)]
        constants = {"w": random(32), "b": random(32)}
        model = make_model([node], [f32("x", 8, 32)], outputs[: len(names)], constants)
        report = tvm_hybrid.InferenceSession(model, num_threads=1, records=[]).explain()
        anchors.append([item.kernel for item in report.taken if "layer_norm" in item.kernel])
    assert len(anchors[0]) == 1 and anchors[0] == anchors[1]
