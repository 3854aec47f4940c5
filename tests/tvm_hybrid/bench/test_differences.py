"""What the report says about differing results: by how much, where, and why."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tvm_hybrid.bench.compare import Judge, Tolerance, difference, distance

F16 = [[1, 2], [3, np.inf]]
A = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def said(result: np.ndarray, right: np.ndarray, tolerance: Tolerance, *reasons: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return difference("y", result, right, distance(result, right), tolerance, reasons)


def test_the_element_that_is_furthest_off() -> None:
    result = A.copy()
    result[1, 0], result[0, 1] = 5, 2.5
    text = said(result, A, Tolerance(0.25), "a reason", "another")
    assert text == (
        "by 5.0e-01 of the largest value; most at output 'y'[1, 0], which is 5.0 instead of 3.0; "
        "1 of 4 elements by more than the 2.5e-01 that rounding explains: a reason; another"
    )


@pytest.mark.parametrize(
    ("result", "right", "text"),
    [
        (A[:1], A, "in shape: output 'y' has (1, 2) instead of (2, 2)"),
        (A.astype(np.float64), A, "in type: output 'y' is float64 instead of float32"),
        (
            np.array([1, np.nan, np.nan], np.float32),
            np.array([1, np.nan, 2], np.float32),
            "where it is finite: output 'y'[2], which is nan instead of 2.0, one of 1 such "
            "elements of 3",
        ),
        (
            np.array([np.inf, -np.inf, 1]),
            np.array([-np.inf, -np.inf, 1]),
            "where it is finite: output 'y'[0], which is inf instead of -inf, one of 1 such "
            "elements of 3",
        ),
        (
            np.array(F16, np.float16),
            np.array([[1, 2], [3, 4]], np.float16),
            "where it is finite: output 'y'[1, 1], which is inf instead of 4.0, one of 1 such "
            "elements of 4: numbers above 65504 do not fit into float16",
        ),
        (
            np.array([200, 3], np.uint8),
            np.array([195, 4], np.uint8),
            "by 5 of 255 steps; most at output 'y'[0], which is 200 instead of 195; 1 of 2 "
            "elements by more than the 1 steps that rounding explains",
        ),
        (
            np.array([7, 3]),
            np.array([7, 9]),
            "by 6, of results that have to be equal; most at output 'y'[1], which is 3 instead of "
            "9; 1 of 2 elements by more than the 0 that rounding explains",
        ),
        (
            np.array([np.nan, 3], np.float32),
            np.array([np.nan, 4], np.float32),
            "by 2.5e-01 of the largest value; most at output 'y'[1], which is 3.0 instead of 4.0; "
            "1 of 2 elements by more than the 1.0e-05 that rounding explains",
        ),
    ],
)
def test_each_kind_of_difference(result: np.ndarray, right: np.ndarray, text: str) -> None:
    assert said(result, right, Tolerance(1e-5, 1)) == text


def test_a_scalar_has_no_index() -> None:
    text = said(np.array(2.0), np.array(1.0), Tolerance(1e-5))
    assert "most at output 'y', which is 2.0 instead of 1.0" in text


def test_the_worst_of_several_outputs_is_told_and_products_of_bfloat16_are_a_reason() -> None:
    judge = Judge([A, A], Tolerance(1e-5), "", ["a", "b"])
    verdict = judge.verdict([A + 1, A + 2], True, "bf16")
    assert verdict.max_rel == 0.5
    assert verdict.complaint.startswith(
        "differs by 5.0e-01 of the largest value; most at output 'b'"
    )
    assert verdict.complaint.endswith(": its products are of bfloat16")
    near = judge.verdict([A, A + 1e-6], True, "bf16")
    assert not near.complaint and 0 < near.max_rel <= 1e-5
    assert judge.verdict([A], False).complaint == "gives 1 outputs instead of 2"
