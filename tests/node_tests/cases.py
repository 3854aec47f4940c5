"""Loads and runs the cases, and compares their results with the expected values."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

import tvm_hybrid

PASSING = Path(__file__).with_name("passing.txt")
# The expected values of bfloat16 and float16 are rounded, in some cases after every operator: four
# roundings, each of half a unit in the last place, of the expected value and of our result.
NARROW_TOLERANCE = {"bfloat16": 4 * 2.0**-8, "float16": 4 * 2.0**-10}

# The expected values of these cases were computed in float32, with errors where exact values are
# zeros: twelve roundings of values up to 99 in the transform and its inverse.
ROUNDED = dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), 12 * 2.0**-24 * 99)
# The cases drew these operators' results with NumPy's generator; no other generator draws them.
RANDOM = frozenset({"Bernoulli", "RandomUniformLike"})


@functools.cache
def all_cases() -> dict[str, TestCase]:
    """The cases by name; building them takes some 15 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the references warn of NaN and overflow
        from onnx.backend.test.loader import load_node_model_tests

        return {case.name: case for case in load_node_model_tests()}


def passing() -> tuple[str, list[str]]:
    """The version of `onnx` that `passing.txt` is for, and the cases in it."""
    version, *names = PASSING.read_text().split()
    return version, names


def run(case: TestCase) -> None:
    """Runs a case.

    Raises
    ------
    TvmHybridError
        If the model is refused.
    AssertionError
        If a result is wrong.
    """
    assert case.model is not None
    assert case.data_sets
    # One thread: a case is too small for more threads, and compiles faster.
    session = tvm_hybrid.InferenceSession(case.model, num_threads=1)
    hold(case, lambda feeds: session.run(None, feeds))


def hold(case: TestCase, run_model: Callable[[dict[str, Any]], list[Any]]) -> None:
    """Checks a function's results for a case's inputs against the case's expected values."""
    names = [item.name for item in case.model.graph.input]
    random = any(node.op_type in RANDOM for node in case.model.graph.node)
    for inputs, outputs in case.data_sets:
        feeds = dict(zip(names, map(value_of, inputs), strict=True))
        results = run_model(feeds)
        assert len(results) == len(outputs)
        for result, output in zip(results, outputs, strict=True):
            expected = value_of(output)
            found = result if isinstance(expected, list) else [result]
            parts = expected if isinstance(expected, list) else [expected]
            assert isinstance(found, list)
            for one, other in zip(found, parts, strict=True):
                if other is None:
                    assert one is None
                elif random:
                    assert (one.dtype, one.shape) == (other.dtype, other.shape)
                else:
                    compare(one, np.asarray(other), case.rtol, ROUNDED.get(case.name, case.atol))


def value_of(given: Any) -> Any:
    """Converts a case's value to an array; cases also store a TensorProto or a number."""
    if isinstance(given, onnx.TensorProto):
        return numpy_helper.to_array(given)
    return given if given is None or isinstance(given, list) else np.asarray(given)


def compare(result: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> None:
    """Compares a result with the expected value: integers exactly, floats within the tolerance."""
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(result, expected)
        return
    narrow = NARROW_TOLERANCE.get(expected.dtype.name)
    if narrow is not None:
        result, expected = result.astype(np.float32), expected.astype(np.float32)
        rtol, atol = max(rtol, narrow), max(atol, narrow * float(np.finfo(np.float16).tiny))
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=atol)
