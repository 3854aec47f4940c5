"""If with branches of different result shapes, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tvm_hybrid

from .models import onnxruntime_run, parsed, random


def _check(text: str, *several: NDArray) -> None:
    """One session gives ONNX Runtime's results for all values of x; few operators each."""
    model = parsed(text)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    for x in several:
        got, wanted = session.run(None, {"x": x}), onnxruntime_run(model, {"x": x})
        for one, other in zip(got, wanted, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _values() -> list[NDArray]:
    """Values that include a positive one, and values without any."""
    x = random(5, 40)
    return [x, -np.abs(x), np.full_like(x, np.nan)]


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "BOOL", "INT8"])
def test_branches_of_different_sizes(kind: str) -> None:
    elem_type = onnx.TensorProto.DataType.Value(kind)
    name = {"FLOAT": "float", "DOUBLE": "double", "BOOL": "bool", "INT8": "int8"}[kind]
    text = f"""
    agraph (float[5, 40] x) => ({name}[N, M] y)
    <float zero = {{0}}>
    {{
        largest = ReduceMax<keepdims = 0>(x)
        c = Greater(largest, zero)
        clean = Max(x, zero)
        values = Cast<to = {elem_type}>(clean)
        y = If(c) <
            then_branch = yes () => ({name}[5, 40] p) {{ p = Identity(values) }},
            else_branch = no () => ({name}[1, 3] q)
            {{
                starts = Constant<value = int64[2] {{1, 2}}> ()
                ends = Constant<value = int64[2] {{2, 5}}> ()
                q = Slice(values, starts, ends)
            }}>
    }}"""
    _check(text, *_values())


def test_a_branch_whose_size_depends_on_data() -> None:
    text = """
    agraph (float[5, 40] x) => (int64[2, N] y, float[2, N] z)
    <float zero = {0}>
    {
        largest = ReduceMax<keepdims = 0>(x)
        c = Greater(largest, zero)
        large = Greater(x, zero)
        y = If(c) <
            then_branch = yes () => (int64[2, K] p) { p = NonZero(large) },
            else_branch = no () => (int64[2, 0] q) { q = Constant<value = int64[2, 0] {}> () }>
        z = Cast<to = 1>(y)
    }"""
    _check(text, *_values()[:2])
