"""TfIdfVectorizer of integers compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tvm_hybrid.errors import UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import f32, make_model, onnxruntime_run, run_imported
from .test_values import declared

# Two 1-grams, three 2-grams and two 3-grams, and the columns that count them.
POOL = [1, 3, 0, 1, 1, 1, 2, 3, 1, 2, 1, 3, 3, 0]
STARTS, COLUMNS = [0, 2, 8], [3, 1, 0, 7, 2, 5, 4]
WEIGHTS = {"weights": [0.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]}


def model_of(x: np.ndarray, **attributes: Any) -> onnx.ModelProto:
    values = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 3,
        "max_skip_count": 2,
        "ngram_counts": STARTS,
        "ngram_indexes": COLUMNS,
        "pool_int64s": POOL,
    } | attributes
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **values)
    width = max(values["ngram_indexes"]) + 1
    return make_model([node], [declared("x", x)], [f32("y", *x.shape[:-1], width)])


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 3), (2, 2), (1, 1), (3, 3)])
@pytest.mark.parametrize("weights", [{}, WEIGHTS])
def test_counts(mode: str, lengths: tuple[int, int], weights: dict[str, list[float]]) -> None:
    """Several rows and one, longer and shorter than an n-gram with skips."""
    rng = np.random.default_rng(0)
    for x in (rng.integers(0, 4, (3, 9), np.int32), rng.integers(0, 4, 4, np.int64)):
        model = model_of(x, mode=mode, min_gram_length=lengths[0], max_gram_length=lengths[1],
                         **weights)  # fmt: skip
        (got,) = run_imported(import_onnx(model), {"x": x})
        np.testing.assert_array_equal(got, onnxruntime_run(model, {"x": x})[0])


def test_rows_of_nothing() -> None:
    x = np.zeros((2, 0), np.int64)
    (got,) = run_imported(import_onnx(model_of(x)), {"x": x})
    np.testing.assert_array_equal(got, np.zeros((2, 8), np.float32))


def test_two_ngrams_of_one_column() -> None:
    x = np.array([1, 3, 1, 2, 1])
    model = model_of(x, ngram_counts=[0], ngram_indexes=[1, 1], pool_int64s=[1, 3])
    (got,) = run_imported(import_onnx(model), {"x": x})
    np.testing.assert_array_equal(got, [0, 4])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"pool_int64s": None, "pool_strings": ["a"]}, "of strings"),
        ({"pool_int64s": [1, 1, *POOL[2:]]}, r"\(1,\) comes twice"),
        ({"ngram_indexes": [0, 1]}, "has no column"),
        ({"weights": [1.0]}, "1 weights for 7"),
        ({"ngram_indexes": [0, 0, 1, 2, 3, 4, 5], **WEIGHTS}, "the same column"),
        ({"mode": "DF"}, "none of TF"),
    ],
)
def test_what_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_onnx(model_of(np.zeros((2, 9), np.int64), **attributes))
