"""The cases, what they expect, and whether a result is that."""

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
# roundings, each of half a unit in the last place on either side.
NARROW_TOLERANCE = {"bfloat16": 4 * 2.0**-8, "float16": 4 * 2.0**-10}

# What these cases expect was computed in float32 and has errors where zeros are exact: twelve
# roundings, on the way there and back, of values up to 99.
ROUNDED = dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), 12 * 2.0**-24 * 99)
# Operators whose results the cases drew with NumPy's generator: no other one draws the same.
RANDOM = frozenset({"Bernoulli", "RandomUniformLike"})


@functools.cache
def all_cases() -> dict[str, TestCase]:
    """The cases by name. Making them takes some 15 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the references, about NaN and overflow
        from onnx.backend.test.loader import load_node_model_tests

        return {case.name: case for case in load_node_model_tests()}


def passing() -> tuple[str, list[str]]:
    """The version of `onnx` that the list is made for, and the names in it."""
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
    # One thread: a case is too small for more, and compiles faster.
    session = tvm_hybrid.InferenceSession(case.model, num_threads=1)
    hold(case, lambda feeds: session.run(None, feeds))


def hold(case: TestCase, run_model: Callable[[dict[str, Any]], list[Any]]) -> None:
    """Holds what a function gives for the inputs of a case against what the case expects."""
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
    """An array as arrays are; also those that cases write as a TensorProto or as one number."""
    if isinstance(given, onnx.TensorProto):
        return numpy_helper.to_array(given)
    return given if given is None or isinstance(given, list) else np.asarray(given)


def compare(result: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> None:
    """Holds a result against what is expected: integers to the bit, floats as the case says."""
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(result, expected)
        return
    narrow = NARROW_TOLERANCE.get(expected.dtype.name)
    if narrow is not None:
        result, expected = result.astype(np.float32), expected.astype(np.float32)
        rtol, atol = max(rtol, narrow), max(atol, narrow * float(np.finfo(np.float16).tiny))
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=atol)
