"""OneHot: all types, every axis, negative indices and indices outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tvm_hybrid
from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx

from .models import make_model

DEPTH = 4
KINDS = {"i8": "int8", "i64": "int64", "u64": "uint64", "f32": "float32"}
INDICES = {
    "i8": [[0, 3, -4], [2, -5, 4]],
    "i64": [[-(2**63), 2**63 - 1, -1], [1, 2, 0]],
    "u64": [[2**64 - 1, 3, 0], [2**64 - 4, 4, 1]],
    "f32": [[1.9, 3, -1], [2, 9, -9]],  # converted to int64
}


def code(dtype: Any) -> int:
    """ONNX's number of a type."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "float16", "uint64"])
def test_forms(dtype: str) -> None:
    nodes, outputs, wanted = [], [], []
    feeds = {name: np.array(INDICES[name], kind) for name, kind in KINDS.items()}
    feeds["v"] = np.array([1, 0] if dtype == "bool" else [7, 2], dtype)
    for name, indices in feeds.items():
        if name == "v":
            continue
        numbers = [int(item) for item in indices.ravel()]
        classes = [i + DEPTH if i < 0 else i for i in numbers]
        rows = np.array([[c == k for k in range(DEPTH)] for c in classes])
        full = np.where(rows, feeds["v"][1], feeds["v"][0]).reshape(2, 3, DEPTH)
        for axis in (-1, 0, -2):
            output = f"{name}_{axis}"
            nodes.append(helper.make_node("OneHot", [name, "d", "v"], [output], axis=axis))
            wanted.append(np.moveaxis(full, -1, axis))
            outputs.append((output, code(dtype), wanted[-1].shape))
    inputs = [(name, code(array.dtype), array.shape) for name, array in feeds.items()]
    model = make_model(nodes, inputs, outputs, {"d": np.array([DEPTH], np.float32)})
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    for got, exact in zip(session.run(None, feeds), wanted, strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize(
    ("depth", "axis", "words"), [(-1, 0, "'depth' must be"), (3, 2, "'axis' must be")]
)
def test_what_is_refused(depth: int, axis: int, words: str) -> None:
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"], axis=axis)
    constants = {"d": np.array(depth, np.int64), "v": np.array([0, 1], np.float32)}
    inputs = [("i", code("int64"), [3])]
    model = make_model([node], inputs, [("y", code("float32"), None)], constants)
    with pytest.raises(ModelError, match=words):
        import_onnx(model)
